//! Offloads: checksums, segmentation, tags, hashes.

use super::rig::*;
use towpath_packet::{Checksum, Gso, GsoKind, Offloads, Packet, Vlan};
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, Udp};
use towpath_wire::verify::{Check, verify};
use towpath_wire::{LinkKind, Toeplitz, dissect};

fn bytes_of(ip: Ip, transport: Transport, payload: &[u8], checksums: Checksums) -> Vec<u8> {
    let headers = Headers { link: Some(Link::default()), network: Network::Ip(ip, transport) };
    let mut bytes = vec![0; payload.len() + 200];
    let len = headers.emit(&mut bytes, payload, checksums).unwrap();
    bytes.truncate(len);
    bytes
}

fn v4(n: u8) -> Ip {
    Ip::v4([10, 0, 0, n], [10, 0, 1, n])
}

fn v6(n: u8) -> Ip {
    Ip::v6([n; 16], [n + 1; 16])
}

fn udp() -> Transport<'static> {
    Transport::Udp(Udp { src_port: 4000, dst_port: 53 })
}

fn tcp(port: u16) -> Transport<'static> {
    Transport::Tcp(Tcp { src_port: port, dst_port: 80, ..Tcp::default() })
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31) as u8).collect()
}

#[test]
fn checksums_of_received_packets_are_verified_or_not() {
    let mut r = rig(config(), strict());
    for (ip, transport) in [(v4(1), udp()), (v4(1), tcp(1)), (v6(1), udp()), (v6(1), tcp(1))] {
        let good = bytes_of(ip, transport, &payload(300), Checksums::Complete);
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 1;
        r.arrive([good.as_slice(), &bad]);
        let got = r.settle();
        assert_eq!(got.iter().map(Packet::csum).collect::<Vec<_>>(), [Checksum::Verified, Checksum::Unknown]);
        assert_eq!(got[1].to_vec(), bad, "a packet with a wrong checksum is delivered");
    }
    r.end();
}

#[test]
fn partial_checksums_are_completed_in_packets_of_any_chunks() {
    for csum in [true, false] {
        let mut r = rig(
            with(|c| {
                c.policy = STRICT;
                c.csum = csum;
            }),
            strict(),
        );
        for (ip, transport, start, offset) in
            [(v4(1), udp(), 34, 6), (v4(1), tcp(1), 34, 16), (v6(1), udp(), 54, 6), (v6(1), tcp(1), 54, 16)]
        {
            for cut in [0, 20, 36, 100] {
                let bytes = bytes_of(ip, transport, &payload(333), Checksums::Partial);
                let mut packet = r.packet(&bytes[..cut]);
                let rest = r.packet(&bytes[cut..]);
                packet.append(rest).unwrap();
                packet.set_csum(Checksum::Partial { start, offset });
                r.send(0, [packet]);
                r.settle();
                let sent = r.far.drain();
                assert_eq!(sent, [bytes_of(ip, transport, &payload(333), Checksums::Complete)], "cut at {cut}, {csum}");
            }
        }
        r.end();
    }
}

#[test]
fn two_queues_that_take_turns_send_right_checksums_although_the_chip_has_one_context() {
    let cases = [(0, v4(1), tcp(1), 34, 16), (1, v6(1), udp(), 54, 6), (0, v4(1), tcp(1), 34, 16)];
    let mut r = rig(with(|c| c.queues = 2), strict());
    r.settle();
    for (queue, ip, transport, start, offset) in cases {
        let mut packet = r.packet(&bytes_of(ip, transport, &payload(200), Checksums::Partial));
        packet.set_csum(Checksum::Partial { start, offset });
        r.send(queue, [packet]);
        r.settle();
        assert_eq!(r.far.drain(), [bytes_of(ip, transport, &payload(200), Checksums::Complete)]);
    }
    r.end();
}

#[test]
fn a_super_packet_has_a_context_of_its_own_and_checksums_share_one_as_long_as_nothing_changes() {
    let mut r = rig(config(), strict());
    let used = |r: &Rig| r.device.register(0x3810);
    let mut descriptors = Vec::new();
    let checksum = |r: &mut Rig| {
        let mut packet = r.packet(&bytes_of(v4(1), tcp(1), &payload(200), Checksums::Partial));
        packet.set_csum(Checksum::Partial { start: 34, offset: 16 });
        packet
    };
    let segmented = |r: &mut Rig| {
        let mut packet = r.packet(&bytes_of(v4(1), tcp(1), &payload(1000), Checksums::Partial));
        packet.set_csum(Checksum::Partial { start: 34, offset: 16 });
        packet.set_gso(Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 500, segs: 2, hdr_len: 0 }));
        packet
    };
    let packets: [&dyn Fn(&mut Rig) -> Packet; 5] = [&checksum, &checksum, &segmented, &segmented, &checksum];
    for make in packets {
        let (packet, before) = (make(&mut r), used(&r));
        r.send(0, [packet]);
        r.settle();
        descriptors.push(used(&r) - before);
    }
    // A super-packet's last descriptor is one of its own.
    assert_eq!(descriptors, [2, 1, 3, 3, 2]);
    r.end();
}

