//! The depot: magazines of chunks, exchanged whole. Those that a processor has filled last are its
//! [own](Recent) for a while; the others are on a lock-free stack, and empty ones on a second.
//!
//! A magazine is named by a [`Mag`], an owned token that alone gives access to the magazine's
//! slots. Putting a magazine into the depot gives its token up, taking one returns it; the exchange
//! in between is the release and the acquire. The stacks link magazines by index
//! in an array of atomics. Their heads carry a 32-bit tag that grows with every pop, so that a head
//! that was popped and pushed back in the meantime (ABA) is noticed.

use super::MAGAZINE;
use super::recent::Recent;
use crate::meta::Meta;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::cell::UnsafeCell;
use std::ptr::NonNull;

/// No magazine.
pub(super) const NONE: u32 = u32::MAX;

/// Processors that are told apart.
#[cfg(not(loom))]
const PROCESSORS: usize = 64;
#[cfg(loom)]
const PROCESSORS: usize = 2;

/// The right to use one magazine of a depot: its address, so that opening it is one load.
#[derive(Debug)]
pub(crate) struct Mag(NonNull<Magazine>);

// SAFETY: the token is the only access to its magazine, which holds nothing but free chunks of a
// pool.
unsafe impl Send for Mag {}

impl Mag {
    /// The placeholder for a token that was given up; there is no such magazine.
    pub(crate) const GONE: Mag = Mag(NonNull::dangling());

    /// The contents.
    ///
    /// # Safety
    /// The depot that the token came from is alive, and the token is not [`GONE`](Mag::GONE).
    #[inline]
    pub(crate) unsafe fn open(&mut self) -> &mut Magazine {
        // SAFETY: tokens are made only by `pop`, one at a time for each magazine, and this borrows
        // the token exclusively.
        unsafe { self.0.as_mut() }
    }
}

/// Up to [`MAGAZINE`] free chunks.
pub(crate) struct Magazine {
    pub(crate) len: usize,
    pub(crate) slots: [*mut Meta; MAGAZINE],
}

/// A stack of magazine indices; alone on its cache line.
#[repr(align(64))]
struct Stack(AtomicU64);

/// Full magazines, never fewer than there are; alone on its cache line.
#[repr(align(64))]
struct Count(AtomicUsize);

pub(crate) struct Depot {
    /// Full magazines by the processor that filled them.
    recent: Box<[Recent]>,
    /// Full magazines that are no longer recent.
    full: Stack,
    empty: Stack,
    full_count: Count,
    links: Box<[AtomicU32]>,
    magazines: Box<[UnsafeCell<Magazine>]>,
    /// Chunks in a full magazine: fewer than the slots in a small pool, so that two caches cannot
    /// hold all of it.
    fill: usize,
}

// SAFETY: the magazines are reached only through a `Mag`, of which there is one each; stacks are
// atomics. The chunk pointers inside are free chunks of the pool that owns the depot.
unsafe impl Send for Depot {}
// SAFETY: as for Send.
unsafe impl Sync for Depot {}

impl Depot {
    /// A depot of `count` empty magazines that hold `fill` chunks each.
    pub(crate) fn new(count: u32, fill: usize) -> Depot {
        let processors = if count > 0 { PROCESSORS } else { 0 };
        let link = |i: u32| AtomicU32::new(if i + 1 < count { i + 1 } else { NONE });
        let magazine = |_| UnsafeCell::new(Magazine { len: 0, slots: [std::ptr::null_mut(); MAGAZINE] });
        Depot {
            recent: (0..processors).map(|_| Recent::new()).collect(),
            full: Stack(AtomicU64::new(u64::from(NONE))),
            empty: Stack(AtomicU64::new(if count > 0 { 0 } else { u64::from(NONE) })),
            full_count: Count(AtomicUsize::new(0)),
            links: (0..count).map(link).collect(),
            magazines: (0..count).map(magazine).collect(),
            fill: fill.clamp(1, MAGAZINE),
        }
    }

    /// Chunks in a full magazine.
    #[inline]
    pub(crate) fn fill(&self) -> usize {
        self.fill
    }

    /// The contents of a magazine of this depot.
    #[inline]
    pub(crate) fn open<'a>(&'a self, mag: &'a mut Mag) -> &'a mut Magazine {
        // SAFETY: the depot is borrowed, so it is alive, and no caller opens `GONE`.
        unsafe { mag.open() }
    }

    fn mag(&self, index: u32) -> Mag {
        Mag(NonNull::from(&self.magazines[index as usize]).cast())
    }

    fn index(&self, mag: Mag) -> u32 {
        ((mag.0.as_ptr().addr() - self.magazines.as_ptr().addr()) / size_of::<Magazine>()) as u32
    }

