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

use super::config::{Config, ETHERNET};
use super::control::{Fault, Log};
use super::descriptors::{Command, Context, MAX_PIECE, MAX_PIECES, Words, tx};
use super::memory::Ring;
use super::offload::{self, Abilities, Plan, Refusal};
use super::slots::{Slots, distance, next};
use std::collections::VecDeque;
use towpath_bus::{Dma, MapError, Mapped, Mapper};
use towpath_packet::{Batch, Cache, Chunk, DropReason, Loaned, Packet, ToDevice};

/// Shorter frames are padded by us; the device pads the rest (§7.2.1.2, TCTL.PSP).
const MIN_FRAME: usize = 17;
const BURST: usize = Batch::<64>::CAPACITY;

/// One descriptor.
#[derive(Debug, Default)]
struct Slot {
    /// What was mapped for this piece, and perhaps for those that follow.
    mapped: Option<Mapped>,
    /// The frame that ends here.
    frame: Option<Loaned<ToDevice>>,
}

/// What became of a packet.
enum Taken {
    /// It is in the ring; its last descriptor.
    Queued(u32),
    Dropped(DropReason),
    /// There is no room now.
    Full,
}

/// Why pieces could not be mapped.
enum Unmappable {
    /// They can't be reached: a copy could.
    Copy,
    /// Not now.
    Later,
}

/// The ring, the frames in it, and where copies come from.
pub(super) struct TxCore<D: Dma> {
    ring: Ring,
    slots: Slots<Slot>,
    mapper: Mapper<D>,
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
    gone: Vec<Loaned<ToDevice>>,
    pending: usize,
    /// Frames that the device does not know of.
    staged: u32,
    log: Log,
}

/// What a queue gets at its start.
pub(super) struct TxParts<D: Dma> {
    pub(super) ring: Ring,
    pub(super) mapper: Mapper<D>,
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

    pub(super) fn ring(&self) -> &Ring {
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
        for (packet, end) in batch.drain_front(taken).zip(self.ends) {
            match end.and_then(|end| self.slots.get(end)) {
                Some(slot) => slot.frame = Some(Loaned::<ToDevice>::lend(packet)),
                None => self.cache.free(packet),
            }
        }
        taken
    }

    /// Writes the descriptors of a packet, which stays where it is.
    #[inline]
    fn queue(&mut self, packet: &mut Packet) -> Taken {
        let len = packet.len();
        let odd = len < MIN_FRAME || len > self.can.max_frame || len > MAX_PIECE;
        if odd || packet.wants_offload() || self.copy_all {
            return self.queue_any(packet);
        }
        // One piece: in the linear part, or a page of somebody else.
        let mut chunks = packet.chunks();
        let (Some(chunk), None) = (chunks.next(), chunks.next()) else { return self.queue_any(packet) };
        if self.free() == 0 {
            return Taken::Full;
        }
        match self.mapper.map_to_device(chunk) {
            Ok(mapped) => {
                self.mapper.sync_for_device(&mapped, len);
                let words = Command::PLAIN.piece(mapped.iova().get(), len);
                self.finish(words, Some(mapped));
                self.pending += 1;
                Taken::Queued(self.last.0)
            }
            Err(_) => self.queue_any(packet),
        }
    }

    /// Any packet: with offloads, of several pieces, too short, out of reach.
    #[inline(never)]
    fn queue_any(&mut self, packet: &mut Packet) -> Taken {
        if packet.len() < ETHERNET {
            return Taken::Dropped(DropReason::Malformed);
        }
        let (mut copied, mut adopted) = (false, false);
        if self.copy_all || (packet.len() < MIN_FRAME && !pad(packet)) {
            if !self.copy(packet, Fault::Bounced) {
                return Taken::Dropped(DropReason::NoBuffer);
            }
            copied = true;
            pad(packet);
        }
        // Three times at most: its memory is adopted once, and whatever a packet is refused for, a copy is not.
        loop {
            let plan = match offload::plan(packet, self.can) {
                Ok(plan) => plan,
                Err(Refusal::Drop(reason)) => return Taken::Dropped(reason),
                Err(Refusal::Copy) if copied => return Taken::Dropped(DropReason::Offload),
                Err(Refusal::Copy) => {
                    if !self.copy(packet, Fault::Bounced) {
                        return Taken::Dropped(DropReason::NoBuffer);
                    }
                    copied = true;
                    continue;
                }
            };
            let tag = if packet.vlan().is_some() { 4 } else { 0 };
            if plan.cut.is_none() && packet.len() + tag > self.can.max_frame {
                return Taken::Dropped(DropReason::TooLong);
            }
            let pieces = packet.chunks().map(|chunk| chunk.len().div_ceil(MAX_PIECE)).sum::<usize>();
            if pieces > MAX_PIECES {
                if copied {
                    return Taken::Dropped(DropReason::TooLong);
                }
                if !self.copy(packet, Fault::Linearised) {
                    return Taken::Dropped(DropReason::NoBuffer);
                }
                copied = true;
                continue;
            }
            let context = plan.context.filter(|&context| self.context != Some(context));
            if self.free() < pieces + usize::from(context.is_some()) {
                return Taken::Full;
            }
            match self.write(packet, plan, context) {
                Ok(end) => return Taken::Queued(end),
                Err(Unmappable::Later) => return Taken::Full,
                Err(Unmappable::Copy) if copied => return Taken::Dropped(DropReason::Refused),
                Err(Unmappable::Copy) if !adopted && self.adopt(packet) => adopted = true,
                Err(Unmappable::Copy) => {
                    if !self.copy(packet, Fault::Bounced) {
                        return Taken::Dropped(DropReason::NoBuffer);
                    }
                    copied = true;
                }
            }
        }
    }

