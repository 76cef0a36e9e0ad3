//! The virtio-net header: what TUN, TAP, AF_PACKET and vhost put before a packet (virtio 1.3,
//! section 5.1.6; `include/uapi/linux/virtio_net.h`).
//!
//! ```text
//!  0      1         2        4         6           8            10
//! | flags | gso_type | hdr_len | gso_size | csum_start | csum_offset |
//! ```
//!
//! Fields are little-endian, as in virtio 1.0 and on a TUN device of a little-endian machine.

use crate::offload::{Checksum, Gso, GsoKind, Offload};

/// Bytes of the header. Longer forms have `num_buffers` and more after it.
pub const VIRTIO_HEADER: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_ECN: u8 = 0x80;

impl Offload {
    /// The header that says this. `None` for a super-packet in a tunnel, which the 10 bytes have no
    /// room for: [`crate::Split`] it.
    #[must_use]
    pub fn to_virtio(&self) -> Option<[u8; VIRTIO_HEADER]> {
        let (flags, start, offset) = match self.checksum {
            Checksum::Unverified => (0, 0, 0),
            Checksum::Verified => (DATA_VALID, 0, 0),
            Checksum::Partial { start, offset } => (NEEDS_CSUM, start, offset),
        };
        let (kind, header_len, size) = match self.gso {
            None => (0, 0, 0),
            Some(Gso { tunnel: Some(_), .. }) => return None,
            Some(gso) => {
                let kind = match gso.kind {
                    GsoKind::Tcp4 => 1,
                    GsoKind::Tcp6 => 4,
                    GsoKind::Udp => 5,
                };
                (kind | if gso.ecn { GSO_ECN } else { 0 }, gso.header_len, gso.size)
            }
        };
        let mut h = [flags, kind, 0, 0, 0, 0, 0, 0, 0, 0];
        for (field, value) in h.as_chunks_mut::<2>().0.iter_mut().skip(1).zip([header_len, size, start, offset]) {
            *field = value.to_le_bytes();
        }
        Some(h)
    }

    /// What a header says. `None` if it says something that is not known here: fragmentation of
    /// UDP, or a tunnel. Whether it is true of the packet, [`crate::Split`] finds out.
    #[must_use]
    pub fn from_virtio(h: &[u8; VIRTIO_HEADER]) -> Option<Self> {
        let word = |at: usize| u16::from_le_bytes([h[at], h[at + 1]]);
        let checksum = if h[0] & NEEDS_CSUM != 0 {
            Checksum::Partial { start: word(6), offset: word(8) }
        } else if h[0] & DATA_VALID != 0 {
            Checksum::Verified
        } else {
            Checksum::Unverified
        };
        let kind = match h[1] & !GSO_ECN {
            0 => return Some(Self { checksum, gso: None }),
            1 => GsoKind::Tcp4,
            4 => GsoKind::Tcp6,
            5 => GsoKind::Udp,
            _ => return None,
        };
        let gso = Gso {
            kind,
            size: word(4),
            segs: 0,
            header_len: word(2),
            ecn: h[1] & GSO_ECN != 0,
            fixed_id: false,
            outer_fixed_id: false,
            tunnel: None,
        };
        Some(Self { checksum, gso: Some(gso) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let gso = Gso {
            kind: GsoKind::Tcp6,
            size: 1428,
            segs: 0,
            header_len: 86,
            ecn: true,
            fixed_id: false,
            outer_fixed_id: false,
            tunnel: None,
        };
        let checksum = Checksum::Partial { start: 54, offset: 16 };
        for offload in [
            Offload::default(),
            Offload { checksum: Checksum::Verified, gso: None },
            Offload { checksum, gso: None },
            Offload { checksum, gso: Some(gso) },
            Offload { checksum, gso: Some(Gso { kind: GsoKind::Udp, ecn: false, ..gso }) },
        ] {
            let header = offload.to_virtio();
            assert_eq!(header.and_then(|h| Offload::from_virtio(&h)), Some(offload));
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        let gso = Gso {
            kind: GsoKind::Tcp4,
            size: 0x5a8,
            segs: 3,
            header_len: 66,
            ecn: false,
            fixed_id: false,
            outer_fixed_id: false,
            tunnel: None,
        };
        let offload = Offload { checksum: Checksum::Partial { start: 34, offset: 16 }, gso: Some(gso) };
        assert_eq!(offload.to_virtio(), Some([1, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0]));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(Offload::from_virtio(&[0, 3, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Offload::from_virtio(&[0, 0x21, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
