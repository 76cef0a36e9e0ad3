//! Sent frames are unmapped and freed; and the end of the ring, when all frames are.

use super::super::control::{Fault, FaultLog};
use super::super::descriptors::tx;
use super::{Report, TxRing, TxSlot};
use crate::common::end::EndedRing;
use crate::common::ring::{distance, next};
use towpath_bus::Dma;
use towpath_packet::{Batch, DropReason};

impl<D: Dma> TxRing<D> {
    /// Frees the frames that were sent; returns how many.
    #[inline]
    pub(super) fn reclaim(&mut self) -> usize {
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

    /// Everything that is in the ring, as one report.
    #[cold]
    fn take_all(&mut self) -> Report {
        self.push_report(self.next_to_use);
        self.rs_pending.drain(..).reduce(Report::join).unwrap_or_default()
    }

    /// Frees the frames up to and without the descriptor `until`, which `report` describes: they
    /// were sent, or are dropped for `reason`.
    #[inline]
    fn free_until(&mut self, until: u32, report: &Report, reason: Option<DropReason>) -> usize {
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
            for frame in part.iter_mut().filter_map(|slot| slot.frame.take()) {
                let packet = frame.complete();
                frames += 1;
                bytes += packet.len() as u64;
                if let Err(packet) = freed.push(packet) {
                    self.cache.free_bulk(&mut freed);
                    let _ = freed.push(packet);
                }
            }
        }
        self.cache.free_bulk(&mut freed);
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

    /// No frame was submitted for a while: flushes what was unmapped, and unmaps external memory
    /// that is no longer used.
    #[cold]
    pub(super) fn idle(&mut self) {
        let _ = self.mapper.flush();
        self.mapper.unmap_unused();
    }

    /// The device was reset, and its ring is empty: drops the frames that were in it, after those
    /// that it had reported as sent.
    #[cold]
    pub(super) fn restart(&mut self, reason: DropReason) {
        self.reclaim();
        let all = self.take_all();
        self.free_until(self.next_to_use, &all, Some(reason));
        self.ring.clear();
        (self.next_to_clean, self.tail, self.next_to_use, self.staged) = (0, 0, 0, 0);
        self.context = None;
    }
}

impl<D: Dma> EndedRing for TxRing<D> {
    #[cold]
    fn release(mut self) {
        let all = self.take_all();
        self.free_until(self.next_to_use, &all, Some(DropReason::Stopped));
        let _ = self.mapper.flush();
    }

    #[cold]
    fn abandon(mut self) {
        for slot in self.slots.iter_mut() {
            leak(slot, Some(DropReason::Stopped), &self.log);
        }
        let copies = self.take_all().copies.into();
        self.log.counters.dropped(DropReason::Stopped, copies);
        std::mem::forget((self.mapper, self.ring));
    }
}

impl Report {
    /// This report and the one after it.
    #[inline]
    fn join(self, next: Report) -> Report {
        let (copies, copied_bytes) = (self.copies + next.copies, self.copied_bytes + next.copied_bytes);
        Report { at: next.at, copies, copied_bytes }
    }
}

/// The device may read the frame of a slot, if there is one, for ever. Returns the number of
/// frames.
#[cold]
fn leak(slot: &mut TxSlot, reason: Option<DropReason>, log: &FaultLog) -> usize {
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
