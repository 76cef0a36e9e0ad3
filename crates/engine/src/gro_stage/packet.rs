//! A packet as a segment of the GRO engine: merged packets become its fragments, and no byte is
//! copied.

use towpath_gro as gro;
use towpath_packet::{Checksum, Gso, GsoKind, Packet};
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
        gro_offload(&self.0)
    }

    #[inline]
    fn set_offload(&mut self, offload: gro::Offload) {
        let packet = &mut self.0;
        packet.set_csum(match offload.checksum {
            gro::Checksum::Unverified => Checksum::Unknown,
            gro::Checksum::Verified => Checksum::Verified,
            // The transport's own field, so always within reach.
            gro::Checksum::Partial { start, offset } => Checksum::Partial { start, offset: offset as u8 },
        });
        packet.set_gso(offload.gso.map(|gso| Gso {
            kind: match gso.kind {
                gro::GsoKind::Tcp4 => GsoKind::Tcp4,
                gro::GsoKind::Tcp6 => GsoKind::Tcp6,
                gro::GsoKind::Udp => GsoKind::Udp,
            },
            ecn: gso.ecn,
            size: gso.size,
            segs: gso.segs,
            hdr_len: gso.header_len,
        }));
    }

    #[inline]
    fn vlan(&self) -> u32 {
        if self.0.vlan().is_none() { 0 } else { self.tag() }
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

impl GroPacket {
    /// The VLAN tag in the metadata, if there is one. Out of line, to keep the path without tags
    /// short.
    #[inline(never)]
    fn tag(&self) -> u32 {
        self.0.vlan().map_or(0, |vlan| (if vlan.service { 0x88a8_0000 } else { 0x8100_0000 }) | u32::from(vlan.tci))
    }

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

/// The packet's metadata in the terms of the engine.
pub fn gro_offload(packet: &Packet) -> gro::Offload {
    let checksum = match packet.csum() {
        Checksum::Unknown => gro::Checksum::Unverified,
        Checksum::Verified => gro::Checksum::Verified,
        Checksum::Partial { start, offset } => gro::Checksum::Partial { start, offset: u16::from(offset) },
    };
    let gso = packet.gso().map(|gso| gro::Gso {
        kind: match gso.kind {
            GsoKind::Tcp4 => gro::GsoKind::Tcp4,
            GsoKind::Tcp6 => gro::GsoKind::Tcp6,
            GsoKind::Udp => gro::GsoKind::Udp,
        },
        size: gso.size,
        segs: gso.segs,
        header_len: gso.hdr_len,
        ecn: gso.ecn,
        fixed_id: false,
        outer_fixed_id: false,
        tunnel: None,
    });
    gro::Offload { checksum, gso }
}
