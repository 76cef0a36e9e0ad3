//! Offloads of the device.

use crate::require;
use crate::rig::{Rig, Setup, protections};
use towpath_packet::{Checksum, Offloads, Packet, Vlan};
use towpath_wire::dissect::dissect;
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, Udp};
use towpath_wire::verify::{Check, verify};
use towpath_wire::vlan::{Tag, Tci};
use towpath_wire::{LinkKind, Toeplitz};

const LINK: Link =
    Link { dst: [0x52, 0x54, 0, 0xaa, 0xbb, 0xcc], src: [2, 0, 0, 0, 0, 1], tags: [Tag { tpid: 0, tci: Tci(0) }; 2] };

/// The four kinds of packets whose checksums the device computes.
fn kinds(flow: u16) -> [Headers<'static>; 4] {
    let [a, b] = flow.to_be_bytes();
    let (mut six, mut peer) = ([0xfd; 16], [0xfd; 16]);
    (six[14], six[15], peer[15]) = (a, b, 9);
    let four = || Ip::v4([10, 0, a, b], [10, 0, 0, 9]);
    let tcp = Transport::Tcp(Tcp { src_port: 1000 + flow, dst_port: 80, seq: 7, window: 512, ..Tcp::default() });
    let udp = Transport::Udp(Udp { src_port: 2000 + flow, dst_port: 53 });
    [(four(), tcp), (four(), udp), (Ip::v6(six, peer), tcp), (Ip::v6(six, peer), udp)]
        .map(|(ip, transport)| Headers { link: Some(LINK), network: Network::Ip(ip, transport) })
}

fn bytes(headers: &Headers<'_>, payload: usize, checksums: Checksums) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload).map(|i| (i * 31 + payload) as u8).collect();
    let mut buffer = vec![0; 2000];
    let len = headers.emit(&mut buffer, &payload, checksums).unwrap();
    buffer.truncate(len);
    buffer
}

fn checksum_field(headers: &Headers<'_>) -> u8 {
    if matches!(headers.network, Network::Ip(_, Transport::Tcp(_))) { 16 } else { 6 }
}

/// A packet whose checksum is left to the device, in two pieces unless `split` is 0.
fn partial(rig: &mut Rig, headers: &Headers<'_>, payload: usize, split: usize) -> Packet {
    let bytes = bytes(headers, payload, Checksums::Partial);
    let at = if split == 0 { bytes.len() } else { split.min(bytes.len()) };
    let mut packet = rig.packet(&bytes[..at]);
    if at < bytes.len() {
        let rest = rig.packet(&bytes[at..]);
        packet.append(rest).unwrap();
    }
    packet.set_csum(Checksum::Partial { start: headers.transport_offset() as u16, offset: checksum_field(headers) });
    packet
}

#[test]
fn checksums_that_were_left_open_are_right_on_the_wire() {
    require!("checksums_that_were_left_open_are_right_on_the_wire");
    for protection in protections() {
        for shared in [true, false] {
            let mut rig = Setup { shared, ..Setup::new(protection) }.start();
            for (n, headers) in kinds(1).iter().enumerate() {
                for payload in [0, 1, 2, 17, 500, 1001, 1400] {
                    for split in [0, 14, 20, 60] {
                        let packet = partial(&mut rig, headers, payload, split);
                        rig.send([packet]);
                        let out = rig.out();
                        let verdict = verify(&out, LinkKind::Ethernet);
                        assert_eq!(verdict.transport, Check::Good, "kind {n}, {payload} bytes, split at {split}");
                        assert_eq!(out, bytes(headers, payload, Checksums::Complete));
                    }
                }
            }
            rig.end();
        }
    }
}

/// A context is written only when it changes: packets with and without, of all kinds, in one burst.
#[test]
fn offloads_of_one_packet_do_not_reach_the_next() {
    require!("offloads_of_one_packet_do_not_reach_the_next");
    let mut rig = Setup::new(protections()[3]).start();
    for round in 0..30 {
        let mut expected = Vec::new();
        let mut packets = Vec::new();
        for n in 0..40 {
            let headers = &kinds(n % 3)[(n as usize * 7 + round) % 4];
            let payload = 20 + n as usize * 9;
            expected.push(bytes(headers, payload, Checksums::Complete));
            packets.push(match (n + round as u16) % 3 {
                0 => rig.packet(&bytes(headers, payload, Checksums::Complete)),
                _ => partial(&mut rig, headers, payload, n as usize % 2 * 30),
            });
        }
        rig.send(packets);
        expected.iter().for_each(|bytes| assert!(rig.out() == *bytes));
    }
    rig.end();
}

