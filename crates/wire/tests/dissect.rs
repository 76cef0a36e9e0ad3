//! The dissector against a naive one, and case by case.

mod common;

use common::{any_frame, exercise};
use core::net::Ipv4Addr;
use proptest::prelude::*;
use towpath_wire::dissect::{Flags, Stop, symmetric_hash};
use towpath_wire::emit::{self, Checksums, Headers, Ip, Link, Network, Transport, Udp};
use towpath_wire::ip::mapped;
use towpath_wire::vlan::{Tag, Tci};
use towpath_wire::{Dissected, FlowKey, LinkKind, dissect};

/// A dissector that reads byte after byte through a cursor which remembers how far it came, keeps
/// nothing between headers but names, and has no short cuts.
mod naive {
    use super::*;

    struct Cursor<'a> {
        bytes: &'a [u8],
        at: usize,
    }

    impl Cursor<'_> {
        fn left(&self) -> usize {
            self.bytes.len() - self.at
        }
        fn peek(&self, i: usize) -> u32 {
            u32::from(self.bytes[self.at + i])
        }
        fn peek16(&self, i: usize) -> u16 {
            (self.peek(i) * 256 + self.peek(i + 1)) as u16
        }
        fn array<const N: usize>(&self, i: usize) -> [u8; N] {
            self.bytes[self.at + i..][..N].try_into().unwrap()
        }
    }

    pub(super) fn dissect(frame: &[u8], kind: LinkKind) -> Dissected {
        let mut d = Dissected::default();
        let mut flags = Vec::new();
        let mut marks = Vec::new();
        let mut c = Cursor { bytes: frame, at: 0 };
        d.stop = walk(&mut d, &mut flags, &mut marks, &mut c, kind);
        d.flags = flags.into_iter().fold(Flags::default(), |all, flag| all | flag);
        let mark = |i: usize| (*marks.get(i).unwrap_or(&c.at)) as u16;
        (d.l3, d.l4, d.payload) = (mark(0), mark(1), mark(2));
        d.end = c.bytes.len() as u32;
        d
    }

    fn walk(
        d: &mut Dissected,
        flags: &mut Vec<Flags>,
        marks: &mut Vec<usize>,
        c: &mut Cursor<'_>,
        kind: LinkKind,
    ) -> Stop {
        match kind {
            LinkKind::Ethernet => {
                if c.left() < 14 {
                    return Stop::LinkTruncated;
                }
                d.ethertype = c.peek16(12);
                c.at = 14;
                for i in 0.. {
                    if ![0x8100, 0x88a8, 0x9100].contains(&d.ethertype) {
                        break;
                    }
                    if i == 2 {
                        return Stop::TooManyTags;
                    }
                    if c.left() < 4 {
                        return Stop::LinkTruncated;
                    }
                    d.tags[i] = Tag { tpid: d.ethertype, tci: Tci(c.peek16(0)) };
                    d.ethertype = c.peek16(2);
                    c.at += 4;
                }
            }
            LinkKind::Ip if c.left() == 0 => return Stop::NetworkTruncated,
            LinkKind::Ip => {
                d.ethertype = match c.peek(0) / 16 {
                    4 => 0x0800,
                    6 => 0x86dd,
                    _ => 0,
                }
            }
        }
        marks.push(c.at);
        let mut later = false;
        let length = match d.ethertype {
            0x0800 => {
                if c.left() < 20 {
                    return Stop::NetworkTruncated;
                }
                let (words, total) = (c.peek(0) % 16, usize::from(c.peek16(2)));
                if c.peek(0) / 16 != 4 || words < 5 || total < 4 * words as usize {
                    return Stop::NetworkMalformed;
                }
                if c.left() < 4 * words as usize {
                    return Stop::NetworkTruncated;
                }
                d.flow.src = mapped(c.array(12).into());
                d.flow.dst = mapped(c.array(16).into());
                d.flow.protocol = c.peek(9) as u8;
                flags.push(Flags::IPV4);
                if words > 5 {
                    flags.push(Flags::OPTIONS);
                }
                let (offset, more) = (c.peek16(6) % 0x2000, c.peek(6) & 0x20 != 0);
                later = offset != 0;
                if later || more {
                    flags.push(Flags::FRAGMENT);
                }
                if later {
                    flags.retain(|flag| *flag != Flags::FIRST_FRAGMENT);
                }
                if !later && more {
                    flags.push(Flags::FIRST_FRAGMENT);
                }
                let start = c.at;
                c.at += 4 * words as usize;
                start + total
            }
            0x86dd => {
                if c.left() < 40 {
                    return Stop::NetworkTruncated;
                }
                if c.peek(0) / 16 != 6 {
                    return Stop::NetworkMalformed;
                }
                d.flow.src = c.array(8).into();
                d.flow.dst = c.array(24).into();
                d.flow.protocol = c.peek(6) as u8;
                flags.push(Flags::IPV6);
                let length = usize::from(c.peek16(4));
                c.at += 40;
                c.at + length
            }
            _ => return Stop::NotIp,
        };
        if length > c.bytes.len() {
            flags.push(Flags::TRUNCATED);
        }
        if length < c.bytes.len() {
            flags.push(Flags::PADDED);
            c.bytes = &c.bytes[..length];
        }
        let mut extensions = 0;
        while d.ethertype == 0x86dd && !later && [0, 43, 44, 51, 60].contains(&d.flow.protocol) {
            if extensions == 8 {
                return Stop::TooManyExtensions;
            }
            let length = match (c.left(), d.flow.protocol) {
                (0 | 1, _) => usize::MAX,
                (_, 44) => 8,
                (_, 51) => 8 + 4 * c.peek(1) as usize,
                _ => 8 + 8 * c.peek(1) as usize,
            };
            if c.left() < length {
                return Stop::ExtensionTruncated;
            }
            extensions += 1;
            flags.push(Flags::EXTENSIONS);
            if d.flow.protocol == 44 {
                later = c.peek16(2) >= 8;
                if later || c.peek(3) % 2 == 1 {
                    flags.push(Flags::FRAGMENT);
                }
                if later {
                    flags.retain(|flag| *flag != Flags::FIRST_FRAGMENT);
                }
                if !later && c.peek(3) % 2 == 1 {
                    flags.push(Flags::FIRST_FRAGMENT);
                }
            }
            d.flow.protocol = c.peek(0) as u8;
            c.at += length;
        }
        marks.push(c.at);
        if later {
            return Stop::LaterFragment;
        }
        let (readable, length) = match d.flow.protocol {
            6 => (20, 20),
            17 => (8, 8),
            132 => (4, 12),
            1 | 58 => (0, 8),
            _ => return Stop::OtherTransport,
        };
        if c.left() < readable {
            return Stop::TransportTruncated;
        }
        if readable > 0 && !flags.contains(&Flags::FRAGMENT) {
            d.flow.src_port = c.peek16(0);
            d.flow.dst_port = c.peek16(2);
            flags.push(Flags::PORTS);
        }
        let mut length = length;
        if d.flow.protocol == 6 {
            d.tcp_flags = c.peek(13) as u8;
            length = 4 * (c.peek(12) / 16) as usize;
            if length < 20 {
                return Stop::TransportMalformed;
            }
        }
        if c.left() < length {
            return Stop::TransportTruncated;
        }
        c.at += length;
        Stop::Complete
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_dissector_finds_what_the_naive_one_finds(frame in any_frame()) {
        for kind in [LinkKind::Ethernet, LinkKind::Ip] {
            prop_assert_eq!(dissect(&frame, kind), naive::dissect(&frame, kind));
            prop_assert_eq!(symmetric_hash(&frame, kind, 7), naive::dissect(&frame, kind).symmetric_hash(7));
            if let Some(packet) = frame.get(14..) {
                prop_assert_eq!(dissect(packet, kind), naive::dissect(packet, kind));
                prop_assert_eq!(symmetric_hash(packet, kind, 7), naive::dissect(packet, kind).symmetric_hash(7));
            }
        }
    }

    #[test]
    fn headers_with_wrong_bytes_and_frames_cut_short_have_the_hash_that_the_naive_dissector_finds(
        headers in common::any_headers(), wrong in prop::collection::vec((0usize..80, any::<u8>()), 0..3), cut in 0usize..160,
    ) {
        let mut frame = headers.frame(b"payload");
        for (at, byte) in wrong {
            if let Some(old) = frame.get_mut(at) {
                // Small numbers are lengths that end inside the headers.
                *old = if byte & 1 == 0 { byte } else { byte >> 2 };
            }
        }
        frame.truncate(cut.max(12));
        for (bytes, kind) in [(&frame[..], LinkKind::Ethernet), (frame.get(14..).unwrap_or_default(), LinkKind::Ip)] {
            let naive = naive::dissect(bytes, kind);
            prop_assert_eq!(dissect(bytes, kind), naive);
            prop_assert_eq!(symmetric_hash(bytes, kind, 7), naive.symmetric_hash(7));
        }
    }

    #[test]
    fn any_bytes_give_ordered_offsets_inside_the_frame(frame in any_frame()) {
        for kind in [LinkKind::Ethernet, LinkKind::Ip] {
            exercise::dissector(&frame, kind);
        }
    }
}

