//! Where a packet lies: whether the kernel can take it from there, and a copy if not.

use super::super::metadata;
use super::{MOST_PIECES, SocketTx};
use towpath_packet::{Checksum, DropReason, Packet};

impl SocketTx {
    /// Whether there is room in front of the packet for what must be asked.
    #[inline]
    fn has_room(packet: &Packet) -> bool {
        !matches!(packet.csum(), Checksum::Partial { .. })
            || (packet.headroom() >= metadata::LEN && !packet.linear().is_empty())
    }

    /// Chunk and address of a packet that is all in one chunk, from which the kernel can take it.
    #[inline]
    pub(super) fn place(&self, packet: &Packet) -> Option<(usize, u64)> {
        if packet.frags() > 0 || !Self::has_room(packet) {
            return None;
        }
        let place = packet.chunks().next().and_then(|piece| self.queue.setup.frames.address(&piece));
        place.filter(|&(chunk, _)| self.lent.is_free(chunk))
    }

    /// Whether the kernel can take the packet from where it lies, in however many pieces.
    #[cold]
    pub(super) fn can_go(&self, packet: &Packet) -> bool {
        if !Self::has_room(packet) {
            return false;
        }
        let mut pieces = 0;
        for piece in packet.chunks() {
            let Some((chunk, _)) = self.queue.setup.frames.address(&piece) else { return false };
            if !self.lent.is_free(chunk) {
                return false;
            }
            pieces += 1;
        }
        pieces <= self.pieces && (pieces < 2 || self.apart(packet))
    }

    /// Whether all pieces lie in chunks of their own, the head's among them.
    #[cold]
    fn apart(&self, packet: &Packet) -> bool {
        let mut seen = [usize::MAX; MOST_PIECES];
        for (i, piece) in packet.chunks().enumerate() {
            let Some((chunk, _)) = self.queue.setup.frames.address(&piece) else { return false };
            if seen.contains(&chunk) || i >= seen.len() {
                return false;
            }
            seen[i] = chunk;
        }
        true
    }

    /// The packet in chunks of our memory, with room for metadata in front.
    #[cold]
    pub(super) fn copy(&mut self, packet: Packet) -> Result<Packet, (DropReason, Packet)> {
        let Some(mut copy) = self.copies.alloc() else { return Err((DropReason::NoBuffer, packet)) };
        if copy.headroom() < metadata::LEN {
            // A pool without headroom: make some.
            let _ = copy.push_back(metadata::LEN);
            copy.pull_front(metadata::LEN);
        }
        let len = packet.len();
        let mut at = len.min(copy.tailroom());
        if let Ok(room) = copy.push_back(at) {
            packet.copy_to(0, room);
        }
        while at < len {
            let Some(mut next) = self.copies.alloc() else { return Err((DropReason::NoBuffer, packet)) };
            let n = (len - at).min(next.tailroom());
            if let Ok(room) = next.push_back(n) {
                packet.copy_to(at, room);
            }
            at += n;
            if copy.frags() + 2 > self.pieces || n == 0 || copy.append(next).is_err() {
                return Err((DropReason::TooLong, packet));
            }
        }
        self.counters.copied(1, packet.len() as u64);
        copy.copy_metadata_from(&packet);
        self.cache.free(packet);
        Ok(copy)
    }
}
