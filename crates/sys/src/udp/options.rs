//! Options of UDP sockets: what they report and do, what their buffers hold, what they dropped.

use crate::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

fn set(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: address and length describe the int, which the kernel only reads.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len) }).map(drop)
}

/// Integers of an option; those that the kernel does not have are 0.
fn get<const N: usize>(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int) -> io::Result<[libc::c_int; N]> {
    let mut values = [0; N];
    let mut len = size_of_val(&values) as libc::socklen_t;
    // SAFETY: address and length describe the integers, which live across the call.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, values.as_mut_ptr().cast(), &mut len) })?;
    Ok(values)
}

fn get_one(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int) -> io::Result<libc::c_int> {
    get(fd, level, option).map(|[value]| value)
}

/// The address family of a UDP socket: whether it is IPv6. `None` for a socket of another kind.
///
/// # Errors
/// The error of `getsockopt(2)`: `ENOTSOCK` for what is no socket.
pub fn is_v6(fd: BorrowedFd<'_>) -> io::Result<Option<bool>> {
    let domain = get_one(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    let udp = get_one(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL)? == libc::IPPROTO_UDP;
    Ok(match domain {
        libc::AF_INET if udp => Some(false),
        libc::AF_INET6 if udp => Some(true),
        _ => None,
    })
}

/// Whether an IPv6 socket carries no IPv4 (`IPV6_V6ONLY`).
///
/// # Errors
/// The error of `getsockopt(2)`.
pub fn is_v6_only(fd: BorrowedFd<'_>) -> io::Result<bool> {
    get_one(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY).map(|only| only != 0)
}

/// Whether the kernel cuts messages into datagrams (`UDP_SEGMENT`, since Linux 4.18).
pub fn has_segmentation(fd: BorrowedFd<'_>) -> bool {
    get_one(fd, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
}

/// Coalesces received datagrams of a flow (`UDP_GRO`, since Linux 5.0), or no longer.
///
/// # Errors
/// The error of `setsockopt(2)`: `ENOPROTOOPT` on a kernel without it.
pub fn set_gro(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    set(fd, libc::SOL_UDP, libc::UDP_GRO, on.into())
}

/// Reports the destination address, interface and traffic class of each message. An IPv6 socket
/// reports them for IPv4, too.
///
/// # Errors
/// The error of `setsockopt(2)`.
pub fn report_path(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    if v6 {
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
    }
    set(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
    set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)
}

/// A direction of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// Datagrams that wait to be received.
    Receive,
    /// Datagrams that wait to be sent.
    Send,
}

/// Sets the bytes of datagrams that may wait. `CAP_NET_ADMIN` allows any number, otherwise the
/// kernel grants `net.core.rmem_max` or `net.core.wmem_max` at most. A larger buffer stays.
/// Returns the bytes that were granted. The kernel's own memory for a datagram counts, too: it is
/// up to twice the bytes for full datagrams, and many times that for small ones (`socket(7)`).
///
/// # Errors
/// The error of `setsockopt(2)` or `getsockopt(2)`.
pub fn reserve(fd: BorrowedFd<'_>, buffer: Buffer, bytes: usize) -> io::Result<usize> {
    let (option, forced) = match buffer {
        Buffer::Receive => (libc::SO_RCVBUF, libc::SO_RCVBUFFORCE),
        Buffer::Send => (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE),
    };
    // The kernel keeps twice the value.
    let granted = || get_one(fd, libc::SOL_SOCKET, option).map(|bytes| usize::try_from(bytes / 2).unwrap_or(0));
    if granted()? < bytes {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX).min(libc::c_int::MAX / 2);
        set(fd, libc::SOL_SOCKET, forced, bytes).or_else(|_| set(fd, libc::SOL_SOCKET, option, bytes))?;
    }
    granted()
}

/// Messages that the socket dropped since it was opened, modulo 2³²: its receive buffer was full,
/// or a checksum was wrong (`SO_MEMINFO`, since Linux 4.12). Datagrams that the kernel coalesced
/// count once.
///
/// # Errors
/// The error of `getsockopt(2)`.
pub fn drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let values: [libc::c_int; libc::SK_MEMINFO_DROPS as usize + 1] = get(fd, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok(values[libc::SK_MEMINFO_DROPS as usize].cast_unsigned())
}
