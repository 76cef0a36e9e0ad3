//! Memory that is shared with the datapath, and the frames in it.

use crate::protocol::{Address, CHUNK, HEADER, MAX_CHUNKS};
use crate::request::{self, Segmentation};
use crate::socket::Error;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use towpath_packet::xsk_ring::Desc;
use towpath_packet::{Backing, Region};

/// Chunks of equal size in a sealed memfd.
#[derive(Debug)]
pub struct Umem {
    region: Region,
    chunk: u32,
    count: u32,
    unaligned: bool,
    /// Chunks that no frame stands for and no socket has.
    free: Mutex<Vec<u32>>,
}

impl Umem {
    /// `count` chunks of `chunk` bytes, a power of two from 256 to 32768.
    ///
    /// # Errors
    /// [`Error::Memory`] when the memory can't be had; [`Error::Config`] for other sizes.
    pub fn new(count: u32, chunk: u32) -> Result<Umem, Error> {
        if !chunk.is_power_of_two() {
            return Err(Error::Config(format!("chunks of {chunk} bytes: no power of two, so they are unaligned")));
        }
        Umem::make(count, chunk, false)
    }

    /// `count` chunks of `chunk` bytes, any number from 256 to 32768, one behind the other: no byte is wasted on frames that are just
    /// longer than a power of two.
    ///
    /// # Errors
    /// As for [`new`](Umem::new).
    pub fn unaligned(count: u32, chunk: u32) -> Result<Umem, Error> {
        Umem::make(count, chunk, true)
    }

    fn make(count: u32, chunk: u32, unaligned: bool) -> Result<Umem, Error> {
        if !CHUNK.contains(&chunk) || count == 0 || u64::from(count) > MAX_CHUNKS {
            return Err(Error::Config("from 1 to 1048576 chunks from 256 to 32768 bytes".to_owned()));
        }
        let region = Region::new(count as usize * chunk as usize, Backing::Memfd)?;
        Ok(Umem { region, chunk, count, unaligned, free: Mutex::new((0..count).rev().collect()) })
    }

    /// A frame of its own, empty; `None` when all are in use.
    pub fn alloc(&self) -> Option<Frame<'_>> {
        let index = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Frame { umem: self, index, start: 0, len: 0, continues: false, described: false })
    }

    /// Number of chunks.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of a chunk.
    pub fn chunk(&self) -> u32 {
        self.chunk
    }

    /// Whether chunks are [unaligned](Umem::unaligned).
    pub fn is_unaligned(&self) -> bool {
        self.unaligned
    }

    /// The byte `start` of a chunk, as rings have it.
    #[inline]
    pub(crate) fn address(&self, index: u32, start: u32) -> u64 {
        let base = u64::from(index) * u64::from(self.chunk);
        // A chunk has at most 32768 bytes.
        if self.unaligned { Address { base, offset: start as u16 }.word() } else { base + u64::from(start) }
    }

    /// The chunk and the byte in it that an address in a ring names; neither needs to exist.
    #[inline]
    pub(crate) fn locate(&self, address: u64) -> (u64, u64) {
        let chunk = u64::from(self.chunk);
        if self.unaligned {
            let Address { base, offset } = Address::of(address);
            (base / chunk, base % chunk + u64::from(offset))
        } else {
            (address / chunk, address % chunk)
        }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

/// A piece of the memory that belongs to its holder alone. Dropping it makes it free.
///
/// The datapath is trusted to keep to the protocol with the bytes, as the kernel is with those of an AF_XDP socket: it writes only to
/// frames that were posted, and reads those that were sent.
#[derive(Debug)]
pub struct Frame<'u> {
    umem: &'u Umem,
    index: u32,
    /// First byte in the chunk.
    start: u32,
    len: u32,
    continues: bool,
    /// There is a virtio-net header in front.
    described: bool,
}

impl<'u> Frame<'u> {
    /// The frame of a chunk.
    ///
    /// The caller has seen to it that there is no other one: the bytes of two would be the same.
    pub(crate) fn of(umem: &'u Umem, index: u32, range: Range<u32>, options: u32) -> Frame<'u> {
        let len = range.end.saturating_sub(range.start);
        let (continues, described) = (options & Desc::CONTINUED != 0, options & Desc::METADATA != 0);
        Frame { umem, index, start: range.start, len, continues, described }
    }

    /// Gives up the frame without making it free: its chunk, first byte, length.
    pub(crate) fn into_parts(self) -> (u32, u32, u32) {
        let parts = (self.index, self.start, self.len);
        std::mem::forget(self);
        parts
    }

    pub(crate) fn umem(&self) -> &'u Umem {
        self.umem
    }

    fn at(&self) -> usize {
        self.index as usize * self.umem.chunk as usize + self.start as usize
    }