#[test]
fn received_checksums_are_verified_and_wrong_ones_are_not() {
    require!("received_checksums_are_verified_and_wrong_ones_are_not");
    for protection in protections() {
        let mut rig = Setup::new(protection).start();
        for headers in &kinds(2) {
            let good = bytes(headers, 300, Checksums::Complete);
            let mut bad = good.clone();
            bad[200] ^= 1;
            let received = rig.exchange(&[good.clone(), bad.clone()]);
            assert_eq!([received[0].to_vec(), received[1].to_vec()], [good, bad], "both are delivered");
            assert_eq!(received.iter().map(Packet::csum).collect::<Vec<_>>(), [Checksum::Verified, Checksum::Unknown]);
        }
        rig.end();
    }
}

#[test]
fn a_tag_beside_a_packet_is_on_the_wire_and_one_on_the_wire_is_beside_the_packet() {
    require!("a_tag_beside_a_packet_is_on_the_wire_and_one_on_the_wire_is_beside_the_packet");
    let tagged = |bytes: &[u8], tci: u16| [&bytes[..12], &[0x81, 0], &tci.to_be_bytes(), &bytes[12..]].concat();
    for protection in protections() {
        for vlan in [true, false] {
            let mut setup = Setup::new(protection);
            setup.config.vlan = vlan;
            let mut rig = setup.start();
            for (n, headers) in kinds(3).iter().enumerate() {
                let (plain, tci) = (bytes(headers, 100 + n, Checksums::Complete), 0x2005 + n as u16);
                let mut packet = partial(&mut rig, headers, 100 + n, 0);
                packet.set_vlan(Some(Vlan { tci, service: false }));
                let untagged = rig.packet(&plain);
                rig.send([packet, untagged]);
                assert_eq!([rig.out(), rig.out()], [tagged(&plain, tci), plain.clone()]);
                let received = rig.exchange(&[tagged(&plain, tci), plain.clone()]);
                let seen: Vec<_> = received.iter().map(|p| (p.vlan().map(|v| v.tci), p.to_vec())).collect();
                let first = if vlan { (Some(tci), plain.clone()) } else { (None, tagged(&plain, tci)) };
                assert_eq!(seen, [first, (None, plain)]);
            }
            rig.end();
        }
    }
}

#[test]
fn a_tag_stays_in_the_packet_for_an_egress_that_does_not_take_it_beside() {
    require!("a_tag_stays_in_the_packet_for_an_egress_that_does_not_take_it_beside");
    for protection in protections() {
        let mut rig = Setup { accept: Offloads::NONE, ..Setup::new(protection) }.start();
        let plain = bytes(&kinds(4)[0], 64, Checksums::Complete);
        let tagged = [&plain[..12], &[0x81, 0, 0x60, 0x2a], &plain[12..]].concat();
        let received = rig.exchange(std::slice::from_ref(&tagged)).remove(0);
        assert_eq!((received.vlan(), received.to_vec()), (None, tagged));
        drop(received);
        rig.end();
    }
}

/// Two queues: the hash equals the one computed in software, and chooses the queue.
#[test]
fn flows_are_spread_over_two_queues_by_their_hash() {
    require!("flows_are_spread_over_two_queues_by_their_hash");
    let toeplitz = Toeplitz::new(&Toeplitz::SYMMETRIC_KEY);
    for protection in protections() {
        let mut setup = Setup::new(protection);
        setup.config.queues = 2;
        setup.queues = 2;
        let mut rig = setup.start();
        let mut seen = [0, 0];
        for flow in 0..64 {
            // TCP hashes addresses and ports; the device hashes only the addresses of UDP.
            let headers = &kinds(flow)[if flow % 2 == 0 { 0 } else { 2 }];
            let frame = bytes(headers, 40, Checksums::Complete);
            let received = rig.exchange(std::slice::from_ref(&frame)).remove(0);
            let hash = dissect(&frame, LinkKind::Ethernet).toeplitz(&toeplitz);
            assert_eq!(received.flow_hash(), Some(hash), "flow {flow}");
            let queue = usize::from(received.ingress().1);
            assert_eq!(queue, (hash & 1) as usize, "flow {flow}");
            seen[queue] += 1;
            assert_eq!(received.to_vec(), frame);
        }
        assert!(seen[0] > 10 && seen[1] > 10, "{seen:?}");
        rig.end();
    }
}
