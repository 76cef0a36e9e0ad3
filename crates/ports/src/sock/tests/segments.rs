//! Applications that send super-packets.

use super::supers::{PAYLOAD, super_bytes};
use super::*;
use crate::vnet::{self, DATA_VALID, NEEDS_CSUM, VnetHeader};
use towpath_client::Segmentation;
use towpath_client::protocol::{HEADER, MAX_PIECES, MAX_SEGMENTS, MAX_SUPER_HEADERS, MAX_SUPER_PIECES};
use towpath_engine::software_offload::SoftwareOffload;
use towpath_packet::{Checksum, Gso, GsoKind, UntrustedMem};

fn segmentation() -> towpath_client::Config {
    towpath_client::Config::default().rings(Sizes::all(256)).offloads(true).segmentation(true)
}

const UDP: Segmentation = Segmentation { kind: GsoKind::Udp, size: PAYLOAD as u16, transport: 34 };

/// A packet in frames of `each` bytes, each `HEADER` bytes into its chunk.
fn pieces(umem: &Umem, bytes: &[u8], each: usize) -> Vec<Frame> {
    let mut frames: Vec<_> = bytes
        .chunks(each)
        .map(|piece| {
            let mut frame = umem.alloc().unwrap();
            assert!(frame.set_range(HEADER as u32, piece.len() as u32));
            frame.bytes_mut().copy_from_slice(piece);
            frame.set_continues(true);
            frame
        })
        .collect();
    frames.last_mut().unwrap().set_continues(false);
    frames
}

#[test]
fn a_super_packet_is_sent_from_its_pages_with_a_copy_of_its_headers() {
    let mut rig = Rig::new("");
    let umem = Umem::new(256, 2048).unwrap();
    let mut app = rig.ask_for(&umem, "default", segmentation()).unwrap();
    let bytes = super_bytes(1, 20);
    // All headers in one piece, and in many.
    for each in [2000, 700, 330] {
        let mut sent = pieces(&umem, &bytes, each);
        let n = sent.len();
        assert!(n <= MAX_SUPER_PIECES && sent[0].request_segmentation(UDP));
        app.tx(&mut sent).unwrap();
        let copied = rig.event("copied-bytes");
        let mut batch = rig.receive(1);
        let packet = batch.pop().unwrap();
        assert_eq!((packet.linear().len(), packet.frags()), (MAX_SUPER_HEADERS, n), "{each}");
        assert_eq!((packet.to_vec(), packet.csum()), (bytes.clone(), Checksum::Partial { start: 34, offset: 6 }));
        let gso = Gso { kind: GsoKind::Udp, ecn: false, size: PAYLOAD as u16, segs: 0, hdr_len: 42 };
        assert_eq!(packet.gso(), Some(gso));
        assert_eq!(rig.event("copied-bytes") - copied, MAX_SUPER_HEADERS as u64);
        let mut back = Vec::new();
        assert_eq!(app.completions(&mut back).unwrap(), 0);
        drop(packet);
        rig.rx.rx(&mut batch);
        assert_eq!(app.completions(&mut back).unwrap(), n);
    }
    drop(app);
    rig.end();
}

#[test]
fn the_software_segments_a_super_packet_as_requested() {
    let mut rig = Rig::new("");
    let umem = Umem::new(256, 2048).unwrap();
    let mut app = rig.ask_for(&umem, "default", segmentation()).unwrap();
    let mut sent = pieces(&umem, &super_bytes(1, 20), 2000);
    assert!(sent[0].request_segmentation(UDP));
    let pieces = sent.len();
    app.tx(&mut sent).unwrap();
    let (mut whole, mut cut) = (rig.receive(1), Batch::new());
    let cache = rig.pool.cache(Direction::Tx).unwrap();
    let mut software = SoftwareOffload::new(cache, towpath_gro::LinkKind::Ethernet, Arc::default());
    software.apply(&mut whole, &mut cut, Offloads::NONE);
    assert_eq!(cut.len(), 20);
    for (i, packet) in cut.iter().enumerate() {
        let bytes = packet.to_vec();
        assert_eq!((bytes.len(), bytes[42..].to_vec()), (42 + PAYLOAD, vec![i as u8; PAYLOAD]));
        assert!(!packet.wants_offload());
    }
    drop((whole, cut, software));
    rig.completes(&mut app, pieces);
    drop(app);
    rig.end();
}

