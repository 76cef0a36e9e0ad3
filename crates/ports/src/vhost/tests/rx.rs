//! Frames of a guest, as packets.

use super::*;
use towpath_packet::port::{TxLayout, TxLinear};
use towpath_packet::{Checksum, DropReason, Gso, GsoKind, Missed};

/// Receives until nothing comes.
fn receive(rx: &mut VhostRx) -> Vec<Packet> {
    let (mut batch, mut all) = (Batch::new(), Vec::new());
    while rx.rx(&mut batch) > 0 {
        all.extend(batch.drain_front(64));
    }
    all
}

#[test]
fn frames_of_any_size_in_any_pieces_come_in_order_and_unchanged_in_every_kind_of_ring() {
    for (format, features) in kinds() {
        let mut guest = Guest::new(Way::FromGuest, format, features);
        let mut rx = guest.rx();
        for round in 0..12 {
            let (mut sent, linear) = (Vec::new(), [TxLinear::None, TxLinear::Header(100), TxLinear::Whole][round % 3]);
            rx.set_tx_layout(TxLayout { linear, headroom: (round as u16 / 3) * 32, tailroom: 8 });
            while guest.driver.num_free() >= 40 {
                let len = 14 + guest.random.below([100, 500, 5000, 65_524][round % 4]) as usize;
                let frame = guest.random_bytes(len);
                let parts = 1 + guest.random.below(5) as usize;
                guest.send(&with_header(&frame), parts);
                sent.push(frame);
            }
            guest.publish();
            let packets = receive(&mut rx);
            assert_eq!(packets.len(), sent.len(), "{format:?} {features:#x} {round}");
            for (packet, sent) in packets.iter().zip(&sent) {
                assert_eq!(packet.to_vec(), *sent, "{format:?} {features:#x} {round}");
                assert_eq!((packet.ingress(), packet.csum(), packet.gso()), ((0, 3), Checksum::Unknown, None));
            }
            // Any order.
            let (odd, even): (Vec<_>, Vec<_>) = packets.into_iter().enumerate().partition(|(i, _)| i % 2 == 1);
            drop((odd, even));
            receive(&mut rx);
            assert_eq!(guest.used().len(), sent.len(), "{format:?} {features:#x} {round}");
            guest.reset();
        }
        drop(rx);
        guest.balances();
    }
}

#[test]
fn a_frame_in_one_piece_is_its_page_for_an_egress_that_takes_fragments_and_completes_when_it_is_free() {
    let mut guest = Guest::new(Way::FromGuest, Format::Split, feature::VERSION_1);
    let mut rx = guest.rx();
    let frame = guest.random_bytes(1500);
    guest.send(&with_header(&frame), 1);
    guest.publish();
    let packets = receive(&mut rx);
    assert!(packets[0].is_extbuf() && packets[0].to_vec() == frame);
    assert_eq!((guest.used().len(), guest.events.ext_bufs.in_use()), (0, 1));
    assert_eq!(rx.counters().snapshot().copied, 0);
    drop(packets);
    receive(&mut rx);
    assert_eq!((guest.used().len(), guest.events.ext_bufs.in_use()), (1, 0));
}

#[test]
fn a_short_frame_is_copied_and_completes_at_once() {
    for parts in [1, 2, 5] {
        let mut guest = Guest::new(Way::FromGuest, Format::Packed, feature::VERSION_1 | feature::RING_PACKED);
        let mut rx = guest.rx();
        let frame = guest.random_bytes(256);
        guest.send(&with_header(&frame), parts);
        guest.publish();
        let packets = receive(&mut rx);
        assert_eq!((packets[0].linear(), packets[0].frags()), (&frame[..], 0));
        let counted = rx.counters().snapshot();
        assert_eq!((guest.used().len(), counted.copied, counted.copied_bytes), (1, 1, 256));
        assert_eq!(guest.events.ext_bufs.attached(), 0);
    }
}

#[test]
fn a_frame_in_more_pieces_than_pages_or_longer_than_a_page_is_copied() {
    for (len, parts) in [(60_000, 2000), (65_557, 1)] {
        let features = feature::VERSION_1 | INDIRECT;
        let mut guest = Guest::new(Way::FromGuest, Format::Split, features);
        let mut rx = guest.rx();
        let frame = guest.random_bytes(len);
        let parts = parts.min(SIZE.into());
        // All in one table, or in the ring.
        guest.send(&with_header(&frame), parts.min(47));
        guest.publish();
        let packets = receive(&mut rx);
        assert_eq!(packets[0].to_vec(), frame);
        drop(packets);
        receive(&mut rx);
        assert_eq!(guest.used().len(), 1);
        drop(rx);
        guest.balances();
    }
}

