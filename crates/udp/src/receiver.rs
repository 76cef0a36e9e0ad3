//! The half that receives.

use crate::UdpConfig;
use std::fmt;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use towpath_sys::udp::{MESSAGES, Message, Path, Receiver, options};

/// Bytes for a message: an IP packet is no longer.
const SIZE: usize = 65_536;

/// Receives messages of one or, with `UDP_GRO`, many datagrams each, many with one call.
pub struct UdpReceiver {
    socket: Arc<UdpSocket>,
    lists: Receiver,
    buffers: Box<[u8]>,
    /// What is in the buffers; `None` for a message that is not passed on.
    messages: Vec<Option<Contents>>,
    stats: ReceiveStats,
    /// The socket's own count, when it was read last.
    drops: u32,
    lost: u64,
}

/// What a buffer holds.
struct Contents {
    path: Path,
    destination: Option<IpAddr>,
    len: usize,
    segment: usize,
}

/// What a receiver did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveStats {
    /// System calls that received anything.
    pub calls: u64,
    /// Datagrams.
    pub datagrams: u64,
    /// Their bytes, without headers.
    pub bytes: u64,
    /// Messages of several datagrams (`UDP_GRO`).
    pub coalesced: u64,
    /// Datagrams that are lost because a message was longer than its buffer.
    pub truncated: u64,
    /// Messages that are lost because the kernel did not say where from, or how long each datagram
    /// is: options of the socket that were set elsewhere use up the room for it.
    pub malformed: u64,
}

impl UdpReceiver {
    pub(crate) fn new(socket: Arc<UdpSocket>, config: &UdpConfig) -> io::Result<UdpReceiver> {
        let messages = config.receive_messages.clamp(1, MESSAGES);
        Ok(UdpReceiver {
            drops: options::drops(socket.as_fd())?,
            socket,
            lists: Receiver::new(messages),
            buffers: vec![0; messages * SIZE].into(),
            messages: Vec::with_capacity(messages),
            stats: ReceiveStats::default(),
            lost: 0,
        })
    }

    /// Receives messages in place of those of the last call; returns how many datagrams
    /// [`messages`](UdpReceiver::messages) has. A socket that blocks waits for the first.
    ///
    /// # Errors
    /// The error of `recvmmsg(2)`: `WouldBlock` if there is nothing. What ICMP reported to a
    /// connected socket (`ConnectionRefused`) is an error once.
    pub fn receive(&mut self) -> io::Result<usize> {
        self.messages.clear();
        let received = towpath_sys::retry(|| self.lists.receive(&*self.socket, &mut self.buffers, SIZE))?;
        self.stats.calls += 1;
        let before = self.stats.datagrams;
        for at in 0..received {
            let contents = self.lists.message(at).and_then(|message| self.stats.take(&message));
            self.stats.malformed += u64::from(contents.is_none());
            self.messages.push(contents);
        }
        Ok((self.stats.datagrams - before) as usize)
    }

    /// The messages of the last call.
    pub fn messages(&mut self) -> impl Iterator<Item = Datagrams<'_>> {
        let buffers = self.buffers.chunks_exact_mut(SIZE);
        self.messages.iter().zip(buffers).filter_map(|(contents, buffer)| {
            let Contents { path, destination, len, segment } = contents.as_ref()?;
            let bytes = buffer.get_mut(..*len)?;
            Some(Datagrams { path: *path, destination: *destination, segment: *segment, bytes })
        })
    }

    /// Messages that the kernel dropped since the socket was taken over: the receive buffer was
    /// full ([`UdpConfig::receive_buffer`]), or a checksum was wrong. Datagrams that it had
    /// coalesced before count once. One system call; at least one each 2³² drops keeps the count.
    ///
    /// # Errors
    /// The error of `getsockopt(2)`.
    pub fn lost(&mut self) -> io::Result<u64> {
        let drops = options::drops(self.socket.as_fd())?;
        self.lost += u64::from(drops.wrapping_sub(self.drops));
        self.drops = drops;
        Ok(self.lost)
    }

    /// What the receiver did.
    pub fn stats(&self) -> ReceiveStats {
        self.stats
    }

    /// The socket.
    pub fn socket(&self) -> &Arc<UdpSocket> {
        &self.socket
    }
}

impl ReceiveStats {
    /// Counts a message. Its whole datagrams that are in the buffer are its contents.
    fn take(&mut self, message: &Message) -> Option<Contents> {
        if message.incomplete {
            return None;
        }
        let segment = message.segment.unwrap_or(message.len).clamp(1, message.len.max(1));
        let len = if message.len > SIZE { SIZE - SIZE % segment } else { message.len };
        let datagrams = if len == message.len { len.div_ceil(segment).max(1) } else { len / segment };
        self.truncated += (message.len - len).div_ceil(segment) as u64;
        self.datagrams += datagrams as u64;
        self.bytes += len as u64;
        self.coalesced += u64::from(datagrams > 1);
        Some(Contents { path: message.path, destination: message.destination, len, segment })
    }
}

/// A received message: datagrams of one size, the last of which may be shorter.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datagrams<'a> {
    /// Where they came from, to which address of this host, by which interface, with which traffic
    /// class. [`Path::reply`] is the way back.
    pub path: Path,
    /// The destination address in their IP headers, which may be a group's.
    pub destination: Option<IpAddr>,
    /// Bytes of each datagram but the last; at least 1.
    pub segment: usize,
    /// The bytes of all.
    pub bytes: &'a mut [u8],
}

impl Datagrams<'_> {
    /// The datagrams, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let empty: Option<&[u8]> = self.bytes.is_empty().then_some(&[]);
        self.bytes.chunks(self.segment.max(1)).chain(empty)
    }

    /// The datagrams, in order, to be decrypted in place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let empty: Option<&mut [u8]> = self.bytes.is_empty().then_some(&mut []);
        self.bytes.chunks_mut(self.segment.max(1)).chain(empty)
    }
}

impl fmt::Debug for UdpReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpReceiver").field("socket", &self.socket).field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl AsFd for UdpReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for UdpReceiver {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
