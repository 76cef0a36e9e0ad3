//! The descriptors of one channel or flow: which are free, and what is in flight behind the others.
//! One owner: no atomics, no lock.

use super::config::{Config, DescAlloc};
use super::descriptors::Descriptors;
use super::soc::Family;
use crate::common::ring::Slots;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use towpath_bus::{Dma, DmaMapper, Domain, MapError, Mapped};
use towpath_packet::InFlight;

/// No descriptor.
pub(super) const NO_DESC: u16 = u16::MAX;

/// The driver's shadow of a descriptor. `T` is the direction, and `N` what it notes.
pub(super) struct DescSlot<T, N> {
    /// A buffer, or a packet in the slot of its first descriptor.
    pub(super) in_flight: Option<InFlight<T>>,
    pub(super) mapped: Option<Mapped>,
    /// The next descriptor of a chain that the driver linked.
    pub(super) next: u16,
    pub(super) note: N,
}

impl<T, N: Default> Default for DescSlot<T, N> {
    fn default() -> Self {
        DescSlot { in_flight: None, mapped: None, next: NO_DESC, note: N::default() }
    }
}

/// All descriptors of a channel or flow.
pub(super) struct DescTable<D: Dma, T, N> {
    pub(super) descriptors: Descriptors,
    pub(super) pool: DescPool,
    pub(super) slots: Slots<DescSlot<T, N>>,
    pub(super) mapper: DmaMapper<D>,
    pub(super) count: u16,
    /// The ring on which UDMA completes the descriptors.
    pub(super) return_ring: u16,
}

impl<D: Dma, T, N: Default> DescTable<D, T, N> {
    pub(super) fn new(config: &Config, domain: &Domain<D>, count: u32, completion: u16) -> Result<Self, MapError> {
        Ok(DescTable {
            descriptors: Descriptors::new(domain, count as u16, &config.soc)?,
            pool: DescPool::new(count as u16, config.desc_alloc),
            slots: Slots::new(count),
            mapper: DmaMapper::new(domain, count, 1 << 16)?,
            count: count as u16,
            // PKTDMA's rings are two-sided: the field has no meaning there.
            return_ring: if config.soc.family == Family::Udma { completion } else { 0 },
        })
    }

    /// Whether a buffer is in flight behind a descriptor, or a packet whose first one it is.
    #[inline]
    pub(super) fn is_in_flight(&mut self, index: u16) -> bool {
        self.slots.get_mut(u32::from(index)).is_some_and(|slot| slot.in_flight.is_some())
    }

    /// The numbers of free descriptors and of all descriptors.
    pub(super) fn numbers(&self) -> (usize, usize) {
        (self.pool.len(), self.count.into())
    }
}

/// The free descriptors.
#[derive(Debug)]
pub(super) enum DescPool {
    /// Last in, first out: the descriptor that was freed last is still in the CPU's cache.
    Stack(Vec<u16>),
    /// For comparison in benches.
    GenPool(GenPool),
}

impl DescPool {
    /// A pool of descriptors 0 to `count` − 1, all free.
    pub(super) fn new(count: u16, alloc: DescAlloc) -> DescPool {
        match alloc {
            DescAlloc::Recycled => DescPool::Stack((0..count).rev().collect()),
            DescAlloc::GenPool => DescPool::GenPool(GenPool::new(count)),
        }
    }

    /// Number of free descriptors.
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            DescPool::Stack(free) => free.len(),
            DescPool::GenPool(pool) => pool.len(),
        }
    }

    /// Allocates a descriptor; `None` if all are in flight.
    #[inline]
    pub(super) fn alloc(&mut self) -> Option<u16> {
        match self {
            DescPool::Stack(free) => free.pop(),
            DescPool::GenPool(pool) => pool.alloc(),
        }
    }

    /// Frees a descriptor that was allocated.
    #[inline]
    pub(super) fn free(&mut self, index: u16) {
        match self {
            // The vector has room for all descriptors.
            DescPool::Stack(free) => free.push(index),
            DescPool::GenPool(pool) => pool.free(index),
        }
    }
}

/// A pool like the kernel's `gen_pool` (`lib/genalloc.c`), from which `k3-cppi-desc-pool.c`
/// allocates descriptors: the first set bit from the start, claimed by compare and swap, and a
/// count of free descriptors.
#[derive(Debug)]
pub(super) struct GenPool {
    words: Box<[AtomicU64]>,
    available: AtomicUsize,
}

impl GenPool {
    fn new(count: u16) -> GenPool {
        let count = usize::from(count);
        let words = (0..count.div_ceil(64)).map(|word| {
            let bits = (count - word * 64).min(64);
            AtomicU64::new(if bits == 64 { u64::MAX } else { (1 << bits) - 1 })
        });
        GenPool { words: words.collect(), available: AtomicUsize::new(count) }
    }

    fn len(&self) -> usize {
        self.available.load(Ordering::Relaxed)
    }

    fn alloc(&self) -> Option<u16> {
        for (at, word) in self.words.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let rest = bits & (bits - 1);
                match word.compare_exchange(bits, rest, Ordering::SeqCst, Ordering::Relaxed) {
                    Ok(_) => {
                        self.available.fetch_sub(1, Ordering::SeqCst);
                        return Some((at * 64) as u16 + bits.trailing_zeros() as u16);
                    }
                    Err(now) => bits = now,
                }
            }
        }
        None
    }

    fn free(&self, index: u16) {
        if let Some(word) = self.words.get(usize::from(index) / 64) {
            let mut bits = word.load(Ordering::Relaxed);
            while let Err(now) =
                word.compare_exchange(bits, bits | 1 << (index % 64), Ordering::SeqCst, Ordering::Relaxed)
            {
                bits = now;
            }
            self.available.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_descriptor_is_allocated_once_and_can_be_freed() {
        for alloc in [DescAlloc::Recycled, DescAlloc::GenPool] {
            let mut pool = DescPool::new(130, alloc);
            let mut taken: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
            assert_eq!((taken.len(), pool.len(), pool.alloc()), (130, 0, None));
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(taken.len(), 130);
            taken.into_iter().for_each(|index| pool.free(index));
            assert_eq!(pool.len(), 130);
        }
    }

    #[test]
    fn the_descriptor_that_was_freed_last_is_allocated_first() {
        let mut pool = DescPool::new(4, DescAlloc::Recycled);
        let (a, b) = (pool.alloc().unwrap(), pool.alloc().unwrap());
        pool.free(a);
        pool.free(b);
        assert_eq!(pool.alloc(), Some(b));
    }
}