#[test]
fn a_super_packet_has_its_headers_copied_and_asks_for_segments() {
    let features = feature::VERSION_1 | feature::CSUM | feature::HOST_USO;
    for parts in [1, 2, 17] {
        let mut guest = Guest::new(Way::FromGuest, Format::Split, features);
        let mut rx = guest.rx();
        let (header, bytes) = udp_super(1000, 20);
        guest.send(&[&header[..], &bytes].concat(), parts);
        guest.publish();
        let packets = receive(&mut rx);
        let gso = Gso { kind: GsoKind::Udp, ecn: false, size: 1000, segs: 0, hdr_len: 42 };
        assert_eq!(packets[0].to_vec(), bytes);
        assert_eq!((packets[0].gso(), packets[0].csum()), (Some(gso), Checksum::Partial { start: 34, offset: 6 }));
        assert_eq!(packets[0].linear().len(), 256, "{parts}");
        assert_eq!(rx.counters().snapshot().copied_bytes, 256);
    }
}

#[test]
fn what_the_guest_did_not_acknowledge_is_refused_and_a_checksum_without_the_feature_is_none() {
    let (header, bytes) = udp_super(1000, 20);
    let chain = [&header[..], &bytes].concat();
    for features in [0, feature::CSUM, feature::CSUM | feature::HOST_TSO4, feature::HOST_USO] {
        let mut guest = Guest::new(Way::FromGuest, Format::Split, features | feature::VERSION_1);
        let mut rx = guest.rx();
        guest.send(&chain, 1);
        guest.publish();
        assert!(receive(&mut rx).is_empty(), "{features:#x}");
        assert_eq!(rx.counters().snapshot().missed_at(Missed::Unreadable), 1);
        receive(&mut rx);
        assert_eq!(guest.used().len(), 1);
        drop(rx);
        guest.balances();
    }
    let mut guest = Guest::new(Way::FromGuest, Format::Split, feature::VERSION_1);
    let mut rx = guest.rx();
    let mut plain = chain.clone();
    plain[1..6].fill(0);
    guest.send(&plain[..112], 1);
    guest.publish();
    assert_eq!(receive(&mut rx)[0].csum(), Checksum::Unknown);
}

#[test]
fn a_header_that_contradicts_its_frame_loses_that_frame_alone() {
    let features = feature::VERSION_1 | feature::CSUM | feature::HOST_USO | feature::HOST_TSO4 | feature::HOST_ECN;
    let mut guest = Guest::new(Way::FromGuest, Format::Split, features);
    let mut rx = guest.rx();
    let frame = guest.random_bytes(300);
    let le = |words: [u16; 4]| words.map(u16::to_le_bytes).concat();
    let bad: [(u8, u8, [u16; 4]); 9] = [
        (1, 0, [0, 0, 299, 0]),
        (1, 0, [0, 0, 0xffff, 0xffff]),
        (1, 0, [0, 0, 34, 256]),
        (0, 1, [54, 100, 0, 0]),
        (1, 1, [54, 0, 34, 16]),
        (1, 2, [54, 100, 34, 16]),
        (1, 0x85, [42, 100, 34, 6]),
        (1, 1, [54, 100, 34, 6]),
        (1, 5, [42, 100, 34, 6]),
    ];
    for &(flags, kind, words) in &bad {
        guest.send(&[&[flags, kind][..], &le(words), &[0; 2], &frame].concat(), 1);
    }
    // Only a header, half a header, nothing behind it, too long.
    for len in [12, 5, 1, 25, 12 + 65_558] {
        guest.send(&vec![0; len], 1);
    }
    guest.send(&with_header(&frame), 1);
    guest.publish();
    let packets = receive(&mut rx);
    assert_eq!(packets.iter().map(Packet::to_vec).collect::<Vec<_>>(), [frame]);
    let lost = bad.len() as u64 + 5;
    assert_eq!(rx.counters().snapshot().missed_at(Missed::Unreadable), lost);
    drop(packets);
    receive(&mut rx);
    assert_eq!(guest.used().len() as u64, lost + 1);
    drop(rx);
    guest.balances();
}

