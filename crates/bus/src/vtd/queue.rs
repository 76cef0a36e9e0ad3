//! The invalidation queue (VT-d §6.5.2): a ring of 16-byte descriptors, processed in order.
//!
//! ```text
//!   batch:  [invalidate][invalidate] … [wait: store n at status]      one write of IQT
//!                                                └────► status word: n: batches up to n are done
//! ```
//!
//! Batches are numbered. A submitter waits until the status word reaches its number or a later one.
//! Several threads may wait at once, and none of them reads a register for it.

use super::phys_memory::{PAGE, PhysMemory};
use super::registers::{FSTS, IQT, QUEUE_ERRORS};
use super::table_pages::TablePages;
use crate::dma::MapError;
use crate::mmio::Mmio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Descriptors in the ring: one page, the smallest size.
const SLOTS: u32 = PAGE as u32 / 16;

/// The maximum of invalidations in a batch: a quarter of the ring, so that a batch seldom waits for
/// the one before it.
pub(super) const BATCH: usize = SLOTS as usize / 4;

/// The time limit. On silicon an invalidation takes microseconds; an emulated unit may be scheduled
/// out.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The time after which the unit is asked for queue errors.
const CHECK_ERRORS_AFTER: Duration = Duration::from_millis(500);

/// Domain id, as in a descriptor.
type Did = u16;

/// What to invalidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Invalidation {
    /// All context entries.
    Contexts,
    /// The context entry of one device.
    Context { source: u16, did: Did },
    /// All translations.
    Everything,
    /// All translations of a domain.
    Domain { did: Did },
    /// The translations of 2^`mask` pages from `iova`, a multiple of their total size.
    Pages { did: Did, iova: u64, mask: u8 },
}

impl Invalidation {
    /// The descriptor (§6.5.2.1, §6.5.2.3). DMA reads and writes in progress are drained first.
    fn encode(self) -> [u64; 2] {
        const CONTEXT: u64 = 0x1;
        const IOTLB: u64 = 0x2 | DRAIN;
        const DRAIN: u64 = 3 << 6;
        let granularity = |g: u64| g << 4;
        match self {
            Invalidation::Contexts => [CONTEXT | granularity(1), 0],
            Invalidation::Context { source, did } => {
                [CONTEXT | granularity(3) | u64::from(did) << 16 | u64::from(source) << 32, 0]
            }
            Invalidation::Everything => [IOTLB | granularity(1), 0],
            Invalidation::Domain { did } => [IOTLB | granularity(2) | u64::from(did) << 16, 0],
            Invalidation::Pages { did, iova, mask } => {
                [IOTLB | granularity(3) | u64::from(did) << 16, (iova & !(PAGE - 1)) | u64::from(mask & 0x3f)]
            }
        }
    }
}

/// A wait descriptor that stores `number` at `status` (§6.5.2.8: type 5, SW).
fn wait(number: u32, status: u64) -> [u64; 2] {
    [0x25 | u64::from(number) << 32, status]
}

/// The ring, and the status word behind it.
pub(super) struct InvalidationQueue {
    memory: TablePages,
    tail: u32,
    /// Free slots, a lower bound.
    free: u32,
    last: u32,
}

/// The status word; a clone is another handle.
#[derive(Clone)]
pub(super) struct WaitStatus(TablePages);

/// The status word lies in the page after the ring.
const STATUS: usize = super::table_pages::PER_PAGE;

impl InvalidationQueue {
    pub(super) fn new<P: PhysMemory>(memory: &P) -> Result<InvalidationQueue, MapError> {
        // One slot stays free: head = tail means empty.
        Ok(InvalidationQueue { memory: TablePages::alloc(memory, 2)?, tail: 0, free: SLOTS - 1, last: 0 })
    }

    /// The value of IQA: 256 entries (QS = 0).
    pub(super) fn base(&self) -> u64 {
        self.memory.physical()
    }

    pub(super) fn status(&self) -> WaitStatus {
        WaitStatus(self.memory.clone())
    }

    /// Submits at most [`BATCH`] + 1 invalidations; returns the batch number.
    pub(super) fn submit<M: Mmio>(&mut self, bar: &M, batch: &[Invalidation]) -> Result<u32, MapError> {
        let needed = batch.len() as u32 + 1;
        if self.free < needed {
            self.status().wait(bar, self.last)?;
            self.free = SLOTS - 1;
        }
        if self.free < needed {
            return Err(MapError::Refused("more invalidations at once than the queue has room for"));
        }
        self.last = self.last.wrapping_add(1);
        let status = self.memory.physical() + STATUS as u64 * 8;
        for descriptor in batch.iter().map(|i| i.encode()).chain([wait(self.last, status)]) {
            for (half, word) in descriptor.into_iter().enumerate() {
                // Relaxed: the unit reads the ring only after the write of IQT below, which orders
                // all stores before it.
                let at = self.memory.at(self.tail as usize * 2 + half);
                at.ok_or(MapError::Refused("no such descriptor"))?.store(word, Ordering::Relaxed);
            }
            self.tail = (self.tail + 1) % SLOTS;
        }
        self.free -= needed;
        IQT.write(bar, self.tail << 4);
        Ok(self.last)
    }
}

impl WaitStatus {
    /// Leaks the queue: the unit may access it for ever.
    pub(super) fn leak(&self) {
        self.0.leak();
    }

    /// Waits until batch `number` is done.
    pub(super) fn wait<M: Mmio>(&self, bar: &M, number: u32) -> Result<(), MapError> {
        let word = self.0.at(STATUS).ok_or(MapError::Refused("no status word"))?;
        // Acquire: reads of the pages after this see all that the device wrote before the
        // invalidation.
        let done = || (word.load(Ordering::Acquire) as u32).wrapping_sub(number) as i32 >= 0;
        for _ in 0..64 {
            if done() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let begun = Instant::now();
        let mut checked = false;
        loop {
            std::thread::yield_now();
            // Before the look: this thread may have slept longer than the unit worked.
            let waited = begun.elapsed();
            if done() {
                return Ok(());
            }
            if waited > TIMEOUT {
                return Err(MapError::Refused("the remapping unit did not answer an invalidation in time"));
            }
            if !checked && waited > CHECK_ERRORS_AFTER {
                checked = true;
                match FSTS.read(bar) {
                    u32::MAX => return Err(MapError::Refused("the remapping unit is gone")),
                    status if status & QUEUE_ERRORS != 0 && !done() => {
                        return Err(MapError::Refused(
                            "the remapping unit's invalidation queue has stopped with an error",
                        ));
                    }
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_have_the_values_of_the_specification() {
        assert_eq!(Invalidation::Contexts.encode(), [0x11, 0]);
        assert_eq!(Invalidation::Context { source: 0x20, did: 5 }.encode(), [0x20_0005_0031, 0]);
        assert_eq!(Invalidation::Everything.encode(), [0xd2, 0]);
        assert_eq!(Invalidation::Domain { did: 7 }.encode(), [0x7_00e2, 0]);
        assert_eq!(Invalidation::Pages { did: 1, iova: 0x12_3000, mask: 3 }.encode(), [0x1_00f2, 0x12_3003]);
        assert_eq!(wait(9, 0x5000), [0x9_0000_0025, 0x5000]);
    }
}
