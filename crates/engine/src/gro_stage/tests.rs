//! Coalescing of real packets: for any memory layout, segmenting the output gives the input, flow
//! by flow.

use super::*;
use crate::software_offload::SoftwareOffload;
use proptest::prelude::*;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use towpath_packet::{Backing, Direction, ExtBufOwner, ExtBufPool, MAX_FRAGS, Pool, PoolConfig, Region, Vlan};
use towpath_wire::checksum;

/// The protocols of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Tcp4,
    Tcp6,
    Udp4,
}

/// A frame of a flow: `number` is the IP identification, `seq` the first sequence number; all
/// checksums are correct.
pub(crate) fn frame(kind: Kind, flow: u8, number: u16, seq: u32, payload: &[u8]) -> Vec<u8> {
    let tcp = kind != Kind::Udp4;
    let len = payload.len() as u16 + if tcp { 20 } else { 8 };
    let proto = if tcp { 6 } else { 17 };
    let (mut frame, pseudo) = match kind {
        Kind::Tcp4 | Kind::Udp4 => {
            let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, proto, 0, 0, 198, 18, 0, flow, 198, 19, 0, 1];
            ip[2..4].copy_from_slice(&(20 + len).to_be_bytes());
            ip[4..6].copy_from_slice(&number.to_be_bytes());
            let check = checksum::finish(checksum::sum(&ip));
            ip[10..12].copy_from_slice(&check.to_be_bytes());
            let pseudo = checksum::pseudo_v4([198, 18, 0, flow].into(), [198, 19, 0, 1].into(), proto, len.into());
            ([&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0], &ip[..]].concat(), pseudo)
        }
        Kind::Tcp6 => {
            let address = |last| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
            let (src, dst) = (address(flow), address(1));
            let mut ip = [0x60, 0, 0, 0, 0, 0, proto, 64];
            ip[4..6].copy_from_slice(&len.to_be_bytes());
            let pseudo = checksum::pseudo_v6(src.into(), dst.into(), proto, len.into());
            ([&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd], &ip[..], &src, &dst].concat(), pseudo)
        }
    };
    let mut l4 = vec![0x10, 0, 0x14, 0x51];
    if tcp {
        l4.extend(seq.to_be_bytes());
        l4.extend([0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    } else {
        l4.extend(len.to_be_bytes().into_iter().chain([0, 0]));
    }
    l4.extend(payload);
    let sum = checksum::add(pseudo, checksum::sum(&l4));
    let (at, check) = if tcp { (16, checksum::finish(sum)) } else { (6, checksum::finish_udp(sum)) };
    l4[at..at + 2].copy_from_slice(&check.to_be_bytes());
    frame.extend(l4);
    frame
}

/// The memory layout of a packet.
#[derive(Debug, Clone)]
enum Shape {
    /// All in one chunk.
    Linear,
    /// The given number of linear bytes, and the rest in fragments of these lengths, in turn.
    Pieces(usize, Vec<usize>),
    /// The payload in an application's memory.
    UntrustedMem,
    /// The payload in memory of its own.
    Owned,
}

struct NoOwner;
impl ExtBufOwner for NoOwner {
    fn on_free(&self) {}
}

/// Makes packets of all layouts.
struct Maker {
    pool: Pool,
    cache: Cache,
    pages: ExtBufPool,
    memory: File,
    used: usize,
    owned: Vec<Arc<[u8]>>,
}

const FOREIGN: usize = 1 << 20;

impl Maker {
    fn new() -> Maker {
        let config = PoolConfig::default().capacity(16384).chunk(512).backing(Backing::Anonymous);
        let pool = Pool::new(config).unwrap();
        let region = towpath_packet::UntrustedMem::new(Region::new(FOREIGN, Backing::Memfd).unwrap());
        let memory = region.fd().unwrap().try_clone_to_owned().unwrap().into();
        let pages = ExtBufPool::new(1024, region, Arc::new(NoOwner)).unwrap();
        Maker { cache: pool.cache(Direction::Tx).unwrap(), pool, pages, memory, used: 0, owned: Vec::new() }
    }

    fn packet(&mut self, bytes: &[u8], shape: &Shape, headers: usize) -> Packet {
        match shape {
            Shape::Linear => Packet::copy_from(&mut self.cache, bytes).unwrap(),
            Shape::Pieces(linear, lengths) => {
                let mut at = (*linear).min(bytes.len()).min(256);
                let mut packet = Packet::copy_from(&mut self.cache, &bytes[..at]).unwrap();
                for len in lengths.iter().cycle() {
                    if at == bytes.len() {
                        break;
                    }
                    // The rest goes into one fragment before there are too many.
                    let len = if packet.frags() > 100 { 300 } else { *len };
                    let end = bytes.len().min(at + len);
                    packet.append(Packet::copy_from(&mut self.cache, &bytes[at..end]).unwrap()).unwrap();
                    at = end;
                }
                packet
            }
            Shape::Owned => {
                let (head, rest) = bytes.split_at(headers);
                let mut packet = Packet::copy_from(&mut self.cache, head).unwrap();
                self.owned.push(rest.into());
                packet.append(Packet::from_owner(self.owned[self.owned.len() - 1].clone()).unwrap()).unwrap();
                packet
            }
            Shape::UntrustedMem => {
                let (head, rest) = bytes.split_at(headers);
                let mut packet = Packet::copy_from(&mut self.cache, head).unwrap();
                if self.used + rest.len() > FOREIGN {
                    self.used = 0;
                }
                self.memory.write_all_at(rest, self.used as u64).unwrap();
                self.pages.drain_freed(usize::MAX, |_, _| {});
                if let Some(view) = self.pages.attach(self.used, rest.len(), 0) {
                    packet.append_buf(view).unwrap();
                    self.used += rest.len();
                } else {
                    packet.append(Packet::copy_from(&mut self.cache, rest).unwrap()).unwrap();
                }
                packet
            }
        }
    }
}

fn headers(kind: Kind) -> usize {
    match kind {
        Kind::Tcp4 => 54,
        Kind::Tcp6 => 74,
        Kind::Udp4 => 42,
    }
}

fn engine(mode: GroMode, hold: Duration) -> GroStage {
    let config = GroStageConfig { mode, hold, ..GroStageConfig::default() };
    GroStage::new(&config, Layer::Ethernet, Offloads::ALL, Arc::default())
}

fn drain(gro_stage: &mut GroStage) -> Vec<Packet> {
    let mut out = Vec::new();
    while gro_stage.ready() > 0 {
        let mut batch = Batch::new();
        gro_stage.fill(&mut batch);
        out.extend(batch.drain_front(64));
    }
    out
}

/// Segments packets as for an egress without any ability.
fn cut(maker: &Maker, packets: Vec<Packet>) -> Vec<Vec<u8>> {
    let cache = maker.pool.cache(Direction::Tx).unwrap();
    let mut offload = SoftwareOffload::new(cache, gro::LinkKind::Ethernet, Arc::default());
    let mut frames = Vec::new();
    for packet in packets {
        let mut from = Batch::new();
        from.push(packet).unwrap();
        loop {
            let mut to = Batch::new();
            offload.apply(&mut from, &mut to, Offloads::NONE);
            if to.is_empty() {
                break;
            }
            frames.extend(to.drain_front(64).map(|p| p.to_vec()));
        }
    }
    frames
}

/// The flow of a frame: tag, addresses and protocol.
fn flow_of(frame: &[u8]) -> Vec<u8> {
    let l3 = if frame[12..14] == [0x81, 0] || frame[12..14] == [0x88, 0xa8] { 18 } else { 14 };
    let addresses = if frame[l3] >> 4 == 4 { l3 + 9..l3 + 10 } else { l3 + 6..l3 + 7 };
    let source = if frame[l3] >> 4 == 4 { l3 + 12..l3 + 16 } else { l3 + 8..l3 + 24 };
    [&frame[12..l3 - 2], &frame[addresses], &frame[source]].concat()
}

#[derive(Debug, Clone)]
struct Step {
    kind: Kind,
    flow: u8,
    len: usize,
    shape: Shape,
    tag: Option<(u16, bool)>,
    /// The checksum is wrong.
    corrupt: bool,
    /// Bytes of the stream before it are missing.
    gap: bool,
    /// The burst ends here; whether that emptied the ingress.
    burst: Option<bool>,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(Kind::Tcp4), Just(Kind::Tcp6), Just(Kind::Udp4)];
    let len = prop_oneof![4 => Just(300usize), 2 => Just(299), 1 => 1usize..440];
    let pieces = (54usize..100, proptest::collection::vec(1usize..90, 1..4));
    let shape = prop_oneof![
        4 => Just(Shape::Linear),
        2 => pieces.prop_map(|(linear, lengths)| Shape::Pieces(linear, lengths)),
        1 => Just(Shape::UntrustedMem),
        1 => Just(Shape::Owned),
    ];
    let tag = prop_oneof![6 => Just(None), 1 => (1u16..3, any::<bool>()).prop_map(Some)];
    let rarely = prop::bool::weighted(0.04);
    let burst = prop_oneof![9 => Just(None), 1 => any::<bool>().prop_map(Some)];
    (kind, 0u8..3, len, shape, tag, rarely, prop::bool::weighted(0.04), burst).prop_map(
        |(kind, flow, len, shape, tag, corrupt, gap, burst)| Step { kind, flow, len, shape, tag, corrupt, gap, burst },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn what_comes_out_and_is_cut_again_is_what_went_in_flow_by_flow(
        steps in proptest::collection::vec(step(), 1..200),
        hold in any::<bool>(),
    ) {
        let mut maker = Maker::new();
        let mut gro_stage = engine(GroMode::On, if hold { Duration::from_secs(1000) } else { Duration::ZERO });
        let (mut sent, mut counts) = (HashMap::<Vec<u8>, Vec<Vec<u8>>>::new(), HashMap::<_, (u16, u32)>::new());
        let (mut batch, mut out, mut pushed) = (Batch::new(), Vec::new(), 0);
        for step in &steps {
            let (number, seq) = counts.entry((step.kind, step.flow, step.tag)).or_default();
            *seq += if step.gap { 1000 } else { 0 };
            let payload: Vec<u8> = (0..step.len).map(|i| (i * 7 + *seq as usize) as u8).collect();
            let mut bytes = frame(step.kind, step.flow, *number, *seq, &payload);
            if step.corrupt {
                *bytes.last_mut().unwrap() ^= 0x55;
            }
            (*number, *seq) = (*number + 1, *seq + step.len as u32);
            let mut packet = maker.packet(&bytes, &step.shape, headers(step.kind));
            if let Some((tci, service)) = step.tag {
                packet.set_vlan(Some(Vlan { tci, service }));
                let tpid = if service { [0x88, 0xa8] } else { [0x81, 0] };
                bytes.splice(12..12, tpid.into_iter().chain(tci.to_be_bytes()));
            }
            sent.entry(flow_of(&bytes)).or_default().push(bytes);
            batch.push(packet).unwrap();
            pushed += 1;
            if step.burst.is_some() || batch.room() == 0 {
                let _ = gro_stage.push(&mut batch, step.burst.unwrap_or(false));
                out.extend(drain(&mut gro_stage));
                // What was bypassed.
                out.extend(batch.drain_front(64));
            }
        }
        let _ = gro_stage.push(&mut batch, true);
        gro_stage.flush();
        out.extend(drain(&mut gro_stage));
        out.extend(batch.drain_front(64));
        prop_assert_eq!(gro_stage.held(), 0);
        let merged = gro_stage.counters.snapshot().merged;
        prop_assert_eq!(out.len() as u64 + merged, pushed, "received = left + merged");
        prop_assert!(out.iter().all(|p| p.frags() <= MAX_FRAGS));
        let mut got = HashMap::<Vec<u8>, Vec<Vec<u8>>>::new();
        for bytes in cut(&maker, out) {
            got.entry(flow_of(&bytes)).or_default().push(bytes);
        }
        prop_assert_eq!(got, sent);
        drop((gro_stage, batch));
        let Maker { pool, cache, mut pages, owned, .. } = maker;
        drop(cache);
        prop_assert_eq!(pool.stats().free, pool.stats().capacity, "every buffer is free");
        pages.drain_freed(usize::MAX, |_, _| {});
        prop_assert_eq!(pages.in_use(), 0, "and every page");
        prop_assert!(owned.iter().all(|bytes| Arc::strong_count(bytes) == 1), "and all owned bytes");
    }
}

/// Coalesces one burst of a flow with packets of one layout.
fn coalesced(shape: &Shape, packets: u16, len: usize) -> (Maker, Vec<Packet>) {
    let (mut maker, mut gro_stage) = (Maker::new(), engine(GroMode::On, Duration::ZERO));
    let mut batch = Batch::new();
    for number in 0..packets {
        let bytes = frame(Kind::Tcp4, 1, number, u32::from(number) * len as u32, &vec![number as u8; len]);
        batch.push(maker.packet(&bytes, shape, 54)).unwrap();
    }
    let _ = gro_stage.push(&mut batch, true);
    let out = drain(&mut gro_stage);
    (maker, out)
}

#[test]
fn bytes_of_every_shape_are_chained_without_being_copied() {
    let pieces = [Shape::Pieces(54, vec![7, 100]), Shape::Pieces(60, vec![33])];
    for shape in pieces.into_iter().chain([Shape::Linear, Shape::UntrustedMem, Shape::Owned]) {
        let (maker, out) = coalesced(&shape, 10, 300);
        assert_eq!((out.len(), out[0].len()), (1, 54 + 3000), "{shape:?}");
        assert_eq!(out[0].gso().map(|gso| (gso.size, gso.segs)), Some((300, 10)), "{shape:?}");
        let mut places = out[0].chunks().skip(1).zip(&maker.owned);
        assert!(places.all(|(piece, bytes)| piece.as_ptr() == bytes.as_ptr()), "{shape:?}");
    }
}

#[test]
fn a_burst_of_unmatched_packets_stays_in_its_batch_until_one_has_a_partner() {
    let (mut maker, mut gro_stage) = (Maker::new(), engine(GroMode::On, Duration::ZERO));
    let mut push = |flows: &[(u8, u16)]| {
        let mut batch = Batch::new();
        for &(flow, number) in flows {
            let bytes = frame(Kind::Tcp4, flow, number, u32::from(number) * 300, &[7; 300]);
            batch.push(maker.packet(&bytes, &Shape::Linear, 54)).unwrap();
        }
        let pushed = gro_stage.push(&mut batch, true);
        let left = if pushed == Pushed::Taken { drain(&mut gro_stage) } else { batch.drain_front(64).collect() };
        (pushed, left.len(), gro_stage.held())
    };
    assert_eq!(push(&[(1, 0), (2, 0)]), (Pushed::Taken, 2, 0), "the first burst shows that nothing merges");
    assert_eq!(push(&[(1, 1), (2, 1)]), (Pushed::Bypassed, 2, 0));
    assert_eq!(push(&[(1, 2), (2, 2), (1, 3)]), (Pushed::Taken, 2, 0), "two of a flow merge at once");
    assert_eq!(push(&[(1, 4), (2, 3)]), (Pushed::Taken, 2, 0));
    assert_eq!(push(&[(1, 5), (2, 4)]), (Pushed::Bypassed, 2, 0));
}

#[test]
fn a_packet_without_a_head_passes_as_it_is() {
    let mut gro_stage = engine(GroMode::On, Duration::ZERO);
    let frames: Vec<Arc<[u8]>> =
        (0..4).map(|n| frame(Kind::Tcp4, 1, n, u32::from(n) * 300, &[n as u8; 300]).into()).collect();
    let mut batch = Batch::new();
    for frame in &frames {
        batch.push(Packet::from_owner(frame.clone()).unwrap()).unwrap();
    }
    let _ = gro_stage.push(&mut batch, true);
    let out = drain(&mut gro_stage);
    assert!(out.iter().map(|packet| packet.to_vec()).eq(frames.iter().map(|frame| frame.to_vec())));
    drop(out);
    assert!(frames.iter().all(|frame| Arc::strong_count(frame) == 1));
}

#[test]
fn an_aggregate_ends_before_it_has_more_fragments_than_a_packet_can() {
    let (maker, out) = coalesced(&Shape::Pieces(54, vec![3]), 10, 300);
    assert!(out.len() > 1 && out.iter().all(|p| p.frags() <= MAX_FRAGS && p.gso().is_some()), "{out:?}");
    let frames = cut(&maker, out);
    let bytes: Vec<u8> = frames.iter().map(|f| f[54]).collect();
    assert_eq!(bytes, (0..10).collect::<Vec<u8>>());
}

#[test]
fn an_ingress_that_is_never_empty_is_flushed_by_the_budget() {
    let (mut maker, mut gro_stage) = (Maker::new(), engine(GroMode::On, Duration::ZERO));
    let mut seen = Vec::new();
    for burst in 0..BUDGET / 64 {
        let mut batch = Batch::new();
        for flow in 0..64 {
            let bytes = frame(Kind::Tcp4, flow, burst as u16, burst as u32 * 100, &[1; 100]);
            batch.push(maker.packet(&bytes, &Shape::Linear, 54)).unwrap();
        }
        let _ = gro_stage.push(&mut batch, false);
        seen.push((gro_stage.held(), gro_stage.ready()));
    }
    assert_eq!(seen.pop(), Some((0, 64)));
    assert!(seen.iter().all(|state| *state == (64, 0)), "{seen:?}");
}

#[test]
fn where_nothing_merges_across_bursts_each_leaves_at_once_until_something_does() {
    let (mut maker, mut gro_stage) = (Maker::new(), engine(GroMode::On, Duration::ZERO));
    let mut seq = [0; 64];
    let mut burst = |gro_stage: &mut GroStage, step: u32| {
        let mut batch = Batch::new();
        for flow in 0..64 {
            let at = &mut seq[usize::from(flow)];
            batch.push(maker.packet(&frame(Kind::Tcp4, flow, 0, *at, &[1; 100]), &Shape::Linear, 54)).unwrap();
            *at += step;
        }
        let _ = gro_stage.push(&mut batch, false);
        (gro_stage.held(), drain(gro_stage).len() + batch.len())
    };
    // A gap after every packet.
    let stepped: Vec<_> = (0..64).map(|_| burst(&mut gro_stage, 1000)).collect();
    assert_eq!((stepped[0], stepped[63]), ((64, 0), (0, 64)));
    let merged = gro_stage.counters.snapshot().merged;
    assert_eq!(merged, 0);
    // Far fewer than the packets of the longest bypass.
    let back = (0..10_000).find(|_| burst(&mut gro_stage, 100).0 > 0);
    assert!(back.is_some());
    for _ in 0..16 {
        burst(&mut gro_stage, 100);
    }
    assert!(gro_stage.counters.snapshot().merged > 0);
}

#[test]
fn with_a_hold_time_an_aggregate_outlives_its_burst_and_leaves_when_it_is_old_enough() {
    let hold = Duration::from_millis(20);
    let (mut maker, mut gro_stage) = (Maker::new(), engine(GroMode::On, hold));
    let mut push = |gro_stage: &mut GroStage, number: u16| {
        let mut batch = Batch::new();
        let bytes = frame(Kind::Tcp4, 1, number, u32::from(number) * 100, &[1; 100]);
        batch.push(maker.packet(&bytes, &Shape::Linear, 54)).unwrap();
        let _ = gro_stage.push(&mut batch, true);
    };
    push(&mut gro_stage, 0);
    assert_eq!((gro_stage.held(), gro_stage.ready()), (1, 0));
    std::thread::sleep(hold + Duration::from_millis(1));
    // Packets that arrive when the time is over still belong to it.
    push(&mut gro_stage, 1);
    gro_stage.idle();
    assert_eq!((gro_stage.held(), gro_stage.ready()), (0, 1));
    assert_eq!(drain(&mut gro_stage)[0].len(), 54 + 200);
}

#[test]
fn packets_that_bypass_the_engine_stay_in_order() {
    let (mut maker, mut gro_stage) = (Maker::new(), engine(GroMode::Auto, Duration::ZERO));
    let mut next = [0u16; 200];
    let mut bypassed = 0;
    for burst in 0..600usize {
        let mut batch = Batch::new();
        for i in 0..64 {
            // Every burst has other flows, so nothing merges.
            let flow = (burst * 64 + i) % 200;
            let bytes = frame(Kind::Tcp4, flow as u8, next[flow], u32::from(next[flow]) * 10, &[1; 10]);
            next[flow] += 1;
            batch.push(maker.packet(&bytes, &Shape::Linear, 54)).unwrap();
        }
        let _ = gro_stage.push(&mut batch, burst % 3 == 0);
        bypassed += usize::from(!batch.is_empty());
        let passed = batch.drain_front(64).collect::<Vec<_>>();
        assert!(passed.is_empty() || gro_stage.ready() + gro_stage.held() == 0, "nothing is overtaken");
        drain(&mut gro_stage);
    }
    assert!(bypassed > 100, "{bypassed} bursts passed");
}
