//! Packets, in a guest's buffers.

use super::super::ring::{DirtyLog, RingLog};
use super::*;
use towpath_packet::port::State;
use towpath_packet::{Checksum, DropReason, Gso, GsoKind, Offloads};

/// A guest's receive ring with the buffers that it posted, by id.
struct Posted {
    guest: Guest,
    tx: VhostTx,
    buffers: Vec<Vec<(u64, usize)>>,
}

impl Posted {
    fn new(format: Format, features: u64) -> Posted {
        let guest = Guest::new(Way::ToGuest, format, features);
        let tx = guest.tx();
        Posted { guest, tx, buffers: vec![Vec::new(); SIZE.into()] }
    }

    /// Posts a chain of `len` bytes in `parts`.
    fn post(&mut self, len: usize, parts: usize) {
        let each = len / parts;
        let pieces: Vec<_> = (0..parts)
            .map(|i| if i + 1 == parts { len - each * i } else { each })
            .map(|n| (self.guest.buffer(n), n))
            .collect();
        self.post_pieces(pieces);
    }

    /// Posts a chain of buffers, by address and length.
    fn post_pieces(&mut self, pieces: Vec<(u64, usize)>) {
        let chain: Vec<_> = pieces.iter().map(|&(addr, n)| Segment::writable(addr, n as u32)).collect();
        let id = self.guest.driver.add(&chain).unwrap();
        self.buffers[usize::from(id)] = pieces;
        self.guest.publish();
    }

    /// The content of the used buffers: packets of one and several chains.
    fn received(&mut self) -> Vec<([u8; 12], Vec<u8>)> {
        let mergeable = self.guest.features & feature::MRG_RXBUF != 0;
        let mut chains = self.guest.used().into_iter().map(|used| {
            let mut bytes = Vec::new();
            for &(addr, n) in &self.buffers[usize::from(used.id)] {
                bytes.extend(self.guest.read(addr, n.min(used.len as usize - bytes.len())));
            }
            assert_eq!(bytes.len(), used.len as usize);
            bytes
        });
        let mut packets = Vec::new();
        while let Some(first) = chains.next() {
            let (header, data) = first.split_first_chunk::<12>().unwrap();
            let (mut data, n) = (data.to_vec(), u16::from_le_bytes([header[10], header[11]]));
            assert!(n == 1 || mergeable);
            (1..n).for_each(|_| data.extend(chains.next().unwrap()));
            packets.push((*header, data));
        }
        packets
    }

    fn packet(&mut self, bytes: &[u8]) -> Packet {
        Packet::copy_from(&mut self.guest.pool.cache(Direction::Tx).unwrap(), bytes).unwrap()
    }
}

fn batch(packets: impl IntoIterator<Item = Packet>) -> Batch {
    let mut batch = Batch::new();
    packets.into_iter().for_each(|packet| batch.push(packet).unwrap());
    batch
}

#[test]
fn packets_of_any_size_are_written_in_order_and_unchanged_in_every_kind_of_ring() {
    for (format, features) in kinds() {
        for merged in [0, feature::MRG_RXBUF] {
            let mut posted = Posted::new(format, features | merged);
            for round in 0..8 {
                let (mut sent, longest) = (Vec::new(), [200, 1500, 9000, 60_000][round % 4]);
                let n = [12, 12, 6, 1][round % 4];
                for _ in 0..n {
                    let len = 14 + posted.guest.random.below(longest - 13) as usize;
                    sent.push(posted.guest.random_bytes(len));
                }
                let room: usize = sent.iter().map(|frame| frame.len() + 12).sum();
                if merged != 0 {
                    let each = (room / 16).max(600);
                    (0..=room.div_ceil(each) + n).for_each(|_| posted.post(each, 1 + round % 2));
                } else {
                    (0..n).for_each(|_| posted.post(longest as usize + 13, 1 + round % 5));
                }
                let mut out = Batch::new();
                for frame in &sent {
                    out.push(posted.packet(frame)).unwrap();
                }
                assert_eq!(posted.tx.tx(&mut out), n, "{format:?} {features:#x} {merged:#x} {round}");
                let received = posted.received();
                for (header, data) in &received {
                    assert_eq!(header[..10], [0; 10], "{} bytes", data.len());
                }
                let data: Vec<_> = received.into_iter().map(|(_, data)| data).collect();
                assert!(data == sent, "{format:?} {features:#x} {merged:#x} {round}");
                // What was not used is taken by the next packets.
                while posted.guest.driver.in_flight() > 0 {
                    let frame = vec![1; 100];
                    let packet = posted.packet(&frame);
                    assert_eq!(posted.tx.tx(&mut batch([packet])), 1);
                    assert_eq!(posted.received()[0].1, frame);
                }
                posted.guest.reset();
            }
            drop(posted.tx);
            posted.guest.balances();
        }
    }
}