#[test]
fn a_super_packet_that_was_received_can_be_sent_as_it_is() {
    let mut rig = Rig::new("");
    let umem = Umem::new(256, 2048).unwrap();
    let mut app = rig.ask_for(&umem, "default", segmentation()).unwrap();
    rig.until_sessions(1);
    app.fill(&mut frames(&umem, 100, 1)).unwrap();
    let mut sent = pieces(&umem, &super_bytes(1, 30), 2000);
    assert!(sent[0].request_segmentation(UDP));
    for _ in 0..3 {
        app.tx(&mut sent).unwrap();
        let mut batch = rig.receive(1);
        assert_eq!(batch.as_slice()[0].to_vec(), super_bytes(1, 30));
        let header = vnet::header_of(&batch.as_slice()[0]).unwrap();
        assert_eq!(rig.tx.tx(&mut batch), 1);
        app.rx(&mut sent).unwrap();
        assert_eq!(VnetHeader::from_ne_bytes(&sent[0].vnet_header().unwrap()), header);
        assert!(matches!(app.tx(&mut sent), Err(Error::Received)), "it may no longer be what came");
        sent.iter_mut().for_each(Frame::forward);
    }
    drop((sent, app));
    rig.end();
}

#[test]
fn a_session_without_segmentation_keeps_super_packets_and_stays_open() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    let mut sent = frames(&umem, 1, 60);
    sent.extend(pieces(&umem, &super_bytes(1, 2), 2000));
    assert!(sent[1].request_segmentation(UDP));
    assert!(matches!(app.tx(&mut sent), Err(Error::Segmentation)));
    assert_eq!((sent.len(), rig.receive(1).len()), (2, 1));
    // With the new range, the frame is a packet by itself, without the request.
    assert!(sent[0].set_range(10, 100));
    sent.truncate(1);
    assert_eq!(app.tx(&mut sent).unwrap(), 1);
    assert_eq!(rig.receive(1).as_slice()[0].csum(), Checksum::Unknown);
    drop((sent, app));
    rig.end();
}

#[test]
fn segments_longer_than_the_port_sends_complete_unsent_and_counted() {
    let mut rig = Rig::new("mtu=1027");
    let umem = Umem::new(256, 2048).unwrap();
    let mut app = rig.ask_for(&umem, "default", segmentation()).unwrap();
    for (size, fits) in [(1007, true), (1008, false)] {
        let mut sent = pieces(&umem, &super_bytes(1, 20), 2000);
        assert!(sent[0].request_segmentation(Segmentation { size, ..UDP }));
        let pieces = sent.len();
        app.tx(&mut sent).unwrap();
        if fits {
            drop(rig.receive(1))
        } else {
            rig.until_event("frame-length", 1)
        }
        rig.completes(&mut app, pieces);
    }
    // A packet that is too long for any port, in segments that are not.
    let mut bytes = super_bytes(1, 2);
    bytes.resize(65_600, 0);
    let mut sent = pieces(&umem, &bytes, 2000);
    assert!(sent[0].request_segmentation(UDP));
    let pieces = sent.len();
    app.tx(&mut sent).unwrap();
    rig.until_event("frame-length", 2);
    rig.completes(&mut app, pieces);
    assert_eq!((rig.event("bad-descriptor"), app.statistics().tx_too_long), (0, 2));
    drop(app);
    rig.end();
}

