//! What the kernel is asked, and answers, in front of a sent frame (`struct xsk_tx_metadata`, since Linux 6.8).
//!
//! ```text
//!   0 flags u64 │ 8 asked: start u16, offset u16 of a checksum      │ 16 launch time, not used here │ frame …
//!               │ 8 answered: timestamp u64, in the same place      │
//! ```

use towpath_packet::{Checksum, Packet};

/// Bytes of it.
pub(super) const LEN: usize = 24;
/// `XDP_TXMD_FLAGS_TIMESTAMP`.
pub(super) const TIMESTAMP: u64 = 1;
/// `XDP_TXMD_FLAGS_CHECKSUM`.
pub(super) const CHECKSUM: u64 = 2;

/// Writes in front of the packet what is asked for, the packet's partial checksum if it is that; `None` if there is no room.
pub(super) fn ask(packet: &mut Packet, flags: u64) -> Option<()> {
    let csum = packet.csum();
    let room = packet.push_front(LEN).ok()?;
    room.fill(0);
    room.get_mut(..8)?.copy_from_slice(&flags.to_ne_bytes());
    if let (true, Checksum::Partial { start, offset }) = (flags & CHECKSUM != 0, csum) {
        room.get_mut(8..10)?.copy_from_slice(&start.to_ne_bytes());
        room.get_mut(10..12)?.copy_from_slice(&u16::from(offset).to_ne_bytes());
    }
    packet.pull_front(LEN).then_some(())
}

/// The timestamp in front of a packet that asked for one; `None` if nothing was written there.
pub(super) fn timestamp(packet: &mut Packet) -> Option<u64> {
    let room = packet.push_front(LEN).ok()?;
    let answer = room.get(8..16)?.first_chunk().copied().map(u64::from_ne_bytes);
    packet.pull_front(LEN);
    answer.filter(|&stamp| stamp != 0)
}
