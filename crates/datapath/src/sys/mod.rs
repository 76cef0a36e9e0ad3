//! Thin, safe wrappers of the system calls that the kernel-backed ports need.
//!
//! ```text
//!   app      what applications are met with                         (epoll, eventfd)
//!   netns    run something in another network namespace
//!   netdev   an interface's index, flags, MTU, addresses          (ioctl on a socket)
//!   bpf      programs that the kernel runs on packets, and maps    (bpf)
//!   tun      make and configure TUN/TAP devices                   (ioctl on /dev/net/tun)
//!   gather   write a header and a packet's chunks with one call   (writev)
//!   packet   AF_PACKET sockets and their options                  (setsockopt)
//!   mmsg     many packets with one call                           (sendmmsg)
//!   ring     packets in memory that the kernel fills              (PACKET_RX_RING)
//!   features what a driver says that it can do with XDP           (generic netlink)
//!   xsk      AF_XDP sockets and their rings                       (AF_XDP)
//!   host     number of the kernel, its clocks                     (uname, clock_gettime)
//!   thread   pin a thread, let it wait for descriptors             (sched_setaffinity, ppoll, eventfd)
//! ```
//!
//! Every `unsafe` block that touches the operating system for a port lies here. What is exported is safe to call with any
//! argument: addresses come from references and packets that are borrowed for the length of the call, lengths from
//! the same place as the addresses.

pub(crate) mod app;
pub(crate) mod bpf;
pub(crate) mod features;
pub(crate) mod gather;
pub(crate) mod host;
pub(crate) mod mmsg;
pub(crate) mod netdev;
pub(crate) mod netns;
pub(crate) mod packet;
pub(crate) mod ring;
pub(crate) mod thread;
pub(crate) mod tun;
pub(crate) mod xsk;

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