#[test]
fn a_request_for_a_single_segment_is_one_for_its_checksum() {
    let mut rig = Rig::new("");
    let umem = Umem::new(64, 2048).unwrap();
    let mut app = rig.ask_for(&umem, "default", segmentation()).unwrap();
    let mut sent = pieces(&umem, &super_bytes(1, 1), 2000);
    assert!(sent[0].request_segmentation(UDP));
    app.tx(&mut sent).unwrap();
    let batch = rig.receive(1);
    let packet = &batch.as_slice()[0];
    assert_eq!((packet.gso(), packet.csum()), (None, Checksum::Partial { start: 34, offset: 6 }));
    drop((batch, app));
    rig.end();
}

#[test]
fn with_the_minimum_budget_super_packets_of_the_most_pieces_pass() {
    let mut rig = Rig::new("budget=4096");
    let umem = Umem::new(512, 2048).unwrap();
    let mut app = rig.ask_for(&umem, "default", segmentation()).unwrap();
    let bytes = super_bytes(1, 60);
    let each = bytes.len().div_ceil(MAX_SUPER_PIECES);
    let mut sent: Vec<_> = (0..5)
        .flat_map(|_| {
            let mut packet = pieces(&umem, &bytes, each);
            assert!(packet.len() == MAX_SUPER_PIECES && packet[0].request_segmentation(UDP));
            packet
        })
        .collect();
    let mut seen = 0;
    until(|| {
        app.tx(&mut sent).unwrap();
        let mut batch = Batch::new();
        rig.rx.rx(&mut batch);
        assert!(batch.iter().all(|packet| packet.to_vec() == bytes));
        seen += batch.len();
        drop(batch);
        app.completions(&mut Vec::new()).unwrap();
        seen == 5
    });
    drop(app);
    rig.end();
}

/// A header and a super-packet that may not match.
struct RequestCase {
    header: VnetHeader,
    bytes: Vec<u8>,
}

/// An IPv4 TCP super-packet and its header.
fn valid_request() -> RequestCase {
    let mut bytes = super_bytes(1, 2);
    bytes[23] = 6;
    bytes[46] = 0x50;
    let header = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: GsoKind::Tcp4 as u8,
        hdr_len: 0,
        gso_size: 500,
        csum_start: 34,
        csum_offset: 16,
    };
    RequestCase { header, bytes }
}

/// A program that may send super-packets sends one that begins at its second chunk.
fn send_request(rig: &Rig, request: &RequestCase, segmentation: bool) -> (Program, UntrustedMem) {
    let hello = Hello { tx_metadata: HEADER as u32, segmentation, rings: Sizes::all(16), ..HELLO };
    let (mut program, memory) = Program::with_memory(rig, &hello);
    assert!(memory.put(2048, &request.header.to_ne_bytes()) && memory.put(2048 + HEADER, &request.bytes));
    let (first, second) = (2048 - HEADER, request.bytes.len().saturating_sub(2048 - HEADER));
    assert!(second > 0);
    let continued = Desc::METADATA | Desc::CONTINUED;
    program.send(&[(2048 + HEADER as u64, first as u32, continued), (4096, second as u32, 0)]);
    (program, memory)
}

