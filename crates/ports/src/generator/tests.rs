use super::window::verified;
use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use towpath_packet::port::{Layer, State, TxQueue, Wake};
use towpath_packet::{Batch, Checksum, GsoKind, Packet, PoolConfig};
use towpath_wire::dissect::Stop;
use towpath_wire::verify::{Check, verify};
use towpath_wire::{LinkKind, Tcp, dissect};

mod template;
mod trials;

fn pool() -> Pool {
    Pool::new(PoolConfig::default().capacity(512)).unwrap()
}

fn config(options: &str) -> Config {
    Config::from_uri(&format!("gen:{options}").parse().unwrap()).unwrap()
}

fn start(config: Config, queues: u16, accept: Offloads, pool: &Pool) -> Queues<GenRx, GenTx> {
    open(config).unwrap().start(Start { pool: pool.clone(), queues, accept }).unwrap()
}

/// Up to `n` packets of the first queue, each looked at and dropped.
fn generate(config: Config, accept: Offloads, n: usize, mut look: impl FnMut(&Packet)) {
    let pool = pool();
    let mut rx = start(config, 1, accept, &pool).rx.remove(0);
    let mut seen = 0;
    while seen < n && rx.state() == State::Up {
        let mut batch = Batch::new();
        assert!(rx.rx(&mut batch) > 0);
        batch.iter().take(n - seen).for_each(&mut look);
        seen += batch.len();
    }
    drop(rx);
    assert_eq!(pool.stats().free, 512);
}

fn link_of(config: &Config) -> LinkKind {
    config.layer.into()
}

fn any_config() -> impl Strategy<Value = Config> {
    let sizes = (any::<bool>(), any::<bool>(), any::<bool>(), proptest::option::of(1u16..4095));
    (sizes, 1u32..40, 0u32..5000, any::<u64>(), any::<bool>()).prop_map(|(sizes, flows, extra, seed, imix)| {
        let (v6, tcp, bare, vlan) = sizes;
        let mut config = config(&format!("flows={flows},ip={}", if v6 { 6 } else { 4 }));
        config.protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
        config.layer = if bare { Layer::Ip } else { Layer::Ethernet };
        config.vlan = vlan.filter(|_| !bare).map(Sweep::from);
        config.seed = seed;
        // A stamp of time has the room that the lengths leave.
        if !imix && extra >= 20 && seed % 3 == 0 {
            config.stamp = Stamps::Time;
        }
        config.size = if imix { Size::Imix } else { Size::Fixed(config.headers() as u32 + 1 + extra) };
        config
    })
}

