//! The virtio-net header in front of a packet: `struct virtio_net_hdr`,
//! [virtio 1.2 §5.1.6](https://docs.oasis-open.org/virtio/virtio/v1.2/virtio-v1.2.html),
//! `include/uapi/linux/virtio_net.h`.
//!
//! ```text
//!   0      1         2         4          6            8             10            12
//!   flags  gso_type  hdr_len   gso_size   csum_start   csum_offset   num_buffers
//!                                                                    └ only with 12 bytes
//! ```
//!
//! | used by | byte order | methods |
//! |---|---|---|
//! | TUN/TAP, AF_PACKET | the host's | `from_ne_bytes`, `to_ne_bytes` |
//! | virtio 1, vhost | little-endian | `from_le_bytes`, `to_le_bytes`, `to_le_bytes_v1` |
//!
//! [`VnetHeader::offload`] and [`VnetHeader::new`] convert to and from [`Checksum`] and [`Gso`].
//! Both are *total*: every input gives a result or a named error. Both are *strict*: what `offload`
//! returns can be acted upon without further checks, and Linux accepts what `new` makes
//! (`virtio_net_hdr_to_skb` in `include/linux/virtio_net.h`), so that a refusal says something
//! about the kernel and not about the packet.

pub mod feature;

use core::fmt;

use crate::offload::{Checksum, Gso, GsoKind, MAX_UDP_SEGMENTS};

/// `flags`: the checksum is partial, `csum_start` and `csum_offset` hold
/// (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
pub const NEEDS_CSUM: u8 = 1;
/// `flags`: the checksum was verified (`VIRTIO_NET_HDR_F_DATA_VALID`).
pub const DATA_VALID: u8 = 2;
/// `gso_type`: the super-packet carries CWR, a bit beside the kind (`VIRTIO_NET_HDR_GSO_ECN`).
pub const GSO_ECN: u8 = 0x80;

/// Largest `csum_start` of a super-packet. No headers are longer, and the kernel keeps the value in
/// 16 bits after it adds headroom of its own.
const MAX_GSO_START: u16 = 8192;
/// A `gso_size` with a meaning of its own in Linux.
const GSO_BY_FRAGS: u16 = 0xffff;

/// A virtio-net header, field by field: laid out as in C, in the host's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct VnetHeader {
    /// [`NEEDS_CSUM`], [`DATA_VALID`]; other bits have no meaning here.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// The checksum field lies outside of the packet, or farther from its start than any protocol
    /// puts it.
    Checksum {
        /// First summed byte.
        start: u16,
        /// Position of the field from there.
        offset: u16,
        /// Bytes in the packet.
        len: usize,
    },
    /// A kind of segmentation that this header cannot express, or that was not negotiated.
    GsoKind(u8),
    /// An impossible segment size.
    GsoSize(u16),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checksum { start, offset, len } => {
                write!(f, "checksum field at {start}+{offset} of a packet of {len} bytes")
            }
            Self::GsoKind(kind) => write!(f, "gso_type {kind:#04x}"),
            Self::GsoSize(size) => write!(f, "gso_size {size}"),
        }
    }
}

impl core::error::Error for Malformed {}

/// Why no header describes a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Undescribable {
    /// The metadata contradicts the packet.
    Malformed,
    /// The metadata is sound but the header has no field for it: a tunnel, or a UDP super-packet
    /// with a complete checksum or of more than [`MAX_UDP_SEGMENTS`] segments.
    Unsupported,
}

impl fmt::Display for Undescribable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the metadata contradicts the packet",
            Self::Unsupported => "a virtio-net header cannot express this segmentation",
        })
    }
}

impl core::error::Error for Undescribable {}

impl VnetHeader {
    /// Bytes of the header.
    pub const LEN: usize = 10;
    /// Bytes of the header with `num_buffers`, as virtio 1 always has it.
    pub const LEN_V1: usize = 12;

