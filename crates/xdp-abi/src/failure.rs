//! Errors as C sees them: a negative errno, and a sentence on standard error.

use crate::next::set_errno;
use libc::c_int;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use towpath_client::{Error, protocol};

/// An errno, and the reason.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) errno: c_int,
    pub(crate) why: String,
}

/// A failure that this library finds.
pub(crate) fn failure(errno: c_int, why: impl Into<String>) -> Failure {
    Failure { errno, why: why.into() }
}

/// The failure of the last system call.
pub(crate) fn system(step: &str) -> Failure {
    os(step, &std::io::Error::last_os_error())
}

/// The failure of a system call.
pub(crate) fn os(step: &str, error: &std::io::Error) -> Failure {
    failure(error.raw_os_error().unwrap_or(libc::EIO), format!("{step}: {error}"))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let errno = match &error {
            Error::Os { source, .. } => source.raw_os_error().unwrap_or(match source.kind() {
                std::io::ErrorKind::TimedOut => libc::ETIMEDOUT,
                _ => libc::EINVAL,
            }),
            Error::Memory(_) => libc::ENOMEM,
            Error::Config(_) => libc::EINVAL,
            // As `bind` for a queue that another socket has, and for a descriptor that is no AF_XDP
            // socket.
            Error::Refused(refusal) => match refusal.code {
                protocol::Code::Rules => libc::EBUSY,
                protocol::Code::Full => libc::ENOBUFS,
                _ => libc::EINVAL,
            },
            Error::Closed => libc::ECONNRESET,
            _ => libc::EPROTO,
        };
        failure(errno, error.to_string())
    }
}

/// As [`c_call`], for a function that returns a pointer: null, with `errno` set, for a failure.
pub(crate) fn c_call_for<T>(function: &str, work: impl FnOnce() -> Result<*const T, Failure>) -> *const T {
    let mut made = std::ptr::null();
    let code = c_call(function, || work().map(|pointer| made = pointer));
    if code != 0 {
        set_errno(-code);
    }
    made
}

/// Runs the work of a function of the library. Returns 0, or a negative errno after it has printed
/// the reason.
pub(crate) fn c_call(function: &str, work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // A panic drops what the work owns; what others can see changes in single steps.
    let done = catch_unwind(AssertUnwindSafe(work));
    match done.unwrap_or_else(|_| Err(failure(libc::EIO, "a defect of this library"))) {
        Ok(()) => 0,
        Err(Failure { errno, why }) => {
            report(function, &why);
            -errno
        }
    }
}

/// Writes a sentence to standard error, which may be closed.
pub(crate) fn report(function: &str, what: &str) {
    let _ = writeln!(std::io::stderr(), "libtowpath_xdp: {function}: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_at_the_boundary() {
        assert_eq!(c_call("f", || panic!("on purpose")), -libc::EIO);
    }
}
