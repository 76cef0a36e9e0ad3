//! A burst: completed descriptors become packets.
//!
//! A run of small frames is copied in one pass ([`copy_run`](RxRing::copy_run)): their buffers stay
//! mapped, so that no IOTLB flush is needed, and each descriptor is rewritten while it is in the
//! cache. The first frame of another kind ends the run. The rest of the burst takes three passes,
//! which share one IOTLB flush:
//!
//! | pass | what it does |
//! |---|---|
//! | harvest | reads completed descriptors, and decides for each frame: discard, copy or deliver |
//! | unmap | unmaps the buffers that are delivered; then [`sync_iotlb`] flushes the IOTLB |
//! | deliver | makes packets: copies, or the buffers themselves |
//!
//! [`sync_iotlb`]: towpath_bus::DmaMapper::sync_iotlb
//!
//! No byte of an unmapped buffer is read, and no unmapped buffer is delivered, before the flush.

use super::super::config::RecycleMode;
use super::super::control::Fault;
use super::super::descriptors::{RxStatus, rx_descriptor};
use super::super::offload::receive_tag;
use super::buffers::{RxBuffers, copy_unmapped};
use super::{BURST, BurstOptions, RxRing};
use crate::common::ring::next;
use towpath_bus::Dma;
use towpath_packet::{Batch, Checksum, Packet};
use towpath_wire::ethernet;

/// Descriptors of one frame, at most: 16 KiB in buffers of 256 bytes. A frame with more never ends.
const MAX_CHAIN: u32 = 64;

/// A frame that is kept: its descriptors, and the status of the last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Frame {
    first: u32,
    descriptors: u32,
    len: u32,
    copy: bool,
    lost: bool,
    status: RxStatus,
}

/// A frame whose last descriptor is not completed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PartialFrame {
    descriptors: u32,
    len: usize,
    /// The frame is discarded when it ends.
    bad: bool,
}

/// What a harvest found.
struct Harvest {
    /// Frames that are kept.
    frames: usize,
    /// Those of them that are to be copied.
    small: usize,
    /// Buffers were unmapped already ([`RecycleMode::UnmapFirst`]).
    unmapped: bool,
}

impl<D: Dma> RxRing<D> {
    /// Appends frames that have arrived; returns how many, and their bytes.
    #[inline]
    pub(super) fn receive(&mut self, out: &mut Batch, options: BurstOptions) -> (usize, u64) {
        let (copied, bytes) = self.copy_run(out, options);
        let RxBuffers { ring, next_to_scan, tail, .. } = &self.buffers;
        if next_to_scan == tail || !RxStatus::dd(ring.status(*next_to_scan)) {
            return (copied, bytes);
        }
        let (others, more) = self.receive_any(out, options);
        (copied + others, bytes + more)
    }

    /// Copies frames of one buffer as long as no other frame comes; returns how many packets were
    /// appended, and their bytes.
    #[inline]
    fn copy_run(&mut self, out: &mut Batch, options: BurstOptions) -> (usize, u64) {
        if !self.one_pass || self.partial.descriptors > 0 || self.discarding {
            return (0, 0);
        }
        match self.mode {
            RecycleMode::KeepMapped => self.copy_frames::<true>(out, options),
            RecycleMode::UnmapFirst => self.copy_frames::<false>(out, options),
        }
    }

    /// [`copy_run`](RxRing::copy_run) in a mode: `KEEP` leaves the buffer mapped, otherwise it is
    /// unmapped, and mapped again behind the copy.
    ///
    /// The frame that ends the run stays in the ring for the three passes, with its buffer mapped
    /// or unmapped.
    #[inline(never)]
    fn copy_frames<const KEEP: bool>(&mut self, out: &mut Batch, options: BurstOptions) -> (usize, u64) {
        let (mut packets, mut bytes) = (0, 0);
        let longest = self.max_frame.min(self.copy_room).min(self.buffer_size);
        let small = ethernet::HEADER_LEN..options.copybreak.min(longest + 1);
        let buffers = &mut self.buffers;
        let (len, room, tail, mut at) = (buffers.ring.len(), out.room(), buffers.tail, buffers.next_to_clean);
        let copies = self.copy_cache.as_mut().unwrap_or(&mut buffers.cache);
        while packets < room && at != tail {
            let Some(status) = RxStatus::load(&buffers.ring, at) else { break };
            if !small.contains(&status.len()) || !status.eop() || status.has_error() {
                break;
            }
            let Some(slot) = buffers.slots.get_mut(at).filter(|slot| slot.mapped.is_some()) else { break };
            let Some(mut packet) = copies.alloc() else { break };
            let mapper = &mut buffers.mapper;
            let copied = if KEEP {
                slot.copy(mapper, status.len(), &mut packet)
            } else {
                copy_unmapped(slot, mapper, status.len(), &mut packet, self.wait_each, &buffers.log)
            };
            let Some(iova) = copied.filter(|_| set_metadata(&mut packet, status, self.queue, options)) else {
                // The three passes count this frame.
                copies.free(packet);
                break;
            };
            buffers.ring.store(at, rx_descriptor(iova.get()));
            at = next(at, len);
            bytes += packet.len() as u64;
            packets += usize::from(out.push(packet).is_ok());
        }
        (buffers.next_to_clean, buffers.next_to_scan) = (at, at);
        self.counts.completed += packets as u64;
        self.counts.copies += packets as u64;
        self.counts.recycled += packets as u64;
        (packets, bytes)
    }

