//! The header in front of each packet of a descriptor.
//!
//! ```text
//!   0                                       10            12      20          22          24
//!   virtio-net header (wire::virtio_net)    num_buffers   hash    outer_th    inner_nh
//!                                                                 └ offsets of a UDP tunnel
//! ```
//!
//! | bytes | |
//! |---|---|
//! | 0 | no header: no offloads |
//! | 10, 12 | `struct virtio_net_hdr`, `struct virtio_net_hdr_v1` |
//! | 24 | `struct virtio_net_hdr_v1_hash_tunnel` (`include/uapi/linux/virtio_net.h`), since Linux 6.17 |

use crate::offloads::TunOffloads;
use towpath_gro::{Offload, Tunnel, TunnelKind};
use towpath_wire::virtio_net::{Malformed, Undescribable, VnetHeader};

/// Bytes of the longest header.
pub(crate) const MAX_LEN: usize = 24;
/// Bytes of a header with the fields for tunnels.
pub(crate) const TUNNEL_LEN: usize = 24;

/// `gso_type`: the packet is in a UDP tunnel over IPv4, over IPv6.
const GSO_UDP_TUNNEL: [u8; 2] = [0x20, 0x40];
/// `flags`: the outer UDP header has a checksum.
const UDP_TUNNEL_CSUM: u8 = 8;
/// Positions of the offsets of the outer UDP header and of the inner IP header, little-endian.
const OUTER_TH: usize = 20;
const INNER_NH: usize = 22;

/// Makes the header of a packet of `len` bytes.
#[inline]
pub(crate) fn encode(offload: &Offload, len: usize) -> Result<[u8; MAX_LEN], Undescribable> {
    if !TunOffloads::is_describable(offload) {
        return Err(Undescribable::Unsupported);
    }
    let header = VnetHeader::new(offload.checksum, offload.gso, len)?;
    let mut bytes = [0; MAX_LEN];
    bytes[..VnetHeader::LEN].copy_from_slice(&header.to_ne_bytes());
    if let (Some(tunnel), Some(_)) = (offload.tunnel, offload.gso) {
        bytes[0] |= if tunnel.checksum { UDP_TUNNEL_CSUM } else { 0 };
        bytes[1] |= GSO_UDP_TUNNEL[usize::from(tunnel.outer_v6)];
        bytes[OUTER_TH..INNER_NH].copy_from_slice(&tunnel.outer_l4.to_le_bytes());
        bytes[INNER_NH..].copy_from_slice(&tunnel.inner_l3.to_le_bytes());
    }
    Ok(bytes)
}

/// The offload that a header describes, of a packet of `len` bytes.
#[inline]
pub(crate) fn decode(bytes: &[u8; MAX_LEN], len: usize) -> Result<Offload, Malformed> {
    let mut fields = [0; VnetHeader::LEN];
    fields.copy_from_slice(&bytes[..VnetHeader::LEN]);
    let [v4, v6] = GSO_UDP_TUNNEL;
    let kind = fields[1] & (v4 | v6);
    fields[1] &= !(v4 | v6);
    let mut offload = Offload::from_virtio(&VnetHeader::from_ne_bytes(&fields), len)?;
    if kind != 0 {
        if kind == v4 | v6 || offload.gso.is_none() {
            return Err(Malformed::GsoKind(bytes[1]));
        }
        let [.., o0, o1, i0, i1] = *bytes;
        offload.tunnel = Some(Tunnel {
            kind: TunnelKind::Udp,
            outer_v6: kind == v6,
            checksum: bytes[0] & UDP_TUNNEL_CSUM != 0,
            outer_l4: u16::from_le_bytes([o0, o1]),
            inner_l3: u16::from_le_bytes([i0, i1]),
        });
    }
    Ok(offload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_gro::{Checksum, Gso, GsoKind};

    #[test]
    fn what_is_written_is_read() {
        let gso = Gso { kind: GsoKind::Tcp4, size: 1000, segs: 0, hdr_len: 120, ecn: false };
        let plain = Offload::new(Checksum::Partial { start: 70, offset: 16 }, Some(gso));
        let tunnel = Tunnel { kind: TunnelKind::Udp, outer_v6: true, checksum: true, outer_l4: 40, inner_l3: 50 };
        for offload in [Offload::default(), plain, Offload { tunnel: Some(tunnel), ..plain }] {
            assert_eq!(encode(&offload, 9000).map(|bytes| decode(&bytes, 9000)), Ok(Ok(offload)));
        }
        let gre = Tunnel { kind: TunnelKind::Gre, ..tunnel };
        assert_eq!(encode(&Offload { tunnel: Some(gre), ..plain }, 9000), Err(Undescribable::Unsupported));
    }

    #[test]
    fn a_tunnel_lies_where_the_specification_puts_it() {
        let gso = Gso { kind: GsoKind::Tcp4, size: 1000, segs: 0, hdr_len: 120, ecn: false };
        let tunnel = Tunnel { kind: TunnelKind::Udp, outer_v6: false, checksum: true, outer_l4: 34, inner_l3: 64 };
        let offload =
            Offload { tunnel: Some(tunnel), ..Offload::new(Checksum::Partial { start: 84, offset: 16 }, Some(gso)) };
        let bytes = encode(&offload, 9000).unwrap();
        assert_eq!((bytes[0], bytes[1], &bytes[20..]), (9, 0x21, &[34, 0, 64, 0][..]));
        let both = [&[9, 0x61][..], &bytes[2..]].concat().try_into().unwrap();
        assert_eq!(decode(&both, 9000), Err(Malformed::GsoKind(0x61)));
    }
}
