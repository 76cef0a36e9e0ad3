//! Packets become descriptors. A packet of one piece without offloads takes the short way
//! ([`TxRing::submit_plain`]), or a similar one if it is copied. Every other packet takes the long
//! way: its headers are prepared, it is copied if the device can't reach it, and its pieces are
//! mapped, then written; or gathered in one copy.
//!
//! The packet of a copied frame is freed before the frame is sent. Its lines are in the cache then,
//! and the next frame that is received gets the same buffer: the working set is a batch of buffers,
//! not a ring of them. An application gets its page back earlier, so its completions of copied
//! frames overtake those of mapped ones, as completions with addresses may. The frame counts as
//! pending, and as sent or dropped, with its descriptor.

use super::super::control::Fault;
use super::super::descriptors::{Command, Context, MAX_PIECE, MAX_PIECES, tx};
use super::super::offload::{Plan, Refusal, plan};
use super::TxRing;
use crate::common::ring::{Words, ahead, next, previous};
use std::ops::RangeInclusive;
use towpath_bus::{Dma, Iova, MapError, Mapped};
use towpath_packet::{Batch, Chunk, DropReason, Front, InFlight, Packet, ToDevice};
use towpath_wire::ethernet;

/// The driver pads shorter frames; the device pads the rest (§7.2.1.2, TCTL.PSP).
const MIN_FRAME: usize = 17;

/// Bytes in the last descriptor of a super-packet. Silicon may report the end of a longer one
/// before all of it is read (FreeBSD: `em_isc_txd_encap`), and then its buffer is unmapped too
/// early.
const SENTINEL: usize = 4;

/// What became of a packet.
enum Submitted {
    /// It is in the ring, and this is its last descriptor.
    Queued(u32),
    /// A copy of it is in the ring.
    Copied,
    Dropped(DropReason),
    /// The ring has no room now.
    Full,
}

/// Why pieces could not be mapped.
enum MapFailure {
    /// The device can't reach them, but could reach a copy.
    Unreachable,
    /// They can't be mapped now.
    Retry,
}

impl<D: Dma> TxRing<D> {
    /// Takes packets from the front of a batch, at most `most`; returns how many. Frames shorter
    /// than `copybreak` are copied. The device does not see them yet.
    #[inline]
    pub(super) fn send(&mut self, batch: &mut Batch, most: usize, copybreak: usize) -> usize {
        self.copybreak = copybreak;
        let (shortest, longest) = (copybreak.max(MIN_FRAME), self.abilities.max_frame.min(MAX_PIECE));
        let (mut taken, mut dropped) = (0, 0);
        let (mut front, mut freed): (_, Batch) = (batch.front(), Batch::new());
        while taken < most {
            let run = self.submit_plain(&mut front, most - taken, shortest..=longest);
            if run > 0 {
                taken += run;
                continue;
            }
            let Some(packet) = front.peek() else { break };
            let end = match self.submit_other(packet) {
                Submitted::Queued(end) => Some(end),
                Submitted::Copied => None,
                Submitted::Dropped(reason) => {
                    self.log.counters.dropped_packet(reason, packet);
                    dropped += 1;
                    None
                }
                Submitted::Full => break,
            };
            taken += 1;
            let Some(packet) = front.take() else { break };
            match end.and_then(|end| self.slots.get_mut(end)) {
                Some(slot) => slot.frame = Some(InFlight::<ToDevice>::post(packet)),
                // Together, so that external buffers return in their order.
                None => freed.push(packet).unwrap_or_else(|packet| self.cache.free(packet)),
            }
        }
        drop(front);
        self.cache.free_bulk(&mut freed);
        let queued = taken - dropped;
        self.pending += queued;
        self.staged += queued as u32;
        taken
    }

