//! Test packets, one for each kind of offload: the kernel's answer tells whether it supports the
//! kind.
//!
//! They go from and to addresses that are never routed (RFC 5737, RFC 3849), from and to the
//! locally administered hardware addresses `02:…`, and their UDP or TCP port is 9 (discard).

use crate::vnet;
use towpath_packet::{Backing, Checksum, Direction, Gso, GsoKind, Offloads, Packet, Pool, PoolConfig};
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, Udp};

/// Payload bytes of one segment.
const SEGMENT: u16 = 500;
/// Payload of a super-packet: three segments, the last one shorter.
const PAYLOAD: [u8; 1200] = [0; 1200];

/// One packet with its virtio-net header in front.
pub(crate) struct Crafted {
    /// Its name in the report.
    pub(crate) name: &'static str,
    /// The offload that the kernel needs for it.
    pub(crate) needs: Offloads,
    /// Header and packet.
    pub(crate) bytes: Vec<u8>,
}

/// One packet for each kind.
pub(crate) fn each(ethernet: bool) -> Vec<Crafted> {
    let kinds = [
        ("csum", false, None, Offloads::CSUM),
        ("tso4", false, Some((GsoKind::Tcp4, false)), Offloads::TSO4),
        ("tso4 with ecn", false, Some((GsoKind::Tcp4, true)), Offloads::TSO_ECN),
        ("tso6", true, Some((GsoKind::Tcp6, false)), Offloads::TSO6),
        ("uso4", false, Some((GsoKind::Udp, false)), Offloads::USO),
        ("uso6", true, Some((GsoKind::Udp, false)), Offloads::USO),
    ];
    let config = PoolConfig::default().capacity(16).backing(Backing::Anonymous);
    let Ok(mut cache) = Pool::new(config).and_then(|pool| pool.cache(Direction::Tx)) else { return Vec::new() };
    kinds
        .into_iter()
        .filter_map(|(name, v6, gso, needs)| {
            let tcp = matches!(gso, Some((GsoKind::Tcp4 | GsoKind::Tcp6, _)));
            let (start, headers, frame) = frame(ethernet, v6, tcp)?;
            let mut packet = Packet::copy_from(&mut cache, &frame)?;
            packet.set_csum(Checksum::Partial { start, offset: if tcp { 16 } else { 6 } });
            packet.set_gso(gso.map(|(kind, ecn)| Gso { kind, ecn, size: SEGMENT, segs: 3, hdr_len: headers }));
            let mut bytes = vnet::header_of(&packet).ok()?.to_ne_bytes().to_vec();
            bytes.extend_from_slice(&frame);
            Some(Crafted { name, needs, bytes })
        })
        .collect()
}

/// A frame with a partial checksum, where its transport header begins, and the length of all
/// headers.
fn frame(ethernet: bool, v6: bool, tcp: bool) -> Option<(u16, u16, Vec<u8>)> {
    let ip = if v6 {
        let at = |last| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        Ip::v6(at(1), at(2))
    } else {
        Ip::v4([192, 0, 2, 1], [192, 0, 2, 2])
    };
    let transport = if tcp {
        Transport::Tcp(Tcp { src_port: 9, dst_port: 9, ..Tcp::default() })
    } else {
        Transport::Udp(Udp { src_port: 9, dst_port: 9 })
    };
    let link = Link { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], ..Link::default() };
    let headers = Headers { link: ethernet.then_some(link), network: Network::Ip(ip, transport) };
    let mut frame = vec![0; headers.len() + PAYLOAD.len()];
    headers.emit(&mut frame, &PAYLOAD, Checksums::Partial).ok()?;
    Some((u16::try_from(headers.transport_offset()).ok()?, u16::try_from(headers.len()).ok()?, frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_packet_for_every_ability_and_layer() {
        for ethernet in [true, false] {
            let names: Vec<_> = each(ethernet).iter().map(|c| c.name).collect();
            assert_eq!(names, ["csum", "tso4", "tso4 with ecn", "tso6", "uso4", "uso6"]);
        }
    }
}