    /// Decodes a header in the host's byte order.
    #[inline]
    #[must_use]
    pub const fn from_ne_bytes(bytes: &[u8; Self::LEN]) -> VnetHeader {
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

    /// Encodes the header in the host's byte order.
    #[inline]
    #[must_use]
    pub const fn to_ne_bytes(&self) -> [u8; Self::LEN] {
        let ([a0, a1], [b0, b1]) = (self.hdr_len.to_ne_bytes(), self.gso_size.to_ne_bytes());
        let ([c0, c1], [d0, d1]) = (self.csum_start.to_ne_bytes(), self.csum_offset.to_ne_bytes());
        [self.flags, self.gso_type, a0, a1, b0, b1, c0, c1, d0, d1]
    }

    /// Decodes a little-endian header.
    #[inline]
    #[must_use]
    pub const fn from_le_bytes(bytes: &[u8; Self::LEN]) -> VnetHeader {
        Self::from_ne_bytes(bytes).swap_on_big_endian()
    }

    /// Encodes the header in little-endian byte order.
    #[inline]
    #[must_use]
    pub const fn to_le_bytes(&self) -> [u8; Self::LEN] {
        self.swap_on_big_endian().to_ne_bytes()
    }

    /// Encodes the header as virtio 1 has it, for a packet in `buffers` buffers; 0 if the receiver
    /// ignores the number.
    #[inline]
    #[must_use]
    pub fn to_le_bytes_v1(&self, buffers: u16) -> [u8; Self::LEN_V1] {
        let mut bytes = [0; Self::LEN_V1];
        bytes[..Self::LEN].copy_from_slice(&self.to_le_bytes());
        bytes[Self::LEN..].copy_from_slice(&buffers.to_le_bytes());
        bytes
    }

    /// `u16::to_le` and `u16::from_le` are one operation.
    const fn swap_on_big_endian(self) -> VnetHeader {
        VnetHeader {
            hdr_len: self.hdr_len.to_le(),
            gso_size: self.gso_size.to_le(),
            csum_start: self.csum_start.to_le(),
            csum_offset: self.csum_offset.to_le(),
            ..self
        }
    }

    /// Whether the header says nothing of the packet behind it.
    #[inline]
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.flags & (NEEDS_CSUM | DATA_VALID) == 0 && self.gso_type == 0
    }

    /// Converts the header of a packet of `len` bytes.
    ///
    /// A super-packet whose checksum is not partial (hardware coalesced it) is accepted.
    ///
    /// # Errors
    /// [`Malformed`] if the header contradicts itself or the length.
    #[inline]
    pub fn offload(&self, len: usize) -> Result<(Checksum, Option<Gso>), Malformed> {
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
        Ok((csum, self.gso(len, csum)?))
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

    /// Makes the header of a packet of `len` bytes.
    ///
    /// # Errors
    /// [`Undescribable`] if the metadata contradicts itself or the length, or has no encoding.
    #[inline]
    pub fn new(csum: Checksum, gso: Option<Gso>, len: usize) -> Result<VnetHeader, Undescribable> {
        let mut header = VnetHeader::default();
        match csum {
            Checksum::Unknown => {}
            Checksum::Verified => header.flags = DATA_VALID,
            Checksum::Partial { start, offset } => {
                if usize::from(start) + usize::from(offset) + 2 > len {
                    return Err(Undescribable::Malformed);
                }
                header.flags = NEEDS_CSUM;
                header.csum_start = start;
                header.csum_offset = offset.into();
            }
        }
        if let Some(gso) = gso {
            header.set_gso(gso, len)?;
        }
        Ok(header)
    }

    #[inline]
    fn set_gso(&mut self, gso: Gso, len: usize) -> Result<(), Undescribable> {
        let l4 = l4(gso.kind);
        let tcp = gso.kind != GsoKind::Udp;
        if matches!(gso.size, 0 | GSO_BY_FRAGS) || gso.ecn && !tcp {
            return Err(Undescribable::Malformed);
        }
        let partial = self.flags & NEEDS_CSUM != 0;
        if !partial && !tcp {
            return Err(Undescribable::Unsupported);
        }
        let headers = if partial {
            let ip = if gso.kind == GsoKind::Tcp6 { 40 } else { 20 };
            let start = usize::from(self.csum_start);
            let right = self.csum_offset == u16::from(l4.csum_offset) && (ip..=MAX_GSO_START.into()).contains(&start);
            let least = start + l4.header;
            if !right || least > len {
                return Err(Undescribable::Malformed);
            }
            if !tcp && len - least > usize::from(gso.size) * MAX_UDP_SEGMENTS {
                return Err(Undescribable::Unsupported);
            }
            // The hint may be missing, or cover everything that happened to be linear. The kernel
            // makes that much linear.
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

/// The transport header of a super-packet.
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
mod tests {
    use super::*;

    #[test]
    fn the_fields_lie_where_the_specification_puts_them() {
        let header =
            VnetHeader { flags: 1, gso_type: 0x81, hdr_len: 66, gso_size: 1448, csum_start: 34, csum_offset: 16 };
        let little = [1, 0x81, 66, 0, 0xa8, 5, 34, 0, 16, 0];
        assert_eq!(header.to_le_bytes(), little);
        assert_eq!(VnetHeader::from_le_bytes(&little), header);
        let v1 = header.to_le_bytes_v1(1);
        assert_eq!((&v1[..10], &v1[10..]), (&little[..], &[1, 0][..]));
        let fields = [66u16, 1448, 34, 16].map(u16::to_ne_bytes);
        assert_eq!(header.to_ne_bytes()[2..], *fields.as_flattened());
        assert_eq!(VnetHeader::from_ne_bytes(&header.to_ne_bytes()), header);
    }
}
