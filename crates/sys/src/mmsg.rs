//! Many packets with one call: `sendmmsg(2)` without copying.
//!
//! ```text
//!   message i ──► header i (10 bytes), chunk, chunk, …      written for each call
//! ```

use super::check;
use super::uio::{self, EMPTY, Pieces};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// Most messages of one call: the packets of a batch.
pub const MESSAGES: usize = 64;

/// Bytes of the virtio-net header in front of each packet.
pub const HEADER: usize = 10;

/// Entries for the pieces of all packets of one call: four for each packet of a full batch.
const VECTORS: usize = 5 * MESSAGES;

/// The lists that `sendmmsg(2)` takes, kept from one call to the next.
pub struct Sender {
    messages: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
}

// SAFETY: the addresses in both lists are used only within `send`, which puts them there.
unsafe impl Send for Sender {}

impl Default for Sender {
    fn default() -> Sender {
        // SAFETY: mmsghdr is plain data; all zeroes are an empty message.
        let empty = || unsafe { MaybeUninit::zeroed().assume_init() };
        Sender { messages: (0..MESSAGES).map(|_| empty()).collect(), vectors: vec![EMPTY; VECTORS].into() }
    }
}

impl Sender {
    /// Sends packets from the front, each behind its header, until the headers, the packets or the
    /// lists end; returns how many. A packet of more than 319 pieces is never sent.
    ///
    /// # Errors
    /// The error of `sendmmsg(2)` for the first packet.
    #[inline]
    pub fn send(&mut self, to: impl AsFd, headers: &[[u8; HEADER]], packets: &[impl Pieces]) -> io::Result<usize> {
        let mut vectors = &mut *self.vectors;
        let mut n = 0;
        for ((message, header), packet) in self.messages.iter_mut().zip(headers).zip(packets) {
            if packet.count() + 1 > vectors.len() {
                break;
            }
            let used = uio::fill(vectors, header, packet);
            let (these, rest) = std::mem::take(&mut vectors).split_at_mut(used);
            message.msg_hdr.msg_iov = these.as_mut_ptr();
            message.msg_hdr.msg_iovlen = these.len() as _;
            vectors = rest;
            n += 1;
        }
        let fd = to.as_fd().as_raw_fd();
        // SAFETY: the first n messages were just filled from headers and packets that are borrowed
        // until the call returns; the kernel only reads what they point to.
        let sent =
            check(unsafe { libc::sendmmsg(fd, self.messages.as_mut_ptr(), n as libc::c_uint, libc::MSG_DONTWAIT) })?;
        Ok(usize::try_from(sent).unwrap_or(0).min(n))
    }
}
