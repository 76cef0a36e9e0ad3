//! The depot: magazines of chunks, exchanged whole. Those that a core has filled last are its
//! [own](Recent) for a while; the others are on a lock-free stack, and empty ones on a second.
//!
//! A magazine is named by a [`Mag`], an owned token that alone gives access to the magazine's
//! slots. Putting a magazine into the depot gives its token up, taking one returns it; the exchange
//! in between is the release and the acquire. The stacks link magazines by index in an array of
//! atomics. Their heads carry a 32-bit tag that grows with every pop, so that a head that was
//! popped and pushed back in the meantime (ABA) is noticed.

use super::recent::Recent;
use super::{MAGAZINE, NONE};
use crate::meta::Meta;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::cell::UnsafeCell;
use std::ptr::NonNull;

/// Cores that are distinguished: a bit each in `holders`.
#[cfg(not(loom))]
const CORES: usize = 64;
#[cfg(loom)]
const CORES: usize = 2;

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
        // SAFETY: a token is made only of an index that was just taken off a stack or out of a slot
        // of `Recent`. An index is in one of them at most, so a magazine has one token at a time,
        // and this borrows it exclusively.
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
    /// Full magazines by the core that filled them.
    recent: Box<[Recent]>,
    /// The cores that have ever filled one.
    holders: AtomicU64,
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

// SAFETY: the magazines are reached only through a `Mag`, of which there is one each; stacks and
// slots are atomics. The chunk pointers inside are free chunks of the pool that owns the depot.
unsafe impl Send for Depot {}
// SAFETY: as for Send.
unsafe impl Sync for Depot {}

impl Depot {
    /// A depot of `count` empty magazines that hold `fill` chunks each.
    pub(crate) fn new(count: u32, fill: usize) -> Depot {
        let cores = if count > 0 { CORES } else { 0 };
        let link = |i: u32| AtomicU32::new(if i + 1 < count { i + 1 } else { NONE });
        let magazine = |_| UnsafeCell::new(Magazine { len: 0, slots: [std::ptr::null_mut(); MAGAZINE] });
        Depot {
            recent: (0..cores).map(|_| Recent::new()).collect(),
            holders: AtomicU64::new(0),
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
    /// `core`, else one that is no core's own any more, else the oldest of another core.
    pub(crate) fn take_full(&self, core: usize, leave: usize) -> Option<Mag> {
        if leave > 0 && self.chunks() < leave + self.fill {
            return None;
        }
        let own = self.recent.get(core % CORES).and_then(Recent::take_newest);
        let index = own.or_else(|| self.full.pop(&self.links)).or_else(|| self.steal(core))?;
        self.full_count.0.fetch_sub(1, Ordering::Relaxed);
        Some(self.mag(index))
    }

    /// Takes the oldest magazine of a core, of those behind `core` first. One that moves meanwhile
    /// may be missed.
    #[inline(never)]
    fn steal(&self, core: usize) -> Option<u32> {
        if self.chunks() == 0 {
            return None;
        }
        let holders = self.holders.load(Ordering::Relaxed);
        let others = (1..=CORES).map(|step| (core + step) % CORES).filter(|at| holders & 1 << at != 0);
        others.filter_map(|at| self.recent.get(at)).find_map(Recent::take_oldest)
    }

    /// Returns a full magazine that `core` has filled.
    pub(crate) fn put_full(&self, core: usize, mag: Mag) {
        // Counted before it can be taken, so that the count never wraps below zero.
        self.full_count.0.fetch_add(1, Ordering::Relaxed);
        let (index, core) = (self.index(mag), core % CORES);
        let oldest = self.recent.get(core).map_or(Some(index), |recent| recent.put(index));
        if self.holders.load(Ordering::Relaxed) & 1 << core == 0 {
            self.holders.fetch_or(1 << core, Ordering::Relaxed);
        }
        if let Some(oldest) = oldest {
            self.full.push(&self.links, oldest);
        }
    }

    /// Adds a full magazine whose chunks no core is known to have in its cache.
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
    use loom::cell::UnsafeCell as Watched;
    use loom::sync::Arc;

    /// `count` magazines of one chunk each; two threads on `cores` take and put `turns` times.
    fn take_and_put(count: usize, cores: [usize; 2], turns: usize) {
        crate::sync::model(move || {
            let depot = Depot::new(count as u32, 1);
            for number in 1..=count {
                let mut mag = depot.take_empty().unwrap();
                let m = depot.open(&mut mag);
                m.slots[0] = std::ptr::without_provenance_mut(number * 64);
                m.len = 1;
                depot.put_full(cores[number % 2], mag);
            }
            // What is written while a magazine is held: loom sees accesses that nothing orders.
            let written: Vec<Watched<usize>> = (0..count).map(|_| Watched::new(0)).collect();
            let shared = Arc::new((depot, written));
            let turn = move |(depot, written): &(Depot, Vec<Watched<usize>>), core: usize| {
                for _ in 0..turns {
                    if let Some(mut mag) = depot.take_full(core, 0) {
                        let number = depot.open(&mut mag).slots[0].addr() / 64;
                        // SAFETY: the magazine is held, and loom reports another thread's access.
                        written[number - 1].with_mut(|times| unsafe { *times += 1 });
                        depot.put_full(core, mag);
                    }
                }
            };
            let other = shared.clone();
            let thread = loom::thread::spawn(move || turn(&other, cores[1]));
            turn(&shared, cores[0]);
            thread.join().unwrap();
            let depot = &shared.0;
            let mut all = Vec::new();
            while let Some(mut mag) = depot.take_full(0, 0) {
                all.push(depot.open(&mut mag).slots[0].addr() / 64);
            }
            all.sort_unstable();
            assert_eq!(all, Vec::from_iter(1..=count), "a magazine was lost or doubled");
        });
    }

    #[test]
    fn two_threads_on_two_cores_never_hold_the_same_magazine() {
        take_and_put(2, [0, 1], 2);
    }

    #[test]
    fn two_threads_on_one_core_never_hold_the_same_magazine() {
        take_and_put(3, [0, 0], 2);
    }
}
