//! Packets described by the fields of rules, and written to bytes by hand.

use proptest::prelude::*;
use std::net::IpAddr;
use towpath_packet::{Backing, Cache, Direction, Packet, Pool, PoolConfig, Vlan};
use towpath_wire::LinkKind;

/// The payload of the link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Body {
    Ip,
    /// An unknown ethertype.
    Other(u16),
}

/// A packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Without a link header: its fields are ignored.
    pub(super) bare: bool,
    pub(super) src_mac: [u8; 6],
    pub(super) dst_mac: [u8; 6],
    /// Outer tag first.
    pub(super) tags: [Option<u16>; 2],
    pub(super) beside: Option<Vlan>,
    pub(super) body: Body,
    /// Both addresses are of the same version.
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) protocol: u8,
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
    /// A fragment with this offset in units of eight bytes.
    pub(super) fragment: Option<u16>,
}

impl Default for Sample {
    fn default() -> Sample {
        Sample {
            bare: false,
            src_mac: [2, 0, 0, 0, 0, 1],
            dst_mac: [2, 0, 0, 0, 0, 2],
            tags: [None; 2],
            beside: None,
            body: Body::Ip,
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            protocol: 17,
            src_port: 1000,
            dst_port: 2000,
            fragment: None,
        }
    }
}

impl Sample {
    pub(super) fn link(&self) -> LinkKind {
        if self.bare { LinkKind::Ip } else { LinkKind::Ethernet }
    }

    /// The ethertype behind all tags.
    pub(super) fn ethertype(&self) -> u16 {
        match self.body {
            Body::Other(other) => other,
            Body::Ip if self.src.is_ipv4() => 0x0800,
            Body::Ip => 0x86dd,
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !self.bare {
            bytes.extend(self.dst_mac);
            bytes.extend(self.src_mac);
            for vid in self.tags.iter().flatten() {
                bytes.extend(0x8100u16.to_be_bytes());
                bytes.extend((vid | 0x6000).to_be_bytes());
            }
            bytes.extend(self.ethertype().to_be_bytes());
        }
        let Body::Ip = self.body else {
            bytes.extend([0; 46]);
            return bytes;
        };
        let mut segment = Vec::new();
        segment.extend(self.src_port.to_be_bytes());
        segment.extend(self.dst_port.to_be_bytes());
        segment.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10]);
        segment.extend([0; 40]);
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes.extend([0x45, 0]);
                bytes.extend((20 + segment.len() as u16).to_be_bytes());
                bytes.extend([0, 1]);
                bytes.extend(self.fragment.map_or(0x4000, |offset| offset | 0x2000).to_be_bytes());
                bytes.extend([64, self.protocol, 0, 0]);
                bytes.extend(src.octets());
                bytes.extend(dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let extension = if self.fragment.is_some() { 8 } else { 0 };
                bytes.extend([0x60, 0, 0, 0]);
                bytes.extend((extension + segment.len() as u16).to_be_bytes());
                bytes.extend([if self.fragment.is_some() { 44 } else { self.protocol }, 64]);
                bytes.extend(src.octets());
                bytes.extend(dst.octets());
                if let Some(offset) = self.fragment {
                    bytes.extend([self.protocol, 0]);
                    bytes.extend((offset << 3 | 1).to_be_bytes());
                    bytes.extend([0, 0, 0, 1]);
                }
            }
            _ => unreachable!("addresses of two versions"),
        }
        bytes.extend(segment);
        bytes
    }

    /// In pieces of at most `piece` bytes; the first one is linear.
    pub(super) fn packet(&self, memory: &mut Memory, piece: usize) -> Packet {
        let mut packet = memory.pieces(&self.bytes(), piece, true);
        packet.set_vlan(self.beside);
        packet
    }

    /// In pieces that are all fragments.
    pub(super) fn packet_without_linear_part(&self, memory: &mut Memory, piece: usize) -> Packet {
        let mut packet = memory.pieces(&self.bytes(), piece, false);
        packet.set_vlan(self.beside);
        packet
    }
}

