//! Packets against a model that is a plain vector of bytes.

use super::chain::chained;
use super::*;
use crate::offload::{Checksum, Gso, GsoKind, Vlan};
use crate::{Backing, Direction, Pool, PoolConfig};
use proptest::prelude::*;

fn cache() -> Cache {
    let config = PoolConfig::default().capacity(512).chunk(128).headroom(32).backing(Backing::Anonymous);
    Pool::new(config).unwrap().cache(Direction::Tx).unwrap()
}

impl Packet {
    /// Whether the first fragment names the last one, as found by walking.
    fn knows_its_last(&self) -> bool {
        let Some(first) = chained(self.meta()) else { return true };
        let mut last = first;
        while let Some(next) = chained(last) {
            last = next;
        }
        // SAFETY: in a first fragment the field is the last one of the chain.
        std::ptr::eq(unsafe { first.stamp.last }, last)
    }
}

#[test]
fn a_duplicate_has_the_same_bytes_and_all_metadata() {
    let mut cache = cache();
    let bytes: Vec<u8> = (0..=255).collect();
    let mut packet = Packet::copy_from(&mut cache, &bytes).unwrap();
    let gso = Some(Gso { kind: GsoKind::Tcp6, ecn: true, size: 60, segs: 4, hdr_len: 54 });
    let (csum, vlan) = (Checksum::Partial { start: 34, offset: 16 }, Some(Vlan { tci: 7, service: true }));
    packet.set_gso(gso);
    packet.set_csum(csum);
    packet.set_vlan(vlan);
    packet.set_flow_hash(0xfeed);
    packet.set_timestamp(1 << 40);
    packet.set_ingress(3, 2);
    packet.set_lane(Some(5));
    let copy = packet.duplicate(&mut cache).unwrap();
    drop(packet);
    assert_eq!(copy.to_vec(), bytes);
    assert_eq!((copy.gso(), copy.csum(), copy.vlan()), (gso, csum, vlan));
    assert_eq!((copy.flow_hash(), copy.timestamp()), (Some(0xfeed), 1 << 40));
    assert_eq!((copy.ingress(), copy.lane()), ((3, 2), Some(5)));
    assert!(copy.knows_its_last());
}

#[test]
fn headers_are_pushed_into_the_headroom_and_pulled_again() {
    let mut p = Packet::copy_from(&mut cache(), b"payload").unwrap();
    p.push_front(4).unwrap().copy_from_slice(b"head");
    assert_eq!(p.linear(), b"headpayload");
    assert_eq!(p.push_front(29), Err(NoRoom));
    assert_eq!(p.push_front_array([0; 29]), Err(NoRoom));
    assert!(p.pull_front(4));
    // The same bytes as those that lie there, and others.
    for head in [*b"head", *b"tail"] {
        p.push_front_array(head).unwrap();
        assert_eq!(p.linear(), [&head[..], b"payload"].concat());
        assert!(p.pull_front(4));
    }
    assert!(p.pull_front(2));
    assert_eq!(p.linear(), b"yload");
    assert!(!p.pull_front(6));
    assert_eq!(p.len(), 5);
}

#[test]
fn bytes_are_added_by_an_array_that_may_be_longer_and_must_have_room() {
    let mut cache = cache();
    let mut packet = Packet::copy_from(&mut cache, b"front").unwrap();
    assert_eq!(packet.tailroom(), 91);
    assert_eq!(packet.push_back_array::<92>(1), Err(NoRoom));
    assert_eq!(packet.push_back_array::<1>(92), Err(NoRoom));
    packet.push_back_array::<91>(3).unwrap()[..4].copy_from_slice(b"more");
    assert_eq!((packet.linear(), packet.len(), packet.tailroom()), (&b"frontmor"[..], 8, 88));
    let frag = Packet::copy_from(&mut cache, b"x").unwrap();
    packet.append(frag).unwrap();
    assert_eq!(packet.push_back_array::<1>(1), Err(NoRoom), "a fragment follows");
}

#[test]
fn only_bytes_in_one_piece_are_an_only_chunk() {
    let mut cache = cache();
    let len = |packet: &Packet| packet.only_chunk().map(|chunk| chunk.len());
    let (mut empty, mut packet) = (cache.alloc().unwrap(), Packet::copy_from(&mut cache, b"front").unwrap());
    assert_eq!((len(&empty), len(&packet)), (None, Some(5)));
    packet.append(Packet::copy_from(&mut cache, b"x").unwrap()).unwrap();
    empty.append(Packet::copy_from(&mut cache, b"xyz").unwrap()).unwrap();
    assert_eq!((len(&packet), len(&empty)), (None, Some(3)), "an empty head does not count");
}

