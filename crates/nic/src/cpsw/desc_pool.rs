//! Free descriptors of one channel or flow, by index. One owner: no atomics, no lock.

use super::config::DescAlloc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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
