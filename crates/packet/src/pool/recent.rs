//! The magazines that a core has filled last.
//!
//! ```text
//!   put ──► ○ ○ ○ ○ … ○ ──► the depot's stack, for any core
//!          newest   oldest
//!           │          └── other cores, if the stack has none
//!           └── the core itself
//! ```
//!
//! The lines of freed chunks lie in the cache of the core that freed them. That core gets the
//! newest magazine back. Another one would have to take each line from that cache before its first
//! write, so it gets magazines after which many others were filled: as a rule their lines have left
//! the cache by then. That is a distance, not a test. Short frames and small pools stay within it.
//!
//! Hardware threads of one core count as two.

use super::NONE;
use crate::sync::{AtomicU32, Ordering};

/// The core of the calling thread.
pub(super) fn current_core() -> usize {
    // The models of loom have threads, and no cores.
    if cfg!(loom) { 0 } else { towpath_sys::affinity::current_core() }
}

/// Magazines of a core: with `next` they fill two lines. Full ones, with frames of 1500 bytes, are
/// more than a second-level cache has room for.
#[cfg(not(loom))]
pub(super) const RECENT: usize = 31;
#[cfg(loom)]
pub(super) const RECENT: usize = 1;

/// Indices of magazines. Each slot is exchanged as a whole, so a magazine is in one place whatever
/// `next` is.
#[repr(align(128))]
pub(super) struct Recent {
    /// The slot for the next magazine, behind the newest one. A hint: threads that share a core
    /// may overwrite it.
    next: AtomicU32,
    slots: [AtomicU32; RECENT],
}

impl Recent {
    pub(super) fn new() -> Recent {
        Recent { next: AtomicU32::new(0), slots: std::array::from_fn(|_| AtomicU32::new(NONE)) }
    }

    /// Puts a magazine in the place of the oldest one, and returns that if there was one.
    pub(super) fn put(&self, index: u32) -> Option<u32> {
        let at = self.next.load(Ordering::Relaxed) as usize % RECENT;
        // Release: the core that takes the magazine sees its contents. Acquire: so does this one,
        // which gets the oldest.
        let oldest = self.slots[at].swap(index, Ordering::AcqRel);
        self.next.store((at as u32 + 1) % RECENT as u32, Ordering::Relaxed);
        (oldest != NONE).then_some(oldest)
    }

    /// Takes the newest magazine: for the core that filled it.
    pub(super) fn take_newest(&self) -> Option<u32> {
        let at = (self.next.load(Ordering::Relaxed) as usize + RECENT - 1) % RECENT;
        let newest = self.take(at)?;
        self.next.store(at as u32, Ordering::Relaxed);
        Some(newest)
    }

    /// Takes the oldest magazine: for other cores.
    pub(super) fn take_oldest(&self) -> Option<u32> {
        let next = self.next.load(Ordering::Relaxed) as usize % RECENT;
        (next..RECENT).chain(0..next).find_map(|at| self.take(at))
    }

    fn take(&self, at: usize) -> Option<u32> {
        let slot = &self.slots[at];
        if slot.load(Ordering::Relaxed) == NONE {
            return None;
        }
        // Acquire: pairs with the release of `put`.
        let index = slot.swap(NONE, Ordering::Acquire);
        (index != NONE).then_some(index)
    }
}