#[test]
fn a_buffer_that_is_posted_again_gets_the_header_of_its_new_packet() {
    for (format, features) in kinds() {
        let all = feature::GUEST_CSUM | feature::GUEST_USO4 | feature::GUEST_USO6;
        let mut posted = Posted::new(format, features | all);
        let place = (posted.guest.buffer(4096), 4096);
        posted.guest.write(place.0, &[0xff; 12]);
        let (header, bytes) = udp_super(1000, 3);
        let plain = |flags| [flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        let mut segmented = header;
        segmented[10] = 1;
        for expected in [plain(0), plain(0), segmented, plain(2), segmented, plain(0), plain(2), plain(0)] {
            let mut packet = posted.packet(&bytes);
            match expected[0] {
                0 => {}
                2 => packet.set_csum(Checksum::Verified),
                _ => {
                    packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
                    packet.set_gso(Some(Gso { kind: GsoKind::Udp, ecn: false, size: 1000, segs: 0, hdr_len: 42 }));
                }
            }
            posted.post_pieces(vec![place]);
            assert_eq!(posted.tx.tx(&mut batch([packet])), 1);
            assert!(posted.received() == [(expected, bytes.clone())], "{format:?} {features:#x}: {expected:?}");
        }
    }
}

#[test]
fn bytes_that_a_packet_owns_are_written_to_the_guest_and_freed() {
    for (format, features) in kinds() {
        let mut posted = Posted::new(format, features | feature::MRG_RXBUF);
        let bytes: Arc<[u8]> = posted.guest.random_bytes(3000).into();
        let mut behind = posted.packet(&bytes[..20]);
        behind.append(Packet::from_owner(bytes.clone()).unwrap()).unwrap();
        (0..8).for_each(|_| posted.post(1010, 2));
        let mut out = batch([Packet::from_owner(bytes.clone()).unwrap(), behind]);
        assert_eq!((posted.tx.tx(&mut out), Arc::strong_count(&bytes)), (2, 1), "{format:?} {features:#x}");
        let received: Vec<_> = posted.received().into_iter().map(|(_, data)| data).collect();
        assert_eq!(received, [bytes.to_vec(), [&bytes[..20], &bytes].concat()], "{format:?} {features:#x}");
    }
}

#[test]
fn a_packet_waits_in_the_batch_until_there_are_chains_enough_and_takes_none_before() {
    for (format, features) in kinds() {
        let mut posted = Posted::new(format, features | feature::MRG_RXBUF);
        let bytes = posted.guest.random_bytes(3000);
        let mut out = batch([posted.packet(&bytes), posted.packet(&bytes[..50])]);
        for posts in 0..3 {
            assert_eq!((posted.tx.tx(&mut out), out.len(), posted.received().len()), (0, 2, 0), "{posts}");
            posted.post(1010, 2);
        }
        assert_eq!((posted.tx.tx(&mut out), out.len()), (1, 1));
        let received = posted.received();
        assert_eq!((received[0].0[10], &received[0].1), (3, &bytes), "{format:?} {features:#x}");
        assert_eq!(posted.tx.counters().snapshot().all_drops(), 0);
    }
}

#[test]
fn without_mergeable_buffers_a_packet_that_does_not_fit_is_dropped_and_the_chain_kept() {
    let mut posted = Posted::new(Format::Split, feature::VERSION_1);
    posted.post(1000, 1);
    let mut out = batch([posted.packet(&[1; 989]), posted.packet(&[2; 988])]);
    assert_eq!(posted.tx.tx(&mut out), 2);
    assert_eq!(posted.received()[0].1, [2; 988]);
    assert_eq!(posted.tx.counters().snapshot().dropped(DropReason::TooLong), 1);
}

#[test]
fn a_guest_gets_the_offloads_that_it_acknowledged_and_no_others() {
    let all = feature::GUEST_CSUM | feature::GUEST_USO4 | feature::GUEST_USO6;
    let mut posted = Posted::new(Format::Split, feature::VERSION_1 | feature::MRG_RXBUF | all);
    let (header, bytes) = udp_super(1000, 20);
    let mut packet = posted.packet(&bytes);
    packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
    packet.set_gso(Some(Gso { kind: GsoKind::Udp, ecn: false, size: 1000, segs: 0, hdr_len: 42 }));
    (0..6).for_each(|_| posted.post(4096, 1));
    assert_eq!(posted.tx.tx(&mut batch([packet])), 1);
    let received = posted.received();
    assert_eq!((&received[0].0[..10], received[0].0[10], &received[0].1), (&header[..10], 5, &bytes));
    assert!(posted.tx.offloads().has(Offloads::CSUM.with(Offloads::USO)));
    assert!(!posted.tx.offloads().has(Offloads::TSO4));

    let mut posted = Posted::new(Format::Split, feature::VERSION_1);
    let mut packet = posted.packet(&bytes[..100]);
    packet.set_csum(Checksum::Verified);
    posted.post(4096, 1);
    let mut out = batch([packet]);
    assert_eq!(posted.tx.tx(&mut out), 1);
    assert_eq!(posted.received()[0].0[..10], [0; 10], "a state that the guest does not know");
}

#[test]
fn a_guest_with_other_features_makes_the_route_finish_what_it_can_not_take() {
    let mut posted = Posted::new(Format::Split, feature::VERSION_1);
    let mut packet = posted.packet(&[0; 100]);
    packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
    posted.post(4096, 1);
    let mut out = batch([packet]);
    assert!(posted.tx.offloads().has(Offloads::CSUM), "no guest is known yet");
    assert_eq!((posted.tx.tx(&mut out), out.len()), (0, 1));
    assert_eq!((posted.tx.offloads(), posted.received().len()), (Offloads::NONE, 0));
}

#[test]
fn packets_are_dropped_as_link_down_without_a_ring() {
    let mut posted = Posted::new(Format::Packed, feature::VERSION_1 | feature::RING_PACKED);
    posted.post(1000, 1);
    let drops = |posted: &mut Posted| {
        let mut out = batch([posted.packet(&[0; 60])]);
        assert_eq!(posted.tx.tx(&mut out), 1);
        (posted.tx.counters().snapshot().dropped(DropReason::LinkDown), posted.tx.state() == State::Up)
    };
    assert_eq!(drops(&mut posted), (0, true));
    assert!(posted.guest.slot.discard());
    assert_eq!(drops(&mut posted), (1, false));
}

#[test]
fn a_burst_calls_once_and_only_a_guest_that_waits() {
    for event_idx in [0, EVENT_IDX] {
        let mut posted = Posted::new(Format::Split, feature::VERSION_1 | event_idx);
        let burst = |posted: &mut Posted| {
            (0..10).for_each(|_| posted.post(200, 1));
            let mut out = batch((0..10).map(|_| posted.packet(&[0; 60])).collect::<Vec<_>>());
            assert_eq!(posted.tx.tx(&mut out), 10);
            let called = posted.guest.call.take();
            assert_eq!(posted.received().len(), 10);
            called
        };
        assert_eq!(burst(&mut posted), 1, "the first burst calls in any case");
        posted.guest.driver.disable_calls();
        assert_eq!(burst(&mut posted), 0);
        assert!(!posted.guest.driver.enable_calls());
        assert_eq!(burst(&mut posted), 1);
    }
}

/// The pages that were marked.
#[derive(Debug, Default)]
struct Marked(std::sync::Mutex<std::collections::BTreeSet<u64>>);

impl DirtyLog for Marked {
    fn mark(&self, addr: u64, len: u64) {
        self.0.lock().unwrap().extend(addr / 4096..=(addr + len - 1) / 4096);
    }
}

#[test]
fn every_page_that_is_written_is_marked_and_no_other() {
    for format in [Format::Split, Format::Packed] {
        let mut posted = Posted::new(format, feature::VERSION_1 | feature::MRG_RXBUF);
        let marked = Arc::new(Marked::default());
        let log = RingLog { pages: marked.clone(), used: Some(LOW) };
        assert!(posted.guest.slot.change(|ring| ring.setup.log = Some(log)));
        // A short packet in one page, and a long one in several chains of two pieces.
        for (len, posts) in [(100, 1), (9000, 4)] {
            marked.0.lock().unwrap().clear();
            (0..posts).for_each(|_| posted.post(3000, 2));
            let bytes = posted.guest.random_bytes(len);
            let packet = posted.packet(&bytes);
            assert_eq!(posted.tx.tx(&mut batch([packet])), 1);
            let used = posted.guest.used();
            let mut left = len as u64 + 12;
            // The used ring lies in the first page, and a packed one's descriptors too.
            let mut expected = std::collections::BTreeSet::from([LOW / 4096]);
            for &(addr, n) in used.iter().flat_map(|used| &posted.buffers[usize::from(used.id)]) {
                let n = left.min(n as u64);
                left -= n;
                expected.extend((n > 0).then_some(addr / 4096..=(addr + n.max(1) - 1) / 4096).into_iter().flatten());
            }
            assert_eq!(*marked.0.lock().unwrap(), expected, "{format:?} {len}");
        }
        assert!(posted.guest.slot.change(|ring| ring.setup.log = None));
        marked.0.lock().unwrap().clear();
        posted.post(3000, 1);
        let packet = posted.packet(&[1; 60]);
        assert_eq!(posted.tx.tx(&mut batch([packet])), 1);
        assert!(marked.0.lock().unwrap().is_empty());
    }
}

#[test]
fn a_guest_that_breaks_its_ring_in_the_middle_of_a_burst_has_what_came_before() {
    for at in [0, 1, 5, 8, 9] {
        let mut posted = Posted::new(Format::Split, feature::VERSION_1 | feature::MRG_RXBUF);
        (0..at).for_each(|_| posted.post(200, 1));
        posted.guest.driver.add(&[Segment::writable(8, 100)]).unwrap();
        posted.guest.publish();
        let mut out = batch((0..12).map(|_| posted.packet(&[7; 60])).collect::<Vec<_>>());
        assert_eq!((posted.tx.tx(&mut out), out.len()), (at, 12 - at));
        assert_eq!((posted.received().len(), posted.guest.err.take()), (at, 1));
        // From here on there is no link.
        assert_eq!(posted.tx.tx(&mut out), 12 - at);
        assert_eq!(posted.tx.counters().snapshot().dropped(DropReason::LinkDown), 12 - at as u64);
        assert_eq!(posted.guest.err.take(), 0);
    }
}
