//! What goes wrong, as C gets to know it: a negative errno, and a sentence on standard error.

use libc::c_int;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use towpath_client::{Error, protocol};

/// An errno and why.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) errno: c_int,
    pub(crate) why: String,
}

/// A failure of ours.
pub(crate) fn failure(errno: c_int, why: impl Into<String>) -> Failure {
    Failure { errno, why: why.into() }
}

/// What the system has just said.
pub(crate) fn system(step: &str) -> Failure {
    let error = std::io::Error::last_os_error();
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
            // As bind does for a queue that somebody else has, and for what is no AF_XDP socket's.
            Error::Refused(refusal) => match refusal.code {
                protocol::Code::Rules => libc::EBUSY,
                protocol::Code::Full => libc::ENOBUFS,
                _ => libc::EINVAL,
            },
            _ => libc::EPROTO,
        };
        failure(errno, error.to_string())
    }
}

/// Does what a function of the library is to do: 0, or a negative errno that has been explained.
pub(crate) fn answer(function: &str, work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // A panic leaves behind what the work had of its own, which is dropped; what others can see is changed in single steps.
    let done = catch_unwind(AssertUnwindSafe(work));
    match done.unwrap_or_else(|_| Err(failure(libc::EIO, "a defect of this library"))) {
        Ok(()) => 0,
        Err(Failure { errno, why }) => {
            // Whoever has closed standard error does not get to know.
            let _ = writeln!(std::io::stderr(), "libtowpath_xdp: {function}: {why}");
            -errno
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_at_the_boundary() {
        assert_eq!(answer("f", || panic!("on purpose")), -libc::EIO);
    }
}
