//! The virtio-net header in front of a packet, as TUN/TAP and AF_PACKET read and write it: `struct virtio_net_hdr`,
//! virtio 1.2 §5.1.6, `include/uapi/linux/virtio_net.h`.
//!
//! ```text
//!   0      1         2         4          6            8             10            12
//!   flags  gso_type  hdr_len   gso_size   csum_start   csum_offset   num_buffers
//!                                                                    └ only with 12 bytes
//! ```
//!
//! [`VnetHeader::read`] and [`VnetHeader::write`] deal in bytes, [`VnetHeader::apply`] and [`VnetHeader::of`] in the metadata of
//! a [`Packet`]. Both directions are *total* (every input gives a header or a named refusal) and *strict*: what `apply`
//! lets through can be acted upon without looking again, and what `of` makes, Linux accepts
//! (`virtio_net_hdr_to_skb` in `include/linux/virtio_net.h`), so that a refusal tells something about the kernel and not
//! about the packet.
//!
//! Numbers are in the host's byte order: what TUN and AF_PACKET use, and virtio 1 on a little-endian machine.

use towpath_packet::{Checksum, DropReason, Gso, GsoKind, Packet};

/// The checksum is partial: `csum_start` and `csum_offset` hold.
pub const NEEDS_CSUM: u8 = 1;
/// The checksum was verified.
pub const DATA_VALID: u8 = 2;
/// The super-packet carries CWR: a flag beside `gso_type`.
pub const GSO_ECN: u8 = 0x80;

/// Largest `csum_start` of a super-packet: no headers are longer, and the kernel keeps it in 16 bits after adding headroom of
/// its own.
const MAX_GSO_START: u16 = 8192;
/// Segments of one UDP super-packet, at most (`UDP_MAX_SEGMENTS` in `include/linux/udp.h`).
const MAX_UDP_SEGMENTS: usize = 128;
/// A `gso_size` with a meaning of its own in Linux (`GSO_BY_FRAGS`).
const GSO_BY_FRAGS: u16 = 0xffff;

/// A virtio-net header, its fields as they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VnetHeader {
    /// [`NEEDS_CSUM`], [`DATA_VALID`]; others have no meaning here.
    pub flags: u8,
    /// 0, or a [`GsoKind`], perhaps with [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of all headers: a hint.
    pub hdr_len: u16,
    /// Payload bytes of each segment but the last.
    pub gso_size: u16,
    /// First summed byte, from the first byte of the packet.
    pub csum_start: u16,
    /// Position of the checksum field, from `csum_start`.
    pub csum_offset: u16,
}

/// A header that contradicts itself or the packet behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The checksum field lies outside of the packet, or farther from its start than any protocol puts it.
    #[error("checksum field at {start}+{offset} of a packet of {len} bytes")]
    Checksum {
        /// First summed byte.
        start: u16,
        /// Position of the field from there.
        offset: u16,
        /// Bytes in the packet.
        len: usize,
    },
    /// A kind of segmentation that this header cannot say, or that was not agreed on.
    #[error("gso_type {0:#04x}")]
    GsoKind(u8),
    /// A segment size that cannot be.
    #[error("gso_size {0}")]
    GsoSize(u16),
}

impl VnetHeader {
    /// Bytes of the header.
    pub const LEN: usize = 10;
    /// Bytes of the header with `num_buffers`, as virtio 1 always has it.
    pub const LEN_V1: usize = 12;

    /// Takes the header's bytes apart.
    #[inline]
    pub fn read(bytes: &[u8; Self::LEN]) -> VnetHeader {
        let [flags, gso_type, a0, a1, b0, b1, c0, c1, d0, d1] = *bytes;
        VnetHeader {
            flags,
            gso_type,
            hdr_len: u16::from_ne_bytes([a0, a1]),
            gso_size: u16::from_ne_bytes([b0, b1]),
            csum_start: u16::from_ne_bytes([c0, c1]),
            csum_offset: u16::from_ne_bytes([d0, d1]),
        }
    }

    /// The header's bytes.
    #[inline]
    pub fn write(&self) -> [u8; Self::LEN] {
        let ([a0, a1], [b0, b1]) = (self.hdr_len.to_ne_bytes(), self.gso_size.to_ne_bytes());
        let ([c0, c1], [d0, d1]) = (self.csum_start.to_ne_bytes(), self.csum_offset.to_ne_bytes());
        [self.flags, self.gso_type, a0, a1, b0, b1, c0, c1, d0, d1]
    }

    /// The header's bytes as virtio 1 has them, for a packet in `buffers` buffers: 0 where the receiver has no use for the
    /// number.
    #[inline]
    pub fn write_v1(&self, buffers: u16) -> [u8; Self::LEN_V1] {
        let mut bytes = [0; Self::LEN_V1];
        bytes[..Self::LEN].copy_from_slice(&self.write());
        bytes[Self::LEN..].copy_from_slice(&buffers.to_ne_bytes());
        bytes
    }

