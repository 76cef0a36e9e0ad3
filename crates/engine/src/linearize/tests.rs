use super::*;
use proptest::prelude::*;
use towpath_packet::{Backing, Checksum, Direction, Gso, GsoKind, IndirectPool, Pool, PoolConfig, SharedBuf, Vlan};

const CHUNK: usize = 2048;

struct Rig {
    pool: Pool,
    cache: Cache,
    views: IndirectPool,
    counters: Arc<Counters>,
}

fn rig(capacity: usize) -> Rig {
    let config = PoolConfig::default().capacity(capacity).chunk(CHUNK).backing(Backing::Anonymous);
    let pool = Pool::new(config).unwrap();
    let cache = pool.cache(Direction::Tx).unwrap();
    Rig { pool, cache, views: IndirectPool::new(256).unwrap(), counters: Arc::default() }
}

impl Rig {
    /// A packet with `linear` linear bytes and indirect fragments, as packets of applications have.
    fn packet(&mut self, linear: usize, frags: &[usize]) -> Packet {
        let mut packet = self.cache.alloc().unwrap();
        let mut next = 0u8;
        let mut fill = |bytes: &mut [u8]| {
            for byte in bytes {
                *byte = next;
                next = next.wrapping_add(1);
            }
        };
        fill(packet.push_back(linear).unwrap());
        for &len in frags {
            let mut page = self.cache.alloc().unwrap();
            fill(page.push_back(len).unwrap());
            let page = SharedBuf::new(page.into_linear_buf().unwrap());
            packet.append_buf(page.slice(0, len, &mut self.views).unwrap()).unwrap();
        }
        packet
    }

    fn linearize(&mut self, egress: TxLayout, packets: impl IntoIterator<Item = Packet>) -> Batch {
        let mut batch = Batch::new();
        packets.into_iter().for_each(|packet| batch.push(packet).unwrap());
        Linearizer::new(egress, self.counters.clone()).unwrap().linearize(&mut batch, &mut self.cache);
        batch
    }

    fn copied(&self) -> (u64, u64) {
        let counted = self.counters.snapshot();
        (counted.copied, counted.copied_bytes)
    }
}

fn layout(linear: TxLinear) -> TxLayout {
    TxLayout { linear, ..TxLayout::default() }
}

#[test]
fn an_egress_that_takes_fragments_gets_packets_untouched() {
    assert!(Linearizer::new(TxLayout::default(), Arc::default()).is_none());
}

#[test]
fn of_a_page_only_the_headers_are_copied_and_the_rest_stays_where_it_is() {
    let mut rig = rig(64);
    let packet = rig.packet(0, &[1000]);
    let page = packet.chunks().next().unwrap().as_ptr();
    let batch = rig.linearize(layout(TxLinear::Header(128)), [packet]);
    let chunks: Vec<_> = batch.as_slice()[0].chunks().map(|chunk| (chunk.as_ptr(), chunk.len())).collect();
    assert_eq!((chunks[0].1, chunks[1]), (128, (page.wrapping_add(128), 872)));
    assert_eq!(rig.copied(), (1, 128));
}

#[test]
fn a_whole_copy_has_exactly_the_headroom_and_at_least_the_tailroom_that_are_asked_for() {
    let mut rig = rig(64);
    let room = CHUNK - 37 - 11;
    let egress = TxLayout { linear: TxLinear::Whole, headroom: 37, tailroom: 11 };
    let packets =
        [rig.packet(0, &[700, 300]), rig.packet(20, &[1000, room - 1020]), rig.packet(20, &[1000, room - 1019])];
    let batch = rig.linearize(egress, packets);
    let found: Vec<_> = batch.iter().map(|packet| (packet.headroom(), packet.frags(), packet.len())).collect();
    assert_eq!(found, [(37, 0, 1000), (37, 0, room)]);
    assert!(batch.iter().all(|packet| packet.tailroom() >= 11));
    assert_eq!(rig.counters.snapshot().dropped(DropReason::TooLong), 1, "one byte too many");
    assert_eq!(rig.copied(), (2, 1000 + room as u64));
}

#[test]
fn a_conforming_packet_is_not_copied() {
    let mut rig = rig(64);
    let egress = TxLayout { linear: TxLinear::Whole, headroom: 64, tailroom: 64 };
    let packet = rig.packet(500, &[]);
    let at = packet.linear().as_ptr();
    let batch = rig.linearize(egress, [packet]);
    assert_eq!((batch.as_slice()[0].linear().as_ptr(), rig.copied()), (at, (0, 0)));
}