    /// Receives any frames, in three passes; returns how many packets were appended, and their
    /// bytes.
    #[inline]
    fn receive_any(&mut self, out: &mut Batch, options: BurstOptions) -> (usize, u64) {
        let Harvest { frames, small, unmapped } = self.harvest(out.room().min(BURST), options.copybreak);
        if frames == 0 {
            if unmapped && self.buffers.mapper.sync_iotlb().is_err() {
                self.buffers.leak_unmapped();
            }
            return (0, 0);
        }
        if small > 0 {
            self.copy_cache.as_mut().unwrap_or(&mut self.buffers.cache).alloc_bulk(&mut self.targets, small);
        }
        self.unmap(frames);
        let synced = self.buffers.mapper.sync_iotlb().is_ok();
        let got = self.deliver(frames, out, options, synced);
        if !self.targets.is_empty() {
            self.copy_cache.as_mut().unwrap_or(&mut self.buffers.cache).free_bulk(&mut self.targets);
        }
        if !synced {
            self.buffers.leak_unmapped();
        }
        got
    }

    /// First pass: reads completed descriptors, and decides what becomes of their frames.
    #[inline]
    fn harvest(&mut self, room: usize, copybreak: usize) -> Harvest {
        let len = self.buffers.ring.len();
        let copybreak = copybreak.min(self.copy_room + 1);
        let (mut frames, mut small) = (0, 0);
        let (begin, mut completed) = (self.buffers.next_to_clean, 0);
        while frames < room && self.buffers.next_to_scan != self.buffers.tail {
            let at = self.buffers.next_to_scan;
            let Some(status) = RxStatus::load(&self.buffers.ring, at) else { break };
            self.buffers.next_to_scan = next(at, len);
            completed += 1;
            if self.mode == RecycleMode::UnmapFirst {
                self.buffers.unmap(at, status.len().min(self.buffer_size));
                if self.wait_each {
                    let _ = self.buffers.mapper.flush_iotlb();
                }
            }
            let partial = &mut self.partial;
            partial.descriptors += 1;
            partial.len += status.len();
            if status.len() > self.buffer_size {
                self.buffers.log.fault(Fault::BadLength);
                partial.bad = true;
            }
            if !status.eop() {
                self.buffers.set_partial_len(at, status.len().min(self.buffer_size));
                if partial.descriptors >= MAX_CHAIN && !self.discarding {
                    self.buffers.log.fault(Fault::Endless);
                    self.discarding = true;
                }
                if self.discarding {
                    self.recycle_partial();
                }
                continue;
            }
            let whole = std::mem::take(partial);
            if self.discarding || whole.bad || status.has_error() || !self.is_frame(whole.len) {
                if status.has_error() {
                    self.buffers.log.fault(Fault::BrokenFrame);
                }
                self.discarding = false;
                self.counts.recycled += u64::from(whole.descriptors);
                self.buffers.next_to_clean = self.buffers.next_to_scan;
                continue;
            }
            let copy = whole.len < copybreak;
            small += usize::from(copy);
            if let Some(frame) = self.frames.get_mut(frames) {
                let (first, len) = (self.buffers.next_to_clean, whole.len as u32);
                *frame = Frame { first, descriptors: whole.descriptors, len, copy, lost: false, status };
            }
            frames += 1;
            self.buffers.next_to_clean = self.buffers.next_to_scan;
        }
        let cleaned = begin != self.buffers.next_to_clean;
        if cleaned {
            self.buffers.rewritten = self.buffers.next_to_clean;
        }
        self.counts.completed += completed;
        Harvest { frames, small, unmapped: cleaned && self.mode == RecycleMode::UnmapFirst }
    }

    /// Whether a frame may have this length.
    #[inline]
    fn is_frame(&self, len: usize) -> bool {
        if (ethernet::HEADER_LEN..=self.max_frame).contains(&len) {
            return true;
        }
        self.buffers.log.fault(if len < ethernet::HEADER_LEN { Fault::Runt } else { Fault::Oversize });
        false
    }

    /// Gives the part of a discarded frame that has arrived back to the device.
    #[cold]
    fn recycle_partial(&mut self) {
        self.counts.recycled += u64::from(self.partial.descriptors);
        self.partial = PartialFrame::default();
        self.buffers.next_to_clean = self.buffers.next_to_scan;
    }

