use super::*;
use towpath_packet::{Backing, Direction, Gso, GsoKind, Pool, PoolConfig, Vlan};
use towpath_wire::LinkKind;
use towpath_wire::verify::{Check, verify};

fn setup() -> (Pool, SoftwareOffload) {
    let config = PoolConfig::default().capacity(512).backing(Backing::Anonymous);
    let pool = Pool::new(config).unwrap();
    let cache = pool.cache(Direction::Tx).unwrap();
    (pool, SoftwareOffload::new(cache, LinkKind::Ethernet, Arc::default()))
}

/// Ethernet, IPv4, TCP without options, `payload` bytes; the checksum partial.
fn tcp(payload: usize) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let mut ip = vec![0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 19, 0, 1];
    ip[2..4].copy_from_slice(&(40 + payload as u16).to_be_bytes());
    let check = !towpath_wire::checksum::sum(&ip);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    f.extend(ip);
    let mut tcp = vec![0x10, 0, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    let pseudo =
        towpath_wire::checksum::pseudo_v4([198, 18, 0, 1].into(), [198, 19, 0, 1].into(), 6, 20 + payload as u32);
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
    f.extend(tcp);
    f.extend((0..payload).map(|i| (i * 7) as u8));
    f
}

fn good(frame: &[u8]) -> bool {
    let verdict = verify(frame, LinkKind::Ethernet);
    verdict.network == Check::Good && verdict.transport == Check::Good
}

fn run(offload: &mut SoftwareOffload, packet: Packet, can: Offloads) -> Vec<Packet> {
    let (mut from, mut out) = (Batch::new(), Vec::new());
    from.push(packet).unwrap();
    loop {
        let mut to = Batch::new();
        offload.apply(&mut from, &mut to, can);
        if to.is_empty() {
            return out;
        }
        out.extend(to.drain_front(64));
    }
}

fn partial(offload: &mut SoftwareOffload, payload: usize) -> Packet {
    let mut p = Packet::copy_from(offload.cache(), &tcp(payload)).unwrap();
    p.set_csum(Checksum::Partial { start: 34, offset: 16 });
    p
}

fn super_packet(offload: &mut SoftwareOffload, payload: usize, size: u16) -> Packet {
    let mut p = partial(offload, payload);
    p.set_gso(Some(Gso { kind: GsoKind::Tcp4, ecn: false, size, segs: 0, hdr_len: 54 }));
    p
}

#[test]
fn a_packet_that_the_egress_can_take_is_not_touched() {
    let (_pool, mut f) = setup();
    let p = super_packet(&mut f, 5000, 1448);
    let out = run(&mut f, p, Offloads::ALL);
    assert_eq!((out.len(), out[0].to_vec()), (1, tcp(5000)));
    assert!(out[0].gso().is_some());
}

#[test]
fn a_partial_checksum_is_completed_across_fragments_of_any_length() {
    for payload in [0, 1, 2, 1460, 1867, 1868, 5001] {
        let (_pool, mut f) = setup();
        let p = partial(&mut f, payload);
        let out = run(&mut f, p, Offloads::NONE);
        assert_eq!(out.len(), 1);
        assert!(good(&out[0].to_vec()), "payload of {payload}");
        assert_eq!(out[0].csum(), Checksum::Unknown);
    }
}

#[test]
fn a_super_packet_becomes_segments_that_carry_its_bytes() {
    for (size, can) in [(1448, Offloads::NONE), (1448, Offloads::CSUM), (8948, Offloads::NONE), (8, Offloads::NONE)] {
        let (pool, mut f) = setup();
        let payload = if size == 8 { 3000 } else { 40_001 };
        let p = super_packet(&mut f, payload, size);
        let out = run(&mut f, p, can);
        assert_eq!(out.len(), payload.div_ceil(usize::from(size)), "size {size}");
        let mut bytes = Vec::new();
        for p in &out {
            assert_eq!(p.csum() == Checksum::Unknown, can.is_none());
            let frame = p.to_vec();
            assert!(!can.is_none() || good(&frame));
            bytes.extend_from_slice(&frame[54..]);
        }
        assert_eq!(bytes, tcp(payload)[54..]);
        assert_eq!(f.counters.snapshot().split, out.len() as u64 - 1);
        drop((out, f));
        assert_eq!(pool.stats().free, 512);
    }
}

