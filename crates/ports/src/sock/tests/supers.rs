//! Super-packets and partial checksums: whole for applications that take them, finished for the
//! others.

use super::*;
use crate::vnet::{self, DATA_VALID, VnetHeader};
use towpath_client::protocol::HEADER;
use towpath_packet::{Checksum, Gso, GsoKind};
use towpath_wire::checksum;

/// Payload bytes of each datagram.
pub(super) const PAYLOAD: usize = 1000;

/// The bytes of a UDP super-packet of `segments` datagrams for a port.
pub(super) fn super_bytes(port: u16, segments: usize) -> Vec<u8> {
    let mut bytes = udp(port, 42 + segments * PAYLOAD);
    for (i, byte) in bytes[42..].iter_mut().enumerate() {
        *byte = (i / PAYLOAD) as u8;
    }
    bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = !checksum::sum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn super_packet(pool: &Pool, port: u16, segments: usize) -> Packet {
    let bytes = super_bytes(port, segments);
    let mut packet = Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &bytes).unwrap();
    packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
    packet.set_gso(Some(Gso { kind: GsoKind::Udp, ecn: false, size: PAYLOAD as u16, segs: 0, hdr_len: 42 }));
    packet
}

fn deliver(rig: &mut Rig, packet: Packet) {
    let mut batch = Batch::new();
    batch.push(packet).unwrap();
    rig.tx.reclaim();
    assert_eq!(rig.tx.tx(&mut batch), 1);
    rig.tx.kick();
}

#[test]
fn applications_with_offloads_get_super_packets_whole_and_the_others_get_datagrams() {
    let mut rig = Rig::new("");
    let (big, small) = (Umem::new(64, 2048).unwrap(), Umem::new(64, 2048).unwrap());
    let mut plain = rig.connect(&small, "udp dport 2");
    rig.until_sessions(1);
    assert_eq!((rig.tx.offloads(), rig.tx.max_offloads()), (Offloads::NONE, tx::OFFLOADS));
    let wants = towpath_client::Config::default().rings(Sizes::all(64)).offloads(true);
    let mut app = rig.ask_for(&big, "udp dport 1", wants).unwrap();
    rig.until_sessions(2);
    assert_eq!(rig.tx.offloads(), tx::OFFLOADS);
    app.fill(&mut frames(&big, 32, 1)).unwrap();
    plain.fill(&mut frames(&small, 32, 1)).unwrap();

    let packet = super_packet(&rig.pool, 1, 10);
    let (whole, header) = (packet.to_vec(), vnet::header_of(&packet).unwrap());
    deliver(&mut rig, packet);
    let mut got = Vec::new();
    // 2016 bytes fit in a chunk.
    assert_eq!(app.rx(&mut got).unwrap(), 5);
    assert_eq!(got.iter().flat_map(|frame| frame.bytes().to_vec()).collect::<Vec<_>>(), whole);
    assert_eq!(VnetHeader::from_ne_bytes(&got[0].vnet_header().unwrap()), header);
    assert!(got[1..].iter().all(|frame| frame.vnet_header().is_none()));
    assert_eq!(got.iter().map(Frame::continues).collect::<Vec<_>>(), [true, true, true, true, false]);

    let packet = super_packet(&rig.pool, 2, 10);
    deliver(&mut rig, packet);
    got.clear();
    assert_eq!(plain.rx(&mut got).unwrap(), 10);
    for (i, frame) in got.iter().enumerate() {
        assert_eq!((frame.bytes().len(), frame.bytes()[42], frame.vnet_header()), (42 + PAYLOAD, i as u8, None));
        // The sum over the pseudo-header and all of UDP, with its checksum in it, is all ones.
        let mut pseudo = vec![10, 0, 0, 1, 10, 0, 0, 2, 0, 17];
        pseudo.extend_from_slice(&frame.bytes()[38..40]);
        pseudo.extend_from_slice(&frame.bytes()[34..]);
        assert_eq!(checksum::sum(&pseudo), 0xffff);
    }
    // One packet goes in, ten come out: the balance counts that.
    let counted = rig.tx.counters().snapshot();
    assert_eq!((counted.packets, counted.split, counted.all_drops()), (11, 9, 0));
    drop((got, app, plain));
    rig.end();
}