    /// Second pass: unmaps the buffers of frames that are not copied.
    #[inline]
    fn unmap(&mut self, frames: usize) {
        let (ring, mut targets) = (self.buffers.ring.len(), self.targets.len());
        for frame in self.frames.iter_mut().take(frames) {
            if frame.copy && targets > 0 {
                targets -= 1;
                continue;
            }
            frame.copy = false;
            if self.mode == RecycleMode::UnmapFirst {
                // The harvest has unmapped all buffers.
                continue;
            }
            let (mut at, mut left) = (frame.first, frame.len as usize);
            for i in 0..frame.descriptors {
                let len = if i + 1 == frame.descriptors { left } else { self.buffers.partial_len(at).min(left) };
                left -= len;
                frame.lost |= !self.buffers.unmap(at, len);
                if self.wait_each {
                    // A flush that fails is made up for by the burst's own.
                    let _ = self.buffers.mapper.flush_iotlb();
                }
                at = next(at, ring);
            }
        }
    }

    /// Third pass: makes packets. `synced`: no translation of an unmapped buffer is cached any
    /// more.
    #[inline]
    fn deliver(&mut self, frames: usize, out: &mut Batch, options: BurstOptions, synced: bool) -> (usize, u64) {
        let (mut packets, mut bytes) = (0, 0);
        for i in 0..frames {
            let Some(&frame) = self.frames.get(i) else { break };
            let unmapped = !frame.copy || self.mode == RecycleMode::UnmapFirst;
            if frame.lost || (unmapped && !synced) {
                // The frame's buffers that are left are leaked by `leak_unmapped`, or go back to
                // the device.
                self.buffers.log.fault(Fault::LostFrame);
                continue;
            }
            let packet = if frame.copy { self.copy(&frame) } else { self.take(&frame) };
            let Some(mut packet) = packet else {
                self.buffers.log.fault(Fault::LostFrame);
                continue;
            };
            if !set_metadata(&mut packet, frame.status, self.queue, options) {
                self.buffers.log.fault(Fault::LostFrame);
                continue;
            }
            bytes += packet.len() as u64;
            packets += usize::from(out.push(packet).is_ok());
        }
        (packets, bytes)
    }

    /// Copies a frame out of its buffers, which stay in their slots.
    #[inline]
    fn copy(&mut self, frame: &Frame) -> Option<Packet> {
        let mut packet = self.targets.pop()?;
        let buffers = &mut self.buffers;
        let (ring, mut at, mut left) = (buffers.ring.len(), frame.first, frame.len as usize);
        for i in 0..frame.descriptors {
            let len = if i + 1 == frame.descriptors { left } else { buffers.partial_len(at).min(left) };
            let slot = buffers.slots.get_mut(at)?;
            let buffer = slot.buffer.as_ref()?;
            if let Some(mapped) = &slot.mapped {
                buffers.mapper.sync_for_cpu(mapped, len);
            }
            let copied = buffer.copy_to(len, &mut packet);
            if let Some(mapped) = &slot.mapped {
                buffers.mapper.sync_for_device(mapped, len);
            }
            copied.ok()?;
            left -= len;
            self.counts.copies += 1;
            self.counts.recycled += 1;
            at = next(at, ring);
        }
        (packet.len() == frame.len as usize).then_some(packet)
    }

    /// Makes a packet of a frame's buffers.
    #[inline]
    fn take(&mut self, frame: &Frame) -> Option<Packet> {
        if frame.descriptors == 1 {
            let buffer = self.buffers.slots.get_mut(frame.first)?.buffer.take()?;
            self.counts.handed += 1;
            let packet = buffer.complete(frame.len as usize);
            // The packet's next owner reads its headers first.
            packet.prefetch_data();
            return Some(packet);
        }
        self.take_chain(frame)
    }

    /// Makes a chain of a frame's buffers. Buffers without bytes stay out of it.
    fn take_chain(&mut self, frame: &Frame) -> Option<Packet> {
        let buffers = &mut self.buffers;
        let (ring, mut at, mut left) = (buffers.ring.len(), frame.first, frame.len as usize);
        let mut whole: Option<Packet> = None;
        for i in 0..frame.descriptors {
            let len = if i + 1 == frame.descriptors { left } else { buffers.partial_len(at).min(left) };
            let slot = buffers.slots.get_mut(at)?;
            at = next(at, ring);
            left -= len;
            if len == 0 {
                continue;
            }
            let buffer = slot.buffer.take()?;
            self.counts.handed += 1;
            let part = buffer.complete(len);
            match &mut whole {
                None => whole = Some(part),
                Some(packet) => packet.append(part).ok()?,
            }
        }
        whole.filter(|packet| packet.len() == frame.len as usize)
    }
}

/// Sets a packet's metadata from the descriptor; returns whether a stripped tag has a
/// place.
#[inline]
fn set_metadata(packet: &mut Packet, status: RxStatus, queue: u8, options: BurstOptions) -> bool {
    packet.set_ingress(0, queue);
    if status.is_verified() {
        packet.set_csum(Checksum::Verified);
    }
    if let Some(hash) = status.hash() {
        packet.set_flow_hash(hash);
    }
    status.vlan().is_none_or(|tci| receive_tag(packet, tci, options.keep_tags))
}
