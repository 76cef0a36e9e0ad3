//! Super-packets without mergeable buffers: a chain of buffers, of 64 KiB together, for each packet
//! (virtio 1.2 §5.1.6.3.1).
//!
//! ```text
//!   posted    [ header │ room ] [ room ] [ room ] [ room ] …
//!   used      [ header │ frame … ] [ … ] [ room ] [ room ] …
//!               └ packet of fragments ─┘   └ stay mapped, to be posted again
//! ```
//!
//! All buffers have the same room, so that a used length says how many of them it covers.
//!
//! In a packed ring a chain has no table, and its header has a descriptor of its own. DPDK's back
//! end takes four descriptors in a row for four buffers if a frame fits in each: it looks at their
//! lengths and not at `NEXT` and `INDIRECT` (`virtio_dev_rx_sync_batch_check`). No frame fits in a
//! descriptor of a header.

use super::super::control::Fault;
use super::RxRing;
use crate::common::copybreak::{RxSlot, leak};
use crate::common::ring::Slots;
use towpath_bus::Dma;
use towpath_packet::{FromDevice, InFlight, Packet};
use towpath_virtio::{Format, Segment, Used};

/// Buffers of a chain, at most.
pub(in super::super) const MAX_BUFFERS: usize = 64;
/// Chains in a ring, at most: each is 64 KiB of memory.
const MOST: usize = 16;

/// The chains of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct RxChains {
    /// Buffers of a chain.
    pub(in super::super) buffers: usize,
    /// Bytes of a buffer.
    room: usize,
    /// Chains that are posted.
    pub(in super::super) posted: usize,
    /// Bytes of a descriptor for the header; 0 if the first buffer has one descriptor.
    header: u32,
}

impl RxChains {
    /// Chains for packets of `len` bytes behind a header of so many, in buffers of `room` bytes,
    /// for a ring of `size` descriptors; `None` if so many buffers don't fit.
    pub(in super::super) fn new(
        (header, len): (usize, usize),
        room: usize,
        size: u16,
        ring: Format,
        indirect: bool,
    ) -> Option<RxChains> {
        let room = room.max(1);
        let (buffers, size) = ((header + len).div_ceil(room), usize::from(size));
        let header = if ring == Format::Packed { header as u32 } else { 0 };
        let descriptors = match (header, indirect) {
            (0, true) => 1,
            (0, false) => buffers,
            _ => buffers + 1,
        };
        let posted = (size / descriptors).min(MOST);
        // A chain is never longer than the ring (§2.7.5.3.1), and with fewer than four of them the
        // device would wait for the driver.
        (buffers <= MAX_BUFFERS.min(size) && posted >= 4).then_some(RxChains { buffers, room, posted, header })
    }

    /// Descriptors of a table, if there are tables.
    pub(in super::super) fn entries(self) -> u16 {
        if self.header > 0 { 0 } else { self.buffers as u16 }
    }

    /// Buffers of a chain to which the device has written `len` bytes: one at least.
    fn written(self, len: usize) -> usize {
        len.div_ceil(self.room).max(1)
    }
}

impl<D: Dma> RxRing<D> {
    /// Adds chains, of the buffers that are mapped first; returns how many.
    pub(super) fn post_chains(&mut self, chains: RxChains) -> usize {
        let (mut posted, mut reused) = (0, self.spares.len());
        while usize::from(self.driver.in_flight()) < chains.posted && self.map_spares(chains.buffers) {
            let from = self.spares.len() - chains.buffers;
            // The first one is for the header.
            let mut segments = [Segment::writable(0, 0); MAX_BUFFERS + 1];
            for (segment, slot) in segments.iter_mut().skip(1).zip(self.spares.iter().skip(from)) {
                let RxSlot { buffer: Some(buffer), mapped: Some(mapped) } = slot else { continue };
                *segment = Segment::writable(mapped.iova().get(), buffer.room() as u32);
            }
            let [header, first, ..] = &mut segments;
            *header = Segment::writable(first.addr, chains.header);
            (first.addr, first.len) = (first.addr + u64::from(chains.header), first.len.saturating_sub(chains.header));
            let used = usize::from(chains.header == 0)..=chains.buffers;
            let Ok(id) = self.driver.add(segments.get(used).unwrap_or_default()) else { break };
            for (place, slot) in slots_of(&mut self.slots, id, chains.buffers).iter_mut().zip(self.spares.drain(from..))
            {
                *place = slot;
            }
            self.counts.recycled += reused.min(chains.buffers) as u64;
            reused = reused.saturating_sub(chains.buffers);
            posted += 1;
        }
        posted
    }

