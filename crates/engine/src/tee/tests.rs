use super::*;
use crate::route::RouteConfig;
use crate::route::tests::setup;
use proptest::prelude::*;
use std::time::Duration;
use towpath_packet::{Cache, Checksum, Direction, DropReason, GsoKind, Packet, Pool, PoolConfig, Vlan};
use towpath_wire::LinkKind;

/// What a tee shows: the record, and the first bytes.
type Seen = (TeeRecord, Vec<u8>);

fn all(reader: &mut TeeReader) -> Vec<Seen> {
    let mut seen = Vec::new();
    reader.read(usize::MAX, |record, bytes| {
        seen.push((*record, bytes.to_vec()));
        true
    });
    seen
}

fn config(change: impl FnOnce(&mut TeeConfig)) -> TeeConfig {
    let mut config = TeeConfig { ring: 1 << 16, ..TeeConfig::default() };
    change(&mut config);
    config
}

fn slot() -> Arc<TeeSlot> {
    TeeSlot::new(Some(0), Some(1), LinkKind::Ethernet)
}

fn cache() -> Cache {
    Pool::new(PoolConfig::default().capacity(256)).unwrap().cache(Direction::Tx).unwrap()
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(*bytes.first_chunk().unwrap())
}

#[test]
fn received_packets_are_seen_before_verdicts_and_sent_ones_as_the_egress_took_them() {
    let slot = slot();
    let (guard, mut reader) = attach(std::slice::from_ref(&slot), &config(|_| ())).unwrap();
    let (_pool, route) = setup(10, RouteConfig::default());
    let mut route = route.with_tees(slot);
    // The egress takes four, then refuses: those that it takes later are seen once.
    route.tx_mut().room = 4;
    route.turn(false);
    let of = |seen: &[Seen], direction| -> Vec<u32> {
        seen.iter().filter(|(record, _)| record.direction == direction).map(|(_, bytes)| number(bytes)).collect()
    };
    let seen = all(&mut reader);
    assert_eq!(of(&seen, TeeDirection::Received), (0..10).collect::<Vec<_>>());
    assert_eq!(of(&seen, TeeDirection::Sent), [0, 1, 2, 3]);
    assert!(seen.iter().all(|(record, bytes)| record.original == 4 && bytes.len() == 4 && record.time > 0));
    assert!(seen.iter().all(|(record, _)| (record.interface == 1) == (record.direction == TeeDirection::Sent)));
    route.turn(false);
    route.tx_mut().room = usize::MAX;
    route.turn(false);
    assert_eq!(of(&all(&mut reader), TeeDirection::Sent), (4..10).collect::<Vec<_>>());
    assert_eq!(guard.detach(), TeeCounts { matched: 20, missed: 0 });
    assert!(reader.is_closed());
}

#[test]
fn what_is_dropped_is_seen_with_the_reason_by_a_tee_for_drops_alone() {
    let slot = slot();
    let drops = config(|config| (config.rx, config.tx, config.drops) = (false, false, true));
    let (guard, mut reader) = attach(std::slice::from_ref(&slot), &drops).unwrap();
    let (_pool, route) = setup(5, RouteConfig { egress_wait: Duration::ZERO, ..RouteConfig::default() });
    let mut route = route.with_tees(slot);
    route.tx_mut().room = 2;
    route.turn(false);
    route.turn(false);
    let seen = all(&mut reader);
    assert_eq!(seen.iter().map(|(_, bytes)| number(bytes)).collect::<Vec<_>>(), [2, 3, 4]);
    let dropped = TeeDirection::Dropped(DropReason::EgressFull);
    assert!(seen.iter().all(|(record, _)| record.direction == dropped && record.interface == 1), "{seen:?}");
    assert_eq!(guard.counts().matched, 3);
}

#[test]
fn a_filter_and_a_snaplen_leave_the_first_bytes_of_what_matches() {
    let slot = slot();
    let config = config(|config| (config.filter, config.snaplen) = (Some("greater 100".parse().unwrap()), 50));
    let (guard, mut reader) = attach(std::slice::from_ref(&slot), &config).unwrap();
    let mut cache = cache();
    let packets: Vec<_> =
        [20, 100, 300].map(|len| Packet::copy_from(&mut cache, &vec![len as u8; len]).unwrap()).into();
    slot.received(&packets);
    let seen = all(&mut reader);
    let expected: Vec<_> = [(100, vec![100; 50]), (300, vec![44; 50])].into();
    assert_eq!(seen.into_iter().map(|(record, bytes)| (record.original, bytes)).collect::<Vec<_>>(), expected);
    assert_eq!(guard.counts(), TeeCounts { matched: 2, missed: 0 });
}

