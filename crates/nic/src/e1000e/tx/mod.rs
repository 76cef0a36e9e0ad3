//! A transmit queue: packets into the ring, sent frames out of it.
//!
//! | file | idea |
//! |---|---|
//! | `queue` | the port trait, doorbells, the watchdog |
//! | `submit` | packets become descriptors: mapped, written, announced; or copied first |
//! | `complete` | sent frames are unmapped and freed |
//! | `mod` | the ring; restart and end |
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

mod complete;
mod queue;
mod submit;

pub use queue::E1000eTx;

use super::config::Config;
use super::control::FaultLog;
use super::descriptors::Context;
use super::offload::TxAbilities;
use crate::common::end::EndedRing;
use crate::common::ring::{DescRing, Slots};
use complete::leak;
use std::collections::VecDeque;
use towpath_bus::{Dma, DmaMapper, Mapped};
use towpath_packet::{Cache, DropReason, InFlight, ToDevice};

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

    /// Everything that is in the ring, as one report.
    #[cold]
    fn take_all(&mut self) -> Report {
        self.push_report(self.next_to_use);
        self.rs_pending.drain(..).reduce(Report::join).unwrap_or_default()
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

#[cfg(test)]
mod tests;
