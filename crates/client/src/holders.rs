//! The holder of each chunk, and the memory that frames in flight keep alive.
//!
//! A [`Frame`] has a handle of its memory, which is a reference count. A frame that is handed to
//! the datapath leaves its count with its chunk, and the frame that comes back takes it over. So no
//! atomic word is touched per packet.

use crate::frame::Frame;
use crate::umem::Umem;
use std::ops::Range;

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

/// The holders of all chunks, as far as one socket knows. Each chunk that is not the program's has
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