#[test]
fn bytes_longer_than_a_chunk_are_chained() {
    let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let p = Packet::copy_from(&mut cache(), &bytes).unwrap();
    assert_eq!((p.len(), p.frags()), (1000, 10));
    assert_eq!(p.to_vec(), bytes);
    assert_eq!(p.chunks().map(|c| c.len()).sum::<usize>(), 1000);
}

#[test]
fn an_appended_packet_with_an_empty_head_leaves_no_empty_fragment() {
    let mut cache = cache();
    let mut p = cache.alloc().unwrap();
    let mut q = cache.alloc().unwrap();
    q.append(Packet::copy_from(&mut cache, b"x").unwrap()).unwrap();
    p.append(q).unwrap();
    p.append(cache.alloc().unwrap()).unwrap();
    assert_eq!((p.linear().len(), p.frags(), p.to_vec()), (0, 1, b"x".to_vec()));
    assert!(p.chunks().all(|c| !c.is_empty()));
}

#[test]
fn a_packet_is_appended_without_its_first_bytes_whether_it_is_a_chain_or_not() {
    let mut cache = cache();
    for len in [40, 200] {
        let bytes: Vec<u8> = (0..len).collect();
        for skip in 0..=usize::from(len) {
            let mut p = Packet::copy_from(&mut cache, b"head").unwrap();
            match p.append_from(Packet::copy_from(&mut cache, &bytes).unwrap(), skip) {
                Ok(()) => assert_eq!(p.to_vec(), [b"head", &bytes[skip..]].concat()),
                Err(back) => assert_eq!((skip, back.to_vec()), (bytes.len(), bytes.clone())),
            }
            p.append_from(Packet::copy_from(&mut cache, b"more").unwrap(), 2).unwrap();
            assert!(p.to_vec().ends_with(b"re") && p.knows_its_last());
        }
    }
}

#[test]
fn more_fragments_than_allowed_are_returned() {
    let mut cache = cache();
    let mut p = cache.alloc().unwrap();
    for _ in 0..MAX_FRAGS {
        p.append(Packet::copy_from(&mut cache, b"x").unwrap()).unwrap();
    }
    let back = p.append(Packet::copy_from(&mut cache, b"y").unwrap()).unwrap_err();
    assert_eq!((back.to_vec(), p.len()), (b"y".to_vec(), MAX_FRAGS));
}

#[test]
fn a_partial_checksum_keeps_its_place_when_headers_come_and_go() {
    let mut p = Packet::copy_from(&mut cache(), &[0; 60]).unwrap();
    p.set_csum(Checksum::Partial { start: 34, offset: 16 });
    p.push_front(4).unwrap();
    assert_eq!(p.csum(), Checksum::Partial { start: 38, offset: 16 });
    assert!(p.pull_front(18));
    assert_eq!(p.csum(), Checksum::Partial { start: 20, offset: 16 });
    assert!(p.pull_front(21));
    assert_eq!(p.csum(), Checksum::Unknown);
}

#[test]
fn a_tag_is_inserted_between_the_addresses_and_the_type() {
    let mut cache = cache();
    let bytes: Vec<u8> = (0..20).collect();
    let (inner, outer) = (Vlan { tci: 0x2005, service: false }, Vlan { tci: 0x300a, service: true });
    let mut p = Packet::copy_from(&mut cache, &bytes).unwrap();
    p.set_csum(Checksum::Partial { start: 14, offset: 2 });
    for vlan in [inner, outer] {
        p.set_vlan(Some(vlan));
        assert_eq!(p.insert_vlan(vlan), Ok(()));
    }
    let expected = [&bytes[..12], &[0x88, 0xa8, 0x30, 0x0a, 0x81, 0x00, 0x20, 0x05], &bytes[12..]].concat();
    assert_eq!((p.to_vec(), p.vlan()), (expected, None));
    assert_eq!(p.csum(), Checksum::Partial { start: 22, offset: 2 });
}

#[test]
fn a_frame_without_headroom_or_addresses_stays_without_a_tag() {
    let mut cache = cache();
    let tag = Vlan { tci: 5, service: false };
    for (headroom, len) in [(3, 20), (4, 11)] {
        let mut p = cache.alloc().unwrap();
        p.set_headroom(headroom).unwrap();
        p.push_back(len).unwrap().fill(7);
        p.set_vlan(Some(tag));
        assert_eq!(p.insert_vlan(tag), Err(NoRoom), "{headroom} {len}");
        assert_eq!((p.to_vec(), p.vlan()), (vec![7; len], Some(tag)));
    }
}