/// The memory of packets.
pub(super) struct Memory(Cache);

impl Default for Memory {
    fn default() -> Memory {
        let pool = Pool::new(PoolConfig::default().capacity(1024).backing(Backing::Anonymous)).unwrap();
        Memory(pool.cache(Direction::Tx).unwrap())
    }
}

impl Memory {
    pub(super) fn pieces(&mut self, bytes: &[u8], piece: usize, linear: bool) -> Packet {
        let mut pieces = bytes.chunks(piece);
        let first = if linear { pieces.next().unwrap_or_default() } else { &[] };
        let mut packet = Packet::copy_from(&mut self.0, first).unwrap();
        for piece in pieces {
            let next = Packet::copy_from(&mut self.0, piece).unwrap();
            assert!(packet.append(next).is_ok());
        }
        assert_eq!(packet.linear().len(), first.len());
        packet
    }
}

/// Few values of each kind, so that rules made from the same values match often.
pub(super) fn address(v4: bool) -> BoxedStrategy<IpAddr> {
    if v4 {
        (prop::sample::select(vec![10u8, 11, 192]), 0u8..3, 0u8..4)
            .prop_map(|(a, b, d)| IpAddr::from([a, b, 0, d]))
            .boxed()
    } else {
        let groups = prop::sample::select(vec![[0x2001, 0xdb8, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0xffff], [0; 6]]);
        (groups, prop::sample::select(vec![0u16, 0x0a00]), 0u16..3)
            .prop_map(|([a, b, c, d, e, f], g, h)| IpAddr::from([a, b, c, d, e, f, g, h]))
            .boxed()
    }
}

pub(super) fn port() -> impl Strategy<Value = u16> + Clone {
    prop::sample::select(vec![0u16, 1, 53, 1023, 1024, 2047, 2048, 65535])
}

pub(super) fn vid() -> impl Strategy<Value = u16> + Clone {
    prop::sample::select(vec![0u16, 1, 100, 4095])
}

pub(super) fn mac() -> impl Strategy<Value = [u8; 6]> {
    prop::sample::select(vec![[0; 6], [2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [1, 0, 0, 0, 0, 1], [255; 6]])
}

pub(super) fn protocol() -> impl Strategy<Value = u8> {
    prop::sample::select(vec![6u8, 6, 17, 17, 132, 1, 58, 47, 89, 255])
}

pub(super) fn ethertype() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![0x0806u16, 0x88cc, 0x0600, 0xffff])
}

pub(super) fn sample() -> impl Strategy<Value = Sample> {
    let addresses = any::<bool>().prop_flat_map(|v4| (address(v4), address(v4)));
    let tags = prop_oneof![
        3 => Just([None; 2]),
        1 => vid().prop_map(|vid| [Some(vid), None]),
        1 => (vid(), vid()).prop_map(|(outer, inner)| [Some(outer), Some(inner)]),
    ];
    let beside = (vid(), any::<bool>()).prop_map(|(vid, service)| Vlan { tci: vid | 0x2000, service });
    let link = (prop::bool::weighted(0.2), mac(), mac(), tags, prop::option::weighted(0.3, beside));
    let body = prop_oneof![5 => Just(Body::Ip), 1 => ethertype().prop_map(Body::Other)];
    let fragment = prop::option::weighted(0.25, prop_oneof![Just(0u16), 1u16..8000]);
    (link, body, addresses, protocol(), port(), port(), fragment).prop_map(
        |((bare, src_mac, dst_mac, tags, beside), body, (src, dst), protocol, src_port, dst_port, fragment)| Sample {
            bare,
            src_mac,
            dst_mac,
            tags: if bare { [None; 2] } else { tags },
            beside,
            body: if bare { Body::Ip } else { body },
            src,
            dst,
            protocol,
            src_port,
            dst_port,
            fragment,
        },
    )
}
