//! Packets become descriptors. A packet of one piece without offloads takes the short way
//! ([`TxRing::submit`]), also if it is copied. Every other packet takes the long way: its headers
//! are prepared, it is copied if the device can't reach it, and its pieces are mapped, then
//! written; or gathered in one copy.
//!
//! The packet of a copied frame is freed before the frame is sent. Its lines are in the cache then,
//! and the next frame that is received gets the same buffer: the working set is a batch of buffers,
//! not a ring of them. An application gets its page back earlier, so its completions of copied
//! frames overtake those of mapped ones, as completions with addresses may. The frame counts as
//! pending, and as sent or dropped, with its descriptor.

use super::super::config::ETHERNET;
use super::super::control::Fault;
use super::super::descriptors::{Command, Context, MAX_PIECE, MAX_PIECES, tx};
use super::super::offload::{Plan, Refusal, plan};
use super::TxRing;
use crate::common::ring::{Words, ahead, next};
use towpath_bus::{Dma, Iova, MapError};
use towpath_packet::{Batch, Chunk, DropReason, InFlight, Packet, ToDevice};

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
    /// than `copybreak` are copied. The device does not know of them yet.
    #[inline]
    pub(super) fn send(&mut self, batch: &mut Batch, most: usize, copybreak: usize) -> usize {
        self.copybreak = copybreak;
        let (shortest, longest) = (copybreak.max(MIN_FRAME), self.abilities.max_frame.min(MAX_PIECE));
        let mut taken = 0;
        while let Some(packet) = batch.as_mut_slice().get_mut(taken).filter(|_| taken < most) {
            let end = match self.submit(packet, shortest, longest) {
                Submitted::Queued(end) => Some(end),
                Submitted::Copied => None,
                Submitted::Dropped(reason) => {
                    self.log.counters.dropped_packet(reason, packet);
                    None
                }
                Submitted::Full => break,
            };
            if let Some(slot) = self.ends.get_mut(taken) {
                *slot = end;
            }
            taken += 1;
        }
        let mut freed: Batch = Batch::new();
        for (packet, end) in batch.drain_front(taken).zip(&self.ends) {
            match end.and_then(|end| self.slots.get_mut(end)) {
                Some(slot) => slot.frame = Some(InFlight::<ToDevice>::post(packet)),
                // Together, so that external buffers return in their order.
                None => freed.push(packet).unwrap_or_else(|packet| self.cache.free(packet)),
            }
        }
        self.cache.free_bulk(&mut freed);
        taken
    }

    /// Writes the descriptors of a packet, which stays in its batch. Packets with
    /// these lengths are mapped as they are.
    #[inline]
    fn submit(&mut self, packet: &mut Packet, shortest: usize, longest: usize) -> Submitted {
        let len = packet.len();
        if len < shortest || len > longest || packet.wants_offload() || self.copy_all {
            return self.submit_other(packet);
        }
        // One piece: in the linear part, or an external page.
        let Some(chunk) = packet.chunks().next().filter(|chunk| chunk.len() == len) else {
            return self.submit_any(packet);
        };
        if self.free() == 0 {
            return Submitted::Full;
        }
        match self.mapper.map_to_device(chunk) {
            Ok(mapped) => {
                self.mapper.sync_for_device(&mapped, len);
                let words = Command::PLAIN.piece(mapped.iova().get(), len);
                if let Some(slot) = self.slots.get_mut(self.next_to_use) {
                    slot.mapped = Some(mapped);
                }
                self.put_last(words);
                self.pending += 1;
                Submitted::Queued(self.last.0)
            }
            Err(_) => self.submit_any(packet),
        }
    }

    /// A short packet without offloads is copied.
    #[inline(never)]
    fn submit_other(&mut self, packet: &mut Packet) -> Submitted {
        if !(ETHERNET..self.copybreak).contains(&packet.len()) || packet.wants_offload() {
            return self.submit_any(packet);
        }
        if self.free() == 0 {
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
        if packet.len() < ETHERNET {
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
                if self.free() < 1 + usize::from(context.is_some()) {
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
            if self.free() < pieces + usize::from(context.is_some()) {
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
            slot.mapped = Some(run.mapped);
        }
        if let Some(segment) = plan.segment {
            segment.write_headers(packet);
        }
        self.put_context(context);
        let mut chunks = packet.chunks().zip(iovas.into_iter().flatten()).peekable();
        while let Some((chunk, iova)) = chunks.next() {
            let end = match (chunks.peek(), &plan.segment) {
                (Some(_), _) => None,
                (None, Some(_)) => Some(SENTINEL),
                (None, None) => Some(0),
            };
            self.write_chunk(chunk, iova, plan.command, end);
        }
        self.pending += 1;
        Ok(self.last.0)
    }

    /// Writes the descriptors of one piece of a packet. The slot of the first of them has the
    /// mapping already, if the piece is the first of its run. `end`: the packet ends here, with a
    /// descriptor for so many bytes if there are any.
    fn write_chunk(&mut self, chunk: Chunk<'_>, iova: Iova, command: Command, end: Option<usize>) {
        self.mapper.sync_piece_for_device(iova, chunk.len());
        let (mut done, sentinel) = (0, end.unwrap_or(0));
        while done < chunk.len() {
            let rest = chunk.len() - done;
            let n = if (sentinel + 1..=MAX_PIECE).contains(&rest) { rest - sentinel } else { rest.min(MAX_PIECE) };
            let words = command.piece(iova.add(done).get(), n);
            done += n;
            if end.is_some() && done == chunk.len() {
                self.put_last(words);
            } else {
                self.put(words);
            }
        }
    }

    /// Writes the context that the next frame needs.
    fn put_context(&mut self, context: Option<Context>) {
        if let Some(context) = context {
            self.ring.store(self.next_to_use, context.words());
            self.next_to_use = next(self.next_to_use, self.ring.len());
            self.since_rs.descriptors += 1;
            self.context = Some(context);
        }
    }

    /// Writes the descriptor of a copied frame.
    #[inline]
    fn put_copy(&mut self, iova: Iova, len: usize, command: Command) -> Submitted {
        self.since_rs.copies += 1;
        self.since_rs.copied_bytes += len as u32;
        self.put_last(command.piece(iova.get(), len));
        self.pending += 1;
        Submitted::Copied
    }

    /// Writes a descriptor. Its slot is empty, or has its mapping already.
    #[inline]
    fn put(&mut self, words: Words) {
        self.ring.store(self.next_to_use, words);
        self.next_to_use = next(self.next_to_use, self.ring.len());
        self.since_rs.descriptors += 1;
    }

    /// Writes the last descriptor of a frame, with RS if it is time for it: after `rs_every`
    /// frames, or a quarter of the ring, because descriptors that no RS follows can't be used
    /// again.
    #[inline(always)]
    fn put_last(&mut self, [address, mut command]: Words) {
        command |= tx::EOP;
        self.since_rs.frames += 1;
        self.staged += 1;
        let at = self.next_to_use;
        let rs = self.since_rs.frames >= self.rs_every || self.since_rs.descriptors >= self.rs_descriptors;
        if rs {
            command |= tx::RS;
        }
        self.put([address, command]);
        self.last = (at, [address, command]);
        if rs {
            self.push_report(at);
        }
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
            let (at, [address, command]) = self.last;
            // The descriptor lies behind the tail: the driver still owns it.
            self.ring.store(at, [address, command | tx::RS]);
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