#[test]
fn a_tag_in_the_metadata_is_inserted_behind_the_addresses() {
    for headroom in [true, false] {
        let (_pool, mut f) = setup();
        let mut p = partial(&mut f, 100);
        if !headroom {
            let room = p.headroom();
            let bytes = p.to_vec();
            p.push_front(room).unwrap();
            p.linear_mut()[..bytes.len()].copy_from_slice(&bytes);
            p.truncate(bytes.len());
            p.set_csum(Checksum::Partial { start: 34, offset: 16 });
        }
        p.set_vlan(Some(Vlan { tci: 0x2064, service: false }));
        let out = run(&mut f, p, Offloads::NONE);
        let frame = out[0].to_vec();
        assert_eq!(frame[12..16], [0x81, 0, 0x20, 0x64]);
        assert_eq!(frame.len(), 14 + 4 + 40 + 100);
        assert!(good(&frame), "headroom {headroom}");
    }
}

#[test]
fn a_tag_in_a_super_packet_moves_what_its_offloads_point_to() {
    for headroom in [true, false] {
        let (_pool, mut f) = setup();
        let mut p = super_packet(&mut f, 3000, 1000);
        let (before, start) = (p.gso().unwrap().hdr_len, 34);
        if !headroom {
            assert!(p.linear().len() >= 14);
            let mut tight = f.cache().alloc().unwrap();
            tight.set_headroom(0).unwrap();
            tight.push_back(54).unwrap().copy_from_slice(&p.to_vec()[..54]);
            tight.copy_metadata_from(&p);
            p.pull_front(54);
            tight.append(p).unwrap();
            p = tight;
        }
        p.set_vlan(Some(Vlan { tci: 5, service: false }));
        let out = run(&mut f, p, Offloads::CSUM.with(Offloads::TSO4));
        assert_eq!((out.len(), out[0].gso().unwrap().hdr_len), (1, before + 4), "headroom {headroom}");
        assert_eq!(out[0].csum(), Checksum::Partial { start: start + 4, offset: 16 }, "headroom {headroom}");
    }
}

#[test]
fn a_super_packet_with_a_tag_is_cut_into_tagged_segments() {
    let (_pool, mut f) = setup();
    let mut p = super_packet(&mut f, 3000, 1000);
    p.set_vlan(Some(Vlan { tci: 5, service: true }));
    let out = run(&mut f, p, Offloads::NONE);
    assert_eq!(out.len(), 3);
    for p in &out {
        assert_eq!(p.to_vec()[12..14], [0x88, 0xa8]);
        assert!(good(&p.to_vec()));
    }
}

#[test]
fn inconsistent_metadata_is_dropped_and_counted() {
    let (pool, mut f) = setup();
    let mut nonsense = Vec::new();
    let mut p = partial(&mut f, 10);
    p.set_csum(Checksum::Partial { start: 60, offset: 16 });
    nonsense.push(p);
    for size in [0, 1, 65535] {
        let mut p = super_packet(&mut f, 3000, size);
        if size == 65535 {
            p.truncate(20);
        }
        nonsense.push(p);
    }
    let n = nonsense.len() as u64;
    for p in nonsense {
        assert!(run(&mut f, p, Offloads::NONE).is_empty());
    }
    assert_eq!(f.counters.snapshot().dropped(DropReason::Malformed), n);
    drop(f);
    assert_eq!(pool.stats().free, 512);
}

#[test]
fn an_empty_pool_loses_segments_but_no_order_and_every_loss_is_counted() {
    let config = PoolConfig::default().capacity(40).backing(Backing::Anonymous);
    let pool = Pool::new(config).unwrap();
    let mut f = SoftwareOffload::new(pool.cache(Direction::Tx).unwrap(), LinkKind::Ethernet, Arc::default());
    let p = super_packet(&mut f, 40_000, 1000);
    let out = run(&mut f, p, Offloads::NONE);
    let s = f.counters.snapshot();
    assert!(out.len() < 40);
    assert_eq!(out.len() as u64 + s.dropped(DropReason::NoBuffer), s.split + 1);
}

