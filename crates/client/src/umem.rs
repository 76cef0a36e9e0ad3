//! Memory that is shared with the datapath, and the holder of each of its chunks.
//!
//! A [`Frame`] has a handle of its memory, which is a reference count. A frame that is handed to
//! the datapath leaves its count with its chunk, and the frame that comes back takes it over. So no
//! atomic word is touched per packet.

use crate::error::Error;
use crate::frame::Frame;
use crate::protocol::{Address, CHUNK, MAX_CHUNKS};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_packet::{Backing, Region};

/// Chunks of equal size in a sealed memfd. All its pages exist from the beginning, as in the
/// kernel's AF_XDP: a datapath takes no memory whose pages it would have to allocate.
///
/// A clone is another handle of the same memory, which lasts as long as a handle, a socket or a
/// frame.
#[derive(Debug, Clone)]
pub struct Umem(Arc<UmemShared>);

#[derive(Debug)]
struct UmemShared {
    region: Region,
    chunk: u32,
    count: u32,
    unaligned: bool,
    /// Chunks without a frame that no socket has.
    free: Mutex<Vec<u32>>,
}

impl Umem {
    /// `count` chunks of `chunk` bytes, a power of two from 256 to 32768.
    ///
    /// # Errors
    /// [`Error::Memory`] if the memory cannot be allocated; [`Error::Config`] for other sizes.
    pub fn new(count: u32, chunk: u32) -> Result<Umem, Error> {
        if !chunk.is_power_of_two() {
            return Err(Error::Config(format!("chunks of {chunk} bytes: no power of two, so they are unaligned")));
        }
        Umem::make(count, chunk, false)
    }

    /// `count` chunks of `chunk` bytes, any number from 256 to 32768, one behind the other. Frames
    /// that are just longer than a power of two waste no bytes.
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
        let free = Mutex::new((0..count).rev().collect());
        Ok(Umem(Arc::new(UmemShared { region, chunk, count, unaligned, free })))
    }

    /// An empty frame; `None` if all are in use.
    pub fn alloc(&self) -> Option<Frame> {
        let index = self.0.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Frame::of(self.clone(), index, 0..0, 0))
    }

    /// Whether both are handles of the same memory.
    #[inline]
    pub(crate) fn is(&self, other: &Umem) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Number of chunks.
    pub fn count(&self) -> u32 {
        self.0.count
    }

    /// Bytes of a chunk.
    pub fn chunk(&self) -> u32 {
        self.0.chunk
    }

    /// Whether chunks are [unaligned](Umem::unaligned).
    pub fn is_unaligned(&self) -> bool {
        self.0.unaligned
    }

    /// The byte `start` of a chunk, as an address in a ring.
    #[inline]
    pub(crate) fn address(&self, index: u32, start: u32) -> u64 {
        let base = u64::from(index) * u64::from(self.0.chunk);
        // A chunk has at most 32768 bytes.
        if self.0.unaligned { Address { base, offset: start as u16 }.word() } else { base + u64::from(start) }
    }

    /// The chunk, and the byte in it, that an address in a ring names; they need not exist.
    #[inline]
    pub(crate) fn locate(&self, address: u64) -> (u64, u64) {
        let chunk = u64::from(self.0.chunk);
        let (base, offset) = if self.0.unaligned {
            let Address { base, offset } = Address::of(address);
            (base, u64::from(offset))
        } else {
            (address, 0)
        };
        let index = base / chunk;
        // The compiler divides again for `%` where a branch separates its use.
        (index, base - index * chunk + offset)
    }

    /// Makes a chunk free, whose frame is dropped.
    pub(crate) fn release(&self, index: u32) {
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner).push(index);
    }

    /// The number of handles, those of frames among them.
    #[cfg(test)]
    pub(crate) fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    pub(crate) fn region(&self) -> &Region {
        &self.0.region
    }
}

/// The holder of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The program, or another socket.
    Program,
    /// The datapath, which sends it.
    Sent,
    /// The datapath, which receives into it.
    Posted,
}

/// The holders of all chunks, as one socket sees them. Each chunk that is not the program's has
/// one count of `umem`.
#[derive(Debug)]
pub(crate) struct Holders {
    umem: Umem,
    of: Box<[Holder]>,
}