    /// Takes a full magazine if at least `leave` chunks in full magazines remain: the newest of
    /// processor `here`, or one that is in no processor's cache any more, or else any.
    pub(crate) fn take_full(&self, here: usize, leave: usize) -> Option<Mag> {
        if leave > 0 && self.chunks() < leave + self.fill {
            return None;
        }
        let own = self.recent.get(here % PROCESSORS).and_then(Recent::take_newest);
        let index = own.or_else(|| self.full.pop(&self.links)).or_else(|| self.steal())?;
        self.full_count.0.fetch_sub(1, Ordering::Relaxed);
        Some(self.mag(index))
    }

    /// Takes the oldest magazine of a processor. One that moves meanwhile may be missed.
    #[cold]
    fn steal(&self) -> Option<u32> {
        if self.chunks() == 0 {
            return None;
        }
        self.recent.iter().find_map(Recent::take_oldest)
    }

    /// Returns a full magazine, from processor `here`.
    pub(crate) fn put_full(&self, here: usize, mag: Mag) {
        // Counted before it can be taken, so that the count never wraps below zero.
        self.full_count.0.fetch_add(1, Ordering::Relaxed);
        let index = self.index(mag);
        let oldest = self.recent.get(here % PROCESSORS).map_or(Some(index), |recent| recent.put(index));
        if let Some(oldest) = oldest {
            self.full.push(&self.links, oldest);
        }
    }

    /// Adds a full magazine whose chunks are in no cache.
    pub(crate) fn add_full(&self, mag: Mag) {
        self.full_count.0.fetch_add(1, Ordering::Relaxed);
        self.full.push(&self.links, self.index(mag));
    }

    pub(crate) fn take_empty(&self) -> Option<Mag> {
        self.empty.pop(&self.links).map(|index| self.mag(index))
    }

    pub(crate) fn put_empty(&self, mag: Mag) {
        self.empty.push(&self.links, self.index(mag));
    }

    /// Chunks in full magazines.
    pub(crate) fn chunks(&self) -> usize {
        self.full_count.0.load(Ordering::Relaxed) * self.fill
    }
}

impl Stack {
    fn push(&self, links: &[AtomicU32], index: u32) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            links[index as usize].store(head as u32, Ordering::Relaxed);
            let next = (head & !u64::from(NONE)) | u64::from(index);
            // Release: the thread that pops the magazine sees its contents and its link.
            match self.0.compare_exchange_weak(head, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn pop(&self, links: &[AtomicU32]) -> Option<u32> {
        let mut head = self.0.load(Ordering::Acquire);
        loop {
            let top = head as u32;
            if top == NONE {
                return None;
            }
            // Stale if another thread popped `top` meanwhile; then the tag differs and the exchange
            // fails.
            let below = links[top as usize].load(Ordering::Relaxed);
            let next = (((head >> 32) + 1) << 32) | u64::from(below);
            // Acquire: pairs with the release of `push`.
            match self.0.compare_exchange_weak(head, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(top),
                Err(now) => head = now,
            }
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod tests {
    use super::*;
    use loom::sync::Arc;

    #[test]
    fn two_threads_never_hold_the_same_magazine() {
        crate::sync::model(|| {
            let depot = Arc::new(Depot::new(2, 1));
            for i in 1..=2usize {
                let mut mag = depot.take_empty().unwrap();
                let m = depot.open(&mut mag);
                m.slots[0] = std::ptr::without_provenance_mut(i * 64);
                m.len = 1;
                depot.put_full(i - 1, mag);
            }
            let turn = |depot: Arc<Depot>, here: usize| {
                let mut seen = Vec::new();
                for _ in 0..2 {
                    if let Some(mut mag) = depot.take_full(here, 0) {
                        let m = depot.open(&mut mag);
                        // Takes the chunk out while it holds the magazine: a second holder would
                        // find none.
                        assert_eq!(m.len, 1, "another thread had this magazine at the same time");
                        m.len = 0;
                        let chunk = m.slots[0];
                        seen.push(chunk.addr());
                        m.slots[0] = chunk;
                        m.len = 1;
                        depot.put_full(here, mag);
                    }
                }
                seen
            };
            let other = depot.clone();
            let t = loom::thread::spawn(move || turn(other, 1));
            turn(depot.clone(), 0);
            t.join().unwrap();
            let mut all = Vec::new();
            while let Some(mut mag) = depot.take_full(0, 0) {
                all.push(depot.open(&mut mag).slots[0].addr());
            }
            all.sort_unstable();
            assert_eq!(all, [64, 128], "a magazine was lost or doubled");
        });
    }
}