    /// Maps buffers until there are enough for a chain; returns whether there are.
    fn map_spares(&mut self, buffers: usize) -> bool {
        while self.spares.len() < buffers {
            let Some(packet) = self.cache.alloc() else {
                self.control.fault(Fault::NoBuffer);
                self.counters.retried(1);
                return false;
            };
            let Ok(buffer) = InFlight::<FromDevice>::post(packet) else { return false };
            let Ok(mapped) = self.mapper.map_from_device(&buffer) else {
                self.control.fault(Fault::MapFailed);
                self.cache.free(buffer.complete(0));
                return false;
            };
            self.spares.push(RxSlot { buffer: Some(buffer), mapped: Some(mapped) });
        }
        true
    }

    /// First pass: unmaps the buffers of a used chain that the device wrote to; the others stay
    /// mapped. A frame of fewer than `short` bytes is copied, and all buffers stay mapped.
    pub(super) fn harvest_chain(&mut self, at: usize, short: u32, chains: RxChains) {
        let Some(&Used { id, len }) = self.used.get(at) else { return };
        let len = len as usize;
        if len < short as usize {
            // One buffer has the frame: if it is copied, its slot is empty.
            self.copy(at, id, len, chains.buffers);
        }
        let (mut left, written) = (len, chains.written(len));
        for (i, slot) in slots_of(&mut self.slots, id, chains.buffers).iter_mut().enumerate() {
            if i < written {
                slot.unmap(&mut self.mapper, left.min(chains.room), &self.control);
                left = left.saturating_sub(chains.room);
            } else if slot.buffer.is_some() {
                self.spares.push(std::mem::take(slot));
            }
        }
        self.counts.completed += written as u64;
    }

    /// Last pass: makes a packet of the buffers that the first one left, or takes the copy of it.
    /// `synced`: no translation of the buffers is cached any more.
    pub(super) fn take_chain(&mut self, at: usize, synced: bool, chains: RxChains) -> Option<Packet> {
        let &Used { id, len } = self.used.get(at)?;
        if let Some(copy) = self.copies.get_mut(at)?.take() {
            return Some(copy);
        }
        let (mut left, written) = (len as usize, chains.written(len as usize));
        let (mut packet, mut whole): (Option<Packet>, _) = (None, true);
        for slot in slots_of(&mut self.slots, id, chains.buffers).iter_mut().take(written) {
            let here = left.min(chains.room);
            left -= here;
            let part = match slot.buffer.take() {
                Some(buffer) if synced => buffer.complete(here),
                buffer => {
                    // It could not be unmapped, and is leaked.
                    buffer.into_iter().for_each(|buffer| leak(buffer, &self.control));
                    whole = false;
                    continue;
                }
            };
            let refused = match &mut packet {
                None => packet.replace(part),
                Some(packet) => packet.append(part).err(),
            };
            if let Some(part) = refused {
                self.cache.free(part);
                whole = false;
            }
        }
        if !whole {
            packet.take().into_iter().for_each(|packet| self.cache.free(packet));
            self.lost += written as u64;
            self.control.fault(Fault::LostFrame);
        }
        packet
    }
}

/// The slots of a chain.
fn slots_of(slots: &mut Slots<RxSlot>, id: u16, buffers: usize) -> &mut [RxSlot] {
    let first = u32::from(id) * buffers as u32;
    let [slots, _] = slots.between(first, first + buffers as u32);
    slots
}