#[test]
fn metadata_is_what_was_set_and_a_reused_chunk_has_none() {
    let mut cache = cache();
    let gso = Gso { kind: GsoKind::Tcp6, ecn: true, size: 1440, segs: 3, hdr_len: 74 };
    let vlan = Vlan { tci: 0x2001, service: true };
    let mut p = cache.alloc().unwrap();
    p.set_gso(Some(gso));
    p.set_vlan(Some(vlan));
    p.set_csum(Checksum::Verified);
    p.set_flow_hash(9);
    p.set_ingress(3, 4);
    p.set_timestamp(5);
    assert_eq!((p.gso(), p.vlan(), p.csum()), (Some(gso), Some(vlan), Checksum::Verified));
    assert_eq!((p.flow_hash(), p.ingress(), p.timestamp()), (Some(9), (3, 4), 5));
    assert!(p.wants_offload());
    cache.free(p);
    let p = cache.alloc().unwrap();
    assert_eq!((p.gso(), p.vlan(), p.csum()), (None, None, Checksum::Unknown));
    assert_eq!((p.flow_hash(), p.ingress(), p.timestamp()), (None, (0, 0), 0));
}

#[derive(Debug, Clone)]
enum Op {
    PushFront(usize),
    PullFront(usize),
    PushBack(usize),
    Truncate(usize),
    MakeLinear(usize),
    Append(usize),
    AppendOf(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0usize..40).prop_map(Op::PushFront),
        (0usize..200).prop_map(Op::PullFront),
        (0usize..60).prop_map(Op::PushBack),
        (0usize..400).prop_map(Op::Truncate),
        (0usize..140).prop_map(Op::MakeLinear),
        (0usize..300).prop_map(Op::Append),
        (0usize..300).prop_map(Op::AppendOf),
    ]
}

proptest! {
    #[test]
    fn a_packet_is_a_string_of_bytes(ops in proptest::collection::vec(op(), 0..40)) {
        let config = PoolConfig::default().capacity(512).chunk(128).headroom(32).backing(Backing::Anonymous);
        let pool = Pool::new(config).unwrap();
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let mut p = cache.alloc().unwrap();
        let mut model: Vec<u8> = Vec::new();
        let mut next = 0u8;
        let mut fresh = |n: usize| -> Vec<u8> { (0..n).map(|_| { next = next.wrapping_add(1); next }).collect() };
        for op in ops {
            match op {
                Op::PushFront(n) => {
                    let (room, bytes) = (p.headroom(), fresh(n));
                    match p.push_front(n) {
                        Ok(to) => { to.copy_from_slice(&bytes); model.splice(0..0, bytes); }
                        Err(NoRoom) => prop_assert!(n > room),
                    }
                }
                Op::PullFront(n) => {
                    prop_assert_eq!(p.pull_front(n), n <= model.len());
                    if n <= model.len() { model.drain(..n); }
                }
                Op::PushBack(n) => {
                    let (room, frags, bytes) = (p.tailroom(), p.frags(), fresh(n));
                    match p.push_back(n) {
                        Ok(to) => { to.copy_from_slice(&bytes); model.extend(bytes); }
                        Err(NoRoom) => prop_assert!(n > room || frags > 0),
                    }
                }
                Op::Truncate(n) => { p.truncate(n); model.truncate(n); }
                Op::MakeLinear(n) => {
                    let (had, room) = (p.linear().len(), p.tailroom());
                    match p.make_linear(n) {
                        Ok(()) => prop_assert!(p.linear().len() >= n),
                        Err(NoRoom) => prop_assert!(n > model.len() || n - had > room),
                    }
                }
                Op::Append(n) => {
                    let bytes = fresh(n);
                    if let Some(other) = Packet::copy_from(&mut cache, &bytes)
                        && p.append(other).is_ok() { model.extend(bytes); }
                }
                Op::AppendOf(n) => {
                    // A packet whose bytes are all in fragments, like one made of an application's
                    // pages.
                    let bytes = fresh(n);
                    let other = (cache.alloc(), Packet::copy_from(&mut cache, &bytes));
                    if let (Some(mut other), Some(body)) = other {
                        let _ = other.append(body);
                        if p.append(other).is_ok() { model.extend(bytes); }
                    }
                }
            }
            prop_assert_eq!(p.len(), model.len());
            prop_assert_eq!(p.to_vec(), &model[..]);
            prop_assert_eq!(p.chunks().filter(|c| c.is_empty()).count(), 0);
            prop_assert!(p.knows_its_last());
            let linear = usize::from(!p.linear().is_empty());
            prop_assert_eq!(p.chunks().count(), p.frags() + linear);
        }
        drop((p, cache));
        prop_assert_eq!(pool.stats().free, 512);
    }
}
