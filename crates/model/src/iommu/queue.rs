//! The invalidation queue: 16-byte descriptors (VT-d specification §6.5.2). The driver's side
//! writes them, the device's side processes them.
//!
//! ```text
//!   unmap ──► page, page, …, wait(n) ──► tail ═════► head ──► invalidate, drain DMA ──► status = n
//! ```

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const ENTRIES: u32 = 512;
/// Page-selective IOTLB invalidation, DMA reads and writes drained: type 2, granularity 3.
const PAGES: u64 = 0xf2;
/// Domain-selective: granularity 2.
const DOMAIN: u64 = 0xe2;
/// Wait, with a status write.
const WAIT: u64 = 0x25;

/// A descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Invalidate {
    /// Invalidates `2^order` pages from an address on, a multiple of their size.
    Pages { iova: u64, order: u32 },
    /// Invalidates all translations.
    All,
    /// Reports that all earlier descriptors are done.
    Wait(u32),
}

impl Invalidate {
    fn words(self) -> (u64, u64) {
        match self {
            Invalidate::Pages { iova, order } => (PAGES, iova & !0xfff | u64::from(order)),
            Invalidate::All => (DOMAIN, 0),
            Invalidate::Wait(data) => (WAIT | u64::from(data) << 32, 0),
        }
    }

    fn from_words(low: u64, high: u64) -> Option<Invalidate> {
        match low & 0xff {
            PAGES => Some(Invalidate::Pages { iova: high & !0xfff, order: (high & 0x3f) as u32 }),
            DOMAIN => Some(Invalidate::All),
            WAIT => Some(Invalidate::Wait((low >> 32) as u32)),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct InvalidationQueue {
    ring: Box<[[AtomicU64; 2]]>,
    /// Free-running index of the first unprocessed descriptor.
    head: AtomicU32,
    /// Free-running index after the last descriptor: the doorbell.
    tail: AtomicU32,
    status: AtomicU32,
    writer: Mutex<Writer>,
}

#[derive(Debug, Default)]
struct Writer {
    tail: u32,
    waits: u32,
}

impl InvalidationQueue {
    pub(super) fn new() -> InvalidationQueue {
        InvalidationQueue {
            ring: (0..ENTRIES).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect(),
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            status: AtomicU32::new(0),
            writer: Mutex::default(),
        }
    }

    /// Writes descriptors followed by a wait; returns the value that the status will have. Calls
    /// `full` while there is no room.
    pub(super) fn submit(&self, what: impl Iterator<Item = Invalidate>, mut full: impl FnMut()) -> u32 {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.waits = writer.waits.wrapping_add(1);
        let wait = writer.waits;
        for invalidate in what.chain([Invalidate::Wait(wait)]) {
            while writer.tail.wrapping_sub(self.head.load(Ordering::Acquire)) >= ENTRIES {
                self.tail.store(writer.tail, Ordering::Release);
                full();
            }
            let (low, high) = invalidate.words();
            let [first, second] = &self.ring[(writer.tail % ENTRIES) as usize];
            first.store(low, Ordering::Relaxed);
            second.store(high, Ordering::Relaxed);
            writer.tail = writer.tail.wrapping_add(1);
        }
        // Release: the descriptors, and the cleared page table entries before them, are visible
        // first.
        self.tail.store(writer.tail, Ordering::Release);
        wait
    }

    /// Whether the wait of [`submit`](InvalidationQueue::submit) is done.
    #[inline]
    pub(super) fn reached(&self, wait: u32) -> bool {
        self.status.load(Ordering::Acquire).wrapping_sub(wait) as i32 >= 0
    }

    /// The device's side: whether there is nothing to take.
    pub(super) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed) == self.tail.load(Ordering::Acquire)
    }

    /// The device's side: takes the next descriptor. The engine's lock excludes other callers.
    #[inline]
    pub(super) fn take(&self) -> Option<Invalidate> {
        let head = self.head.load(Ordering::Relaxed);
        if head == self.tail.load(Ordering::Acquire) {
            return None;
        }
        let [low, high] = &self.ring[(head % ENTRIES) as usize];
        let taken = Invalidate::from_words(low.load(Ordering::Relaxed), high.load(Ordering::Relaxed));
        self.head.store(head.wrapping_add(1), Ordering::Release);
        taken
    }

    /// The device's side: reports a wait as done.
    pub(super) fn reach(&self, wait: u32) {
        self.status.store(wait, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_taken_in_order_with_a_wait_after_them() {
        let queue = InvalidationQueue::new();
        let pages = Invalidate::Pages { iova: 0x1_2345_6000, order: 3 };
        let wait = queue.submit([pages, Invalidate::All].into_iter(), || unreachable!());
        assert!(!queue.reached(wait));
        assert_eq!((queue.take(), queue.take()), (Some(pages), Some(Invalidate::All)));
        assert_eq!(queue.take(), Some(Invalidate::Wait(wait)));
        assert_eq!(queue.take(), None);
        queue.reach(wait);
        assert!(queue.reached(wait) && queue.reached(wait.wrapping_sub(1)) && !queue.reached(wait + 1));
    }

    #[test]
    fn a_full_queue_waits_for_its_reader() {
        let queue = InvalidationQueue::new();
        let all = (0..2 * ENTRIES).map(|_| Invalidate::All);
        let mut helped = 0;
        queue.submit(all, || {
            helped += 1;
            assert!(queue.take().is_some());
        });
        assert_eq!(helped, ENTRIES + 1);
    }
}