#[test]
fn a_guest_that_breaks_its_ring_stops_it_and_is_informed_once() {
    let mut guest = Guest::new(Way::FromGuest, Format::Split, feature::VERSION_1);
    let mut rx = guest.rx();
    let frame = guest.random_bytes(1000);
    guest.send(&with_header(&frame), 1);
    guest.driver.add(&[Segment::readable(8, 100)]).unwrap();
    guest.publish();
    let packets = receive(&mut rx);
    assert_eq!(packets.len(), 1);
    assert!(rx.state() != towpath_packet::port::State::Up);
    assert_eq!((guest.err.take(), guest.events.broken.load(std::sync::atomic::Ordering::Relaxed)), (1, 1));
    drop(packets);
    assert!(guest.slot.stop(std::time::Duration::ZERO).is_some());
    drop(rx);
    guest.balances();
}

#[test]
fn frames_stay_in_the_ring_while_the_pool_is_empty() {
    let mut guest = Guest::new(Way::FromGuest, Format::Split, feature::VERSION_1);
    guest.pool = Pool::new(PoolConfig::default().capacity(64)).unwrap();
    let (mut rx, mut cache) = (guest.rx(), guest.pool.cache(Direction::Tx).unwrap());
    let hoard: Vec<_> = std::iter::from_fn(|| cache.alloc()).collect();
    let frame = guest.random_bytes(100);
    guest.send(&with_header(&frame), 1);
    guest.publish();
    assert!(receive(&mut rx).is_empty() && guest.used().is_empty());
    assert_eq!(rx.wake(), towpath_packet::port::Wake::Poll);
    assert_eq!(rx.counters().snapshot().dropped(DropReason::NoBuffer), 0);
    drop((hoard, cache));
    assert_eq!(receive(&mut rx).len(), 1);
}

#[test]
fn a_guest_of_before_the_standard_has_headers_of_ten_bytes() {
    let mut guest = Guest::new(Way::FromGuest, Format::Split, 0);
    let mut rx = guest.rx();
    for len in [14, 100, 1500] {
        let frame = guest.random_bytes(len);
        guest.send(&[&[0; 10], &frame[..]].concat(), 1);
        guest.publish();
        assert_eq!(receive(&mut rx)[0].to_vec(), frame);
    }
}

#[test]
fn frames_for_which_there_is_no_head_come_later_in_order_and_an_idle_queue_holds_none() {
    for (format, features) in kinds() {
        let mut guest = Guest::new(Way::FromGuest, format, features);
        let (mut rx, mut cache) = (guest.rx(), guest.pool.cache(Direction::Rx).unwrap());
        for number in 0..20 {
            // Every fifth is in two pieces.
            guest.send(&with_header(&[number; 60]), if number % 5 == 4 { 2 } else { 1 });
        }
        guest.publish();
        let mut hoard: Vec<_> = std::iter::from_fn(|| cache.alloc()).collect();
        let mut got = Vec::new();
        while got.len() < 20 {
            cache.free(hoard.pop().unwrap());
            // From one cache to the other.
            drop(std::mem::replace(&mut cache, guest.pool.cache(Direction::Rx).unwrap()));
            let mut batch = Batch::new();
            while rx.rx(&mut batch) > 0 {}
            got.extend(batch.iter().map(|packet| packet.linear()[0]));
            hoard.extend(batch.drain_front(64));
        }
        assert_eq!(got, (0..20).collect::<Vec<_>>(), "{format:?} {features:#x}");
        drop((hoard, cache));
        rx.rx(&mut Batch::new());
        assert_eq!((guest.used().len(), guest.pool.stats().free), (20, 4096));
    }
}

#[test]
fn chains_taken_ahead_for_which_there_is_no_head_are_available_again() {
    for (format, features) in kinds() {
        for heads in [1, 7, 8, 9, 12, 15, 16, 17, 23, 24] {
            let mut guest = Guest::new(Way::FromGuest, format, features);
            let (mut rx, mut cache) = (guest.rx(), guest.pool.cache(Direction::Rx).unwrap());
            for number in 0..25 {
                guest.send(&with_header(&[number; 60]), 1);
            }
            guest.publish();
            let mut hoard: Vec<_> = std::iter::from_fn(|| cache.alloc()).collect();
            hoard.drain(..heads).for_each(|packet| cache.free(packet));
            drop(cache);
            let (mut first, mut rest) = (Batch::new(), Batch::new());
            let name = format!("{format:?} {features:#x}, {heads} heads");
            assert_eq!((rx.rx(&mut first), rx.rx(&mut rest)), (heads, 0), "{name}");
            assert_eq!(rx.counters().snapshot().drops().count(), 0, "{name}");
            drop(hoard);
            assert_eq!(rx.rx(&mut rest), 25 - heads, "{name}");
            let numbers = first.iter().chain(rest.iter()).map(|packet| packet.linear()[0]);
            assert!(numbers.eq(0..25), "{name}");
            assert_eq!(guest.used().len(), 25, "{name}");
        }
    }
}