proptest! {
    #[test]
    fn every_truncation_of_a_frame_is_dissected_within_its_bytes(headers in common::any_headers()) {
        let frame = headers.frame(b"payload");
        for len in 0..frame.len() {
            for kind in [LinkKind::Ethernet, LinkKind::Ip] {
                exercise::dissector(&frame[..len], kind);
                let naive = naive::dissect(&frame[..len], kind);
                prop_assert_eq!(dissect(&frame[..len], kind), naive);
                prop_assert_eq!(symmetric_hash(&frame[..len], kind, 0), naive.symmetric_hash(0));
            }
        }
    }
}

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const UDP: Udp = Udp { src_port: 1000, dst_port: 2000 };

fn frame(ip: Ip, transport: Transport<'_>, tags: [Tag; 2], payload: &[u8]) -> Vec<u8> {
    let link = Some(Link { tags, ..Link::default() });
    let headers = Headers { link, network: Network::Ip(ip, transport) };
    let mut frame = vec![0; headers.len() + payload.len()];
    headers.emit(&mut frame, payload, Checksums::Complete).unwrap();
    frame
}

fn udp_v4(payload: &[u8]) -> Vec<u8> {
    frame(Ip::v4(A, B), Transport::Udp(UDP), Default::default(), payload)
}

/// UDP over IPv6 behind raw extension headers, the first of the given kind.
fn extended(kind: u8, extensions: &[u8]) -> Vec<u8> {
    let mut payload = extensions.to_vec();
    payload.extend([0x03, 0xe8, 0x07, 0xd0, 0, 8, 0, 0]);
    frame(Ip::v6([1; 16], [2; 16]), Transport::Raw(kind), Default::default(), &payload)
}

