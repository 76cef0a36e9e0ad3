//! The metadata of a packet in a tee's ring: three words of a record.
//!
//! ```text
//!   word 0   time, nanoseconds since the epoch
//!   word 1   original length │ VLAN tag │ flags │ reason of a drop
//!   word 2   GSO size │ checksum start │ checksum offset │ GSO kind │ interface │ 0
//! ```

use towpath_packet::record_ring::Words;
use towpath_packet::{Checksum, DropReason, GsoKind, Packet, Vlan};

/// Bits of the flags.
mod flag {
    pub(super) const SENT: u8 = 1;
    pub(super) const DROPPED: u8 = 2;
    pub(super) const VLAN: u8 = 4;
    pub(super) const SERVICE: u8 = 8;
    pub(super) const PARTIAL: u8 = 16;
}

/// Where a packet was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TeeDirection {
    /// Received by the interface.
    Received,
    /// Taken by the interface, to be sent.
    Sent,
    /// Dropped at the interface.
    Dropped(DropReason),
}

/// What is noted about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TeeRecord {
    /// When its burst was seen, in nanoseconds since the epoch.
    pub time: u64,
    /// Bytes of the whole packet, without a tag that is beside it.
    pub original: u32,
    /// The interface, in the numbers of the slots.
    pub interface: u8,
    /// Where it was seen.
    pub direction: TeeDirection,
    /// The tag beside the frame.
    pub vlan: Option<Vlan>,
    /// Its checksum, if it is partial; else unknown, whatever was verified.
    pub csum: Checksum,
    /// The kind and the payload bytes of the segments of a super-packet.
    pub gso: Option<(GsoKind, u16)>,
}

/// The words of all packets of a burst, without what differs between them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Burst {
    time: u64,
    flags: u8,
    reason: u8,
    interface: u8,
}

impl Burst {
    #[inline]
    pub(super) fn new(time: u64, direction: TeeDirection, interface: u8) -> Burst {
        let (flags, reason) = match direction {
            TeeDirection::Received => (0, 0),
            TeeDirection::Sent => (flag::SENT, 0),
            TeeDirection::Dropped(reason) => (flag::DROPPED, reason as u8),
        };
        Burst { time, flags, reason, interface }
    }

    /// The words of a packet.
    #[inline]
    pub(super) fn words(self, packet: &Packet) -> Words {
        let second = packet.len() as u64 | u64::from(self.flags) << 48 | u64::from(self.reason) << 56;
        let third = u64::from(self.interface) << 48;
        if packet.wants_offload() { self.with_work(packet, second, third) } else { [self.time, second, third] }
    }

    /// The words of a packet with a tag beside it, a partial checksum or segments.
    #[cold]
    fn with_work(self, packet: &Packet, mut second: u64, mut work: u64) -> Words {
        let mut flags = 0;
        if let Some(vlan) = packet.vlan() {
            flags |= flag::VLAN | if vlan.service { flag::SERVICE } else { 0 };
            second |= u64::from(vlan.tci) << 32;
        }
        if let Checksum::Partial { start, offset } = packet.csum() {
            flags |= flag::PARTIAL;
            work |= u64::from(start) << 16 | u64::from(offset) << 32;
        }
        if let Some(gso) = packet.gso() {
            work |= u64::from(gso.size) | (gso.kind as u64) << 40;
        }
        [self.time, second | u64::from(flags) << 48, work]
    }
}

impl TeeRecord {
    /// The record of words.
    #[inline]
    pub(super) fn new([time, second, work]: Words) -> TeeRecord {
        let flags = (second >> 48) as u8;
        let has = |bit: u8| flags & bit != 0;
        let direction = if has(flag::DROPPED) {
            let reason = DropReason::ALL.get((second >> 56) as usize);
            TeeDirection::Dropped(reason.copied().unwrap_or(DropReason::Refused))
        } else if has(flag::SENT) {
            TeeDirection::Sent
        } else {
            TeeDirection::Received
        };
        let csum = if has(flag::PARTIAL) {
            Checksum::Partial { start: (work >> 16) as u16, offset: (work >> 32) as u8 }
        } else {
            Checksum::Unknown
        };
        let kinds = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp];
        let kind = kinds.into_iter().find(|kind| *kind as u8 == (work >> 40) as u8);
        TeeRecord {
            time,
            original: second as u32,
            interface: (work >> 48) as u8,
            direction,
            vlan: has(flag::VLAN).then(|| Vlan { tci: (second >> 32) as u16, service: has(flag::SERVICE) }),
            csum,
            gso: kind.map(|kind| (kind, work as u16)),
        }
    }
}