    /// The bytes of the packet, or of its piece.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: chunk, start and length were bounded when the frame was made, so the bytes lie in the region, which the frame
        // borrows; no other frame stands for the chunk.
        unsafe { std::slice::from_raw_parts(self.umem.region.base().as_ptr().add(self.at()), self.len as usize) }
    }

    /// The bytes, to be changed.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the frame is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.umem.region.base().as_ptr().add(self.at()), self.len as usize) }
    }

    /// Makes the frame begin at byte `start` of its chunk and have `len` bytes, which hold whatever was there; false, and nothing
    /// changed, if the chunk has not so many.
    #[must_use]
    pub fn set_range(&mut self, start: u32, len: u32) -> bool {
        let fits = start.checked_add(len).is_some_and(|end| end <= self.umem.chunk);
        if fits {
            (self.start, self.len) = (start, len);
            self.described = false;
        }
        fits
    }

    /// Makes the frame a copy of `bytes`, from the chunk's first byte on; false, and nothing changed, if they are too many.
    #[must_use]
    pub fn put(&mut self, bytes: &[u8]) -> bool {
        let fits = u32::try_from(bytes.len()).is_ok_and(|len| self.set_range(0, len));
        if fits {
            self.bytes_mut().copy_from_slice(bytes);
        }
        fits
    }

    /// The virtio-net header of a packet that is not finished, in the first of its frames, as it came or was asked for; `None` for a packet
    /// that nothing is to be done about. See [`Config::offloads`](crate::Config::offloads).
    ///
    /// A packet that came with one is sent with it, unless its first frame's range was changed.
    pub fn vnet_header(&self) -> Option<[u8; HEADER]> {
        let start = (self.start as usize).checked_sub(HEADER).filter(|_| self.described)?;
        let at = self.index as usize * self.umem.chunk as usize + start;
        // SAFETY: the header lies in the frame's chunk, in front of its bytes; no other frame stands for the chunk.
        Some(unsafe { self.umem.region.base().add(at).cast::<[u8; HEADER]>().read() })
    }

    /// Asks for a checksum to be completed, in the first frame of a packet: the sum from byte `start` of the packet to its end goes into the
    /// field `offset` bytes behind that, which holds the sum over the pseudo-header. False, and nothing is asked for, unless the frame
    /// begins 10 bytes into its chunk or later: what is asked for lies there. Changing the frame's range forgets it.
    #[must_use]
    pub fn request_checksum(&mut self, start: u16, offset: u16) -> bool {
        self.describe(request::checksum(start, offset))
    }

    /// Asks for a super-packet to be cut, in the first of its frames, which has all of its headers or is continued by those that have: the
    /// egress cuts it if it can, else the datapath. A session that may send super-packets
    /// ([`Config::segmentation`](crate::Config::segmentation)) sends them in up to
    /// [`MAX_SUPER_PIECES`](crate::protocol::MAX_SUPER_PIECES) frames. A request that is not true of the packet costs the session. False as
    /// for [`request_checksum`](Frame::request_checksum).
    #[must_use]
    pub fn request_segmentation(&mut self, segmentation: Segmentation) -> bool {
        self.describe(segmentation.header())
    }

    /// Writes a virtio-net header in front of the frame.
    fn describe(&mut self, header: [u8; HEADER]) -> bool {
        let fits = self.start as usize >= HEADER;
        if fits {
            // SAFETY: the bytes in front of the frame lie in its chunk, which no other frame stands for.
            unsafe { self.umem.region.base().add(self.at() - HEADER).cast::<[u8; HEADER]>().write(header) };
            self.described = true;
        }
        fits
    }

    /// What its descriptor says.
    pub(crate) fn options(&self) -> u32 {
        let continued = if self.continues { Desc::CONTINUED } else { 0 };
        continued | if self.described { Desc::METADATA } else { 0 }
    }

    /// Whether the packet goes on in the next frame.
    pub fn continues(&self) -> bool {
        self.continues
    }

    /// Says whether the packet goes on in the next frame that is sent; a packet has up to 18, a super-packet up to 64.
    pub fn set_continues(&mut self, continues: bool) {
        self.continues = continues;
    }
}

impl Drop for Frame<'_> {
    fn drop(&mut self) {
        self.umem.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_bytes_of_their_own_and_come_back_when_dropped() {
        let umem = Umem::new(2, 256).unwrap();
        let (mut a, mut b) = (umem.alloc().unwrap(), umem.alloc().unwrap());
        assert!(umem.alloc().is_none());
        assert!(a.put(&[1; 256]) && b.put(&[2; 100]) && !b.put(&[3; 257]));
        assert!(a.bytes().iter().all(|&x| x == 1) && b.bytes() == [2; 100]);
        assert!(b.set_range(256, 0) && b.set_range(50, 10) && !b.set_range(u32::MAX, 2));
        assert_eq!(b.bytes(), [2; 10]);
        drop(a);
        assert!(umem.alloc().is_some());
    }

    #[test]
    fn sizes_that_no_datapath_takes_are_refused() {
        for (count, chunk) in [(0, 2048), (1, 128), (1, 3000), (1, 65536), (1 << 21, 256)] {
            assert!(matches!(Umem::new(count, chunk), Err(Error::Config(_))), "{count} of {chunk}");
            let unaligned = Umem::unaligned(count, chunk);
            assert!(chunk == 3000 || matches!(unaligned, Err(Error::Config(_))), "{count} of {chunk}");
        }
    }

    #[test]
    fn an_address_names_the_byte_that_it_was_made_of() {
        for umem in [Umem::new(8, 2048).unwrap(), Umem::unaligned(8, 2999).unwrap()] {
            for (index, start) in [(0, 0), (0, 5), (7, 0), (7, umem.chunk() - 1), (3, 2000)] {
                assert_eq!(umem.locate(umem.address(index, start)), (u64::from(index), u64::from(start)));
            }
        }
    }
}