#[test]
fn a_checksum_inside_a_tunnel_is_completed_too() {
    let mut r = rig(config(), strict());
    let inner = bytes_of(v4(3), udp(), &payload(100), Checksums::Partial);
    let vxlan = [&[8, 0, 0, 0, 0, 0, 1, 0][..], &inner].concat();
    let transport = Transport::Udp(Udp { src_port: 9, dst_port: 4789 });
    let bytes = bytes_of(v4(1), transport, &vxlan, Checksums::Complete);
    let mut packet = r.packet(&bytes);
    packet.set_csum(Checksum::Partial { start: 50 + 34, offset: 6 });
    r.send(0, [packet]);
    r.settle();
    let sent = r.far.drain();
    assert_eq!(sent[0][50..], bytes_of(v4(3), udp(), &payload(100), Checksums::Complete));
    r.end();
}

#[test]
fn super_packets_leave_as_segments_with_right_headers() {
    for (ip, kind, l4) in [(v4(1), GsoKind::Tcp4, 34u16), (v6(1), GsoKind::Tcp6, 54)] {
        for (len, size, chunk) in [(5000, 1400, 700), (2, 536, 1500), (60_000, 1448, 1800), (1448 * 3, 1448, 100)] {
            for policy in POLICIES {
                let mut r = rig(with(|c| c.policy = policy), strict());
                let (payload, headers) = (payload(len), usize::from(l4) + 20);
                let bytes = bytes_of(ip, tcp(7), &payload, Checksums::Partial);
                let mut packet = r.cache.alloc().unwrap();
                for piece in bytes.chunks(chunk) {
                    let part = r.packet(piece);
                    packet.append(part).unwrap();
                }
                packet.set_csum(Checksum::Partial { start: l4, offset: 16 });
                let segs = len.div_ceil(size) as u16;
                packet.set_gso(Some(Gso { kind, ecn: false, size: size as u16, segs, hdr_len: 0 }));
                r.send(0, [packet]);
                r.settle();
                let sent = r.far.drain();
                assert_eq!(sent.len(), len.div_ceil(size), "{len} bytes by {size}");
                let mut joined = Vec::new();
                for (i, segment) in sent.iter().enumerate() {
                    let found = dissect(segment, LinkKind::Ethernet);
                    assert_eq!(verify(segment, LinkKind::Ethernet).transport, Check::Good, "segment {i}");
                    assert!(verify(segment, LinkKind::Ethernet).is_sound(), "segment {i}");
                    assert_eq!(usize::from(found.payload), headers);
                    assert_eq!(segment[usize::from(l4) + 4..][..4], (i as u32 * size as u32).to_be_bytes());
                    joined.extend_from_slice(&segment[headers..found.end as usize]);
                }
                assert_eq!(joined, payload);
                r.end();
            }
        }
    }
}

#[test]
fn tags_beside_the_packet_leave_inside_it_and_come_back_beside_it() {
    for vlan in [true, false] {
        for service in [false, true] {
            let mut r = rig(with(|c| c.vlan = vlan), strict());
            let plain = frame(100, 1);
            let mut packet = r.packet(&plain);
            packet.set_vlan(Some(Vlan { tci: 0x6123, service }));
            r.send(0, [packet]);
            r.settle();
            let kind = if service { [0x88, 0xa8] } else { [0x81, 0] };
            let tagged = [&plain[..12], &kind, &[0x61, 0x23], &plain[12..]].concat();
            assert_eq!(r.far.drain(), std::slice::from_ref(&tagged));
            r.arrive([tagged.as_slice()]);
            let got = r.settle();
            if vlan && !service {
                assert_eq!(got[0].vlan(), Some(Vlan { tci: 0x6123, service: false }));
                assert_eq!(got[0].to_vec(), plain);
            } else {
                assert_eq!((got[0].vlan(), got[0].to_vec()), (None, tagged));
            }
            drop(got);
            r.end();
        }
    }
}

#[test]
fn a_tag_stays_in_the_packet_when_the_other_side_can_not_have_it_beside() {
    let mut r = rig_with(config(), strict(), pool_of(2048), Offloads::NONE);
    let plain = frame(100, 1);
    let tagged = [&plain[..12], &[0x81, 0, 0, 5], &plain[12..]].concat();
    r.arrive([tagged.as_slice()]);
    let got = r.settle();
    assert_eq!((got[0].vlan(), got[0].to_vec()), (None, tagged));
    drop(got);
    r.end();
}

#[test]
fn two_queues_share_flows_by_their_hash_which_comes_along() {
    let key = Toeplitz::new(&Toeplitz::SYMMETRIC_KEY);
    let mut r = rig(
        with(|c| {
            c.queues = 2;
            c.policy = STRICT;
        }),
        strict(),
    );
    r.settle();
    let mut seen = [0; 2];
    for port in 0..100 {
        for ip in [v4(1), v6(1)] {
            let bytes = bytes_of(ip, tcp(port), &[1; 30], Checksums::Complete);
            r.arrive([bytes.as_slice()]);
            let got = r.settle();
            let hash = dissect(&bytes, LinkKind::Ethernet).toeplitz(&key);
            assert_eq!(got[0].flow_hash(), Some(hash));
            let queue = got[0].ingress().1;
            assert_eq!(u32::from(queue), hash & 1, "the table alternates");
            seen[usize::from(queue)] += 1;
        }
    }
    assert!(seen[0] > 30 && seen[1] > 30, "{seen:?}");
    for queue in 0..2 {
        let bytes = frame(90, queue as u64);
        let packet = r.packet(&bytes);
        r.send(queue, [packet]);
        r.settle();
        assert_eq!(r.far.drain(), [bytes]);
    }
    r.end();
}
