//! `socket` with `AF_XDP`, which a program calls that has libxdp linked statically, or makes its
//! sockets itself. Those are sockets of the kernel, whose rings this library does not see. A
//! sentence on standard error names that.

use crate::failure::report;
use crate::next::{errno, next, set_errno};
use libc::c_int;
use std::sync::Once;

/// `socket`: the C library's. The first one with `AF_XDP` in a process writes a sentence to
/// standard error.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let Some(next) = next!(c"socket" as unsafe extern "C" fn(c_int, c_int, c_int) -> c_int) else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: as the caller promises.
    let made = unsafe { next(domain, kind, protocol) };
    if domain == libc::AF_XDP {
        static ONCE: Once = Once::new();
        let errno = errno();
        ONCE.call_once(|| {
            report(
                "socket",
                "the program makes AF_XDP sockets of the kernel: it has libxdp linked statically, or has none. \
                 A program that is linked with libxdp.so uses the datapath's (docs/c-abi.md)",
            );
        });
        set_errno(errno);
    }
    made
}