#[test]
fn a_stale_payload_has_the_buffers_old_bytes_and_no_checksum() {
    let pool = pool();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let dirty: Vec<_> = (0..512).map_while(|_| Packet::copy_from(&mut cache, &[0xaa; 1500])).collect();
    assert!(dirty.len() > 64);
    drop((dirty, cache));
    let mut rx = start(config("size=1000,payload=stale"), 1, Offloads::NONE, &pool).rx.remove(0);
    let mut batch = Batch::new();
    rx.rx(&mut batch);
    for packet in &batch {
        let bytes = packet.to_vec();
        let found = dissect(&bytes, LinkKind::Ethernet);
        assert_eq!((found.stop, found.end), (Stop::Complete, 1000));
        assert_eq!(verify(&bytes, LinkKind::Ethernet).transport, Check::Absent);
        assert!(bytes[128..].iter().all(|&byte| byte == 0xaa));
    }
    assert!(!batch.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_packet_dissects_wholly_has_right_checksums_and_the_length_that_was_asked_for(config in any_config()) {
        generate(config.clone(), Offloads::NONE, 200, |packet| {
            let bytes = packet.to_vec();
            let found = dissect(&bytes, link_of(&config));
            assert_eq!((found.stop, found.end as usize), (Stop::Complete, bytes.len()));
            let verdict = verify(&bytes, link_of(&config));
            assert!(verdict.transport == Check::Good && verdict.is_sound());
            assert_eq!(found.tags[0].tci.vid(), config.vlan.map_or(0, |vlan| vlan.first));
            if let Size::Fixed(size) = config.size {
                assert_eq!(bytes.len(), size as usize);
            }
            assert!(!packet.wants_offload());
        });
    }

    #[test]
    fn flows_take_turns_and_each_tcp_stream_is_contiguous(config in any_config()) {
        // A header more, so that TCP fits where UDP did.
        let size = match config.size { Size::Fixed(size) => Size::Fixed(size + 12), ref other => other.clone() };
        let config = Config { protocol: Protocol::Tcp, size, ..config };
        let mut next: HashMap<u16, u32> = HashMap::new();
        generate(config.clone(), Offloads::NONE, 200, |packet| {
            let bytes = packet.to_vec();
            let found = dissect(&bytes, link_of(&config));
            let tcp = Tcp::parse(&bytes[usize::from(found.l4)..]).unwrap();
            let seq = next.entry(tcp.src_port()).or_insert(tcp.seq());
            assert_eq!(tcp.seq(), *seq);
            *seq = seq.wrapping_add(found.payload_len() as u32);
        });
        assert_eq!(next.len(), config.flows as usize);
    }

    #[test]
    fn super_packets_are_partial_and_their_segments_carry_consecutive_tags(
        v6 in any::<bool>(), tcp in any::<bool>(), segment in 10u16..9000, payload in 0u32..65_000,
    ) {
        let mut config = config(&format!("flows=3,ip={}", if v6 { 6 } else { 4 }));
        config.protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
        let most = 65_535 - 60;
        config.size = Size::Fixed(config.headers() as u32 + (u32::from(segment) + 1 + payload).min(most));
        config.gso = Some(segment);
        let mut next = HashMap::new();
        generate(config.clone(), Offloads::ALL, 6, |packet| {
            let gso = packet.gso().unwrap();
            let mut bytes = packet.to_vec();
            let kind = match (tcp, v6) { (false, _) => GsoKind::Udp, (true, false) => GsoKind::Tcp4, _ => GsoKind::Tcp6 };
            assert_eq!((gso.kind, gso.size), (kind, segment));
            let Checksum::Partial { start, offset } = packet.csum() else { panic!("not partial") };
            towpath_wire::checksum::complete_partial(&mut bytes, start.into(), offset.into()).unwrap();
            let found = dissect(&bytes, LinkKind::Ethernet);
            let verdict = verify(&bytes, LinkKind::Ethernet);
            assert!(verdict.transport == Check::Good && verdict.is_sound());
            assert_eq!((usize::from(gso.hdr_len), bytes.len()), (usize::from(found.payload), config.headers() + found.payload_len()));
            let pieces: Vec<_> = bytes[usize::from(found.payload)..].chunks(segment.into()).collect();
            assert_eq!(pieces.len(), usize::from(gso.segs));
            let number = next.entry(found.flow).or_insert(0);
            for piece in pieces.iter().filter(|piece| piece.len() >= tag::LEN) {
                assert_eq!(tag::Tag::read(piece[..tag::LEN].try_into().unwrap()).unwrap().number, *number);
                *number += 1;
            }
            *number += u32::from(pieces.last().unwrap().len() < tag::LEN);
        });
    }
}

#[test]
fn a_mix_is_seven_to_four_to_one_in_every_flow() {
    let mut lengths: HashMap<(u16, usize), u32> = HashMap::new();
    generate(config("size=imix,flows=12"), Offloads::NONE, 12 * 36, |packet| {
        let bytes = packet.to_vec();
        *lengths.entry((dissect(&bytes, LinkKind::Ethernet).flow.src_port, bytes.len())).or_default() += 1;
    });
    for port in 49152..49164 {
        assert_eq!([64, 590, 1514].map(|len| lengths[&(port, len)]), [21, 12, 3]);
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_does_not() {
    let bytes = |options: &str| {
        let mut all = Vec::new();
        generate(config(options), Offloads::NONE, 20, |packet| all.extend(packet.to_vec()));
        all
    };
    assert_eq!(bytes("size=200"), bytes("size=200"));
    assert_ne!(bytes("size=200"), bytes("size=200,seed=2"));
}

#[test]
fn ten_thousand_flows_share_an_address_and_the_next_has_the_next() {
    let config = config("flows=10001");
    let plan = Plan::new(&config);
    let of = |index| {
        let flow = plan.flows(&config, index, config.flows).remove(0);
        let ip = plan.l3 + towpath_wire::ipv4::offset::SRC;
        (flow.head[plan.l4..plan.l4 + 2].to_vec(), flow.head[ip..ip + 4].to_vec())
    };
    assert_eq!((of(9_999).1, of(10_000).1), (vec![198, 18, 0, 1], vec![198, 18, 0, 2]));
    assert!(of(0).0 == of(10_000).0 && of(0).0 != of(1).0);
}

#[test]
fn queues_divide_flows_and_count_and_are_done_at_the_end() {
    let pool = pool();
    let mut queues = start(config("flows=5,count=1001"), 3, Offloads::NONE, &pool);
    let mut ports = Vec::new();
    let mut total = 0;
    for rx in &mut queues.rx {
        assert_eq!(rx.state(), State::Up);
        let mut own = std::collections::BTreeSet::new();
        while rx.state() == State::Up {
            let mut batch = Batch::new();
            total += rx.rx(&mut batch);
            own.extend(batch.iter().map(|p| dissect(p.linear(), LinkKind::Ethernet).flow.src_port));
        }
        assert_eq!((rx.rx(&mut Batch::new()), rx.wake()), (0, Wake::Never));
        ports.push(own);
    }
    assert_eq!((total, ports[0].len(), ports[1].len(), ports[2].len()), (1001, 2, 2, 1));
    assert_eq!(queues.rx.iter().map(|rx| rx.counters().snapshot().packets).sum::<u64>(), 1001);
}

#[test]
fn a_queue_without_a_flow_is_done_and_the_others_send_all() {
    let pool = pool();
    let mut queues = start(config("flows=1,count=10"), 2, Offloads::NONE, &pool);
    assert_eq!(queues.rx[1].state(), State::Done);
    assert_eq!(queues.rx[0].rx(&mut Batch::new()), 10);
}

#[test]
fn a_paced_queue_waits_for_the_moment_of_its_next_packet() {
    let mut rx = start(config("rate=1,flows=1"), 1, Offloads::NONE, &pool()).rx.remove(0);
    assert_eq!(rx.wake(), Wake::Poll, "nothing was sent, so a packet is due now");
    let before = std::time::Instant::now();
    assert_eq!(rx.rx(&mut Batch::new()), 1);
    let Wake::At(next) = rx.wake() else { panic!("{:?}", rx.wake()) };
    assert!(next >= before + std::time::Duration::from_secs(1));
}

#[test]
fn a_paced_queue_without_buffers_does_not_wait_for_a_moment_that_has_passed() {
    let pool = Pool::new(PoolConfig::default().capacity(16)).unwrap();
    let mut rx = start(config("rate=10G"), 1, Offloads::NONE, &pool).rx.remove(0);
    let mut held = Batch::new();
    while rx.rx(&mut held) > 0 {}
    assert_eq!((held.is_empty(), rx.wake()), (false, Wake::Poll));
}

#[test]
fn an_egress_without_tso_gets_segments_and_one_with_tso_super_packets() {
    let pool = pool();
    let mut rx = start(config("size=9000,gso=1000"), 1, Offloads::NONE, &pool).rx.remove(0);
    let lengths = |rx: &mut GenRx| {
        let mut batch = Batch::new();
        rx.rx(&mut batch);
        batch.iter().map(|p| (p.len(), p.gso().is_some())).next().unwrap()
    };
    assert_eq!(lengths(&mut rx), (1042, false));
    rx.set_rx_offloads(Offloads::ALL);
    assert_eq!(lengths(&mut rx), (9000, true));
    rx.set_rx_offloads(Offloads::USO);
    assert_eq!(lengths(&mut rx), (1042, false), "a cut packet needs its checksums too");
}

#[test]
fn an_exhausted_pool_yields_fewer_packets_and_loses_neither_numbers_nor_buffers() {
    let pool = Pool::new(PoolConfig::default().capacity(40)).unwrap();
    let mut rx = start(config("size=4000,flows=1"), 1, Offloads::NONE, &pool).rx.remove(0);
    let verifier = Verifier::new(1, None, LinkKind::Ethernet);
    for _ in 0..5 {
        let mut batch = Batch::new();
        let n = rx.rx(&mut batch);
        assert!(n > 0 && n < 20, "{n}");
        verifier.check(&batch);
    }
    let found = verifier.read();
    assert!(found.arrived > 0);
    assert_eq!(found, verified! { arrived: found.arrived });
    drop(rx);
    assert_eq!(pool.stats().free, 40);
}

#[test]
fn a_pool_whose_chunks_are_too_small_for_the_headers_is_refused_by_name() {
    let pool = Pool::new(PoolConfig::default().capacity(40).chunk(128).headroom(64)).unwrap();
    let port = open(Config::default()).unwrap();
    let error = port.start(Start { pool, queues: 1, accept: Offloads::NONE }).unwrap_err();
    assert!(error.to_string().contains("chunks of 128 bytes"), "{error}");
}

/// The handle and the queues of a started generator.
fn started(options: &str, queues: u16, pool: &Pool) -> (Arc<dyn PortControl>, Queues<GenRx, GenTx>) {
    let port = open(config(options)).unwrap();
    let control = port.control().unwrap();
    (control, port.start(Start { pool: pool.clone(), queues, accept: Offloads::NONE }).unwrap())
}

#[test]
fn packets_that_are_lost_late_or_sent_twice_are_found_by_the_sink() {
    let pool = pool();
    let (control, mut queues) = started("flows=2,verify=on", 1, &pool);
    let (mut rx, mut tx) = (queues.rx.remove(0), queues.tx.remove(0));
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let (mut from, mut to) = (Batch::new(), Batch::new());
    assert_eq!(rx.rx(&mut from), 64);
    for (i, packet) in from.drain_front(64).enumerate() {
        match i {
            10 | 11 => drop(packet),
            20 => {
                let _ = to.push(Packet::copy_from(&mut cache, packet.linear()).unwrap());
                let _ = to.push(packet);
            }
            _ => drop(to.push(packet)),
        }
    }
    to.as_mut_slice().swap(4, 6);
    let noise = Packet::copy_from(&mut cache, &[0; 60]).unwrap();
    assert!(tx.tx(&mut to) == 63 && to.push(noise).is_ok() && tx.tx(&mut to) == 1);
    let found = control.verified().unwrap();
    assert_eq!(found, verified! { arrived: 62, lost: 2, late: 1, late_extent: 1, twice: 1, foreign: 1 });
    assert_eq!(tx.counters().snapshot().packets, 64);
}

#[test]
fn a_flow_that_changes_its_queue_loses_nothing() {
    let pool = pool();
    let (control, mut queues) = started("flows=3,verify=on,count=600", 2, &pool);
    let mut turn = 0;
    while queues.rx.iter().any(|rx| rx.state() == State::Up) {
        for rx in &mut queues.rx {
            let mut batch = Batch::new();
            rx.rx(&mut batch);
            queues.tx[turn % 2].tx(&mut batch);
            turn += 1;
        }
    }
    assert_eq!(control.verified().unwrap(), verified! { arrived: 600 });
}

#[test]
fn the_handle_reports_the_rate_of_all_queues_and_no_check_unless_there_is_one() {
    let pool = pool();
    let (control, mut queues) = started("flows=2,rate=3", 2, &pool);
    // Before the first packets: the rate of an instant is no matter of how long they took.
    let now = std::time::Instant::now();
    queues.rx.iter_mut().for_each(|rx| assert_eq!(rx.rx(&mut Batch::new()), 1));
    let read = control.pacing(now).unwrap();
    assert_eq!((read.asked, read.reached, read.given_up), (3.0, 3.0, 0));
    assert_eq!((control.verified(), control.settings().is_empty()), (None, true));
    let (unpaced, _queues) = started("flows=2", 2, &pool);
    assert_eq!(unpaced.pacing(std::time::Instant::now()), None);
}

#[test]
fn each_flow_has_its_value_of_every_range_and_right_checksums() {
    let options =
        "vlan=100-102,src-mac=2:0:0:0:0:1-2:0:0:0:0:2,src-ip=10.0.0.0/30,dst-ip=10.1.0.9-10.1.1.8,dst-port=7-8";
    let config = config(options);
    assert_eq!(config.flows, 256);
    let mut flow = 0u32;
    generate(config, Offloads::NONE, 600, |packet| {
        let bytes = packet.to_vec();
        let found = dissect(&bytes, LinkKind::Ethernet);
        assert!(verify(&bytes, LinkKind::Ethernet).is_sound());
        let i = flow % 256;
        flow += 1;
        assert_eq!(u32::from(found.tags[0].tci.vid()), 100 + i % 3);
        assert_eq!(u32::from(bytes[11]), 1 + i % 2);
        let ip = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let l3 = usize::from(found.l3);
        assert_eq!((ip(l3 + 12), ip(l3 + 16)), (0x0a00_0000 + i % 4, 0x0a01_0009 + i));
        assert_eq!((u32::from(found.flow.src_port), u32::from(found.flow.dst_port)), (49152 + i, 7 + i % 2));
    });
}

#[test]
fn a_list_of_sizes_is_gone_through_by_each_flow_in_order() {
    let mut lengths: HashMap<u16, Vec<usize>> = HashMap::new();
    generate(config("flows=3,size=64-66+1500"), Offloads::NONE, 24, |packet| {
        let bytes = packet.to_vec();
        assert!(verify(&bytes, LinkKind::Ethernet).is_sound());
        lengths.entry(dissect(&bytes, LinkKind::Ethernet).flow.src_port).or_default().push(bytes.len());
    });
    for lengths in lengths.values() {
        let order = [64, 65, 66, 1500];
        let first = order.iter().position(|len| *len == lengths[0]).unwrap();
        let expected: Vec<_> = order.into_iter().cycle().skip(first).take(8).collect();
        assert_eq!(*lengths, expected);
    }
}