struct NoOwner;
impl towpath_packet::ExtBufOwner for NoOwner {
    fn on_free(&self) {}
}

#[test]
fn headers_changed_in_a_page_are_written_in_front_of_it() {
    let (pool, mut offload) = setup();
    let memory = towpath_packet::UntrustedMem::new(towpath_packet::Region::new(4096, Backing::Memfd).unwrap());
    let bytes = tcp(100);
    assert!(memory.put(0, &bytes));
    let mut pages = towpath_packet::ExtBufPool::new(4, memory.clone(), Arc::new(NoOwner)).unwrap();
    let mut packet = pages.packet(0, bytes.len(), 7).unwrap();
    packet.set_csum(Checksum::Partial { start: 34, offset: 16 });
    packet.set_vlan(Some(Vlan { tci: 9, service: false }));
    let out = run(&mut offload, packet, Offloads::NONE);
    let frame = out[0].to_vec();
    assert_eq!(&frame[12..16], &[0x81, 0, 0, 9]);
    assert!(good(&frame) && frame.len() == bytes.len() + 4);
    assert_eq!(memory.get(0), Some([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]), "the page is as it was");
    // Without a buffer for a head it can't be.
    let mut hoard = Vec::new();
    while let Some(packet) = offload.cache().alloc() {
        hoard.push(packet);
    }
    let mut packet = pages.packet(0, bytes.len(), 8).unwrap();
    packet.set_csum(Checksum::Partial { start: 34, offset: 16 });
    assert!(run(&mut offload, packet, Offloads::NONE).is_empty());
    assert_eq!(offload.counters.snapshot().dropped(DropReason::NoBuffer), 1);
    drop((out, hoard));
    let mut returned = Vec::new();
    pages.drain_freed(8, |token, _| returned.push(token));
    returned.sort_unstable();
    assert_eq!(returned, [7, 8]);
    drop(offload);
    assert_eq!(pool.stats().free, pool.stats().capacity);
}

#[test]
fn bytes_that_a_packet_owns_are_summed_and_split_where_they_lie() {
    let (pool, mut f) = setup();
    let payload: Arc<[u8]> = tcp(40_001)[54..].into();
    let packet = |f: &mut SoftwareOffload, gso| {
        let mut packet = Packet::copy_from(f.cache(), &tcp(40_001)[..54]).unwrap();
        packet.set_csum(Checksum::Partial { start: 34, offset: 16 });
        packet.set_gso(gso);
        packet.append(Packet::from_owner(payload.clone()).unwrap()).unwrap();
        packet
    };
    let whole = packet(&mut f, None);
    let whole = run(&mut f, whole, Offloads::NONE).remove(0);
    assert!(good(&whole.to_vec()));
    assert_eq!(whole.chunks().nth(1).map(|piece| piece.as_ptr()), Some(payload.as_ptr()));
    drop(whole);
    let split = packet(&mut f, Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 1448, segs: 0, hdr_len: 54 }));
    let out = run(&mut f, split, Offloads::NONE);
    assert!(out.len() == 28 && out.iter().all(|segment| good(&segment.to_vec())));
    assert!(out.iter().flat_map(|segment| segment.to_vec().split_off(54)).eq(payload.iter().copied()));
    assert!(f.snapshot.iter().chain(&f.scratch).all(|&byte| byte == 0), "nothing is copied but into segments");
    assert_eq!(Arc::strong_count(&payload), 1);
    drop(out);
    // The same without a head: one is made of the first bytes.
    let frame: Arc<[u8]> = tcp(1000).into();
    let mut alone = Packet::from_owner(frame.clone()).unwrap();
    alone.set_csum(Checksum::Partial { start: 34, offset: 16 });
    let out = run(&mut f, alone, Offloads::NONE);
    assert!(good(&out[0].to_vec()) && frame[..] == tcp(1000), "the owner's bytes stay as they were");
    drop((out, f));
    assert_eq!((pool.stats().free, Arc::strong_count(&frame)), (512, 1));
}
