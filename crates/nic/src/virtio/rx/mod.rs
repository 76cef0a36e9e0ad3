//! A receive queue: buffers become chains, used chains become packets.
//!
//! ```text
//!   one buffer       [ header │ frame ]                                num_buffers = 1
//!   mergeable        [ header │ frame … ] [ … ] [ … ]                  num_buffers = 3
//!   a chain each     [ header │ frame …   ─   …   ─   … ]              super-packets, not mergeable
//! ```
//!
//! A burst takes three passes, which share one IOTLB flush: used chains are harvested and their
//! buffers unmapped; [`sync_iotlb`](towpath_bus::DmaMapper::sync_iotlb) flushes the IOTLB; packets
//! are made. No byte of an unmapped buffer is read before the flush. A short buffer is copied by
//! the first pass, and stays mapped until it is posted again. Where memory stays mapped and nothing
//! is copied, the first pass has nothing to do.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | [`RxRing`]: its parts, refill, and the end |
//! | `burst` | used chains become packets |
//! | `chains` | chains of several buffers |
//! | `queue` | [`VirtioRx`]: the port's queue |

mod burst;
mod chains;
mod queue;

pub(super) use chains::RxChains;
pub use queue::VirtioRx;

use super::control::{Control, Fault};
use super::features::SUPER_PACKET;
use crate::common::copybreak::{RxCounts, RxSlot, free_all, unmap_all};
use crate::common::end::EndedRing;
use crate::common::ring::Slots;
use burst::{BURST, Partial};
use std::num::NonZeroU32;
use std::sync::Arc;
use towpath_bus::{Dma, DmaMapper};
use towpath_packet::{Batch, Cache, Counters, FromDevice, InFlight, Offloads, Packet};
use towpath_virtio::{Driver, Segment, SingleBuffers, Used};

/// What was negotiated for received packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct RxRules {
    /// A packet may have several buffers, each of a chain of its own.
    pub(super) mergeable: bool,
    /// Every chain has several buffers; `None` if each has one.
    pub(super) chains: Option<RxChains>,
    /// What packets may need.
    pub(super) offloads: Offloads,
    /// Bytes of a header.
    pub(super) header: usize,
    /// Bytes of the longest frame that is not a super-packet.
    pub(super) max_frame: usize,
}

impl RxRules {
    /// Chains of the longest packet, if a buffer has so much room.
    fn buffers_of_longest(&self, room: usize) -> usize {
        if !self.mergeable || self.chains.is_some() {
            return 1;
        }
        let kinds = [Offloads::TSO4, Offloads::TSO6, Offloads::USO];
        let is_super = kinds.into_iter().any(|kind| self.offloads.has(kind));
        (self.header + if is_super { SUPER_PACKET } else { self.max_frame }).div_ceil(room.max(1))
    }
}

/// How many of `size` chains are missing before others are posted: a quarter, at most 64. In
/// smaller steps the two sides take the lines of the ring from each other more often. Never so many
/// that the device has fewer than the `longest` packet takes: it would wait for more, and the
/// driver for a packet.
fn refill_step(size: usize, longest: usize) -> usize {
    (size / 4).min(64).min(size.saturating_sub(longest) + 1)
}

/// The parts of a ring.
pub(super) struct RxParts<D: Dma> {
    pub(super) driver: Driver,
    pub(super) mapper: DmaMapper<D>,
    pub(super) cache: Cache,
    /// The cache for copies, if they come from another pool than the device's buffers.
    pub(super) copy_cache: Option<Cache>,
}