    /// Takes packets of one piece without offloads, of these lengths, from the front, at most
    /// `most`; returns how many. They are mapped as they are. Ends at a packet that needs another
    /// way, or that can't be mapped now, and at each RS and at the end of the ring, so that these
    /// are decided once and not for each packet.
    #[inline(always)]
    fn submit_plain(&mut self, front: &mut Front<'_, 64>, most: usize, lengths: RangeInclusive<usize>) -> usize {
        // Frames that are copied, one after another, begin no run.
        if self.copy_all || front.peek().is_none_or(|packet| !lengths.contains(&packet.len())) {
            return 0;
        }
        let (first, len, to_rs) = (self.next_to_use, self.ring.len(), self.frames_to_rs());
        let until = first + self.free.min(to_rs).min(len - first).min(most as u32);
        let (mut frames, mut command) = (0, 0);
        let [slots, _] = self.slots.between(first, until);
        for (slot, descriptor) in slots.iter_mut().zip(self.ring.between(first, until).iter()) {
            let Some(packet) = front.peek() else { break };
            if !lengths.contains(&packet.len()) || packet.wants_offload() {
                break;
            }
            // One piece: in the linear part, or an external page.
            let Some(chunk) = packet.only_chunk() else { break };
            let bytes = chunk.len();
            let Ok(mapped) = self.mapper.map_to_device(chunk) else { break };
            self.mapper.sync_for_device(&mapped, bytes);
            let [address, second] = Command::PLAIN.piece(mapped.iova().get(), bytes);
            command = second | tx::EOP;
            descriptor.store([address, command]);
            if mapped.is_temporary() {
                slot.mapped = Some(mapped);
            }
            slot.frame = front.take().map(InFlight::<ToDevice>::post);
            frames += 1;
        }
        let at = first + frames;
        if frames > 0 {
            (self.free, self.last) = (self.free - frames, command);
            self.next_to_use = if at == len { 0 } else { at };
            self.since_rs.frames += frames;
            self.since_rs.descriptors += frames;
            if frames == to_rs {
                self.last |= tx::RS;
                self.ring.store_second(at - 1, self.last);
                self.push_report(at - 1);
            }
        }
        frames as usize
    }

    /// Writes the descriptors of a packet, which stays in its batch. A short one without offloads
    /// is copied.
    #[inline(never)]
    fn submit_other(&mut self, packet: &mut Packet) -> Submitted {
        if !(ethernet::HEADER_LEN..self.copybreak).contains(&packet.len()) || packet.wants_offload() {
            return self.submit_any(packet);
        }
        if self.free == 0 {
            return Submitted::Full;
        }
        match self.mapper.bounce(self.next_to_use, packet, MIN_FRAME) {
            Some((iova, len)) => self.put_copy(iova, len, Command::PLAIN),
            None => self.submit_any(packet),
        }
    }

    /// Any packet: with offloads, of several pieces, too short, out of reach.
    #[inline(never)]
    fn submit_any(&mut self, packet: &mut Packet) -> Submitted {
        if packet.len() < ethernet::HEADER_LEN {
            return Submitted::Dropped(DropReason::Malformed);
        }
        let (mut copied, mut mapped_external) = (false, false);
        let short = packet.len() < self.copybreak;
        if !short && (self.copy_all || (packet.len() < MIN_FRAME && !pad(packet))) {
            if !self.copy(packet, Fault::Bounced) {
                return Submitted::Dropped(DropReason::NoBuffer);
            }
            copied = true;
            pad(packet);
        }
        // At most three rounds: external memory is mapped once, and a copy is not refused for the
        // reason that made it.
        loop {
            let plan = match plan(packet, self.abilities) {
                Ok(plan) => plan,
                Err(Refusal::Drop(reason)) => return Submitted::Dropped(reason),
                Err(Refusal::Copy) if copied => return Submitted::Dropped(DropReason::Offload),
                Err(Refusal::Copy) => {
                    if !self.copy(packet, Fault::Bounced) {
                        return Submitted::Dropped(DropReason::NoBuffer);
                    }
                    copied = true;
                    continue;
                }
            };
            let tag = if packet.vlan().is_some() { 4 } else { 0 };
            if plan.segment.is_none() && packet.len() + tag > self.abilities.max_frame {
                return Submitted::Dropped(DropReason::TooLong);
            }
            let context = plan.context.filter(|&context| self.needs_context(context, &plan));
            if short && plan.segment.is_none() {
                if self.free < 1 + u32::from(context.is_some()) {
                    return Submitted::Full;
                }
                let at = if context.is_some() { next(self.next_to_use, self.ring.len()) } else { self.next_to_use };
                if let Some((iova, len)) = self.mapper.bounce(at, packet, MIN_FRAME) {
                    self.put_context(context);
                    return self.put_copy(iova, len, plan.command);
                }
            }
            let sentinel = usize::from(plan.segment.is_some());
            let pieces = packet.chunks().map(|chunk| chunk.len().div_ceil(MAX_PIECE)).sum::<usize>() + sentinel;
            if pieces > MAX_PIECES {
                if copied {
                    return Submitted::Dropped(DropReason::TooLong);
                }
                if !self.copy(packet, Fault::Linearised) {
                    return Submitted::Dropped(DropReason::NoBuffer);
                }
                copied = true;
                continue;
            }
            if (self.free as usize) < pieces + usize::from(context.is_some()) {
                return Submitted::Full;
            }
            match self.write(packet, plan, context) {
                Ok(end) => return Submitted::Queued(end),
                Err(MapFailure::Retry) => return Submitted::Full,
                Err(MapFailure::Unreachable) if copied => return Submitted::Dropped(DropReason::Refused),
                Err(MapFailure::Unreachable) if !mapped_external && self.mapper.map_external(packet) => {
                    mapped_external = true;
                }
                Err(MapFailure::Unreachable) => {
                    if !self.copy(packet, Fault::Bounced) {
                        return Submitted::Dropped(DropReason::NoBuffer);
                    }
                    copied = true;
                }
            }
        }
    }

