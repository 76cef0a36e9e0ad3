//! Free descriptors of one channel or flow, by index. One owner: no atomics, no lock.

use super::config::Discipline;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Where descriptors come from and go back to.
#[derive(Debug)]
pub(super) enum Recycler {
    /// Last in, first out: a descriptor that has just come back is still in the cache.
    Stack(Vec<u16>),
    /// What the recycler is measured against.
    Pool(Bitmap),
}

impl Recycler {
    /// All of `count` descriptors are free.
    pub(super) fn new(count: u16, discipline: Discipline) -> Recycler {
        match discipline {
            Discipline::Recycled => Recycler::Stack((0..count).rev().collect()),
            Discipline::Pooled => Recycler::Pool(Bitmap::new(count)),
        }
    }

    /// Descriptors that are free.
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Recycler::Stack(free) => free.len(),
            Recycler::Pool(pool) => pool.len(),
        }
    }

    /// Takes one.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u16> {
        match self {
            Recycler::Stack(free) => free.pop(),
            Recycler::Pool(pool) => pool.allocate(),
        }
    }

    /// Gives one back that was taken.
    #[inline]
    pub(super) fn give(&mut self, index: u16) {
        match self {
            // Never more than were taken: the vector has room.
            Recycler::Stack(free) => free.push(index),
            Recycler::Pool(pool) => pool.free(index),
        }
    }
}

/// A pool as the kernel's generic allocator is one (`lib/genalloc.c`): the first free bit from the start, claimed by compare and swap,
/// and a count of what is left.
#[derive(Debug)]
pub(super) struct Bitmap {
    words: Box<[AtomicU64]>,
    available: AtomicUsize,
}

impl Bitmap {
    fn new(count: u16) -> Bitmap {
        let count = usize::from(count);
        let words = (0..count.div_ceil(64)).map(|word| {
            let bits = (count - word * 64).min(64);
            AtomicU64::new(if bits == 64 { u64::MAX } else { (1 << bits) - 1 })
        });
        Bitmap { words: words.collect(), available: AtomicUsize::new(count) }
    }

    fn len(&self) -> usize {
        self.available.load(Ordering::Relaxed)
    }

    fn allocate(&self) -> Option<u16> {
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
    fn every_descriptor_is_taken_once_and_comes_back() {
        for discipline in [Discipline::Recycled, Discipline::Pooled] {
            let mut recycler = Recycler::new(130, discipline);
            let mut taken: Vec<_> = std::iter::from_fn(|| recycler.take()).collect();
            assert_eq!((taken.len(), recycler.len(), recycler.take()), (130, 0, None));
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(taken.len(), 130);
            taken.into_iter().for_each(|index| recycler.give(index));
            assert_eq!(recycler.len(), 130);
        }
    }

    #[test]
    fn what_came_back_last_is_taken_first() {
        let mut recycler = Recycler::new(4, Discipline::Recycled);
        let (a, b) = (recycler.take().unwrap(), recycler.take().unwrap());
        recycler.give(a);
        recycler.give(b);
        assert_eq!(recycler.take(), Some(b));
    }
}
