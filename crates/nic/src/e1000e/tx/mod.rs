//! A transmit queue: packets into the ring, sent frames out of it.
//!
//! | file | idea |
//! |---|---|
//! | `queue` | the port trait, doorbells, the watchdog |
//! | `submit` | packets become descriptors: mapped, written, announced; or copied first |
//! | `mod` | the ring; sent frames are unmapped and freed; restart and end |
//!
//! Three indices divide the ring:
//!
//! ```text
//!    next_to_clean            tail           next_to_use
//!  ───────┬────────────────────┬────────────────┬────────
//!   free  │ the device's       │ written        │ free (at least one)
//!         └─ RS ───── RS ──── RS
//! ```
//!
//! The device writes back the descriptors with RS set: the last of every k-th frame, and the last
//! of each announcement, so that no frame waits for another. DD in the oldest of them means that
//! all frames up to there were sent. A frame's descriptors are written when it is submitted;
//! [`announce`](TxRing::announce) makes one tail write for a batch, or for the rest of a burst.
//!
//! A frame below `tx-copybreak` is copied into the slot of its descriptor in the queue's bounce
//! memory, which stays mapped, and its packet is freed at once: see [`submit`]. The ring keeps only
//! the number and the bytes of such frames, with the report that completes them.
//!
//! An application's memory is mapped when the first packet of its pages comes. A packet in memory
//! that the device can't reach, or in more pieces than it takes, is copied and counted.

mod queue;
mod submit;

pub use queue::E1000eTx;

use super::config::Config;
use super::control::{Fault, FaultLog};
use super::descriptors::{Context, tx};
use super::offload::TxAbilities;
use crate::common::end::EndedRing;
use crate::common::ring::{DescRing, Slots, distance, next};
use std::collections::VecDeque;
use towpath_bus::{Dma, DmaMapper, Mapped};
use towpath_packet::{Batch, Cache, DropReason, InFlight, ToDevice};

/// Bytes of adjacent pieces that are mapped as one, at most, and of a piece that is mapped.
pub(super) const RUN: usize = 16 << 10;

/// One descriptor.
#[derive(Debug, Default)]
struct TxSlot {
    /// The mapping of this piece, and perhaps of the pieces that follow; none if the memory stays
    /// mapped.
    mapped: Option<Mapped>,
    /// The frame that ends here.
    frame: Option<InFlight<ToDevice>>,
}

/// The descriptors that a write-back completes, after those of the one before it.
#[derive(Debug, Default, Clone, Copy)]
struct Report {
    /// The last of them.
    at: u32,
    /// Copied frames among them, and their bytes: at most those of a ring of short frames.
    copies: u32,
    copied_bytes: u32,
}

/// What was written since the last RS.
#[derive(Debug, Default)]
struct SinceRs {
    frames: u32,
    descriptors: u32,
    copies: u32,
    copied_bytes: u32,
}

/// The ring and the frames in it.
pub(super) struct TxRing<D: Dma> {
    ring: DescRing,
    slots: Slots<TxSlot>,
    mapper: DmaMapper<D>,
    /// Where copies come from, and where sent packets are freed.
    cache: Cache,
    /// The device reaches no memory that packets lie in.
    copy_all: bool,
    abilities: TxAbilities,
    /// Shorter frames are copied.
    copybreak: usize,
    next_to_clean: u32,
    tail: u32,
    next_to_use: u32,
    /// Descriptors that can be written: one less than are behind no frame, so that a full ring
    /// differs from an empty one.
    free: u32,
    /// Descriptors with RS set that are not completed.
    rs_pending: VecDeque<Report>,
    /// RS is set after this many frames, or before this many descriptors have none.
    rs_every: u32,
    rs_descriptors: u32,
    since_rs: SinceRs,
    /// The second word of the last descriptor of the last frame.
    last: u64,
    /// The context that the chip has from this queue.
    context: Option<Context>,
    /// Another queue may have replaced it.
    shares_context: bool,
    /// Frames that were submitted and are not freed.
    pending: usize,
    /// Frames that are not announced.
    staged: u32,
    log: FaultLog,
}

/// The parts of a ring.
pub(super) struct TxParts<D: Dma> {
    pub(super) ring: DescRing,
    pub(super) mapper: DmaMapper<D>,
    pub(super) cache: Cache,
    pub(super) copy_all: bool,
    /// There are other transmit queues: the chip has one context for all (§7.2.6).
    pub(super) shares_context: bool,
}

impl<D: Dma> TxRing<D> {
    pub(super) fn new(parts: TxParts<D>, config: &Config, log: FaultLog) -> TxRing<D> {
        let TxParts { ring, mapper, cache, copy_all, shares_context } = parts;
        let len = ring.len();
        TxRing {
            slots: Slots::new(len),
            ring,
            mapper,
            cache,
            copy_all,
            abilities: TxAbilities {
                csum: config.csum,
                tso: config.tso,
                vlan: config.vlan,
                max_frame: config.max_frame(),
            },
            copybreak: 0,
            next_to_clean: 0,
            tail: 0,
            next_to_use: 0,
            free: len - 1,
            rs_pending: VecDeque::with_capacity(len as usize),
            rs_every: config.report_every.into(),
            rs_descriptors: len / 4 - 1,
            since_rs: SinceRs::default(),
            last: 0,
            context: None,
            shares_context,
            pending: 0,
            staged: 0,
            log,
        }
    }

    /// Whether super-packets are taken.
    pub(super) fn set_segmentation(&mut self, on: bool) {
        self.abilities.tso = on;
    }

    pub(super) fn descriptors(&self) -> &DescRing {
        &self.ring
    }

    /// RS is set in the descriptor `at`, the last that was written.
    #[inline]
    fn push_report(&mut self, at: u32) {
        let SinceRs { copies, copied_bytes, .. } = std::mem::take(&mut self.since_rs);
        self.rs_pending.push_back(Report { at, copies, copied_bytes });
    }

    /// Sets the length of the longest frame.
    #[inline]
    fn set_max_frame(&mut self, bytes: usize) {
        self.abilities.max_frame = bytes;
    }

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

    /// No frame was submitted for a while: flushes what was unmapped, and unmaps external memory
    /// that is no longer used.
    #[cold]
    pub(super) fn idle(&mut self) {
        let _ = self.mapper.flush_iotlb();
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
        let _ = self.mapper.flush_iotlb();
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

#[cfg(test)]
mod tests;
