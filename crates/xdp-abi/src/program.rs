//! Functions that load a BPF program. They do nothing here: the datapath's rules select the packets
//! of each program.

use crate::failure::{c_call, failure, os};
use crate::socket::Socket;
use libc::c_int;
use std::fs::File;
use std::os::fd::IntoRawFd;

/// `xsk_setup_xdp_prog`: does nothing. libxdp returns a descriptor of the map of sockets. This one
/// returns a descriptor of `/dev/null`, which the caller may pass to [`xsk_socket__update_xskmap`],
/// and closes.
///
/// # Errors
/// The error of `open`, as a negative number.
///
/// # Safety
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_setup_xdp_prog(_ifindex: c_int, xsks_map_fd: *mut c_int) -> c_int {
    c_call("xsk_setup_xdp_prog", || {
        if xsks_map_fd.is_null() {
            return Ok(());
        }
        let file = File::options().read(true).write(true).open("/dev/null").map_err(|error| os("/dev/null", &error))?;
        // SAFETY: not null, so it may be written to, as the caller promises.
        unsafe { xsks_map_fd.write(file.into_raw_fd()) };
        Ok(())
    })
}

/// `xsk_socket__update_xskmap`: does nothing. A socket receives from its creation on.
///
/// # Errors
/// `-EINVAL` for a null pointer.
///
/// # Safety
/// Any values are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_socket__update_xskmap(xsk: *mut Socket, _xsks_map_fd: c_int) -> c_int {
    c_call(
        "xsk_socket__update_xskmap",
        || {
            if xsk.is_null() { Err(failure(libc::EINVAL, "xsk is null")) } else { Ok(()) }
        },
    )
}