/// Words at random, of which many mean something: flags, small numbers, addresses of buffers.
fn scribble(guest: &mut Guest, from: usize, len: usize) {
    let memory = guest.memory.memory(0).unwrap().clone();
    for at in (from..from + len).step_by(4) {
        let random = guest.random.next();
        let word = match random % 8 {
            0 => 0,
            1 => random >> 32 & 0xf,
            2 => 64 + (random >> 32 & 0xfff),
            3 => (random >> 32 & 7) << 16 | (random >> 40 & 63),
            4 => 1,
            5 => BUFFERS as u32 as u64 + (random >> 32 & 0xffff),
            6 => random >> 32 & 0x8087 | (random >> 50 & 0x8087) << 16,
            _ => random >> 32,
        };
        assert!(memory.put(at, &(word as u32).to_le_bytes()));
    }
}

#[test]
fn whatever_a_guest_writes_into_its_ring_and_its_frames_every_buffer_is_accounted_for() {
    use proptest::prelude::*;
    proptest!(ProptestConfig::with_cases(48), |(seed: u64, kind in 0usize..16, layout in 0usize..3)| {
        let (format, features) = kinds()[kind];
        let features = features | feature::CSUM | feature::HOST_TSO4 | feature::HOST_USO | feature::MRG_RXBUF;
        let linear = [TxLinear::None, TxLinear::Header(64), TxLinear::Whole][layout];
        for way in [Way::FromGuest, Way::ToGuest] {
            let mut guest = Guest::new(way, format, features);
            guest.random = Random::new(seed);
            let (mut rx, mut tx) = (guest.rx(), guest.tx());
            rx.set_tx_layout(TxLayout { linear, headroom: 0, tailroom: 0 });
            let bytes = Layout::new(format, SIZE).unwrap().bytes;
            let mut kept = Vec::new();
            for _ in 0..6 {
                let (at, len) = (guest.random.below(bytes as u64) as usize & !3, guest.random.below(400) as usize);
                scribble(&mut guest, at, len.min(bytes - at));
                scribble(&mut guest, (BUFFERS - LOW) as usize, 4096);
                let mut batch = Batch::new();
                match way {
                    Way::FromGuest => _ = rx.rx(&mut batch),
                    Way::ToGuest => {
                        let mut cache = guest.pool.cache(Direction::Tx).unwrap();
                        while let Ok(()) = batch.push(Packet::copy_from(&mut cache, &[5; 900]).unwrap()) {}
                        _ = tx.tx(&mut batch);
                    }
                }
                for packet in batch.drain_front(64) {
                    prop_assert!((14..=65_557).contains(&packet.len()) && packet.to_vec().len() == packet.len());
                    kept.extend((kept.len() < 20).then_some(packet));
                }
            }
            prop_assert!(guest.slot.stop(std::time::Duration::ZERO).is_some());
            drop((kept, rx, tx));
            guest.balances();
        }
    });
}

#[test]
fn a_page_that_stays_out_while_others_go_around_the_ring_is_returned_once_and_after_its_packet() {
    for (format, features) in kinds() {
        if features & IN_ORDER != 0 {
            continue;
        }
        let mut guest = Guest::new(Way::FromGuest, format, features);
        let mut rx = guest.rx();
        let (mut batch, frame) = (Batch::new(), guest.random_bytes(1000));
        let held = guest.send(&with_header(&frame), 1);
        guest.publish();
        assert_eq!(rx.rx(&mut batch), 1);
        let packet = batch.pop().unwrap();
        for _ in 0..3 * SIZE {
            guest.reset();
            let id = guest.send(&with_header(&frame), 1);
            guest.publish();
            assert_eq!(rx.rx(&mut batch), 1);
            batch = Batch::new();
            rx.rx(&mut batch);
            let used: Vec<_> = guest.used().iter().map(|used| used.id).collect();
            assert_eq!(used, [id], "{format:?} {features:#x}, not {held}");
        }
        drop(packet);
        rx.rx(&mut batch);
        assert_eq!(guest.used().iter().map(|used| used.id).collect::<Vec<_>>(), [held]);
    }
}
