//! `sendmmsg(2)`: messages of many datagrams each, without copying.
//!
//! ```text
//!   message ──► name (peer)
//!           ├─► pieces of one memory, in order          neighbours are one entry
//!           └─► control: UDP_SEGMENT, source, class     written for each call
//! ```

use super::control::{self, Control, SEND};
use super::name::Name;
use super::{MESSAGES, Path};
use crate::check;
use crate::uio::EMPTY;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

/// Pieces of the messages of one call.
const PIECES: usize = 1024;

/// The lists that `sendmmsg(2)` takes, kept from one call to the next.
pub struct Sender {
    messages: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control<SEND>]>,
    v6: bool,
}

// SAFETY: the addresses in the lists are used only within `Outgoing::send`, while `Outgoing`
// borrows what they point to.
unsafe impl Send for Sender {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl Sync for Sender {}

impl Sender {
    /// Lists for an IPv6 socket, or for an IPv4 one.
    pub fn new(v6: bool) -> Sender {
        // SAFETY: mmsghdr is plain data; all zeroes are an empty message.
        let empty = || unsafe { MaybeUninit::<libc::mmsghdr>::zeroed().assume_init() };
        Sender {
            messages: (0..MESSAGES).map(|_| empty()).collect(),
            vectors: vec![EMPTY; PIECES].into(),
            names: vec![Name::EMPTY; MESSAGES].into(),
            controls: vec![Control([0; SEND]); MESSAGES].into(),
            v6,
        }
    }

    /// An empty list of messages, whose pieces are parts of `bytes`.
    pub fn begin<'a>(&'a mut self, bytes: &'a [u8]) -> Outgoing<'a> {
        Outgoing { lists: self, bytes, messages: 0, vectors: 0 }
    }
}

/// Messages for one call.
pub struct Outgoing<'a> {
    lists: &'a mut Sender,
    bytes: &'a [u8],
    messages: usize,
    vectors: usize,
}

impl Outgoing<'_> {
    /// Appends a message of pieces, which the kernel cuts into datagrams of `segment` bytes if
    /// there is one. The destination is left out for a socket that is connected to it. A piece
    /// outside of the bytes is empty. Returns whether the lists had room.
    pub fn push(
        &mut self,
        path: &Path,
        connected: bool,
        segment: Option<u16>,
        pieces: impl IntoIterator<Item = Range<usize>>,
    ) -> bool {
        let at = self.messages;
        let lists = &mut *self.lists;
        let (Some(message), Some(name), Some(control)) =
            (lists.messages.get_mut(at), lists.names.get_mut(at), lists.controls.get_mut(at))
        else {
            return false;
        };
        let first = self.vectors;
        let mut next = first;
        for piece in pieces {
            let piece = self.bytes.get(piece).unwrap_or_default();
            if next > first {
                let last = &mut lists.vectors[next - 1];
                if last.iov_base.wrapping_byte_add(last.iov_len).cast_const() == piece.as_ptr().cast() {
                    last.iov_len += piece.len();
                    continue;
                }
            }
            let Some(vector) = lists.vectors.get_mut(next) else { return false };
            *vector = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
            next += 1;
        }
        let header = &mut message.msg_hdr;
        header.msg_iov = lists.vectors[first..].as_mut_ptr();
        header.msg_iovlen = (next - first) as _;
        let name_len = if connected { 0 } else { name.write(&path.peer, lists.v6) };
        header.msg_name = name.0.as_mut_ptr().cast();
        header.msg_namelen = name_len as libc::socklen_t;
        header.msg_controllen = control::write(&mut control.0, path, segment) as _;
        header.msg_control = control.0.as_mut_ptr().cast();
        self.vectors = next;
        self.messages += 1;
        true
    }

    /// Messages in the list.
    pub fn len(&self) -> usize {
        self.messages
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// Sends the messages from the front; returns how many. Blocks if the socket does.
    ///
    /// # Errors
    /// The error of `sendmmsg(2)` for the first message.
    pub fn send(&mut self, to: impl AsFd) -> io::Result<usize> {
        let n = self.messages as libc::c_uint;
        // SAFETY: the first n messages were filled by `push` from lists and bytes that `self`
        // borrows; none of them was moved since. The kernel only reads what they point to, and
        // writes the lengths in the messages.
        let sent = check(unsafe { libc::sendmmsg(to.as_fd().as_raw_fd(), self.lists.messages.as_mut_ptr(), n, 0) })?;
        Ok(usize::try_from(sent).unwrap_or(0).min(self.messages))
    }
}
