//! The invalidation queue: 16-byte descriptors in memory (VT-d specification §6.5.2), written by whoever unmaps, read by the
//! device's side.
//!
//! ```text
//!   unmap ──► page, page, …, wait(n) ──► tail ═════► head ──► IOTLB forgets; DMA in flight has ended ──► status = n
//! ```

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const ENTRIES: u32 = 512;
/// IOTLB invalidation by page, reads and writes drained: type 2, granularity 3.
const PAGES: u64 = 0xf2;
/// Of the whole domain: granularity 2.
const DOMAIN: u64 = 0xe2;
/// Wait, with a status to be written.
const WAIT: u64 = 0x25;

/// What a descriptor asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Invalidate {
    /// Forget `2^order` pages from an address on, which is a multiple of them.
    Pages { iova: u64, order: u32 },
    /// Forget everything.
    All,
    /// Say that everything before has been done.
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
pub(super) struct Queue {
    ring: Box<[[AtomicU64; 2]]>,
    /// Index of the first descriptor that was not processed, counted without end.
    head: AtomicU32,
    /// Index behind the last descriptor, counted without end: the queue's doorbell.
    tail: AtomicU32,
    status: AtomicU32,
    writer: Mutex<Writer>,
}

#[derive(Debug, Default)]
struct Writer {
    tail: u32,
    waits: u32,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue {
            ring: (0..ENTRIES).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect(),
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            status: AtomicU32::new(0),
            writer: Mutex::default(),
        }
    }

    /// Writes descriptors and a wait behind them; returns what the status will be. `full` is called when there is no room, until
    /// there is.
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
        // Release: descriptors, and the cleared entries of the page tables before them, come first.
        self.tail.store(writer.tail, Ordering::Release);
        wait
    }

    /// Whether the wait that [`submit`](Queue::submit) returned has been reached.
    #[inline]
    pub(super) fn reached(&self, wait: u32) -> bool {
        self.status.load(Ordering::Acquire).wrapping_sub(wait) as i32 >= 0
    }

    /// The device's side: takes the next descriptor. One at a time: whoever holds the engine's lock.
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

    /// The device's side: a wait has been reached.
    pub(super) fn reach(&self, wait: u32) {
        self.status.store(wait, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_come_out_as_they_went_in_with_a_wait_behind_them() {
        let queue = Queue::new();
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
        let queue = Queue::new();
        let all = (0..2 * ENTRIES).map(|_| Invalidate::All);
        let mut helped = 0;
        queue.submit(all, || {
            helped += 1;
            assert!(queue.take().is_some());
        });
        assert_eq!(helped, ENTRIES + 1);
    }
}
