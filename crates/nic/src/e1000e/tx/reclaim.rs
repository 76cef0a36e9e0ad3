//! What has left goes home; and the end, when everything does.

use super::super::control::{Fault, Log};
use super::super::descriptors::tx;
use super::TxCore;
use crate::common::ring::next;
use towpath_bus::Dma;
use towpath_packet::{Batch, DropReason, InFlight, ToDevice};

impl<D: Dma> TxCore<D> {
    /// Frees what has left; returns how many frames.
    #[inline]
    pub(in super::super) fn reclaim(&mut self) -> usize {
        let mut until = None;
        while let Some(&at) = self.reports.front() {
            if self.ring.status(at) & tx::DONE == 0 {
                break;
            }
            self.reports.pop_front();
            until = Some(at);
        }
        match until {
            Some(at) => self.free_until(next(at, self.ring.len()), None),
            None => 0,
        }
    }

    /// Frees the frames up to and without the descriptor `until`: sent, or dropped for `reason`.
    #[inline]
    fn free_until(&mut self, until: u32, reason: Option<DropReason>) -> usize {
        let len = self.ring.len();
        let mut lost = false;
        while self.clean != until {
            if let Some(slot) = self.slots.get_mut(self.clean) {
                if let Some(mapped) = slot.mapped.take() {
                    lost |= self.mapper.unmap(mapped).is_err();
                }
                if let Some(frame) = slot.frame.take() {
                    self.pending = self.pending.saturating_sub(1);
                    if std::mem::take(&mut lost) {
                        leak(frame, reason, &self.log);
                    } else {
                        self.gone.push(frame);
                    }
                }
            }
            self.clean = next(self.clean, len);
        }
        let settled = self.mapper.sync_iotlb().is_ok();
        let (mut frames, mut bytes) = (0, 0);
        let mut home: Batch = Batch::new();
        for frame in self.gone.drain(..) {
            if !settled {
                leak(frame, reason, &self.log);
                continue;
            }
            let packet = frame.complete();
            frames += 1;
            bytes += packet.len() as u64;
            if let Err(packet) = home.push(packet) {
                self.cache.free_bulk(&mut home);
                let _ = home.push(packet);
            }
        }
        self.cache.free_bulk(&mut home);
        match reason {
            None => self.log.counters.moved(frames, bytes),
            Some(reason) => self.log.counters.dropped(reason, frames),
        }
        frames as usize
    }

    /// Nothing is sent for a while: what was unmapped need not stay within reach any longer.
    #[cold]
    pub(in super::super) fn idle(&mut self) {
        let _ = self.mapper.flush();
        self.mapper.unmap_unused();
    }

    /// The device was reset, and its ring is empty: what was in it is dropped.
    #[cold]
    pub(in super::super) fn restart(&mut self, reason: DropReason) {
        self.free_until(self.tail, Some(reason));
        self.ring.clear();
        (self.clean, self.told, self.tail, self.staged) = (0, 0, 0, 0);
        self.reports.clear();
        self.unreported = (0, 0);
        self.context = None;
    }

    /// The device was stopped: gives every packet home.
    #[cold]
    pub(in super::super) fn release(mut self) {
        self.free_until(self.tail, Some(DropReason::Stopped));
        let _ = self.mapper.flush();
    }

    /// It is not known whether the device has stopped: nothing that it can reach is used again.
    #[cold]
    pub(in super::super) fn abandon(mut self) {
        for slot in self.slots.iter_mut() {
            if let Some(frame) = slot.frame.take() {
                leak(frame, Some(DropReason::Stopped), &self.log);
            }
        }
        // The window of addresses must not go either: its pages may be in use.
        std::mem::forget((self.mapper, self.ring));
    }
}

/// A frame that the device may read for ever.
#[cold]
fn leak(frame: InFlight<ToDevice>, reason: Option<DropReason>, log: &Log) {
    log.fault(Fault::Leaked);
    let bytes = frame.chunks().map(|chunk| chunk.len() as u64).sum();
    match reason {
        None => log.counters.moved(1, bytes),
        Some(reason) => log.counters.dropped(reason, 1),
    }
    // A loan that is dropped keeps its packet from going home.
    drop(frame);
}