#[test]
fn a_full_ring_costs_records_which_are_counted() {
    let slot = slot();
    let (guard, mut reader) = attach(std::slice::from_ref(&slot), &config(|_| ())).unwrap();
    let mut cache = cache();
    let packets: Vec<_> = (0..50).map(|_| Packet::copy_from(&mut cache, &[7; 1000]).unwrap()).collect();
    for _ in 0..4 {
        slot.received(&packets);
        slot.sending(&packets);
        slot.sent(30);
    }
    let seen = all(&mut reader).len() as u64;
    let counts = guard.detach();
    assert_eq!((counts.matched, counts.matched - counts.missed), (4 * 80, seen));
    assert!(seen > 0 && counts.missed > 0, "{counts:?}");
}

#[test]
fn no_more_tees_are_attached_than_there_may_be_and_a_detached_one_gives_its_place_back() {
    let slots = [slot(), slot()];
    let mut guards: Vec<_> = (0..MAX_TEES).map(|_| attach(&slots, &config(|_| ())).unwrap()).collect();
    assert!(matches!(attach(&slots, &config(|_| ())), Err(TeeError::TooMany)));
    guards.pop();
    let (_guard, mut reader) = attach(&slots, &config(|_| ())).unwrap();
    assert!(!reader.is_closed());
    drop(guards);
    assert!(slots.iter().all(|slot| slot.has_rx() && slot.has_tx()));
    drop(_guard);
    assert!(slots.iter().all(|slot| !slot.has_rx() && !slot.has_tx()));
    for (change, part) in [
        (config(|config| config.snaplen = 0), "snaplen=0"),
        (config(|config| config.ring = 10), "ring=10"),
        (config(|config| (config.rx, config.tx) = (false, false)), "at="),
    ] {
        assert!(attach(&slots, &change).unwrap_err().to_string().contains(part));
    }
}

#[test]
fn only_the_interfaces_that_are_asked_for_are_seen() {
    let slot = slot();
    let (guard, _reader) = attach(std::slice::from_ref(&slot), &config(|config| config.interfaces = 0b10)).unwrap();
    assert!(slot.has_tx() && !slot.has_rx());
    drop(guard);
    let lane = TeeSlot::new(None, Some(1), LinkKind::Ethernet);
    let (_guard, _reader) = attach(std::slice::from_ref(&lane), &config(|config| config.interfaces = 0b01)).unwrap();
    assert!(!lane.has_tx() && !lane.has_rx());
}

#[test]
fn a_tee_that_comes_and_goes_under_traffic_counts_all_that_it_shows() {
    let slot = slot();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (path, ended) = (slot.clone(), stop.clone());
    let thread = std::thread::spawn(move || {
        let mut cache = cache();
        let packets: Vec<_> = (0..32).map(|_| Packet::copy_from(&mut cache, &[1; 64]).unwrap()).collect();
        while !ended.load(Relaxed) {
            if path.has_rx() {
                path.received(&packets);
            }
            std::thread::yield_now();
        }
    });
    for _ in 0..200 {
        let (guard, mut reader) = attach(std::slice::from_ref(&slot), &config(|_| ())).unwrap();
        let mut shown = all(&mut reader).len() as u64;
        let counts = guard.detach();
        while !reader.is_closed() {
            shown += all(&mut reader).len() as u64;
        }
        assert_eq!(counts.matched, shown + counts.missed);
    }
    stop.store(true, Relaxed);
    thread.join().unwrap();
}

proptest! {
    #[test]
    fn what_is_noted_about_a_packet_is_read_again(
        len in 60usize..400, tci: Option<u16>, service: bool, partial in proptest::option::of((0u16..40, 0u8..20)),
        size in proptest::option::of(1u16..1400), interface in 0u8..64,
    ) {
        let mut packet = Packet::copy_from(&mut cache(), &vec![5; len]).unwrap();
        let vlan = tci.map(|tci| Vlan { tci, service });
        packet.set_vlan(vlan);
        let csum = partial.map_or(Checksum::Unknown, |(start, offset)| Checksum::Partial { start, offset });
        packet.set_csum(csum);
        let gso = size.map(|size| towpath_packet::Gso { kind: GsoKind::Tcp6, ecn: false, size, segs: 0, hdr_len: 54 });
        packet.set_gso(gso);
        let slot = TeeSlot::new(Some(interface), None, LinkKind::Ethernet);
        let (_guard, mut reader) = attach(std::slice::from_ref(&slot), &config(|_| ())).unwrap();
        slot.received(std::slice::from_ref(&packet));
        let (record, bytes) = all(&mut reader).pop().unwrap();
        prop_assert_eq!(bytes, packet.to_vec());
        prop_assert_eq!((record.original, record.interface, record.vlan), (len as u32, interface, vlan));
        prop_assert_eq!((record.csum, record.direction), (packet.csum(), TeeDirection::Received));
        prop_assert_eq!(record.gso, size.map(|size| (GsoKind::Tcp6, size)));
    }
}