impl Holders {
    pub(crate) fn new(umem: Umem) -> Holders {
        let of = vec![Holder::Program; umem.count() as usize].into();
        Holders { umem, of }
    }

    #[inline]
    pub(crate) fn umem(&self) -> &Umem {
        &self.umem
    }

    /// Hands a frame to the datapath as `holder`. Returns its chunk, first byte and length.
    ///
    /// # Safety
    /// The frame is one of this memory.
    #[inline]
    pub(crate) unsafe fn give(&mut self, frame: Frame, holder: Holder) -> (u32, u32, u32) {
        debug_assert!(frame.umem().is(&self.umem));
        let parts @ (index, ..) = frame.into_parts();
        if let Some(of) = self.of.get_mut(index as usize) {
            *of = holder;
        }
        parts
    }

    /// Takes a frame from the datapath, if it had the chunk as `holder`: the range of its bytes in
    /// the chunk, and what its descriptor says. `None` if it had not.
    #[inline]
    pub(crate) fn take(&mut self, index: u64, holder: Holder, range: Range<u32>, options: u32) -> Option<Frame> {
        let of = usize::try_from(index).ok().and_then(|index| self.of.get_mut(index));
        let of = of.filter(|of| **of == holder && holder != Holder::Program)?;
        *of = Holder::Program;
        // SAFETY: the chunk was not the program's, so it has a count, and has none from here on.
        let umem = unsafe { count_of_chunk(&self.umem) };
        // No truncation: the index is one of `of`.
        Some(Frame::of(umem, index as u32, range, options))
    }
}

/// The handle whose count a frame left with its chunk.
///
/// # Safety
/// A chunk has a count, which is no longer its own afterwards.
#[inline]
unsafe fn count_of_chunk(umem: &Umem) -> Umem {
    // SAFETY: as many handles may be dropped as there are counts, and this is the one of the chunk.
    unsafe { std::ptr::read(umem) }
}

/// Gives up the counts of chunks that the datapath still has. The chunks are not free again: their
/// last user is not known to be done.
impl Drop for Holders {
    fn drop(&mut self) {
        for _ in self.of.iter().filter(|of| **of != Holder::Program) {
            // SAFETY: the chunk has a count, and the holders end.
            drop(unsafe { count_of_chunk(&self.umem) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_no_datapath_accepts_are_refused() {
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

    #[test]
    fn a_frame_in_flight_keeps_its_memory_and_comes_back_once() {
        let umem = Umem::new(4, 256).unwrap();
        let mut holders = Holders::new(umem.clone());
        assert_eq!(umem.handles(), 2);
        let frame = umem.alloc().unwrap();
        // SAFETY: the frame is one of this memory.
        let (index, ..) = unsafe { holders.give(frame, Holder::Sent) };
        assert_eq!(umem.handles(), 3, "the count is with the chunk");
        let index = u64::from(index);
        assert!(holders.take(index, Holder::Posted, 0..0, 0).is_none(), "it was not posted");
        assert!(holders.take(index, Holder::Program, 0..0, 0).is_none(), "the program does not give");
        assert!(holders.take(4, Holder::Sent, 0..0, 0).is_none(), "there is no such chunk");
        let frame = holders.take(index, Holder::Sent, 3..9, 0).unwrap();
        assert_eq!((umem.handles(), frame.bytes().len()), (3, 6));
        assert!(holders.take(index, Holder::Sent, 0..0, 0).is_none(), "it came back already");
        drop(frame);
        assert_eq!(umem.handles(), 2);
    }

    #[test]
    fn frames_that_the_datapath_keeps_do_not_keep_the_memory_beyond_the_socket() {
        let umem = Umem::new(4, 256).unwrap();
        let mut holders = Holders::new(umem.clone());
        for holder in [Holder::Sent, Holder::Posted] {
            // SAFETY: the frame is one of this memory.
            unsafe { holders.give(umem.alloc().unwrap(), holder) };
        }
        drop(holders);
        assert_eq!(umem.handles(), 1);
        let rest: Vec<_> = std::iter::from_fn(|| umem.alloc()).collect();
        assert_eq!(rest.len(), 2, "a chunk in flight is not free again");
        drop(umem);
        assert_eq!(rest[0].bytes().len(), 0, "a frame keeps the memory");
    }
}
