//! Packets in plain byte buffers.

use towpath_wire::checksum;

use crate::offload::Offload;
use crate::segment::{Appended, Segment};

/// A packet in one contiguous buffer with room behind it: `Vec<u8>`, `Box<[u8]>`, `&mut [u8]`.
///
/// ```text
/// | packet ............ | room for the payload of those that follow |
/// 0                    len                            buffer's length
/// ```
///
/// Appending copies, and verifies the checksum in the same pass. A buffer for a full aggregate has
/// 65535 bytes and the link header; a shorter one is full earlier.
#[derive(Clone, Debug)]
pub struct Linear<B> {
    buffer: B,
    len: usize,
    offload: Offload,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Linear<B> {
    /// The first `len` bytes of `buffer` as a packet; all of it if it has fewer.
    pub fn new(buffer: B, len: usize, offload: Offload) -> Self {
        let len = len.min(buffer.as_ref().len());
        Self { buffer, len, offload }
    }

    /// The bytes of the packet.
    #[inline]
    pub fn packet(&self) -> &[u8] {
        self.buffer.as_ref().get(..self.len).unwrap_or_default()
    }

    /// The buffer, for reuse.
    pub fn into_buffer(self) -> B {
        self.buffer
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Segment for Linear<B> {
    #[inline]
    fn head(&self) -> &[u8] {
        self.packet()
    }

    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().get_mut(..self.len).unwrap_or_default()
    }

    #[inline]
    fn packet_len(&self) -> usize {
        self.len
    }

    #[inline]
    fn offload(&self) -> Offload {
        self.offload
    }

    #[inline]
    fn set_offload(&mut self, offload: Offload) {
        self.offload = offload;
    }

    #[inline]
    fn append(&mut self, other: Self, skip: usize, verify: Option<u16>) -> Appended<Self> {
        let from = other.packet().get(skip..).unwrap_or_default();
        let end = self.len + from.len();
        let Some(to) = self.buffer.as_mut().get_mut(self.len..end) else {
            return Appended::Full(other);
        };
        match verify {
            None => to.copy_from_slice(from),
            Some(rest) if checksum::add(rest, checksum::copy(to, from)) == checksum::VALID => {}
            Some(_) => return Appended::Corrupt(other),
        }
        self.len = end;
        Appended::Copied(other)
    }
}
