//! Reception: frames out of the ring, buffers into it.
//!
//! ```text
//!        clean         scan             told          fill
//!   ──────┬─────────────┬────────────────┬─────────────┬────────
//!   free  │ begun frame │ the device's   │ written     │ free
//! ```
//!
//! A slot is mapped (M: a buffer that the device may write), unmapped (U: a buffer that could not be mapped) or empty (E).
//!
//! | what comes back | done to the buffer | slot |
//! |---|---|---|
//! | broken frame, part of a frame that is thrown away | nothing | M |
//! | frame shorter than copybreak, a buffer for the copy is there | sync for the processor, copy, sync for the device | M |
//! | the same, but there is none; or a longer frame | sync for the processor, unmapped, handed on | E |
//! | | unmapping fails: never used again, leaked | E |
//!
//! | refill | | |
//! |---|---|---|
//! | M | its address is written again | M |
//! | U, E | a buffer is had if there is none, and mapped | M |
//! | | none to be had, or mapping fails: refilling ends here, and begins here the next time | E, U |
//!
//! A run of small frames is copied in one pass (`copy`), because their buffers stay where they are. Any other burst goes through three, so that
//! it shares one wait for the device's translations: look at descriptors and decide (`look`); unmap what is handed on, and
//! [`sync_iotlb`](DmaMapper::sync_iotlb); make packets (both in `deliver`). No byte of what is unmapped is read, and nothing handed on, before that.
//! `buffers` is what happens to slots.

mod buffers;
mod copy;
mod deliver;
mod look;

use super::config::{Config, RecycleMode};
use super::control::Log;
use super::descriptors::Received;
use super::tag;
use crate::common::ring::DescRing;
use crate::common::ring::distance;
use crate::common::slots::Slots;
use buffers::Slot;
use towpath_bus::{Dma, DmaMapper};
use towpath_packet::{Batch, Cache, Checksum, Packet};

/// Descriptors are announced by as many at least, unless the device runs out of them, or a batch is smaller.
const ANNOUNCE: u32 = 16;
/// Descriptors that one frame may have: 16 KiB in buffers of 256 bytes. One that has more will never end.
const MAX_CHAIN: u32 = 64;
/// Frames of one burst.
const BURST: usize = Batch::<64>::CAPACITY;

/// What the receive side of a queue did with buffers, since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxCounts {
    /// Descriptors that the device gave back.
    pub completed: u64,
    /// Buffers whose bytes were copied out.
    pub copies: u64,
    /// Buffers that were handed on.
    pub handed: u64,
    /// Buffers that went back to the device as they were, mapped, copied out or not.
    pub recycled: u64,
    /// Buffers mapped one by one.
    pub maps: u64,
    /// Buffers unmapped.
    pub unmaps: u64,
    /// Times that the device's translations were invalidated and waited for.
    pub flushes: u64,
    /// Syncs for the processor.
    pub syncs_for_cpu: u64,
    /// Syncs for the device.
    pub syncs_for_device: u64,
}

/// A frame that is kept: which descriptors, and what the device says of it.
#[derive(Debug, Clone, Copy, Default)]
struct Frame {
    first: u32,
    descriptors: u32,
    len: u32,
    copy: bool,
    lost: bool,
    said: Received,
}

/// A frame that has begun.
#[derive(Debug, Clone, Copy, Default)]
struct Begun {
    descriptors: u32,
    len: usize,
    /// It is thrown away when it ends.
    bad: bool,
}

/// How frames are received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// Frames shorter than this are copied.
    pub(super) copybreak: usize,
    /// Whether a tag may stay beside the packet.
    pub(super) tags: bool,
}

/// The ring, the buffers in it, and where they come from.
pub(super) struct RxCore<D: Dma> {
    ring: DescRing,
    slots: Slots<Slot>,
    mapper: DmaMapper<D>,
    buffers: Cache,
    /// Where copies go, if not to buffers of the same pool.
    copies: Option<Cache>,
    /// Bytes that the device writes to one buffer, at most.
    buffer_size: usize,
    /// Bytes of a frame that fit in a copy.
    copy_room: usize,
    max_frame: usize,
    mode: RecycleMode,
    wait_each: bool,
    clean: u32,
    scan: u32,
    told: u32,
    fill: u32,
    /// The descriptors from here up to `clean` are written again already.
    ready: u32,
    begun: Begun,
    discarding: bool,
    targets: Batch,
    frames: Box<[Frame; BURST]>,
    counts: RxCounts,
    queue: u8,
    log: Log,
}