    /// Notes on a packet that was received what its header says. The packet has all its bytes already, and no checksum state
    /// or segmentation.
    ///
    /// A super-packet whose checksum is not partial (hardware coalesced it) is handed on as it is.
    ///
    /// # Errors
    /// [`Malformed`] when the header asks for what cannot be; the packet is unchanged.
    #[inline]
    pub fn apply(&self, packet: &mut Packet) -> Result<(), Malformed> {
        if self.flags & (NEEDS_CSUM | DATA_VALID) == 0 && self.gso_type == 0 {
            return Ok(());
        }
        let len = packet.len();
        let csum = if self.flags & NEEDS_CSUM != 0 {
            let (start, offset) = (self.csum_start, self.csum_offset);
            let bad = Malformed::Checksum { start, offset, len };
            if usize::from(start) + usize::from(offset) + 2 > len {
                return Err(bad);
            }
            Checksum::Partial { start, offset: u8::try_from(offset).map_err(|_| bad)? }
        } else if self.flags & DATA_VALID != 0 {
            Checksum::Verified
        } else {
            Checksum::Unknown
        };
        let gso = self.gso(len, csum)?;
        packet.set_csum(csum);
        packet.set_gso(gso);
        Ok(())
    }

    #[inline]
    fn gso(&self, len: usize, csum: Checksum) -> Result<Option<Gso>, Malformed> {
        let ecn = self.gso_type & GSO_ECN != 0;
        let kind = match self.gso_type & !GSO_ECN {
            0 if !ecn => return Ok(None),
            1 => GsoKind::Tcp4,
            4 => GsoKind::Tcp6,
            5 if !ecn => GsoKind::Udp,
            _ => return Err(Malformed::GsoKind(self.gso_type)),
        };
        if matches!(self.gso_size, 0 | GSO_BY_FRAGS) {
            return Err(Malformed::GsoSize(self.gso_size));
        }
        if let Checksum::Partial { start, offset } = csum {
            let right = offset == l4(kind).csum_offset && usize::from(start) + l4(kind).header <= len;
            if !right || start > MAX_GSO_START {
                return Err(Malformed::Checksum { start, offset: offset.into(), len });
            }
        }
        let hdr_len = self.hdr_len.min(u16::try_from(len).unwrap_or(u16::MAX));
        Ok(Some(Gso { kind, ecn, size: self.gso_size, segs: 0, hdr_len }))
    }

    /// The header that tells the other side what the packet asks for.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] when the packet's metadata contradicts its bytes; [`DropReason::Offload`] for what this
    /// header cannot say: a tag beside the packet, a UDP super-packet with a complete checksum or of more than 128 segments.
    #[inline]
    pub fn of(packet: &Packet) -> Result<VnetHeader, DropReason> {
        let csum = packet.csum();
        let mut header = VnetHeader::default();
        if csum == Checksum::Verified {
            header.flags = DATA_VALID;
        }
        if !packet.wants_offload() {
            return Ok(header);
        }
        if packet.vlan().is_some() {
            return Err(DropReason::Offload);
        }
        let len = packet.len();
        if let Checksum::Partial { start, offset } = csum {
            if usize::from(start) + usize::from(offset) + 2 > len {
                return Err(DropReason::Malformed);
            }
            header.flags = NEEDS_CSUM;
            header.csum_start = start;
            header.csum_offset = offset.into();
        }
        if let Some(gso) = packet.gso() {
            header.set_gso(gso, len)?;
        }
        Ok(header)
    }

    #[inline]
    fn set_gso(&mut self, gso: Gso, len: usize) -> Result<(), DropReason> {
        let l4 = l4(gso.kind);
        let tcp = gso.kind != GsoKind::Udp;
        if matches!(gso.size, 0 | GSO_BY_FRAGS) || gso.ecn && !tcp {
            return Err(DropReason::Malformed);
        }
        let partial = self.flags & NEEDS_CSUM != 0;
        if !partial && !tcp {
            return Err(DropReason::Offload);
        }
        let headers = if partial {
            let ip = if gso.kind == GsoKind::Tcp6 { 40 } else { 20 };
            let start = usize::from(self.csum_start);
            let right = self.csum_offset == u16::from(l4.csum_offset) && (ip..=MAX_GSO_START.into()).contains(&start);
            let least = start + l4.header;
            if !right || least > len {
                return Err(DropReason::Malformed);
            }
            if !tcp && len - least > usize::from(gso.size) * MAX_UDP_SEGMENTS {
                return Err(DropReason::Offload);
            }
            // The hint may be missing, or be the length of all that happened to be linear: the kernel makes that much linear.
            let hint = usize::from(gso.hdr_len);
            if (least..=start + l4.longest).contains(&hint) { hint } else { least }
        } else {
            0
        };
        self.gso_type = gso.kind as u8 | if gso.ecn { GSO_ECN } else { 0 };
        self.gso_size = gso.size;
        self.hdr_len = headers.min(len) as u16;
        Ok(())
    }
}

/// What the transport header of a super-packet looks like.
struct L4 {
    header: usize,
    longest: usize,
    csum_offset: u8,
}

#[inline]
const fn l4(kind: GsoKind) -> L4 {
    match kind {
        GsoKind::Tcp4 | GsoKind::Tcp6 => L4 { header: 20, longest: 60, csum_offset: 16 },
        GsoKind::Udp => L4 { header: 8, longest: 8, csum_offset: 6 },
    }
}

#[cfg(test)]
mod tests;
