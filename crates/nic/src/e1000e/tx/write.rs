//! Descriptors: pieces are mapped, then written; the last of a frame says when the device is to report.

use super::super::control::Fault;
use super::super::descriptors::{Command, Context, MAX_PIECE, Words, tx};
use super::super::offload::Plan;
use super::TxCore;
use crate::common::ring::next;
use towpath_bus::{Dma, MapError, Mapped};
use towpath_packet::{Chunk, Packet};

/// Why pieces could not be mapped.
pub(super) enum Unmappable {
    /// They can't be reached: a copy could.
    Copy,
    /// Not now.
    Later,
}

impl<D: Dma> TxCore<D> {
    /// Maps all pieces, then writes the headers, then the descriptors; there is room for them.
    pub(super) fn write(
        &mut self,
        packet: &mut Packet,
        plan: Plan,
        context: Option<Context>,
    ) -> Result<u32, Unmappable> {
        let len = self.ring.len();
        let first = if context.is_some() { next(self.tail, len) } else { self.tail };
        let mut at = first;
        for chunk in packet.chunks() {
            match self.mapper.map_to_device(chunk) {
                Ok(mapped) => {
                    let Some(slot) = self.slots.get_mut(at) else { return Err(Unmappable::Later) };
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
        let Some(slot) = self.slots.get_mut(self.tail) else { return };
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
        if let Some(slot) = self.slots.get_mut(self.tail) {
            slot.mapped = mapped;
        }
        self.tail = next(self.tail, self.ring.len());
        self.unreported.1 += 1;
    }

    /// Writes the last descriptor of a frame; it is to be reported on if it is time for that. Half a ring without a report would
    /// be too much: what was not reported can't be used again.
    #[inline]
    pub(super) fn finish(&mut self, [address, mut command]: Words, mapped: Option<Mapped>) {
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
            if let Some(mapped) = self.slots.get_mut(at).and_then(|slot| slot.mapped.take()) {
                // If it stays within reach the device can read these bytes, but no descriptor tells it to.
                let _ = self.mapper.unmap(mapped);
            }
            at = next(at, len);
        }
        let _ = self.mapper.sync_iotlb();
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

    /// What the tail register is to be set to, if the device does not know of everything yet.
    #[inline]
    pub(in super::super) fn announce(&mut self) -> Option<u32> {
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
}