    /// Maps all pieces, then writes the headers, then the descriptors; there is room for them.
    fn write(&mut self, packet: &mut Packet, plan: Plan, context: Option<Context>) -> Result<u32, Unmappable> {
        let len = self.ring.len();
        let first = if context.is_some() { next(self.tail, len) } else { self.tail };
        let mut at = first;
        for chunk in packet.chunks() {
            match self.mapper.map_to_device(chunk) {
                Ok(mapped) => {
                    let Some(slot) = self.slots.get(at) else { return Err(Unmappable::Later) };
                    slot.mapped = Some(mapped);
                }
                Err(error) => return Err(self.undo(first, at, error)),
            }
            for _ in 0..chunk.len().div_ceil(MAX_PIECE) {
                at = next(at, len);
            }
        }
        if let Some(cut) = plan.cut {
            cut.write(packet);
        }
        if let Some(context) = context {
            self.ring.store(self.tail, context.words());
            self.tail = first;
            self.unreported.1 += 1;
            self.context = Some(context);
        }
        let mut chunks = packet.chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.write_chunk(chunk, plan.command, chunks.peek().is_none());
        }
        self.pending += 1;
        Ok(self.last.0)
    }

    /// Writes the descriptors of one piece of a packet, mapped by the slot of the first of them.
    fn write_chunk(&mut self, chunk: Chunk<'_>, command: Command, is_last: bool) {
        let Some(slot) = self.slots.get(self.tail) else { return };
        let Some(mapped) = slot.mapped.take() else { return };
        self.mapper.sync_for_device(&mapped, chunk.len());
        let (iova, mut mapped) = (mapped.iova(), Some(mapped));
        let mut done = 0;
        while done < chunk.len() {
            let n = (chunk.len() - done).min(MAX_PIECE);
            let words = command.piece(iova.add(done).get(), n);
            done += n;
            if is_last && done == chunk.len() {
                self.finish(words, mapped.take());
            } else {
                self.put(words, mapped.take());
            }
        }
    }

    /// Writes a descriptor.
    #[inline]
    fn put(&mut self, words: Words, mapped: Option<Mapped>) {
        self.ring.store(self.tail, words);
        if let Some(slot) = self.slots.get(self.tail) {
            slot.mapped = mapped;
        }
        self.tail = next(self.tail, self.ring.len());
        self.unreported.1 += 1;
    }

    /// Writes the last descriptor of a frame; it is to be reported on if it is time for that. Half a ring without a report would
    /// be too much: what was not reported can't be used again.
    #[inline]
    fn finish(&mut self, [address, mut command]: Words, mapped: Option<Mapped>) {
        command |= tx::END;
        self.unreported.0 += 1;
        self.staged += 1;
        let at = self.tail;
        let report = self.unreported.0 >= self.report_every || self.unreported.1 + 1 >= self.ring.len() / 4;
        if report {
            command |= tx::REPORT;
        }
        self.put([address, command], mapped);
        self.last = (at, [address, command]);
        if report {
            self.reports.push_back(at);
            self.unreported = (0, 0);
        }
    }

    /// Takes back the mappings of a packet whose pieces from `failed` on could not be mapped.
    #[cold]
    fn undo(&mut self, first: u32, failed: u32, error: MapError) -> Unmappable {
        let (len, mut at) = (self.ring.len(), first);
        while at != failed {
            if let Some(mapped) = self.slots.get(at).and_then(|slot| slot.mapped.take()) {
                // If it stays within reach the device can read these bytes, but no descriptor tells it to.
                let _ = self.mapper.unmap(mapped);
            }
            at = next(at, len);
        }
        let _ = self.mapper.settle();
        match error {
            MapError::Foreign | MapError::Unregistered | MapError::Granule { .. } | MapError::Range { .. } => {
                Unmappable::Copy
            }
            _ => {
                self.log.fault(Fault::MapFailed);
                self.log.counters.retried(1);
                Unmappable::Later
            }
        }
    }

    /// Puts a copy in the place of a packet; false when there is no buffer for it.
    #[cold]
    fn copy(&mut self, packet: &mut Packet, why: Fault) -> bool {
        let Some(copy) = duplicate(packet, &mut self.cache) else { return false };
        self.log.counters.copied(1, packet.len() as u64);
        self.log.control.fault(why);
        self.cache.free(std::mem::replace(packet, copy));
        true
    }

    /// Lets the device read the memory that a packet's pages lie in, if it can.
    #[cold]
    fn adopt(&mut self, packet: &Packet) -> bool {
        let mut any = false;
        for memory in packet.foreign_memory() {
            any |= self.mapper.adopt(memory).is_ok();
        }
        any
    }

    /// What the tail register is to be set to, if the device does not know of everything yet.
    #[inline]
    pub(super) fn announce(&mut self) -> Option<u32> {
        if self.told == self.tail {
            return None;
        }
        if self.unreported.0 > 0 {
            let (at, [address, command]) = self.last;
            // Beyond the tail that was announced, so still ours.
            self.ring.store(at, [address, command | tx::REPORT]);
            self.reports.push_back(at);
            self.unreported = (0, 0);
        }
        (self.told, self.staged) = (self.tail, 0);
        Some(self.tail)
    }

    /// Frees what has left; returns how many frames.
    #[inline]
    pub(super) fn reclaim(&mut self) -> usize {
        let mut until = None;
        while let Some(&at) = self.reports.front() {
            if self.ring.report(at) & tx::DONE == 0 {
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
            if let Some(slot) = self.slots.get(self.clean) {
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
        let settled = self.mapper.settle().is_ok();
        let (mut frames, mut bytes) = (0, 0);
        let mut home: Batch = Batch::new();
        for frame in self.gone.drain(..) {
            if !settled {
                leak(frame, reason, &self.log);
                continue;
            }
            let packet = frame.done();
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
    pub(super) fn idle(&mut self) {
        let _ = self.mapper.flush();
        self.mapper.let_go();
    }

    /// The device was reset, and its ring is empty: what was in it is dropped.
    #[cold]
    pub(super) fn restart(&mut self, reason: DropReason) {
        self.free_until(self.tail, Some(reason));
        self.ring.clear();
        (self.clean, self.told, self.tail, self.staged) = (0, 0, 0, 0);
        self.reports.clear();
        self.unreported = (0, 0);
        self.context = None;
    }

    /// The device was stopped: gives every packet home.
    #[cold]
    pub(super) fn release(mut self) {
        self.free_until(self.tail, Some(DropReason::Stopped));
        let _ = self.mapper.flush();
    }

    /// It is not known whether the device has stopped: nothing that it can reach is used again.
    #[cold]
    pub(super) fn abandon(mut self) {
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
fn leak(frame: Loaned<ToDevice>, reason: Option<DropReason>, log: &Log) {
    log.fault(Fault::Leaked);
    let bytes = frame.chunks().map(|chunk| chunk.len() as u64).sum();
    match reason {
        None => log.counters.moved(1, bytes),
        Some(reason) => log.counters.dropped(reason, 1),
    }
    // A loan that is dropped keeps its packet from going home.
    drop(frame);
}

/// Makes a packet long enough; false when there is no room behind it.
fn pad(packet: &mut Packet) -> bool {
    let missing = MIN_FRAME.saturating_sub(packet.len());
    packet.push_back(missing).map(|bytes| bytes.fill(0)).is_ok()
}

/// A copy of a packet in buffers of `cache`, with all that it asks for.
fn duplicate(packet: &Packet, cache: &mut Cache) -> Option<Packet> {
    let mut copy = cache.alloc()?;
    let mut offset = 0;
    while offset < packet.len() {
        let mut part = if offset == 0 { None } else { Some(cache.alloc()?) };
        let to = part.as_mut().unwrap_or(&mut copy);
        let n = to.tailroom().min(packet.len() - offset);
        if n == 0 {
            return None;
        }
        packet.copy_to(offset, to.push_back(n).ok()?);
        offset += n;
        if let Some(part) = part {
            copy.append(part).ok()?;
        }
    }
    copy.set_csum(packet.csum());
    copy.set_gso(packet.gso());
    copy.set_vlan(packet.vlan());
    Some(copy)
}

#[cfg(test)]
mod tests;