#[test]
fn headers_that_do_not_match_the_request_end_the_session() {
    type Change = fn(&mut RequestCase);
    let lies: [(&str, Change); 22] = [
        ("another version", |l| l.header.gso_type = GsoKind::Tcp6 as u8),
        ("another transport", |l| (l.header.gso_type, l.header.csum_offset) = (GsoKind::Udp as u8, 6)),
        ("an unknown kind", |l| l.header.gso_type = 3),
        ("congestion without segmentation", |l| l.header.gso_type = 0x80),
        ("segments of nothing", |l| l.header.gso_size = 0),
        ("segments of next to nothing", |l| l.header.gso_size = 7),
        ("too many segments", |l| l.header.gso_size = 15),
        ("a size with another meaning", |l| l.header.gso_size = u16::MAX),
        ("no checksum", |l| l.header.flags = 0),
        ("a checksum that is right", |l| l.header.flags = DATA_VALID),
        ("unknown flags", |l| l.header.flags |= 4),
        ("a checksum that begins elsewhere", |l| l.header.csum_start += 4),
        ("a checksum that lies elsewhere", |l| l.header.csum_offset = 6),
        ("a checksum outside", |l| l.header.csum_start = 4000),
        ("no IP", |l| l.bytes[12] = 0x88),
        ("a version that contradicts", |l| l.bytes[14] = 0x65),
        ("another protocol", |l| l.bytes[23] = 17),
        ("a fragment", |l| l.bytes[20] = 0x20),
        ("a header of IP longer than it is", |l| l.bytes[14] = 0x4f),
        ("a header of TCP shorter than any", |l| l.bytes[46] = 0x40),
        ("a tunnel", |l| {
            l.bytes[23] = 4;
            let inner: Vec<_> = l.bytes[14..60].to_vec();
            l.bytes[34..80].copy_from_slice(&inner);
            (l.bytes[43], l.bytes[66], l.header.csum_start) = (6, 0x50, 54);
        }),
        ("headers beyond where they may be", |l| {
            l.bytes[14] = 0x60;
            l.bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
            l.bytes[20] = 60;
            // Destination options of 256 bytes.
            l.bytes[54..56].copy_from_slice(&[6, 31]);
            l.bytes[310 + 12] = 0x50;
            (l.header.gso_type, l.header.csum_start) = (GsoKind::Tcp6 as u8, 310);
        }),
    ];
    let mut rig = Rig::new("");
    for (i, (what, change)) in lies.iter().enumerate() {
        let mut request = valid_request();
        change(&mut request);
        let program = send_request(&rig, &request, true);
        until(|| {
            assert_eq!(rig.rx.rx(&mut Batch::new()), 0, "{what}");
            rig.event("bad-descriptor") == i as u64 + 1
        });
        drop(program);
    }
    let ended = rig.event("bad-descriptor");
    let (program, _) = send_request(&rig, &valid_request(), false);
    rig.until_event("bad-descriptor", ended + 1);
    drop(program);
    rig.end();
}

#[test]
fn headers_are_sent_as_they_were_checked_whatever_the_application_writes_meanwhile() {
    let mut rig = Rig::new("");
    let request = valid_request();
    let (_program, memory) = send_request(&rig, &request, true);
    let batch = rig.receive(1);
    assert!(memory.put(2048, &[0xff; 2048]));
    let packet = &batch.as_slice()[0];
    assert_eq!(packet.to_vec()[..MAX_SUPER_HEADERS], request.bytes[..MAX_SUPER_HEADERS]);
    assert_eq!(packet.to_vec()[MAX_SUPER_HEADERS], 0xff, "the others may change, as those of any page");
    drop(batch);
    rig.end();
}

#[test]
fn a_packet_of_more_pieces_than_it_may_have_ends_the_session() {
    let mut rig = Rig::new("");
    for (i, (segments, most)) in [(true, MAX_SUPER_PIECES), (false, MAX_PIECES)].into_iter().enumerate() {
        let umem = Umem::new(256, 2048).unwrap();
        let mut app = rig.ask_for(&umem, "default", segmentation().checks(false)).unwrap();
        let mut bytes = super_bytes(1, 1);
        bytes.resize((most + 1) * 20, 0);
        let mut sent = pieces(&umem, &bytes, 20);
        assert!(!segments || sent[0].request_segmentation(UDP));
        app.tx(&mut sent).unwrap();
        rig.until_event("bad-descriptor", i as u64 + 1);
        rig.until_event("sessions-ended", i as u64 + 1);
    }
    rig.end();
}

#[test]
fn the_maximum_of_segments_is_accepted() {
    let mut rig = Rig::new("");
    let umem = Umem::new(256, 2048).unwrap();
    let mut app = rig.ask_for(&umem, "default", segmentation()).unwrap();
    let mut sent = pieces(&umem, &super_bytes(1, 16), 2000);
    let size = (16 * PAYLOAD / MAX_SEGMENTS) as u16;
    assert!(sent[0].request_segmentation(Segmentation { size, ..UDP }));
    app.tx(&mut sent).unwrap();
    assert_eq!(rig.receive(1).as_slice()[0].gso().map(|gso| gso.size), Some(size));
    drop(app);
    rig.end();
}