fn on_ethernet(frame: &[u8]) -> Dissected {
    dissect(frame, LinkKind::Ethernet)
}

#[test]
fn a_tagged_tcp_frame_is_taken_apart() {
    let tags = [Tag { tpid: 0x88a8, tci: Tci(7) }, Tag { tpid: 0x8100, tci: Tci::new(5, true, 42) }];
    let options = &emit::timestamps(1, 2);
    let tcp = emit::Tcp { src_port: 1, dst_port: 2, flags: 0x18, options, ..Default::default() };
    let found = on_ethernet(&frame(Ip::v4(A, B), Transport::Tcp(tcp), tags, b"hello"));
    assert_eq!(found.stop, Stop::Complete);
    assert_eq!(found.tags, tags);
    assert_eq!((found.l3, found.l4, found.payload, found.end), (22, 42, 74, 79));
    assert_eq!((found.ethertype, found.tcp_flags), (0x0800, 0x18));
    assert_eq!(found.flags, Flags::IPV4 | Flags::PORTS);
    let (src, dst) = (mapped(A), mapped(B));
    assert_eq!(found.flow, FlowKey { src, dst, src_port: 1, dst_port: 2, protocol: 6 });
}

#[test]
fn a_third_tag_stops_it() {
    let mut bytes = vec![0; 100];
    for at in [12, 16, 20] {
        bytes[at..at + 2].copy_from_slice(&[0x81, 0x00]);
    }
    assert_eq!(on_ethernet(&bytes).stop, Stop::TooManyTags);
}