    /// Whether the chip must be given this context. A change of context stalls its reads, but only
    /// checksums of a queue that is alone can share one (FreeBSD: `em_transmit_checksum_setup`).
    fn needs_context(&self, context: Context, plan: &Plan) -> bool {
        self.shares_context || plan.segment.is_some() || self.context != Some(context)
    }

    /// Maps all pieces, then writes the headers, then the descriptors; the ring has room for them.
    fn write(&mut self, packet: &mut Packet, plan: Plan, context: Option<Context>) -> Result<u32, MapFailure> {
        let len = self.ring.len();
        let first = if context.is_some() { next(self.next_to_use, len) } else { self.next_to_use };
        let (mut at, mut mapped_pieces) = (first, 0);
        let mut iovas = [None; MAX_PIECES];
        let mut chunks = packet.chunks();
        while chunks.clone().next().is_some() {
            let run = match self.mapper.map_run_to_device(chunks.clone()) {
                Ok(run) => run,
                Err(error) => return Err(self.undo(first, at, error)),
            };
            let head = at;
            for (chunk, iova) in chunks.by_ref().take(run.pieces).zip(iovas.iter_mut().skip(mapped_pieces)) {
                *iova = Some(run.iova(&chunk));
                at = ahead(at, chunk.len().div_ceil(MAX_PIECE) as u32, len);
            }
            mapped_pieces += run.pieces;
            let Some(slot) = self.slots.get_mut(head) else { return Err(MapFailure::Retry) };
            slot.mapped = Some(run.mapped).filter(Mapped::is_temporary);
        }
        if let Some(segment) = plan.segment {
            segment.write_headers(packet);
        }
        self.put_context(context);
        let mut last = first;
        let mut chunks = packet.chunks().zip(iovas.into_iter().flatten()).peekable();
        while let Some((chunk, iova)) = chunks.next() {
            let end = match (chunks.peek(), &plan.segment) {
                (Some(_), _) => None,
                (None, Some(_)) => Some(SENTINEL),
                (None, None) => Some(0),
            };
            last = self.write_chunk(chunk, iova, plan.command, end);
        }
        Ok(last)
    }

    /// Writes the descriptors of one piece of a packet. The slot of the first of them has the
    /// mapping already, if the piece is the first of its run. `end`: the packet ends here, with a
    /// descriptor for so many bytes if there are any. Returns the last of them.
    fn write_chunk(&mut self, chunk: Chunk<'_>, iova: Iova, command: Command, end: Option<usize>) -> u32 {
        self.mapper.sync_piece_for_device(iova, chunk.len());
        let (mut done, mut last, sentinel) = (0, self.next_to_use, end.unwrap_or(0));
        while done < chunk.len() {
            let rest = chunk.len() - done;
            let n = if (sentinel + 1..=MAX_PIECE).contains(&rest) { rest - sentinel } else { rest.min(MAX_PIECE) };
            let words = command.piece(iova.add(done).get(), n);
            done += n;
            last = if end.is_some() && done == chunk.len() { self.put_last(words) } else { self.put(words) };
        }
        last
    }

