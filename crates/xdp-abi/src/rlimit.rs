//! `setrlimit` of `RLIMIT_MEMLOCK`. Programs for AF_XDP raise it before they create a socket, and
//! end if they have no privilege. The memory of this library's sockets is not locked: a datapath
//! maps it as it is.

use crate::next::{errno, next, set_errno};
use libc::{c_int, rlimit, rlimit64};

/// The answer of the next definition, but success if it refused `RLIMIT_MEMLOCK` for want of a
/// privilege.
fn answer(resource: c_int, done: Option<c_int>) -> c_int {
    match done {
        Some(0) => 0,
        Some(_) if resource == libc::RLIMIT_MEMLOCK as c_int && errno() == libc::EPERM => 0,
        Some(error) => error,
        None => {
            set_errno(libc::ENOSYS);
            -1
        }
    }
}

/// `setrlimit`: as the C library's, but 0 where the kernel refuses `RLIMIT_MEMLOCK` with `EPERM`.
/// The limit then stays as it is.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_int, limit: *const rlimit) -> c_int {
    let next = next!(c"setrlimit" as unsafe extern "C" fn(c_int, *const rlimit) -> c_int);
    // SAFETY: as the caller promises.
    answer(resource, next.map(|next| unsafe { next(resource, limit) }))
}

/// `setrlimit64`: as [`setrlimit`].
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_int, limit: *const rlimit64) -> c_int {
    let next = next!(c"setrlimit64" as unsafe extern "C" fn(c_int, *const rlimit64) -> c_int);
    // SAFETY: as the caller promises.
    answer(resource, next.map(|next| unsafe { next(resource, limit) }))
}