#[test]
fn padding_is_not_payload() {
    let mut bytes = udp_v4(b"hi");
    bytes.resize(60, 0);
    let found = on_ethernet(&bytes);
    assert_eq!(found.payload_len(), 2);
    assert!(found.flags.contains(Flags::PADDED));
}

#[test]
fn a_total_length_beyond_the_frame_is_not_believed() {
    let mut bytes = udp_v4(b"0123456789");
    bytes[16..18].copy_from_slice(&60_000u16.to_be_bytes());
    let found = on_ethernet(&bytes);
    assert_eq!(found.end as usize, bytes.len());
    assert!(found.flags.contains(Flags::TRUNCATED));
    assert_eq!(found.flow.dst_port, 2000);
}

#[test]
fn lengths_that_cannot_be_stop_it_at_their_header() {
    let sound = udp_v4(b"0123456789");
    for (at, value) in [(14, 0x44), (14, 0x55), (17, 19), (17, 0)] {
        let mut bytes = sound.clone();
        bytes[at] = value;
        assert_eq!(on_ethernet(&bytes).stop, Stop::NetworkMalformed, "{at} {value}");
        assert_eq!(on_ethernet(&bytes).flow, FlowKey::default());
    }
    let tcp = Transport::Tcp(emit::Tcp::default());
    let mut bytes = frame(Ip::v4(A, B), tcp, Default::default(), b"");
    bytes[46] = 0x40;
    assert_eq!(on_ethernet(&bytes).stop, Stop::TransportMalformed);
    bytes[46] = 0x60;
    assert_eq!(on_ethernet(&bytes).stop, Stop::TransportTruncated);
}

#[test]
fn all_fragments_of_a_packet_have_one_key() {
    let fragment = |fragment| {
        let ip = Ip { fragment, ..Ip::v4(A, B) };
        on_ethernet(&frame(ip, Transport::Udp(UDP), Default::default(), b"0123456789"))
    };
    let (first, later) = (fragment(0x2000), fragment(0x0003));
    assert_eq!(first.flow, later.flow);
    assert_eq!((first.stop, later.stop), (Stop::Complete, Stop::LaterFragment));
    assert!(first.flags.contains(Flags::FRAGMENT | Flags::FIRST_FRAGMENT));
    assert!(later.is_fragment() && !later.flags.contains(Flags::FIRST_FRAGMENT));
    assert!(!first.flags.contains(Flags::PORTS));
}

#[test]
fn extension_headers_are_walked_over() {
    let authentication = [17, 4, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3];
    let mut chain = vec![60, 0, 1, 4, 0, 0, 0, 0, 43, 0, 1, 4, 0, 0, 0, 0, 51, 0, 4, 0, 0, 0, 0, 0];
    chain.extend(authentication);
    let found = on_ethernet(&extended(0, &chain));
    assert_eq!(found.stop, Stop::Complete);
    assert_eq!((found.l3, found.l4, found.payload), (14, 54 + 48, 54 + 56));
    assert_eq!((found.flow.protocol, found.flow.src_port), (17, 1000));
    assert!(found.flags.contains(Flags::EXTENSIONS));
}

