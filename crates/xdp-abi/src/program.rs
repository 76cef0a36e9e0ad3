//! Functions that load a BPF program. libxdp's own program is not needed here: the datapath's rules
//! select the packets of each program. A program's own XDP program can't run, and is refused with a
//! sentence: if it were ignored, the program would receive packets that it does not expect.

use crate::endpoint::Endpoint;
use crate::failure::{c_call, failure, os, report};
use crate::next::{errno, next, set_errno};
use crate::options;
use crate::socket::Socket;
use libc::{c_int, c_uint, c_void, size_t};
use std::ffi::CStr;
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

/// The refusal to attach a program to an interface that a datapath stands for; `None` for another
/// interface.
fn refuse(function: &str, ifindex: c_int) -> Option<c_int> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: a buffer of the required length; the result is null or a string in it.
    let known = unsafe { !libc::if_indextoname(ifindex as c_uint, name.as_mut_ptr()).is_null() };
    // SAFETY: a string with a terminating zero.
    let name = known.then(|| unsafe { CStr::from_ptr(name.as_ptr()) })?;
    Endpoint::stands_for(name).then(|| {
        let name = name.to_string_lossy();
        let why = format!(
            "packets of {name} come from a datapath, where no XDP program runs: select them by TOWPATH_XDP \
             ({name}=PATH?match=RULES), and start the program without its own one"
        );
        c_call(function, || Err(failure(libc::EOPNOTSUPP, why)))
    })
}

/// `xdp_program__attach`: libxdp's, but `-EOPNOTSUPP` for an interface that a datapath stands for.
/// No program of the kernel sees the datapath's packets, and the interface of that name, if there
/// is one, is left alone.
///
/// # Safety
/// libxdp's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_program__attach(
    program: *mut c_void,
    ifindex: c_int,
    mode: c_uint,
    flags: c_uint,
) -> c_int {
    type Type = unsafe extern "C" fn(*mut c_void, c_int, c_uint, c_uint) -> c_int;
    let next = next!(c"xdp_program__attach" as Type);
    let refused = refuse("xdp_program__attach", ifindex);
    // SAFETY: as the caller promises.
    refused.or_else(|| next.map(|next| unsafe { next(program, ifindex, mode, flags) })).unwrap_or(-libc::ENOSYS)
}

/// `xdp_program__attach_multi`: as [`xdp_program__attach`].
///
/// # Safety
/// libxdp's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xdp_program__attach_multi(
    programs: *mut *mut c_void,
    n: size_t,
    ifindex: c_int,
    mode: c_uint,
    flags: c_uint,
) -> c_int {
    type Type = unsafe extern "C" fn(*mut *mut c_void, size_t, c_int, c_uint, c_uint) -> c_int;
    let next = next!(c"xdp_program__attach_multi" as Type);
    let refused = refuse("xdp_program__attach_multi", ifindex);
    // SAFETY: as the caller promises.
    refused.or_else(|| next.map(|next| unsafe { next(programs, n, ifindex, mode, flags) })).unwrap_or(-libc::ENOSYS)
}

/// `bpf_map_update_elem`: libbpf's. If the kernel answers `EOPNOTSUPP`, as for the descriptor of a
/// socket of this library, and there are such sockets, a sentence is written to standard error.
///
/// # Safety
/// libbpf's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bpf_map_update_elem(
    map: c_int,
    key: *const c_void,
    value: *const c_void,
    flags: u64,
) -> c_int {
    type Type = unsafe extern "C" fn(c_int, *const c_void, *const c_void, u64) -> c_int;
    let Some(next) = next!(c"bpf_map_update_elem" as Type) else {
        set_errno(libc::ENOSYS);
        return -libc::ENOSYS;
    };
    // SAFETY: as the caller promises.
    let done = unsafe { next(map, key, value, flags) };
    let errno = errno();
    if done < 0 && errno == libc::EOPNOTSUPP && options::is_used() {
        let why = "the kernel takes no socket of a datapath into a map; packets are selected by TOWPATH_XDP";
        report("bpf_map_update_elem", why);
        set_errno(errno);
    }
    done
}
