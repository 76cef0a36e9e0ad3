//! Sent frames out of the ring: found by the write-backs, unmapped, freed.
//!
//! ```text
//!    next_to_clean                              tail
//!  ───────┬──────────┬──────────┬─────────┬──────┬───
//!         │ frames RS│ DD ⇒ sent│         RS     │
//!         └──────────┴──────────┘
//!           reclaim: one unmap, one flush, one free for all of them
//! ```

use super::super::control::{Fault, FaultLog};
use super::super::descriptors::tx;
use super::{Report, TxRing, TxSlot};
use crate::common::ring::{distance, next};
use towpath_bus::Dma;
use towpath_packet::{Batch, DropReason};

impl<D: Dma> TxRing<D> {
    /// Frees the frames that were sent; returns how many.
    #[inline]
    pub(in crate::e1000e) fn reclaim(&mut self) -> usize {
        let (mut all, mut completed) = (Report::default(), false);
        while let Some(&report) = self.rs_pending.front() {
            if self.ring.status(report.at) & tx::DD == 0 {
                break;
            }
            self.rs_pending.pop_front();
            (all, completed) = (all.join(report), true);
        }
        if completed { self.free_until(next(all.at, self.ring.len()), &all, None) } else { 0 }
    }

    /// Frees the frames up to and without the descriptor `until`, which `report` describes: they
    /// were sent, or are dropped for `reason`.
    #[inline]
    pub(super) fn free_until(&mut self, until: u32, report: &Report, reason: Option<DropReason>) -> usize {
        let (mut from, passed) = (self.next_to_clean, distance(self.next_to_clean, until, self.ring.len()));
        (self.next_to_clean, self.free) = (until, self.free + passed);
        if report.copies == passed {
            // The slots of copied frames are empty.
            from = until;
        }
        let leaked = if self.mapper.maps_buffers() { self.unmap_between(from, until, reason) } else { 0 };
        // The packets of copied frames are free already.
        let (mut frames, mut bytes) = (u64::from(report.copies), u64::from(report.copied_bytes));
        if frames > 0 {
            self.log.counters.copied(frames, bytes);
        }
        let mut freed: Batch = Batch::new();
        for part in self.slots.between(from, until) {
            let mut sent = part.iter_mut().filter_map(|slot| slot.frame.take()).map(|frame| {
                let packet = frame.complete();
                bytes += packet.len() as u64;
                packet
            });
            loop {
                freed.fill(&mut sent);
                if freed.is_empty() {
                    break;
                }
                frames += freed.len() as u64;
                self.cache.free_bulk(&mut freed);
            }
        }
        self.pending = self.pending.saturating_sub(frames as usize + leaked);
        match reason {
            None => self.log.counters.moved(frames, bytes),
            Some(reason) => self.log.counters.dropped(reason, frames),
        }
        frames as usize
    }

    /// Unmaps the frames of these descriptors, so that those that are left in their slots can be
    /// freed. Returns how many are not: the device may read them for ever.
    fn unmap_between(&mut self, from: u32, until: u32, reason: Option<DropReason>) -> usize {
        let (mut lost, mut leaked) = (false, 0);
        for slot in self.slots.between(from, until).into_iter().flatten() {
            if let Some(mapped) = slot.mapped.take() {
                lost |= self.mapper.unmap(mapped).is_err();
            }
            // The frame ends here.
            if slot.frame.is_some() && std::mem::take(&mut lost) {
                leaked += leak(slot, reason, &self.log);
            }
        }
        if self.mapper.sync_iotlb().is_err() {
            let slots = self.slots.between(from, until).into_iter().flatten();
            leaked += slots.map(|slot| leak(slot, reason, &self.log)).sum::<usize>();
        }
        leaked
    }
}

/// The device may read the frame of a slot, if there is one, for ever. Returns the number of
/// frames.
#[cold]
pub(super) fn leak(slot: &mut TxSlot, reason: Option<DropReason>, log: &FaultLog) -> usize {
    let Some(frame) = slot.frame.take() else { return 0 };
    log.fault(Fault::Leaked);
    let bytes = frame.chunks().map(|chunk| chunk.len() as u64).sum();
    match reason {
        None => log.counters.moved(1, bytes),
        Some(reason) => log.counters.dropped(reason, 1),
    }
    // The packet of an `InFlight` that is dropped does not return to its pool.
    drop(frame);
    1
}
