//! `recvmmsg(2)`: messages of many datagrams each, into buffers of one size.

use super::control::{self, Control, RECEIVE};
use super::name::Name;
use super::{MESSAGES, Path};
use crate::check;
use crate::uio::EMPTY;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

/// The lists that `recvmmsg(2)` takes, kept from one call to the next.
pub struct Receiver {
    messages: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control<RECEIVE>]>,
    received: usize,
}

// SAFETY: the addresses in the lists are used only within `receive`, which puts them there.
unsafe impl Send for Receiver {}
// SAFETY: a shared reference reads lengths, names and controls, never through an address.
unsafe impl Sync for Receiver {}

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Bytes of the message, also of those for which the buffer had no room.
    pub len: usize,
    /// Where the message came from.
    pub path: Path,
    /// The destination address in its IP header, if the socket reports it.
    pub destination: Option<IpAddr>,
    /// Bytes of each datagram but the last, if the kernel coalesced several (`UDP_GRO`).
    pub segment: Option<usize>,
    /// Control messages are missing: their buffer was too small.
    pub incomplete: bool,
}

impl Receiver {
    /// Lists for at most `messages` messages a call, and at most [`MESSAGES`].
    pub fn new(messages: usize) -> Receiver {
        let n = messages.clamp(1, MESSAGES);
        // SAFETY: mmsghdr is plain data; all zeroes are an empty message.
        let empty = || unsafe { MaybeUninit::<libc::mmsghdr>::zeroed().assume_init() };
        Receiver {
            messages: (0..n).map(|_| empty()).collect(),
            vectors: vec![EMPTY; n].into(),
            names: vec![Name::EMPTY; n].into(),
            controls: vec![Control([0; RECEIVE]); n].into(),
            received: 0,
        }
    }

    /// Receives messages, each into `size` bytes of `buffers`; returns how many. Only the first is
    /// waited for, and only if the socket blocks.
    ///
    /// # Errors
    /// The error of `recvmmsg(2)`: `WouldBlock` if there is no message; also what ICMP reported to
    /// a connected socket.
    pub fn receive(&mut self, from: impl AsFd, buffers: &mut [u8], size: usize) -> io::Result<usize> {
        self.received = 0;
        let mut n = 0;
        let lists = self.messages.iter_mut().zip(&mut self.vectors).zip(&mut self.names).zip(&mut self.controls);
        for ((((message, vector), name), control), buffer) in lists.zip(buffers.chunks_exact_mut(size.max(1))) {
            *vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut message.msg_hdr;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_name = name.0.as_mut_ptr().cast();
            header.msg_namelen = name.0.len() as libc::socklen_t;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = control.0.len() as _;
            header.msg_flags = 0;
            n += 1;
        }
        let (fd, flags) = (from.as_fd().as_raw_fd(), libc::MSG_WAITFORONE | libc::MSG_TRUNC);
        let none = std::ptr::null_mut();
        // SAFETY: the first n messages were just filled with buffers, names and controls that are
        // borrowed exclusively until the call returns, with their lengths; any bytes are values of
        // theirs.
        let received = unsafe { libc::recvmmsg(fd, self.messages.as_mut_ptr(), n, flags as _, none) };
        self.received = usize::try_from(check(received)?).unwrap_or(0).min(n as usize);
        Ok(self.received)
    }

    /// The message in buffer `at` of the last call; `None` if there is none, or its source is not
    /// an address of IP.
    pub fn message(&self, at: usize) -> Option<Message> {
        let message = self.messages[..self.received].get(at)?;
        let header = &message.msg_hdr;
        let reported = control::read(self.controls[at].0.get(..header.msg_controllen)?);
        let mut path = Path::to(self.names[at].read(header.msg_namelen as usize)?);
        (path.local, path.interface, path.class) = (reported.local, reported.interface, reported.class);
        Some(Message {
            len: message.msg_len as usize,
            path,
            destination: reported.destination,
            segment: reported.segment,
            incomplete: header.msg_flags & libc::MSG_CTRUNC != 0,
        })
    }
}
