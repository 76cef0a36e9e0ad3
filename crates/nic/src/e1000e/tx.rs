//! Transmission: packets into the ring, what has left out of it.
//!
//! ```text
//!        clean                told             tail
//!   ──────┬────────────────────┬────────────────┬────────
//!   free  │ the device's       │ written        │ free (at least one)
//!         └─ R ────── R ────── R
//! ```
//!
//! The device reports on the descriptors marked R: the last one of every k-th frame, and of each burst, so that nothing is left
//! behind without a report. One look at the next of them says whether all up to there has left. A frame's descriptors are
//! written when it is taken; [`announce`](TxCore::announce) tells the device of a batch, or of what is left of a burst, by one write.
//!
//! Memory of an application is made known to the device when the first packet of its pages comes. A packet that lies in memory which the
//! device can't reach, or in more pieces than it takes, is copied, and counted.
//!
//! `take` decides what becomes of a packet, `write` writes its descriptors, `copy` is for what the device can't reach; `reclaim` is what
//! happens to frames that have left.

mod copy;
mod reclaim;
mod take;
mod write;

use super::config::Config;
use super::control::Log;
use super::descriptors::{Context, Words};
use super::offload::Abilities;
use crate::common::ring::DescRing;
use crate::common::ring::distance;
use crate::common::slots::Slots;
use std::collections::VecDeque;
use take::Taken;
use towpath_bus::{Dma, DmaMapper, Mapped};
use towpath_packet::{Batch, Cache, InFlight, ToDevice};

const BURST: usize = Batch::<64>::CAPACITY;

/// One descriptor.
#[derive(Debug, Default)]
struct Slot {
    /// What was mapped for this piece, and perhaps for those that follow.
    mapped: Option<Mapped>,
    /// The frame that ends here.
    frame: Option<InFlight<ToDevice>>,
}

/// The ring, the frames in it, and where copies come from.
pub(super) struct TxCore<D: Dma> {
    ring: DescRing,
    slots: Slots<Slot>,
    mapper: DmaMapper<D>,
    /// Where copies come from, and what has left goes to.
    cache: Cache,
    /// Nothing that is sent lies in memory that the device reaches.
    copy_all: bool,
    can: Abilities,
    clean: u32,
    told: u32,
    tail: u32,
    reports: VecDeque<u32>,
    report_every: u32,
    /// Frames and descriptors since the last that the device is to report on.
    unreported: (u32, u32),
    /// The last descriptor of the last frame.
    last: (u32, Words),
    context: Option<Context>,
    ends: [Option<u32>; BURST],
    gone: Vec<InFlight<ToDevice>>,
    pending: usize,
    /// Frames that the device does not know of.
    staged: u32,
    log: Log,
}

/// What a queue gets at its start.
pub(super) struct TxParts<D: Dma> {
    pub(super) ring: DescRing,
    pub(super) mapper: DmaMapper<D>,
    pub(super) cache: Cache,
    pub(super) copy_all: bool,
}

impl<D: Dma> TxCore<D> {
    pub(super) fn new(parts: TxParts<D>, config: &Config, log: Log) -> TxCore<D> {
        let TxParts { ring, mapper, cache, copy_all } = parts;
        let len = ring.len();
        TxCore {
            slots: Slots::new(len),
            ring,
            mapper,
            cache,
            copy_all,
            can: Abilities { csum: config.csum, tso: config.tso, vlan: config.vlan, max_frame: config.max_frame() },
            clean: 0,
            told: 0,
            tail: 0,
            reports: VecDeque::with_capacity(len as usize),
            report_every: config.report_every.into(),
            unreported: (0, 0),
            last: (0, [0, 0]),
            context: None,
            ends: [None; BURST],
            gone: Vec::with_capacity(len as usize),
            pending: 0,
            staged: 0,
            log,
        }
    }

    pub(super) fn ring(&self) -> &DescRing {
        &self.ring
    }

    pub(super) fn dma_counts(&self) -> towpath_bus::DmaCounts {
        self.mapper.counts()
    }

    /// Frames that were taken and have not left.
    #[inline]
    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    #[inline]
    fn free(&self) -> usize {
        let len = self.ring.len();
        (len - 1 - distance(self.clean, self.tail, len)) as usize
    }

    /// Frames that the device does not know of.
    #[inline]
    pub(super) fn staged(&self) -> u32 {
        self.staged
    }

    /// Takes packets from the front of a batch, at most as many as said; returns how many. The device does not know of them yet.
    #[inline]
    pub(super) fn send(&mut self, batch: &mut Batch, most: usize) -> usize {
        let mut taken = 0;
        while let Some(packet) = batch.as_mut_slice().get_mut(taken).filter(|_| taken < most) {
            let end = match self.queue(packet) {
                Taken::Queued(end) => Some(end),
                Taken::Dropped(reason) => {
                    self.log.counters.dropped(reason, 1);
                    None
                }
                Taken::Full => break,
            };
            if let Some(slot) = self.ends.get_mut(taken) {
                *slot = end;
            }
            taken += 1;
        }
        for (packet, end) in batch.drain_front(taken).zip(&self.ends) {
            match end.and_then(|end| self.slots.get_mut(end)) {
                Some(slot) => slot.frame = Some(InFlight::<ToDevice>::post(packet)),
                None => self.cache.free(packet),
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests;
