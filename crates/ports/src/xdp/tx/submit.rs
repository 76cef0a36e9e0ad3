//! The way in: packets into the TX ring, lent to the kernel until they are completed.

use super::super::metadata;
use super::super::timing::Sample;
use super::{MOST_PIECES, SHORTEST, SocketTx};
use towpath_engine::software_offload::asks_more;
use towpath_packet::xsk_ring::Desc;
use towpath_packet::{Batch, Checksum, DropReason, Packet};

impl SocketTx {
    /// Packets from the front for whose pieces there is room.
    #[inline]
    pub(super) fn fitting(&mut self, batch: &Batch) -> usize {
        let Some(rings) = &mut self.rings else { return 0 };
        let most = self.pieces.max(1);
        let at_worst = batch.len() * most;
        if (rings.tx.reserve(at_worst as u32) as usize).min(self.size - self.lent.chunks()) >= at_worst {
            return batch.len();
        }
        let pieces = |packet: &Packet| (packet.frags() + 1).min(most);
        let wanted: usize = batch.iter().map(pieces).sum();
        let free = rings.tx.reserve(wanted as u32) as usize;
        let mut room = free.min(self.size - self.lent.chunks());
        let mut n = 0;
        for packet in batch {
            match room.checked_sub(pieces(packet)) {
                Some(rest) => room = rest,
                None => break,
            }
            n += 1;
        }
        n
    }

    /// Puts a packet into the TX ring, in which there is room; or the reason why it can never go, and the packet.
    #[inline]
    pub(super) fn submit(&mut self, packet: Packet) -> Result<(), (DropReason, Packet)> {
        if asks_more(&packet, self.offloads) {
            return Err((DropReason::Offload, packet));
        }
        match packet.len() {
            len if len < SHORTEST => return Err((DropReason::Malformed, packet)),
            len if len > self.longest => return Err((DropReason::TooLong, packet)),
            _ => {}
        }
        let mut place = self.place(&packet);
        let mut packet = packet;
        if place.is_none() && !self.can_go(&packet) {
            packet = self.copy(packet)?;
            place = self.place(&packet);
        }
        let mut ask = 0;
        if let Checksum::Partial { .. } = packet.csum() {
            ask |= metadata::CHECKSUM;
        }
        let room = packet.headroom() >= metadata::LEN && !packet.linear().is_empty();
        if room && self.sample.as_ref().is_some_and(Sample::is_due) {
            ask |= metadata::TIMESTAMP;
        }
        if ask != 0 && metadata::ask(&mut packet, ask).is_none() {
            return Err((DropReason::Offload, packet));
        }
        match place {
            Some((chunk, addr)) => self.lend_whole(packet, chunk, addr, ask),
            None => self.lend_pieces(packet, ask),
        }
    }

    #[inline]
    fn lend_whole(&mut self, packet: Packet, chunk: usize, addr: u64, ask: u64) -> Result<(), (DropReason, Packet)> {
        let Some(rings) = &mut self.rings else { return Err((DropReason::PortGone, packet)) };
        let options = if ask == 0 { 0 } else { Desc::METADATA };
        rings.tx.write(Desc { addr, len: packet.len() as u32, options });
        self.lent.lend(packet, chunk);
        self.time(chunk, ask);
        Ok(())
    }

    #[cold]
    fn lend_pieces(&mut self, packet: Packet, ask: u64) -> Result<(), (DropReason, Packet)> {
        let Some(rings) = &mut self.rings else { return Err((DropReason::PortGone, packet)) };
        let total = packet.chunks().count();
        let mut options = if ask == 0 { 0 } else { Desc::METADATA };
        let (mut chunks, mut n) = ([0; MOST_PIECES], 0);
        for (i, piece) in packet.chunks().enumerate() {
            // They were found there a moment ago, and are not more.
            let (Some((chunk, addr)), Some(at)) = (self.queue.setup.frames.address(&piece), chunks.get_mut(i)) else {
                continue;
            };
            (*at, n) = (chunk, i + 1);
            let more = if i + 1 < total { Desc::CONTINUED } else { 0 };
            rings.tx.write(Desc { addr, len: piece.len() as u32, options: options | more });
            options = 0;
        }
        if n == 0 {
            return Err((DropReason::Malformed, packet));
        }
        self.lent.lend_pieces(packet, &chunks[..n]);
        self.time(chunks[0], ask);
        Ok(())
    }

    /// The frame that begins in this chunk was submitted; it is timed if that was asked for.
    #[inline]
    fn time(&mut self, chunk: usize, ask: u64) {
        if ask & metadata::TIMESTAMP != 0
            && let Some(sample) = &mut self.sample
        {
            sample.begin(chunk);
        }
    }
}