/// The ring and the buffers in it.
pub(super) struct RxRing<D: Dma> {
    driver: Driver,
    mapper: DmaMapper<D>,
    cache: Cache,
    copy_cache: Option<Cache>,
    /// Bytes that fit in a copy.
    copy_room: usize,
    /// By the id of a chain; those of a chain of several buffers side by side.
    slots: Slots<RxSlot>,
    /// Chains that are posted, at most.
    size: usize,
    /// Chains of which so many are missing are posted.
    step: usize,
    /// Buffers that were copied out and are mapped, to be posted again.
    spares: Vec<RxSlot>,
    rules: RxRules,
    queue: u8,
    used: [Used; BURST],
    /// The copies of the used chains in the same places.
    copies: [Option<Packet>; BURST],
    /// Buffers that are about to be posted.
    fresh: Batch,
    /// A packet whose last buffer was not used yet.
    partial: Option<Partial>,
    counts: RxCounts,
    /// Buffers that became no packets.
    lost: u64,
    /// Used lengths that were too long, as far as they are counted as faults.
    overlong: u64,
    counters: Arc<Counters>,
    control: Control,
}

impl<D: Dma> RxRing<D> {
    pub(super) fn new(parts: RxParts<D>, size: u16, rules: RxRules, queue: u16, control: Control) -> RxRing<D> {
        let RxParts { mut driver, mapper, mut cache, mut copy_cache } = parts;
        driver.disable_calls();
        // A header lies in the headroom, and its frame where one without a header would begin: on a
        // line of its own.
        for cache in std::iter::once(&mut cache).chain(&mut copy_cache) {
            cache.set_headroom(cache.headroom().saturating_sub(rules.header));
        }
        let posted = rules.chains.map_or(size.into(), |chains| chains.posted);
        let step = refill_step(posted, rules.buffers_of_longest(cache.chunk() - cache.headroom()));
        let of = copy_cache.as_ref().unwrap_or(&cache);
        let copy_room = of.chunk() - of.headroom();
        let buffers = rules.chains.map_or(1, |chains| chains.buffers);
        let spares = rules.chains.map_or(size.into(), |chains| (chains.posted + 1) * chains.buffers);
        RxRing {
            driver,
            mapper,
            cache,
            copy_cache,
            copy_room,
            slots: Slots::new(u32::from(size) * buffers as u32),
            size: posted,
            step,
            spares: Vec::with_capacity(spares),
            rules,
            queue: queue as u8,
            used: [Used { id: 0, len: 0 }; BURST],
            copies: [const { None }; BURST],
            fresh: Batch::new(),
            partial: None,
            counts: RxCounts::default(),
            lost: 0,
            overlong: 0,
            counters: Arc::default(),
            control,
        }
    }

    /// Whether the device has few buffers: it may have to wait for the driver.
    fn is_starved(&self) -> bool {
        usize::from(self.driver.in_flight()) < self.size / 4
    }

    /// Adds buffers, once a [step](refill_step) is missing, and makes them available. Returns how
    /// many, and whether the device needs a kick.
    #[inline]
    fn refill(&mut self) -> (usize, bool) {
        let free = self.size - usize::from(self.driver.in_flight()).min(self.size);
        if free < self.step {
            return (0, false);
        }
        if let Some(chains) = self.rules.chains {
            let posted = self.post_chains(chains);
            return (posted, posted > 0 && self.driver.publish());
        }
        let mut posted = self.post_spares();
        while posted < free {
            let wanted = (free - posted).min(64);
            if self.cache.alloc_bulk(&mut self.fresh, wanted) == 0 {
                self.control.fault(Fault::NoBuffer);
                self.counters.retried(1);
                break;
            }
            let n = self.post_fresh();
            posted += n;
            if n < wanted {
                break;
            }
        }
        (posted, posted > 0 && self.driver.publish())
    }

    /// Adds the buffers that were copied out, the last one first; returns how many.
    #[inline]
    fn post_spares(&mut self) -> usize {
        let mut posted = 0;
        while let Some(RxSlot { buffer: Some(buffer), mapped: Some(mapped) }) = self.spares.last() {
            let segment = Segment::writable(mapped.iova().get(), buffer.room() as u32);
            let Ok(id) = self.driver.add(&[segment]) else { break };
            if let (Some(place), Some(slot)) = (self.slots.get_mut(id.into()), self.spares.pop()) {
                *place = slot;
            }
            posted += 1;
        }
        self.counts.recycled += posted as u64;
        posted
    }

