//! Functions that load a BPF program and give it sockets: a datapath needs neither, its rules say who receives what.

use crate::failure::{answer, failure, system};
use crate::socket::Socket;
use libc::c_int;

/// `xsk_setup_xdp_prog`: does nothing. For the map of sockets that libxdp would return there is a descriptor, of `/dev/null`, which the
/// caller may give to [`xsk_socket__update_xskmap`], and has to close.
///
/// # Errors
/// What the system says, as a negative number.
///
/// # Safety
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_setup_xdp_prog(_ifindex: c_int, xsks_map_fd: *mut c_int) -> c_int {
    answer("xsk_setup_xdp_prog", || {
        if xsks_map_fd.is_null() {
            return Ok(());
        }
        // SAFETY: the path is a string with an end.
        let fd = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(system("/dev/null"));
        }
        // SAFETY: not null, so it may be written to, as the caller promises.
        unsafe { xsks_map_fd.write(fd) };
        Ok(())
    })
}

/// `xsk_socket__update_xskmap`: does nothing. A socket receives from the moment when it was made.
///
/// # Errors
/// `-EINVAL` for a null pointer.
///
/// # Safety
/// Any values will do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_socket__update_xskmap(xsk: *mut Socket, _xsks_map_fd: c_int) -> c_int {
    answer(
        "xsk_socket__update_xskmap",
        || {
            if xsk.is_null() { Err(failure(libc::EINVAL, "xsk is null")) } else { Ok(()) }
        },
    )
}
