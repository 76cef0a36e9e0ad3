//! Sent frames are unmapped and freed; and the end of the ring, when all frames are.

use super::super::control::{Fault, FaultLog};
use super::super::descriptors::tx;
use super::{Report, TxRing};
use crate::common::end::EndedRing;
use crate::common::ring::{distance, next};
use towpath_bus::Dma;
use towpath_packet::{Batch, DropReason, InFlight, ToDevice};

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
        let len = self.ring.len();
        let mut lost = false;
        if report.copies == distance(self.next_to_clean, until, len) {
            // The slots of copied frames are empty.
            self.next_to_clean = until;
        }
        while self.next_to_clean != until {
            if let Some(slot) = self.slots.get_mut(self.next_to_clean) {
                if let Some(mapped) = slot.mapped.take() {
                    lost |= self.mapper.unmap(mapped).is_err();
                }
                if let Some(frame) = slot.frame.take() {
                    self.pending = self.pending.saturating_sub(1);
                    if std::mem::take(&mut lost) {
                        leak(frame, reason, &self.log);
                    } else {
                        self.unmapped.push(frame);
                    }
                }
            }
            self.next_to_clean = next(self.next_to_clean, len);
        }
        let synced = self.mapper.sync_iotlb().is_ok();
        // The packets of copied frames are free already.
        let (mut frames, mut bytes) = (u64::from(report.copies), u64::from(report.copied_bytes));
        self.pending = self.pending.saturating_sub(report.copies as usize);
        if frames > 0 {
            self.log.counters.copied(frames, bytes);
        }
        let mut freed: Batch = Batch::new();
        for frame in self.unmapped.drain(..) {
            if !synced {
                leak(frame, reason, &self.log);
                continue;
            }
            let packet = frame.complete();
            frames += 1;
            bytes += packet.len() as u64;
            if let Err(packet) = freed.push(packet) {
                self.cache.free_bulk(&mut freed);
                let _ = freed.push(packet);
            }
        }
        self.cache.free_bulk(&mut freed);
        match reason {
            None => self.log.counters.moved(frames, bytes),
            Some(reason) => self.log.counters.dropped(reason, frames),
        }
        frames as usize
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
            if let Some(frame) = slot.frame.take() {
                leak(frame, Some(DropReason::Stopped), &self.log);
            }
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

/// A frame that the device may read for ever.
#[cold]
fn leak(frame: InFlight<ToDevice>, reason: Option<DropReason>, log: &FaultLog) {
    log.fault(Fault::Leaked);
    let bytes = frame.chunks().map(|chunk| chunk.len() as u64).sum();
    match reason {
        None => log.counters.moved(1, bytes),
        Some(reason) => log.counters.dropped(reason, 1),
    }
    // The packet of an `InFlight` that is dropped does not return to its pool.
    drop(frame);
}
