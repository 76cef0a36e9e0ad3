//! Messages to and from the kernel's routing (`rtnetlink(7)`): dumps of its tables, and its
//! notifications of changes.
//!
//! The messages themselves are the caller's: this is the socket alone.

use super::netlink::Socket;
use super::{check, check_len, retry};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Notifications of the kernel: a bit of `sockaddr_nl` each (`RTMGRP_*`).
pub mod group {
    /// Interfaces.
    pub const LINK: u32 = libc::RTMGRP_LINK as u32;
    /// Neighbours of both families.
    pub const NEIGHBOUR: u32 = libc::RTMGRP_NEIGH as u32;
    /// IPv4 addresses.
    pub const IPV4_ADDRESS: u32 = libc::RTMGRP_IPV4_IFADDR as u32;
    /// IPv4 routes.
    pub const IPV4_ROUTE: u32 = libc::RTMGRP_IPV4_ROUTE as u32;
    /// IPv6 addresses.
    pub const IPV6_ADDRESS: u32 = libc::RTMGRP_IPV6_IFADDR as u32;
    /// IPv6 routes.
    pub const IPV6_ROUTE: u32 = libc::RTMGRP_IPV6_ROUTE as u32;
}

/// A socket of the namespace in which it was made.
#[derive(Debug)]
pub struct RouteSocket(Socket);

impl RouteSocket {
    /// A socket that gets the notifications of `groups`, see [`group`]; 0 for none.
    ///
    /// # Errors
    /// The error of `socket(2)` or `bind(2)`.
    pub fn new(groups: u32) -> io::Result<RouteSocket> {
        let socket = Socket::new(libc::NETLINK_ROUTE)?;
        // SAFETY: sockaddr_nl is plain data: all zeros are the kernel's choice of a port.
        let mut address: libc::sockaddr_nl = unsafe { MaybeUninit::zeroed().assume_init() };
        (address.nl_family, address.nl_groups) = (libc::AF_NETLINK as u16, groups);
        let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: the address and its length describe one sockaddr_nl that lives across the call.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
        Ok(RouteSocket(socket))
    }

    /// Sets the bytes of messages that may wait to be received, as far as the process may.
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub fn set_receive_buffer(&self, bytes: libc::c_int) -> io::Result<()> {
        let set = |option| {
            let len = size_of::<libc::c_int>() as libc::socklen_t;
            let at = (&raw const bytes).cast();
            // SAFETY: the address and its length describe one int.
            check(unsafe { libc::setsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, option, at, len) })
        };
        set(libc::SO_RCVBUFFORCE).or_else(|_| set(libc::SO_RCVBUF)).map(drop)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The error of `send(2)`.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        // SAFETY: address and length describe the message, which the kernel only reads.
        check_len(unsafe { libc::send(self.0.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) }).map(drop)
    }

    /// Receives messages into `buffer`, those of one call of the kernel; returns their length, or
    /// `None` if there are none now. Messages of other processes are discarded.
    ///
    /// # Errors
    /// The error of `recvfrom(2)`: `ENOBUFS` if notifications were lost. `InvalidData` for messages
    /// that are longer than the buffer.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            // SAFETY: as in `new`.
            let mut from: libc::sockaddr_nl = unsafe { MaybeUninit::zeroed().assume_init() };
            let mut from_len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
            let received = retry(|| {
                // SAFETY: address and length describe the buffer, which is borrowed exclusively,
                // and a sockaddr_nl that lives across the call.
                check_len(unsafe {
                    libc::recvfrom(
                        self.0.as_raw_fd(),
                        buffer.as_mut_ptr().cast(),
                        buffer.len(),
                        libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                        (&raw mut from).cast(),
                        &mut from_len,
                    )
                })
            });
            match received {
                // Port 0 is the kernel's.
                Ok(_) if from.nl_pid != 0 => {}
                Ok(len) if len > buffer.len() => return Err(io::ErrorKind::InvalidData.into()),
                Ok(len) => return Ok(Some(len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::wait_readable;
    use std::time::Duration;
    use towpath_testing::{Need, needs};

    const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

    #[test]
    fn the_kernel_dumps_its_interfaces_and_a_short_buffer_is_an_error() {
        let socket = RouteSocket::new(0).unwrap();
        socket.set_receive_buffer(1 << 20).unwrap();
        let mut buffer = vec![0; 1 << 16];
        assert_eq!(socket.receive(&mut buffer).unwrap(), None);
        // nlmsghdr and ifinfomsg: RTM_GETLINK, a dump.
        let mut request = [0u8; 32];
        request[0] = 32;
        request[4] = libc::RTM_GETLINK as u8;
        request[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
        socket.send(&request).unwrap();
        wait_readable(socket.as_fd(), PATIENCE).unwrap();
        let len = socket.receive(&mut buffer).unwrap().unwrap();
        assert!(len > 32);
        assert_eq!(u16::from_ne_bytes([buffer[4], buffer[5]]), libc::RTM_NEWLINK);
        // The end of the dump, or the answer to another one.
        socket.send(&request).unwrap();
        wait_readable(socket.as_fd(), PATIENCE).unwrap();
        assert_eq!(socket.receive(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn messages_of_other_sockets_than_the_kernels_are_discarded() {
        // The kernel passes on messages of privileged processes only.
        if !needs("messages_of_other_sockets_than_the_kernels_are_discarded", &[Need::Root]) {
            return;
        }
        let (socket, other) = (RouteSocket::new(0).unwrap(), RouteSocket::new(0).unwrap());
        // SAFETY: sockaddr_nl is plain data.
        let mut address: libc::sockaddr_nl = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: the address and its length describe a sockaddr_nl that lives across the call.
        check(unsafe { libc::getsockname(socket.0.as_raw_fd(), (&raw mut address).cast(), &mut len) }).unwrap();
        let message = [0u8; 16];
        let (bytes, to) = (message.as_ptr().cast(), (&raw const address).cast());
        // SAFETY: addresses and lengths describe the message and a sockaddr_nl, which are only
        // read.
        let sent = unsafe { libc::sendto(other.0.as_raw_fd(), bytes, message.len(), 0, to, len) };
        assert_eq!(check_len(sent).unwrap(), message.len());
        assert!(wait_readable(socket.as_fd(), PATIENCE).unwrap());
        assert_eq!(socket.receive(&mut [0; 64]).unwrap(), None);
    }
}
