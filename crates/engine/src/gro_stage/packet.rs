//! A packet as a segment of the GRO engine: merged packets become its fragments, and no byte is
//! copied.

use towpath_gro as gro;
use towpath_packet::{Checksum, Packet};
use towpath_wire::checksum::{self, Accumulator};

/// A packet to which the engine chains others ([`towpath_gro::Gro`]).
pub struct GroPacket(pub Packet);

impl gro::Segment for GroPacket {
    #[inline]
    fn head(&self) -> &[u8] {
        self.0.linear()
    }

    #[inline]
    fn head_mut(&mut self) -> &mut [u8] {
        self.0.linear_mut()
    }

    #[inline]
    fn packet_len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn offload(&self) -> gro::Offload {
        gro::Offload::new(self.0.csum(), self.0.gso())
    }

    #[inline]
    fn set_offload(&mut self, offload: gro::Offload) {
        self.0.set_csum(offload.checksum);
        self.0.set_gso(offload.gso);
    }

    #[inline]
    fn vlan(&self) -> u32 {
        vlan(&self.0)
    }

    #[inline(always)]
    fn is_ordinary(&self) -> bool {
        // Without short circuits: these are bits of one byte.
        (self.0.csum() == Checksum::Verified) & self.0.gso().is_none() & self.0.vlan().is_none()
    }

    #[inline]
    fn sum(&self, from: usize) -> u16 {
        match self.0.frags() {
            0 => checksum::sum(self.0.linear().get(from..).unwrap_or_default()),
            _ => self.sum_chunks(from),
        }
    }

    #[inline(always)]
    fn append(&mut self, other: GroPacket, skip: usize, verify: Option<u16>) -> gro::Appended<GroPacket> {
        if let Some(rest) = verify
            && checksum::add(rest, other.sum(skip)) != checksum::VALID
        {
            return gro::Appended::Corrupt(other);
        }
        match self.0.append_from(other.0, skip) {
            Ok(()) => gro::Appended::Chained,
            Err(back) => gro::Appended::Full(GroPacket(back)),
        }
    }

    #[inline]
    fn prefetch(&self) {
        self.0.prefetch_data();
    }

    #[inline]
    fn prefetch_payload(&self) {
        if self.0.csum() == Checksum::Unknown {
            self.0.prefetch_payload();
        }
    }
}

/// The tag beside a packet, as [`gro::Segment::vlan`] returns it.
#[inline]
pub(super) fn vlan(packet: &Packet) -> u32 {
    if packet.vlan().is_none() { 0 } else { tag(packet) }
}

/// The VLAN tag in the metadata, if there is one. Out of line, to keep the path without tags short.
#[inline(never)]
fn tag(packet: &Packet) -> u32 {
    packet.vlan().map_or(0, |vlan| (if vlan.service { 0x88a8_0000 } else { 0x8100_0000 }) | u32::from(vlan.tci))
}

impl GroPacket {
    /// The checksum of a packet in several chunks.
    #[inline(never)]
    fn sum_chunks(&self, from: usize) -> u16 {
        let (mut sum, mut skip) = (Accumulator::new(), from);
        for chunk in self.0.chunks() {
            let mut piece = chunk.skip(skip);
            skip = skip.saturating_sub(chunk.len());
            match piece.bytes() {
                Some(bytes) => sum.add_bytes(bytes),
                None => {
                    let mut copy = [0; 256];
                    while !piece.is_empty() {
                        let n = piece.copy_to(0, &mut copy);
                        sum.add_bytes(&copy[..n]);
                        piece = piece.skip(n);
                    }
                }
            }
        }
        sum.sum()
    }
}