/// What a queue gets at its start.
pub(super) struct RxParts<D: Dma> {
    pub(super) ring: DescRing,
    pub(super) mapper: DmaMapper<D>,
    pub(super) buffers: Cache,
    pub(super) copies: Option<Cache>,
    pub(super) buffer_size: usize,
}

impl<D: Dma> RxCore<D> {
    pub(super) fn new(parts: RxParts<D>, config: &Config, queue: u8, log: Log) -> RxCore<D> {
        let RxParts { ring, mapper, buffers, copies, buffer_size } = parts;
        let of = copies.as_ref().unwrap_or(&buffers);
        let copy_room = of.chunk() - of.headroom();
        RxCore {
            slots: Slots::new(ring.len()),
            ring,
            mapper,
            buffers,
            copies,
            buffer_size,
            copy_room,
            max_frame: config.max_frame(),
            mode: config.recycle,
            wait_each: config.wait_each,
            clean: 0,
            scan: 0,
            told: 0,
            fill: 0,
            ready: 0,
            begun: Begun::default(),
            discarding: false,
            targets: Batch::new(),
            frames: Box::new([Frame::default(); BURST]),
            counts: RxCounts::default(),
            queue,
            log,
        }
    }

    pub(super) fn ring(&self) -> &DescRing {
        &self.ring
    }

    pub(super) fn counts(&self) -> RxCounts {
        let dma = self.mapper.counts();
        RxCounts {
            maps: dma.maps,
            unmaps: dma.unmaps,
            flushes: dma.flushes,
            syncs_for_cpu: dma.syncs_for_cpu,
            syncs_for_device: dma.syncs_for_device,
            ..self.counts
        }
    }

    /// Whether the device has few buffers left: it may have to wait for us instead of us for it.
    pub(super) fn is_starved(&self) -> bool {
        distance(self.clean, self.told, self.ring.len()) < ANNOUNCE
    }

    /// Appends frames that have arrived; returns how many, and their bytes.
    #[inline]
    pub(super) fn receive(&mut self, out: &mut Batch, terms: Terms) -> (usize, u64) {
        let (copied, bytes) = self.copy_run(out, terms);
        if self.scan == self.told || !Received::done(self.ring.status(self.scan)) {
            return (copied, bytes);
        }
        let (others, more) = self.receive_any(out, terms);
        (copied + others, bytes + more)
    }

    /// Any frames, in three passes.
    #[inline]
    fn receive_any(&mut self, out: &mut Batch, terms: Terms) -> (usize, u64) {
        let (frames, small, any_unmapped) = self.look(out.room().min(BURST), terms.copybreak);
        if frames == 0 {
            if any_unmapped && self.mapper.sync_iotlb().is_err() {
                self.lose_unmapped();
            }
            return (0, 0);
        }
        if small > 0 {
            self.copies.as_mut().unwrap_or(&mut self.buffers).alloc_bulk(&mut self.targets, small);
        }
        self.let_go(frames);
        let settled = self.mapper.sync_iotlb().is_ok();
        let got = self.make(frames, out, terms, settled);
        if !self.targets.is_empty() {
            self.copies.as_mut().unwrap_or(&mut self.buffers).free_bulk(&mut self.targets);
        }
        if !settled {
            self.lose_unmapped();
        }
        got
    }
}

/// Puts beside a packet what the device says of its frame; false when a tag has no place.
#[inline]
fn describe(packet: &mut Packet, said: Received, queue: u8, terms: Terms) -> bool {
    packet.set_ingress(0, queue);
    if said.is_verified() {
        packet.set_csum(Checksum::Verified);
    }
    if let Some(hash) = said.hash() {
        packet.set_flow_hash(hash);
    }
    said.vlan().is_none_or(|tci| tag::receive(packet, tci, terms.tags))
}

#[cfg(test)]
mod tests;
