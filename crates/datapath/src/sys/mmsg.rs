//! Many packets with one call: `sendmmsg(2)` out of packets as they lie.
//!
//! ```text
//!   message i ──► header i (10 bytes), chunk, chunk, …      written anew for each call
//! ```

use super::check;
use super::gather::{self, MAX_CHUNKS};
use crate::vnet::VnetHeader;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;
use towpath_packet::Packet;

/// Messages per call at most: as many as a batch has packets.
pub(crate) const MESSAGES: usize = 64;

type Header = [u8; VnetHeader::LEN];

const NOWHERE: libc::iovec = libc::iovec { iov_base: null_mut(), iov_len: 0 };

/// Entries for the chunks of all packets of one call: any single packet fits, and four chunks of each in a full batch.
const VECTORS: usize = 5 * MESSAGES;

const _: () = assert!(VECTORS > MAX_CHUNKS);

/// The lists that `sendmmsg(2)` takes, kept from one call to the next.
pub(crate) struct Sender {
    messages: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
}

// SAFETY: the addresses in both lists are used only within `send`, which puts them there.
unsafe impl Send for Sender {}

impl Sender {
    pub(crate) fn new() -> Sender {
        // SAFETY: mmsghdr is plain data; all zeroes are a message with nothing in it.
        let empty = || unsafe { MaybeUninit::zeroed().assume_init() };
        Sender { messages: (0..MESSAGES).map(|_| empty()).collect(), vectors: vec![NOWHERE; VECTORS].into() }
    }

    /// Sends packets from the front, each behind its header, as many as there are of both and as one call takes; returns how
    /// many. Chunks that others may write to meanwhile are named by address, never looked at.
    #[inline]
    pub(crate) fn send(&mut self, to: impl AsFd, headers: &[Header], packets: &[Packet]) -> io::Result<usize> {
        let mut vectors = &mut *self.vectors;
        let mut n = 0;
        for ((message, header), packet) in self.messages.iter_mut().zip(headers).zip(packets) {
            if packet.frags() + 2 > vectors.len() {
                break;
            }
            let used = gather::fill(vectors, header, packet);
            let (mine, rest) = std::mem::take(&mut vectors).split_at_mut(used);
            message.msg_hdr.msg_iov = mine.as_mut_ptr();
            message.msg_hdr.msg_iovlen = mine.len() as _;
            vectors = rest;
            n += 1;
        }
        let fd = to.as_fd().as_raw_fd();
        // SAFETY: the first n messages were just filled from headers and packets that are borrowed until the call returns; the
        // kernel only reads what they point to.
        let sent =
            check(unsafe { libc::sendmmsg(fd, self.messages.as_mut_ptr(), n as libc::c_uint, libc::MSG_DONTWAIT) })?;
        Ok(usize::try_from(sent).unwrap_or(0).min(n))
    }
}
