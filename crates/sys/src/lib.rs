#![doc = include_str!("../README.md")]
//! # Modules
//!
//! ```text
//!   waiting      event        a counter that wakes a sleeper              eventfd
//!                aio          eventfds of others, signalled without wait  io_submit
//!                timer        timerfd
//!                epoll, poll  many descriptors to wait for
//!                affinity     the processors that a thread runs on
//!                membarrier   a fence in other processes
//!   memory       mmap         mappings, unmapped on drop
//!                memfd        a memfd's seals, identity and pages
//!                memory_limit what this process may use
//!                sigbus       mappings of files that another process can truncate
//!   sockets      unix_socket  UNIX sockets at paths                       bind, connect
//!                seqpacket    UNIX records with descriptors               sendmsg, recvmsg
//!                stream       UNIX streams with descriptors
//!                closer       a process that only closes descriptors of others
//!                uio, mmsg    a header and a packet's pieces in one call  writev, sendmmsg
//!                udp          datagrams with paths, segmented, coalesced  sendmmsg, recvmmsg
//!                af_packet    AF_PACKET sockets and their options
//!                packet_ring  frames in memory that the kernel fills      PACKET_RX_RING
//!                xsk          AF_XDP sockets, their UMEM and their rings
//!   interfaces   netlink      requests and answers, for those below        netlink(7)
//!                netdev       index, flags, MTU, addresses                ioctl on a socket
//!                netdev_genl  a driver's XDP features                     generic netlink
//!                rtnl         interfaces, counters, qdiscs, changes       rtnetlink
//!                route_socket dumps and notifications of routes           rtnetlink
//!                netns        run a closure in another network namespace
//!                tun          TUN/TAP devices                             ioctl on /dev/net/tun
//!                vhost_net    virtqueues that the kernel moves to a tap   ioctl on /dev/vhost-net
//!   the kernel   bpf          programs that run on packets, and maps
//!                host         version, clocks
//!                klog         the kernel's log
//!   rights       restrict     capabilities, Landlock, seccomp and no_new_privs of threads that run
//!                threads      the threads of this process at a moment
//!                sigsys       system calls that a seccomp filter refused, counted
//!   locks        mutex        a lock that a panic does not poison
//!   sync         the loom switch: atomics, locks and events, or loom's
//! ```
//!
//! `unsafe` is that of the calls, and of memory that the kernel maps or writes. Addresses and
//! lengths come from references that are borrowed across the call, or from mappings that the value
//! owns.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

pub mod af_packet;
pub mod affinity;
mod aio;
pub mod bpf;
pub mod closer;
pub mod epoll;
pub mod event;
pub mod host;
pub mod klog;
pub mod membarrier;
pub mod memfd;
pub mod memory_limit;
pub mod mmap;
pub mod mmsg;
mod mutex;
pub mod netdev;
pub mod netdev_genl;
mod netlink;
pub mod netns;
pub mod packet_ring;
pub mod poll;
pub mod restrict;
mod rights;
pub mod route_socket;
pub mod rtnl;
pub mod seqpacket;
mod sigbus;
pub mod sigsys;
pub mod stream;
pub mod sync;
pub mod threads;
pub mod timer;
pub mod tun;
pub mod udp;
pub mod uio;
pub mod unix_socket;
pub mod vhost_net;
pub mod xsk;

pub use aio::Signaller;
pub use epoll::Epoll;
pub use event::EventFd;
pub use mmap::Mmap;
pub use mutex::lock;
pub use timer::Timer;

use std::io;

/// The result of a call that returns -1 and sets `errno` when it fails.
#[inline]
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// As [`check`], for calls that return a length.
#[inline]
pub(crate) fn check_len(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Repeats a call that a signal interrupts.
///
/// # Errors
/// Those of the call but `Interrupted`.
pub fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