#[test]
fn a_whole_packet_with_a_fragment_header_is_no_fragment() {
    let found = on_ethernet(&extended(44, &[17, 0, 0, 0, 0, 0, 0, 9]));
    assert!(!found.is_fragment() && found.flags.contains(Flags::PORTS | Flags::EXTENSIONS));
    let found = on_ethernet(&extended(44, &[17, 0, 0, 1, 0, 0, 0, 9]));
    assert!(found.is_fragment() && !found.flags.contains(Flags::PORTS));
    assert_eq!(found.stop, Stop::Complete);
    let found = on_ethernet(&extended(44, &[17, 0, 0, 8, 0, 0, 0, 9]));
    assert_eq!((found.stop, found.flow.protocol), (Stop::LaterFragment, 17));
}

#[test]
fn a_later_fragment_inside_a_first_one_has_no_transport_header() {
    let found = on_ethernet(&extended(44, &[44, 0, 0, 1, 0, 0, 0, 9, 6, 0, 0, 58, 0, 0, 0, 9]));
    assert_eq!((found.stop, found.flow.protocol), (Stop::LaterFragment, 6));
    assert!(found.is_fragment() && !found.flags.contains(Flags::FIRST_FRAGMENT));
}

#[test]
fn a_chain_of_extension_headers_without_end_is_given_up() {
    let chain: Vec<u8> = [0u8, 0, 1, 4, 0, 0, 0, 0].repeat(100);
    assert_eq!(on_ethernet(&extended(0, &chain)).stop, Stop::TooManyExtensions);
    let chain = [60, 255, 0, 0, 0, 0, 0, 0];
    assert_eq!(on_ethernet(&extended(0, &chain)).stop, Stop::ExtensionTruncated);
}

#[test]
fn frames_without_ip_are_not_dissected_further() {
    let arp = Headers { link: Some(Link::default()), network: Network::Arp(emit::Arp::default()) };
    let mut bytes = vec![0; 60];
    arp.write(&mut bytes, Checksums::Complete).unwrap();
    let found = on_ethernet(&bytes);
    assert_eq!((found.stop, found.ethertype, found.l3), (Stop::NotIp, 0x0806, 14));
    assert_eq!(found.rss_input().as_bytes(), []);
    assert_eq!(dissect(&bytes, LinkKind::Ip).stop, Stop::NotIp);
}

#[test]
fn other_protocols_are_found_with_or_without_ports() {
    let raw =
        |protocol, bytes: &[u8]| on_ethernet(&frame(Ip::v4(A, B), Transport::Raw(protocol), Default::default(), bytes));
    let sctp = raw(132, &[0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((sctp.stop, sctp.flow.dst_port), (Stop::Complete, 2));
    let esp = raw(50, &[0; 20]);
    assert_eq!((esp.stop, esp.l4, esp.payload), (Stop::OtherTransport, 34, 34));
    assert_eq!(esp.rss_input().as_bytes(), [A.octets(), B.octets()].concat());
}

#[test]
fn bare_packets_have_no_link_header() {
    let bytes = udp_v4(b"0123456789");
    let (with, without) = (on_ethernet(&bytes), dissect(&bytes[14..], LinkKind::Ip));
    assert_eq!(with.flow, without.flow);
    assert_eq!((without.l3, without.l4, without.ethertype), (0, 20, 0x0800));
    assert_eq!(dissect(&[], LinkKind::Ip).stop, Stop::NetworkTruncated);
}

#[test]
fn both_directions_of_a_flow_hash_alike() {
    let there = on_ethernet(&udp_v4(b"question?"));
    let udp = Udp { src_port: UDP.dst_port, dst_port: UDP.src_port };
    let back = on_ethernet(&frame(Ip::v4(B, A), Transport::Udp(udp), Default::default(), b"answer."));
    assert_eq!(there.flow.reversed(), back.flow);
    assert_eq!(there.symmetric_hash(1), back.symmetric_hash(1));
    assert_ne!(there.flow.directed_hash(1), back.flow.directed_hash(1));
}
