//! Messages on a socket: a header of 12 bytes, a payload, and descriptors.

use super::request::Request;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use towpath_sys::poll::{wait_readable, wait_writable};
use towpath_sys::stream::{self, Received};

const HEADER: usize = 12;
/// Bits 1:0 of the flags.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// Most bytes of a payload. The longest one of a known request has 268.
const MAX_PAYLOAD: usize = 4096;
/// Most descriptors of a message that is not complete yet.
const MAX_PENDING: usize = stream::MAX_FDS;
/// How long a peer may leave no room for a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// A message that came.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// The number of its [`Request`], or of the one that it replies to.
    pub number: u32,
    /// It is a reply.
    pub is_reply: bool,
    /// It requires an acknowledgement.
    pub needs_reply: bool,
    /// Its payload.
    pub payload: Vec<u8>,
    /// The descriptors that came with it, however many, closed on drop.
    pub fds: Vec<OwnedFd>,
}

/// Why no message came, or none was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The peer has closed the connection.
    #[error("the peer has closed the connection")]
    Closed,
    /// The peer has closed the connection within a message.
    #[error("the peer has closed the connection within a message")]
    Torn,
    /// The header has another version.
    #[error("message {number} with flags {flags:#x}: version 1 is known")]
    Version {
        /// The number of the request.
        number: u32,
        /// The flags.
        flags: u32,
    },
    /// The payload is longer than any.
    #[error("message {number} with a payload of {size} bytes: 4096 at most")]
    Size {
        /// The number of the request.
        number: u32,
        /// Its size.
        size: u32,
    },
    /// Descriptors did not come with the first byte of a message.
    #[error("descriptors within a message, behind its first byte")]
    Descriptors,
    /// The peer does not read.
    #[error("the peer does not read its messages")]
    Full,
    /// The time is over.
    #[error("no message came in time")]
    TimedOut,
    /// A reply to another request than the last one.
    #[error("message {number} came, in place of the reply to {expected}")]
    Reply {
        /// The request whose reply was expected.
        expected: Request,
        /// The number of the message that came.
        number: u32,
    },
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// One end of a connection. It keeps what came of a message that is not complete.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    header: [u8; HEADER],
    /// Bytes of header and payload that came.
    have: usize,
    payload: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Channel {
    /// A connected stream socket.
    pub fn new(socket: OwnedFd) -> Channel {
        Channel { socket, header: [0; HEADER], have: 0, payload: Vec::new(), fds: Vec::new() }
    }

    /// The socket, and descriptors of a message that did not come to its end.
    #[must_use = "the descriptors are closed on drop"]
    pub fn into_parts(self) -> (OwnedFd, Vec<OwnedFd>) {
        (self.socket, self.fds)
    }

    /// The next message; `None` if it has not come, or not all of it. It does not wait.
    ///
    /// # Errors
    /// [`ChannelError`]: the connection can't be used any more then. The descriptors that came are
    /// in [`into_parts`](Channel::into_parts).
    pub fn receive(&mut self) -> Result<Option<Message>, ChannelError> {
        loop {
            let size = if self.have < HEADER { 0 } else { self.check_header()? };
            if self.have == HEADER + size && self.have >= HEADER {
                return Ok(Some(self.take()));
            }
            self.payload.resize(size, 0);
            let to = match self.header.get_mut(self.have..) {
                Some(rest) if !rest.is_empty() => rest,
                _ => self.payload.get_mut(self.have - HEADER..).unwrap_or_default(),
            };
            let got = match stream::receive(self.socket.as_fd(), to) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                got => got?,
            };
            let Received { len, mut fds, cut } = got;
            let (misplaced, first) = (!fds.is_empty() && self.have > 0, self.have == 0);
            // Kept also in an error: the caller knows how to close them.
            self.fds.append(&mut fds);
            if misplaced || cut || self.fds.len() > MAX_PENDING {
                return Err(ChannelError::Descriptors);
            }
            if len == 0 {
                return Err(if first { ChannelError::Closed } else { ChannelError::Torn });
            }
            self.have += len;
        }
    }

    /// Waits for the next message until `deadline`.
    ///
    /// # Errors
    /// As [`receive`](Channel::receive); [`ChannelError::TimedOut`].
    pub fn receive_until(&mut self, deadline: Instant) -> Result<Message, ChannelError> {
        loop {
            if let Some(message) = self.receive()? {
                return Ok(message);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !wait_readable(self.socket.as_fd(), Some(left))? {
                return Err(ChannelError::TimedOut);
            }
        }
    }

    /// Waits for the reply to `request` until `deadline`.
    ///
    /// # Errors
    /// As [`receive_until`](Channel::receive_until); [`ChannelError::Reply`] for any other message.
    pub fn receive_reply(&mut self, request: Request, deadline: Instant) -> Result<Message, ChannelError> {
        let message = self.receive_until(deadline)?;
        if message.is_reply && message.number == request.number() {
            return Ok(message);
        }
        let number = message.number;
        // They are not lost: the connection is over, and its owner closes them.
        self.fds = message.fds;
        Err(ChannelError::Reply { expected: request, number })
    }

    /// Sends a request, which requires an acknowledgement if `needs_reply`.
    ///
    /// # Errors
    /// [`ChannelError::Full`] if the peer leaves no room for a second; [`ChannelError::Closed`];
    /// [`ChannelError::Os`].
    pub fn request(
        &self,
        request: Request,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
        needs_reply: bool,
    ) -> Result<(), ChannelError> {
        self.send(request.number(), VERSION | if needs_reply { NEED_REPLY } else { 0 }, payload, fds)
    }

    /// Replies to a request.
    ///
    /// # Errors
    /// As [`request`](Channel::request).
    pub fn reply(&self, request: Request, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        self.send(request.number(), VERSION | REPLY, payload, fds)
    }

    fn send(&self, number: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        let size = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        if payload.len() > MAX_PAYLOAD {
            return Err(ChannelError::Size { number, size });
        }
        let bytes = [[number, flags, size].map(u32::to_ne_bytes).as_flattened(), payload].concat();
        let (mut rest, mut fds, deadline) = (&bytes[..], fds, Instant::now() + SEND_TIMEOUT);
        while !rest.is_empty() {
            match stream::send(self.socket.as_fd(), rest, fds) {
                Ok(sent) => (rest, fds) = (rest.get(sent..).unwrap_or_default(), &[]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if !wait_writable(self.socket.as_fd(), Some(left))? {
                        return Err(ChannelError::Full);
                    }
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    return Err(ChannelError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn word(&self, index: usize) -> u32 {
        let bytes = self.header.get(index * 4..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    /// The size of the payload.
    fn check_header(&self) -> Result<usize, ChannelError> {
        let [number, flags, size] = [0, 1, 2].map(|index| self.word(index));
        if flags & 3 != VERSION {
            return Err(ChannelError::Version { number, flags });
        }
        if size as usize > MAX_PAYLOAD {
            return Err(ChannelError::Size { number, size });
        }
        Ok(size as usize)
    }

    fn take(&mut self) -> Message {
        let (number, flags) = (self.word(0), self.word(1));
        self.have = 0;
        Message {
            number,
            is_reply: flags & REPLY != 0,
            needs_reply: flags & NEED_REPLY != 0,
            payload: std::mem::take(&mut self.payload),
            fds: std::mem::take(&mut self.fds),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::fs::File;

    fn ends() -> (Channel, OwnedFd) {
        let [a, b] = stream::pair().unwrap();
        (Channel::new(a), b)
    }

    fn bytes(number: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
        [[number, flags, payload.len() as u32].map(u32::to_ne_bytes).as_flattened(), payload].concat()
    }

    #[test]
    fn messages_come_in_order_each_with_its_own_descriptors() {
        let (mut near, far) = ends();
        let far = Channel::new(far);
        let file = File::open("/dev/null").unwrap();
        far.request(Request::SetMemTable, &[1; 8], &[file.as_fd(); 2], true).unwrap();
        far.request(Request::SetOwner, &[], &[], false).unwrap();
        far.request(Request::SetVringKick, &[2; 8], &[file.as_fd()], false).unwrap();
        let got = std::iter::from_fn(|| near.receive().unwrap());
        let got: Vec<_> = got.map(|m| (m.number, m.needs_reply, m.payload.len(), m.fds.len())).collect();
        assert_eq!(got, [(5, true, 8, 2), (3, false, 0, 0), (12, false, 8, 1)]);
        drop(far);
        assert!(matches!(near.receive(), Err(ChannelError::Closed)));
    }

    #[test]
    fn a_message_may_come_byte_by_byte() {
        let (mut near, far) = ends();
        let file = File::open("/dev/null").unwrap();
        let bytes = bytes(8, 1, &[7; 8]);
        for (i, byte) in bytes.iter().enumerate() {
            assert!(near.receive().unwrap().is_none());
            let fds = [file.as_fd()];
            stream::send(far.as_fd(), &[*byte], if i == 0 { &fds } else { &[] }).unwrap();
        }
        let message = near.receive().unwrap().unwrap();
        assert_eq!((message.number, message.payload, message.fds.len()), (8, vec![7; 8], 1));
    }

    #[test]
    fn a_header_that_no_front_end_sends_is_an_error() {
        for (flags, size, part) in [(0, 0, "version"), (2, 0, "version"), (1, 4097, "4096"), (1, u32::MAX, "4096")] {
            let (mut near, far) = ends();
            let bytes = [1, flags, size].map(u32::to_ne_bytes);
            stream::send(far.as_fd(), bytes.as_flattened(), &[]).unwrap();
            let error = near.receive().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let (mut near, far) = ends();
        stream::send(far.as_fd(), &bytes(8, 1, &[0; 8])[..15], &[]).unwrap();
        assert!(near.receive().unwrap().is_none());
        drop(far);
        assert!(matches!(near.receive(), Err(ChannelError::Torn)));
    }

    #[test]
    fn descriptors_behind_the_first_byte_are_an_error_and_are_handed_out() {
        let (mut near, far) = ends();
        let file = File::open("/dev/null").unwrap();
        let bytes = bytes(8, 1, &[0; 8]);
        stream::send(far.as_fd(), &bytes[..12], &[]).unwrap();
        stream::send(far.as_fd(), &bytes[12..], &[file.as_fd(); 3]).unwrap();
        assert!(matches!(near.receive(), Err(ChannelError::Descriptors)));
        assert_eq!(near.into_parts().1.len(), 3);
    }

    #[test]
    fn a_reply_is_one_to_the_request_that_was_sent() {
        let (mut near, far) = ends();
        let far = Channel::new(far);
        let soon = Instant::now() + Duration::from_secs(20);
        far.reply(Request::GetFeatures, &1u64.to_ne_bytes(), &[]).unwrap();
        assert_eq!(near.receive_reply(Request::GetFeatures, soon).unwrap().payload.len(), 8);
        far.request(Request::GetFeatures, &[], &[], false).unwrap();
        assert!(matches!(near.receive_reply(Request::GetFeatures, soon), Err(ChannelError::Reply { .. })));
        far.reply(Request::GetStatus, &[], &[]).unwrap();
        assert!(matches!(near.receive_reply(Request::GetFeatures, soon), Err(ChannelError::Reply { number: 40, .. })));
        assert!(matches!(near.receive_until(Instant::now()), Err(ChannelError::TimedOut)));
    }

    #[test]
    fn a_peer_that_does_not_read_ends_the_connection() {
        let (near, _far) = ends();
        let full = std::iter::repeat_with(|| near.reply(Request::GetConfig, &[0; 4096], &[])).find_map(Result::err);
        assert!(matches!(full, Some(ChannelError::Full)));
    }
}
