//! A descriptor ring in memory that the device and the driver access at the same time, and the
//! driver's shadow of it.
//!
//! A descriptor is two 64-bit words in the device's byte order (little-endian). Each word is loaded
//! and stored at once, as an atomic word. The ring has no format of its own: a driver decides what
//! the words mean, and which descriptors are the device's.
//!
//! A slot of the shadow holds what is in flight behind a descriptor: an
//! [`InFlight`](towpath_packet::InFlight) buffer or packet, its mapping, and what the driver noted.
//! The device can change descriptors, but not slots: a completion is looked up there, by position
//! or by a number that is bounded.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use towpath_bus::barrier::dma_rmb;
use towpath_bus::{Coherent, Dma, Domain, Iova, MapError};

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;

/// The two words of a descriptor, as numbers of the host's byte order.
pub(crate) type Words = [u64; 2];

/// A ring of descriptors.
#[derive(Debug)]
pub(crate) struct DescRing {
    words: Coherent,
    len: u32,
}

impl DescRing {
    /// Allocates `len` descriptors, all zero.
    pub(crate) fn new<D: Dma>(domain: &Domain<D>, len: u32) -> Result<DescRing, MapError> {
        let words = Coherent::new(domain, len as usize * DESCRIPTOR)?;
        // The ring ends where its memory does, even if a broken bus allocates less than was
        // requested.
        let len = len.min((words.len() / DESCRIPTOR) as u32);
        Ok(DescRing { words, len })
    }

    /// The ring's address for the device.
    pub(crate) fn iova(&self) -> Iova {
        self.words.iova()
    }

    /// Number of descriptors.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Writes a descriptor that the driver owns. Both words are plain stores: the device reads them
    /// only after the tail was written, and a register write is ordered behind all stores
    /// ([`Mmio::w32`](towpath_bus::Mmio::w32)).
    #[inline]
    pub(crate) fn store(&self, index: u32, [first, second]: Words) {
        self.words.store64s(index as usize * DESCRIPTOR, [first, second]);
    }

    /// The descriptors from `from` on, up to and without `until`, if they are the ring's.
    #[inline]
    pub(crate) fn between(&self, from: u32, until: u32) -> Descriptors<'_> {
        let (all, _) = self.words.words64().as_chunks();
        Descriptors(all.get(from as usize..until as usize).unwrap_or_default())
    }

    /// Writes the second word of a descriptor that the driver owns, as [`store`](DescRing::store).
    #[inline]
    pub(crate) fn store_second(&self, index: u32, second: u64) {
        self.words.store64(index as usize * DESCRIPTOR + 8, second);
    }

    /// Loads the second word, in which the device reports that it has completed the descriptor.
    /// All that the device wrote before this word is visible after the load.
    #[inline]
    pub(crate) fn status(&self, index: u32) -> u64 {
        let word = self.words.load64(index as usize * DESCRIPTOR + 8);
        dma_rmb();
        word
    }

    /// Loads the first word; to be called after [`status`](DescRing::status).
    #[inline]
    pub(crate) fn first(&self, index: u32) -> u64 {
        self.words.load64(index as usize * DESCRIPTOR)
    }

    /// Makes all descriptors zero. The device has been stopped.
    pub(crate) fn clear(&self) {
        (0..self.len).for_each(|index| self.store(index, [0, 0]));
    }
}

/// Descriptors of a ring, side by side.
pub(crate) struct Descriptors<'a>(&'a [[AtomicU64; 2]]);

impl<'a> Descriptors<'a> {
    /// One after another.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Descriptor<'a>> {
        self.0.iter().map(Descriptor)
    }
}

/// One of them.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor<'a>(&'a [AtomicU64; 2]);

impl Descriptor<'_> {
    /// Writes it, as [`store`](DescRing::store).
    #[inline]
    pub(crate) fn store(self, words: Words) {
        let [first, second] = self.0;
        first.store(words[0].to_le(), Relaxed);
        second.store(words[1].to_le(), Relaxed);
    }
}

/// One `T` for each descriptor of a ring. An index outside of the ring, which no code path makes,
/// finds nothing.
#[derive(Debug)]
pub(crate) struct Slots<T>(Box<[T]>);

impl<T: Default> Slots<T> {
    pub(crate) fn new(len: u32) -> Slots<T> {
        Slots((0..len).map(|_| T::default()).collect())
    }
}

impl<T> Slots<T> {
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.0.get_mut(index as usize)
    }

    /// The slots from `from` on, up to and without `until`, around the end of the ring.
    #[inline]
    pub(crate) fn between(&mut self, from: u32, until: u32) -> [&mut [T]; 2] {
        let (from, until) = (from as usize, until as usize);
        if from <= until {
            return [self.0.get_mut(from..until).unwrap_or_default(), &mut []];
        }
        let (front, behind) = self.0.split_at_mut(from.min(self.0.len()));
        [behind, front.get_mut(..until).unwrap_or_default()]
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

/// The position after `index` in a ring of `len` descriptors.
#[inline]
pub(crate) fn next(index: u32, len: u32) -> u32 {
    let next = index + 1;
    if next >= len { 0 } else { next }
}

/// The position before `index` in a ring of `len` descriptors.
#[inline]
pub(crate) fn previous(index: u32, len: u32) -> u32 {
    if index == 0 { len - 1 } else { index - 1 }
}

/// The position `by` descriptors after `index`, at most once around.
#[inline]
pub(crate) fn ahead(index: u32, by: u32, len: u32) -> u32 {
    let at = index + by;
    if at >= len { at - len } else { at }
}

/// Number of descriptors from `from` on, up to and without `to`.
#[inline]
pub(crate) fn distance(from: u32, to: u32, len: u32) -> u32 {
    if to >= from { to - from } else { to + len - from }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_round_and_distances_count_forward() {
        assert_eq!((next(6, 8), next(7, 8)), (7, 0));
        assert_eq!((previous(7, 8), previous(0, 8)), (6, 7));
        assert_eq!((ahead(6, 1, 8), ahead(6, 2, 8), ahead(6, 7, 8), ahead(3, 0, 8)), (7, 0, 5, 3));
        assert_eq!((distance(2, 5, 8), distance(6, 1, 8), distance(3, 3, 8)), (3, 3, 0));
    }

    #[test]
    fn an_index_outside_finds_nothing() {
        let mut slots = Slots::<u8>::new(4);
        assert!(slots.get_mut(3).is_some());
        assert!(slots.get_mut(4).is_none());
    }

    #[test]
    fn a_range_goes_around_the_end_of_the_ring() {
        let mut slots = Slots::<usize>::new(4);
        (0..4).for_each(|at| *slots.get_mut(at).unwrap() = at as usize);
        let mut between = |from, until| slots.between(from, until).map(|part| part.to_vec()).concat();
        assert_eq!((between(1, 3), between(3, 2), between(2, 2)), (vec![1, 2], vec![3, 0, 1], vec![]));
        assert_eq!((between(3, 5), between(9, 2)), (vec![], vec![0, 1]));
    }
}