#[test]
fn without_a_buffer_the_packet_is_dropped_by_name() {
    let mut rig = rig(32);
    let packet = rig.packet(0, &[100]);
    let hoard: Vec<_> = std::iter::from_fn(|| rig.cache.alloc()).collect();
    assert!(rig.linearize(layout(TxLinear::Whole), [packet]).is_empty());
    assert_eq!(rig.counters.snapshot().dropped(DropReason::NoBuffer), 1);
    drop(hoard);
}

fn egresses() -> impl Strategy<Value = TxLayout> {
    let linear = prop_oneof![Just(TxLinear::None), Just(TxLinear::Whole), (1..300u16).prop_map(TxLinear::Header),];
    (linear, 0..300u16, prop_oneof![Just(0), 0..300u16]).prop_map(|(linear, headroom, tailroom)| TxLayout {
        linear,
        headroom,
        tailroom,
    })
}

proptest! {
    #[test]
    fn every_packet_keeps_its_bytes_and_what_it_asks_for_and_fits(
        egress in egresses(),
        shapes in prop::collection::vec((0..200usize, prop::collection::vec(1..300usize, 0..4)), 1..8),
    ) {
        prop_assume!(egress != TxLayout::default());
        let mut rig = rig(256);
        let (mut expected, mut packets) = (Vec::new(), Vec::new());
        for (linear, frags) in shapes.iter().filter(|(linear, frags)| linear + frags.len() > 0) {
            let mut packet = rig.packet(*linear, frags);
            packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
            packet.set_gso(Some(Gso { kind: GsoKind::Udp, ecn: false, size: 100, segs: 3, hdr_len: 42 }));
            packet.set_vlan(Some(Vlan { tci: 5, service: false }));
            packet.set_flow_hash(77);
            packet.set_ingress(1, 2);
            expected.push(packet.to_vec());
            packets.push(packet);
        }
        let batch = rig.linearize(egress, packets);
        prop_assert_eq!(batch.len(), expected.len());
        for (packet, bytes) in batch.iter().zip(&expected) {
            prop_assert_eq!(&packet.to_vec(), bytes);
            prop_assert!(conforms(egress, packet), "{:?} {:?}", egress, packet);
            prop_assert_eq!(packet.csum(), Checksum::Partial { start: 34, offset: 6 });
            prop_assert_eq!(packet.gso().map(|gso| gso.size), Some(100));
            prop_assert_eq!((packet.vlan().map(|vlan| vlan.tci), packet.flow_hash(), packet.ingress()), (Some(5), Some(77), (1, 2)));
        }
        drop(batch);
        let Rig { pool, cache, .. } = rig;
        drop(cache);
        prop_assert_eq!(pool.stats().free, pool.stats().capacity);
    }
}

#[test]
fn bytes_that_a_packet_owns_are_copied_as_far_as_the_egress_asks_and_freed_or_left_in_place() {
    for (egress, copied) in [
        (TxLayout { headroom: 32, ..layout(TxLinear::None) }, 0),
        (layout(TxLinear::Header(54)), 54),
        (TxLayout { headroom: 32, ..layout(TxLinear::Header(54)) }, 54),
        (layout(TxLinear::Whole), 300),
    ] {
        let mut rig = rig(64);
        let bytes: Arc<[u8]> = (0..300).map(|i| i as u8).collect();
        let batch = rig.linearize(egress, [Packet::from_owner(bytes.clone()).unwrap()]);
        let packet = &batch.as_slice()[0];
        assert_eq!((packet.to_vec().as_slice(), packet.linear().len()), (&bytes[..], copied), "{egress:?}");
        assert!(packet.headroom() >= egress.headroom.into());
        let rest = packet.chunks().last().filter(|_| copied < 300).map(|piece| piece.as_ptr());
        assert_eq!(rest, bytes.get(copied..).filter(|rest| !rest.is_empty()).map(|rest| rest.as_ptr()));
        assert_eq!(Arc::strong_count(&bytes), 1 + usize::from(copied < 300));
        assert_eq!(rig.copied().1, copied as u64);
        drop(batch);
        assert_eq!(Arc::strong_count(&bytes), 1);
    }
}
