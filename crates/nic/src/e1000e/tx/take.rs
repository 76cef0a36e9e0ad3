//! What becomes of a packet: one plain piece goes into the ring by the short way, everything else by the long one.

use super::super::config::ETHERNET;
use super::super::control::Fault;
use super::super::descriptors::{Command, MAX_PIECE, MAX_PIECES};
use super::super::offload::{self, Refusal};
use super::TxCore;
use super::write::Unmappable;
use towpath_bus::Dma;
use towpath_packet::{DropReason, Packet};

/// Shorter frames are padded by us; the device pads the rest (§7.2.1.2, TCTL.PSP).
const MIN_FRAME: usize = 17;

/// What became of a packet.
pub(super) enum Taken {
    /// It is in the ring; its last descriptor.
    Queued(u32),
    Dropped(DropReason),
    /// There is no room now.
    Full,
}

impl<D: Dma> TxCore<D> {
    /// Writes the descriptors of a packet, which stays where it is.
    #[inline]
    pub(super) fn queue(&mut self, packet: &mut Packet) -> Taken {
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
                Err(Unmappable::Copy) if !adopted && self.mapper.map_external(packet) => adopted = true,
                Err(Unmappable::Copy) => {
                    if !self.copy(packet, Fault::Bounced) {
                        return Taken::Dropped(DropReason::NoBuffer);
                    }
                    copied = true;
                }
            }
        }
    }
}

/// Makes a packet long enough; false when there is no room behind it.
fn pad(packet: &mut Packet) -> bool {
    let missing = MIN_FRAME.saturating_sub(packet.len());
    packet.push_back(missing).map(|bytes| bytes.fill(0)).is_ok()
}