#[test]
fn a_super_packet_of_more_pieces_than_there_may_be_comes_as_datagrams() {
    let mut rig = Rig::new("");
    let umem = Umem::new(256, 256).unwrap();
    let wants = towpath_client::Config::default().rings(Sizes::all(256)).offloads(true);
    let mut app = rig.ask_for(&umem, "udp", wants).unwrap();
    rig.until_sessions(1);
    app.fill(&mut frames(&umem, 250, 1)).unwrap();
    let packet = super_packet(&rig.pool, 1, 20);
    deliver(&mut rig, packet);
    let mut got = Vec::new();
    app.rx(&mut got).unwrap();
    assert_eq!(got.iter().filter(|frame| !frame.continues()).count(), 20);
    drop((got, app));
    rig.end();
}

#[test]
fn a_checksum_that_an_application_asks_for_is_left_to_the_egress() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    let mut sent = frames(&umem, 3, 200);
    for (frame, start) in sent.iter_mut().zip([10, 9, 100]) {
        assert!(frame.set_range(start, 100));
        assert_eq!(frame.request_checksum(34, 6), start >= 10);
    }
    // A packet in pieces asks in its first piece.
    sent.extend(frames(&umem, 1, 50));
    sent[2].set_continues(true);
    app.tx(&mut sent).unwrap();
    let batch = rig.receive(3);
    let found: Vec<_> = batch.iter().map(|packet| (packet.csum(), packet.len(), packet.linear().len())).collect();
    let partial = Checksum::Partial { start: 34, offset: 6 };
    assert_eq!(found, [(partial, 100, 0), (Checksum::Unknown, 100, 0), (partial, 150, 0)]);
    drop(batch);
    rig.completes(&mut app, 4);
    drop(app);
    rig.end();
}

#[test]
fn an_application_that_claims_that_its_checksum_is_right_is_not_believed() {
    let mut rig = Rig::new("");
    let hello = Hello { tx_metadata: HEADER as u32, rules: "default".into(), ..HELLO };
    let (mut program, memory) = Program::with_memory(&rig, &hello);
    let claims = VnetHeader { flags: DATA_VALID, ..VnetHeader::default() };
    assert!(memory.put(0, &claims.to_ne_bytes()));
    program.send(&[(HEADER as u64, 60, Desc::METADATA)]);
    let batch = rig.receive(1);
    assert_eq!((batch.as_slice()[0].csum(), rig.event("sessions-ended")), (Checksum::Unknown, 0));
    drop((batch, program));
    rig.end();
}

#[test]
fn invalid_metadata_ends_the_session() {
    type Words = (u64, [u16; 2]);
    // Unknown flags; a field outside of the packet; a field farther from its start than in any
    // protocol.
    let cases: [(u64, Words); 4] = [(16, (4, [0, 0])), (16, (2, [59, 0])), (16, (2, [0, 256])), (15, (0, [0, 0]))];
    for (at, (flags, words)) in cases {
        let mut rig = Rig::new("");
        let (mut program, memory) = Program::with_memory(&rig, &Hello { tx_metadata: 16, ..HELLO });
        let mut bytes = flags.to_ne_bytes().to_vec();
        words.iter().for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
        assert!(memory.put(0, &bytes));
        program.send(&[(at, 60, Desc::METADATA)]);
        rig.until_event("bad-descriptor", 1);
        rig.end();
    }
}

#[test]
fn a_finished_packet_has_no_header_for_an_application_with_offloads_either() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let wants = towpath_client::Config::default().rings(Sizes::all(64)).offloads(true);
    let mut app = rig.ask_for(&umem, "udp", wants).unwrap();
    rig.until_sessions(1);
    app.fill(&mut frames(&umem, 4, 1)).unwrap();
    rig.send(&[&udp(1, 60)]);
    let mut got = Vec::new();
    assert_eq!(app.rx(&mut got).unwrap(), 1);
    assert_eq!(got[0].vnet_header(), None);
    drop((got, app));
    rig.end();
}