    /// Writes the context that the next frame needs.
    fn put_context(&mut self, context: Option<Context>) {
        if let Some(context) = context {
            self.put(context.words());
            self.context = Some(context);
        }
    }

    /// Writes the descriptor of a copied frame.
    #[inline]
    fn put_copy(&mut self, iova: Iova, len: usize, command: Command) -> Submitted {
        self.since_rs.copies += 1;
        self.since_rs.copied_bytes += len as u32;
        self.put_last(command.piece(iova.get(), len));
        Submitted::Copied
    }

    /// Writes a descriptor; returns its index. Its slot is empty, or has its mapping already.
    #[inline]
    fn put(&mut self, words: Words) -> u32 {
        let at = self.next_to_use;
        self.ring.store(at, words);
        self.next_to_use = next(at, self.ring.len());
        self.free -= 1;
        self.since_rs.descriptors += 1;
        at
    }

    /// Writes the last descriptor of a frame, and returns its index: with RS if it is time for it.
    #[inline(always)]
    fn put_last(&mut self, [address, mut command]: Words) -> u32 {
        command |= tx::EOP;
        let rs = self.frames_to_rs() == 1;
        self.since_rs.frames += 1;
        if rs {
            command |= tx::RS;
        }
        let at = self.put([address, command]);
        self.last = command;
        if rs {
            self.push_report(at);
        }
        at
    }

    /// How many frames of one descriptor there are until RS is set, that frame included, at least
    /// one: after `rs_every` frames, or a quarter of the ring, because descriptors that no RS
    /// follows can't be used again.
    #[inline]
    fn frames_to_rs(&self) -> u32 {
        let frames = self.rs_every.saturating_sub(self.since_rs.frames);
        let descriptors = (self.rs_descriptors + 1).saturating_sub(self.since_rs.descriptors);
        frames.min(descriptors).max(1)
    }

    /// Unmaps the pieces of a packet before the one that could not be mapped.
    #[cold]
    fn undo(&mut self, first: u32, failed: u32, error: MapError) -> MapFailure {
        let (len, mut at) = (self.ring.len(), first);
        while at != failed {
            if let Some(mapped) = self.slots.get_mut(at).and_then(|slot| slot.mapped.take()) {
                // A piece that stays mapped can be read by the device, but no descriptor names it.
                let _ = self.mapper.unmap(mapped);
            }
            at = next(at, len);
        }
        let _ = self.mapper.sync_iotlb();
        match error {
            MapError::Foreign | MapError::Unregistered | MapError::Granule { .. } | MapError::Range { .. } => {
                MapFailure::Unreachable
            }
            _ => {
                self.log.fault(Fault::MapFailed);
                self.log.counters.retried(1);
                MapFailure::Retry
            }
        }
    }

    /// Returns the index for the tail register, unless all descriptors are announced.
    #[inline]
    pub(super) fn announce(&mut self) -> Option<u32> {
        if self.tail == self.next_to_use {
            return None;
        }
        if self.since_rs.frames > 0 {
            // The descriptor lies behind the tail: the driver still owns it. What was written last
            // is the end of a frame.
            let at = previous(self.next_to_use, self.ring.len());
            self.ring.store_second(at, self.last | tx::RS);
            self.push_report(at);
        }
        (self.tail, self.staged) = (self.next_to_use, 0);
        Some(self.next_to_use)
    }

    /// Replaces a packet by a copy; returns false if the pool is empty.
    #[cold]
    fn copy(&mut self, packet: &mut Packet, why: Fault) -> bool {
        let Some(copy) = packet.duplicate(&mut self.cache) else { return false };
        self.log.counters.copied(1, packet.len() as u64);
        self.log.control.fault(why);
        self.cache.free(std::mem::replace(packet, copy));
        true
    }
}

/// Pads a packet to the shortest frame; returns false if it has no tailroom.
fn pad(packet: &mut Packet) -> bool {
    let missing = MIN_FRAME.saturating_sub(packet.len());
    packet.push_back(missing).map(|bytes| bytes.fill(0)).is_ok()
}
