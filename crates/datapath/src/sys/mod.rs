//! Thin, safe wrappers of the system calls that the kernel-backed ports need.
//!
//! ```text
//!   netns    run something in another network namespace
//!   netdev   an interface's index, flags, MTU, addresses          (ioctl on a socket)
//!   tun      make and configure TUN/TAP devices                   (ioctl on /dev/net/tun)
//!   gather   write a header and a packet's chunks with one call   (writev)
//!   packet   AF_PACKET sockets and their options                  (setsockopt)
//!   mmsg     many packets with one call                           (sendmmsg)
//!   ring     packets in memory that the kernel fills              (PACKET_RX_RING)
//!   thread   pin a thread, let it wait for descriptors             (sched_setaffinity, ppoll, eventfd)
//! ```
//!
//! Every `unsafe` block that touches the operating system for a port lies here. What is exported is safe to call with any
//! argument: addresses come from references and packets that are borrowed for the length of the call, lengths from
//! the same place as the addresses.

pub(crate) mod gather;
pub(crate) mod mmsg;
pub(crate) mod netdev;
pub(crate) mod netns;
pub(crate) mod packet;
pub(crate) mod ring;
pub(crate) mod thread;
pub(crate) mod tun;

use std::io;

/// The result of a call that returns -1 and sets `errno` when it fails.
#[inline]
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// As [`check`], for calls that return a length.
#[inline]
fn check_len(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