    /// Adds the fresh buffers; returns how many.
    #[inline]
    fn post_fresh(&mut self) -> usize {
        let RxRing { driver, mapper, cache, slots, fresh, control, .. } = self;
        let posted = driver.add_singles(true, &mut Fresh { mapper, slots, fresh, control });
        cache.free_bulk(fresh);
        posted
    }

    /// No packet has come for a while: flushes what was unmapped.
    #[cold]
    fn idle(&mut self) {
        let _ = self.mapper.flush_iotlb();
    }

    /// The device was reset, and has no buffer: frees them all, and what was received and not
    /// taken is lost.
    #[cold]
    fn restart(&mut self) {
        if self.partial.take().is_some() {
            self.control.fault(Fault::LostFrame);
        }
        let unmapped = unmap_all(self.slots.iter_mut().chain(&mut self.spares), &mut self.mapper, &self.control);
        self.driver.reset(|_| {});
        self.driver.disable_calls();
        if unmapped {
            free_all(self.slots.iter_mut().chain(&mut self.spares), &mut self.cache);
        } else {
            self.leak_all();
        }
        self.spares.clear();
    }

    #[cold]
    fn leak_all(&mut self) {
        self.slots.iter_mut().chain(&mut self.spares).for_each(|slot| slot.leak(&self.control));
    }

    /// What the queue has done with buffers.
    fn counts(&self) -> RxCounts {
        let RxCounts { completed, copies, .. } = self.counts;
        RxCounts { handed: completed - copies - self.lost, ..self.counts }.with_dma(self.mapper.counts())
    }
}

/// Fresh buffers, which are mapped and put into their slots when they are posted.
struct Fresh<'a, D: Dma> {
    mapper: &'a mut DmaMapper<D>,
    slots: &'a mut Slots<RxSlot>,
    fresh: &'a mut Batch,
    control: &'a Control,
}

impl<D: Dma> SingleBuffers for Fresh<'_, D> {
    #[inline(always)] // a call costs as much as the rest
    fn next(&mut self, id: u16) -> Option<(u64, NonZeroU32)> {
        let slot = self.slots.get_mut(id.into())?;
        let packet = self.fresh.pop()?;
        let room = NonZeroU32::new(packet.tailroom() as u32)?;
        let buffer = InFlight::<FromDevice>::post(packet).ok()?;
        let Ok(mapped) = self.mapper.map_from_device(&buffer) else {
            self.control.fault(Fault::MapFailed);
            drop(buffer.complete(0));
            return None;
        };
        let iova = mapped.iova().get();
        *slot = RxSlot { buffer: Some(buffer), mapped: Some(mapped) };
        Some((iova, room))
    }
}

impl<D: Dma> EndedRing for RxRing<D> {
    #[cold]
    fn release(mut self) {
        self.restart();
    }

    #[cold]
    fn abandon(mut self) {
        self.leak_all();
        std::mem::forget((self.mapper, self.driver));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_missing_the_device_has_the_buffers_of_the_longest_packet() {
        for size in 1..1024 {
            for longest in 1..=size {
                let step = refill_step(size, longest);
                assert!(step <= size / 4 && step <= 64, "{size}, {longest}: {step}");
                assert!(size - step.saturating_sub(1) >= longest, "{size}, {longest}: {step}");
            }
        }
        assert_eq!((refill_step(256, 34), refill_step(64, 34), refill_step(32, 27)), (64, 16, 6));
        assert_eq!(refill_step(16, 34), 1, "a ring that is too short for it");
        let chunk_of_2k = 1984;
        let rules =
            |mergeable, offloads, max_frame| RxRules { mergeable, chains: None, offloads, header: 12, max_frame };
        let of_longest = |rules: RxRules| rules.buffers_of_longest(chunk_of_2k);
        assert_eq!(of_longest(rules(true, Offloads::CSUM.with(Offloads::TSO4), 1518)), 34);
        assert_eq!(of_longest(rules(true, Offloads::CSUM, 9018)), 5);
        assert_eq!(of_longest(rules(false, Offloads::CSUM, 1518)), 1);
    }
}
