use super::*;
use crate::{generator, null, veth};
use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};
use towpath_packet::{Batch, DropReason, Offloads, Packet, Pool, PoolConfig};

fn pool() -> Pool {
    Pool::new(PoolConfig::default().capacity(1024)).unwrap()
}

fn start<P: Port>(port: P, pool: &Pool) -> (P::Rx, P::Tx) {
    let mut queues = port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE }).unwrap();
    (queues.rx.remove(0), queues.tx.remove(0))
}

fn source(options: &str) -> generator::GenPort {
    generator::open(generator::Config::from_uri(&format!("gen:{options}").parse().unwrap()).unwrap()).unwrap()
}

/// Runs until the source is done and no packet is in flight, or either end is gone. Bounded, so
/// that a defect ends too.
fn run(rx: &mut impl RxQueue, tx: &mut impl TxQueue) -> u64 {
    let (mut batch, mut quiet, mut left_over) = (Batch::new(), 0, 0);
    for _ in 0..1_000_000 {
        tx.reclaim();
        rx.refill();
        let moved = if batch.is_empty() { rx.rx(&mut batch) } else { 0 } + tx.tx(&mut batch);
        tx.kick();
        quiet = if moved == 0 { quiet + 1 } else { 0 };
        let ended = rx.state().ended() || matches!(tx.state(), State::Gone(_));
        if ended && (quiet > 100 || tx.state().ended()) && (tx.pending() == 0 || tx.state().ended()) {
            left_over = batch.len() as u64;
            return left_over;
        }
    }
    panic!("did not end; {} packets are stuck", left_over + batch.len() as u64)
}

fn any_config() -> impl Strategy<Value = Config> {
    let p = || prop_oneof![Just(0.0), Just(1.0), 0.0..0.5f64];
    let direction = prop_oneof![Just(FaultDirection::Rx), Just(FaultDirection::Tx), Just(FaultDirection::Both)];
    let vanish = proptest::option::of(0u64..2000);
    (direction, any::<u64>(), p(), p(), p(), p(), 0.0..0.5f64, 0.0..0.5f64, 1u32..50, vanish).prop_map(
        |(direction, seed, drop, duplicate, reorder, corrupt, stall, flap, episode, vanish)| Config {
            direction,
            seed,
            drop,
            duplicate,
            reorder,
            corrupt,
            stall,
            flap,
            episode,
            vanish,
            shape: Shape::default(),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_to_what_is_received_each_packet_and_buffer_is_accounted_for(config in any_config()) {
        let pool = pool();
        let config = Config { direction: FaultDirection::Rx, ..config };
        let port = open(config, source("count=1000,size=100")).unwrap();
        let faults = port.faults().clone();
        let (mut rx, _) = start(port, &pool);
        let (_, mut tx) = start(null::open(null::Config::default()).unwrap(), &pool);
        let left_over = run(&mut rx, &mut tx);
        let gone = config.vanish.is_some_and(|n| n <= 1000);
        prop_assert_eq!(matches!(rx.state(), State::Gone(_)), gone);
        let (received, sent) = (rx.counters().clone(), tx.counters().snapshot());
        drop((rx, tx));
        let received = received.snapshot();
        prop_assert_eq!(sent.packets + left_over, received.packets);
        let twins = faults.duplicated.load(Relaxed);
        let accounted = received.packets + received.all_drops() - twins;
        // It vanishes after it has decided on so many, and takes no more than the rest of their
        // burst with it, and the packet that it held.
        let decided = config.vanish.filter(|_| gone).unwrap_or(1000);
        prop_assert_eq!(accounted, decided.div_ceil(64).saturating_mul(64).min(1000));
        let passed = received.packets - twins + faults.dropped.load(Relaxed);
        prop_assert!(passed == decided || gone && passed + 1 == decided, "{} of {}", passed, decided);
        prop_assert_eq!(received.dropped(DropReason::Stopped), 0, "nothing is left lying while the queue is idle");
        prop_assert!(received.dropped(DropReason::Fault) >= faults.dropped.load(Relaxed));
        prop_assert_eq!(pool.stats().free, 1024);
    }

    #[test]
    fn whatever_happens_to_what_is_sent_each_packet_and_buffer_is_accounted_for(config in any_config()) {
        let pool = pool();
        let config = Config { direction: FaultDirection::Tx, ..config };
        let port = open(config, null::open(null::Config::default()).unwrap()).unwrap();
        let faults = port.faults().clone();
        let (mut rx, _) = start(source("count=1000,size=100"), &pool);
        let (_, mut tx) = start(port, &pool);
        let left_over = run(&mut rx, &mut tx);
        let (counters, gone) = (tx.counters().clone(), matches!(tx.state(), State::Gone(_)));
        let received = rx.counters().snapshot().packets;
        drop((rx, tx));
        let sent = counters.snapshot();
        prop_assert_eq!(received + sent.split, sent.packets + sent.all_drops() + left_over);
        // It vanishes after it has taken so many, and loses at most the one that it held.
        prop_assert!(!gone || Some(received - left_over) == config.vanish, "{} taken", received - left_over);
        prop_assert!(sent.dropped(DropReason::Stopped) <= u64::from(gone));
        prop_assert_eq!(sent.split, faults.duplicated.load(Relaxed));
        prop_assert_eq!(sent.dropped(DropReason::Fault), faults.dropped.load(Relaxed));
        prop_assert_eq!(pool.stats().free, 1024);
    }

    #[test]
    fn the_sink_of_the_generator_finds_just_the_faults_that_were_made(
        seed in any::<u64>(), drop in 0.0..0.2f64, duplicate in 0.0..0.2f64, reorder in 0.0..0.2f64,
    ) {
        let pool = pool();
        let config = Config { seed, drop, duplicate, reorder, ..Config::default() };
        let port = open(config, source("count=5000,flows=1,verify=on")).unwrap();
        let faults = port.faults().clone();
        let sink = source("verify=on,count=5000,flows=1");
        let control = sink.control().unwrap();
        let ((mut rx, _), (_, mut tx)) = (start(port, &pool), start(sink, &pool));
        run(&mut rx, &mut tx);
        let found = control.verified().unwrap();
        let dropped = faults.dropped.load(Relaxed);
        prop_assert_eq!((found.arrived, found.foreign, found.too_old), (5000 - dropped, 0, 0));
        prop_assert_eq!(found.twice, faults.duplicated.load(Relaxed));
        prop_assert_eq!(found.lost + found.outstanding, dropped, "the outstanding ones follow the last arrival");
        prop_assert!(found.late <= faults.reordered.load(Relaxed), "{:?}", found);
        prop_assert!(reorder < 0.01 || found.late > 0);
    }
}

#[test]
fn a_packet_in_a_full_batch_is_decided_on() {
    for vanish in 990..=1000 {
        let pool = pool();
        let config = Config {
            direction: FaultDirection::Rx,
            seed: 5612343491,
            reorder: 1.0,
            vanish: Some(vanish),
            ..Config::default()
        };
        let (mut rx, _) = start(open(config, source("count=1000,size=100")).unwrap(), &pool);
        let (_, mut tx) = start(null::open(null::Config::default()).unwrap(), &pool);
        run(&mut rx, &mut tx);
        assert!(matches!(rx.state(), State::Gone(_)), "vanish={vanish}");
    }
}

#[test]
fn the_same_seed_makes_the_same_faults() {
    let fates = |seed| {
        let pool = pool();
        let config = Config { seed, drop: 0.3, ..Config::default() };
        let (mut rx, _) = start(open(config, source("count=300,flows=1,size=60")).unwrap(), &pool);
        let mut all = Vec::new();
        while !rx.state().ended() {
            let mut batch = Batch::new();
            rx.rx(&mut batch);
            all.extend(batch.iter().map(Packet::to_vec));
        }
        all
    };
    assert_eq!(fates(5), fates(5));
    assert_ne!(fates(5), fates(6));
}

#[test]
fn a_corrupt_packet_differs_in_one_bit_and_is_delivered() {
    let pool = pool();
    let clean = |config| {
        let (mut rx, _) = start(open(config, source("count=20,flows=1")).unwrap(), &pool);
        let mut batch = Batch::new();
        rx.rx(&mut batch);
        batch.iter().flat_map(Packet::to_vec).collect::<Vec<u8>>()
    };
    let (good, bad) = (clean(Config::default()), clean(Config { corrupt: 1.0, ..Config::default() }));
    let wrong: u32 = good.iter().zip(&bad).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!((good.len(), wrong), (bad.len(), 20));
}

#[test]
fn a_duplicate_is_a_whole_copy_with_the_packets_metadata() {
    let pool = pool();
    let config = Config { duplicate: 1.0, ..Config::default() };
    let port = open(config, source("count=2,size=9000,gso=1000")).unwrap();
    let mut queues = port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL }).unwrap();
    let mut batch = Batch::new();
    assert_eq!(queues.rx[0].rx(&mut batch), 4);
    let [a, b, ..] = batch.as_slice() else { panic!() };
    assert_eq!((a.to_vec(), a.gso(), a.csum()), (b.to_vec(), b.gso(), b.csum()));
    assert!(a.gso().is_some());
}

#[test]
fn a_stall_lasts_an_episode_of_calls_and_a_flap_reports_that_the_link_is_down() {
    let pool = pool();
    let config = Config { stall: 1.0, episode: 5, ..Config::default() };
    let (_, mut tx) = start(open(config, null::open(null::Config::default()).unwrap()).unwrap(), &pool);
    let mut batch = Batch::new();
    start(source(""), &pool).0.rx(&mut batch);
    assert!((0..50).all(|_| tx.tx(&mut batch) == 0));
    assert_eq!((batch.len(), tx.state(), tx.counters().snapshot().retries), (64, State::Up, 50));
    let config = Config { flap: 1.0, ..Config::default() };
    let (mut rx, _) = start(open(config, source("")).unwrap(), &pool);
    assert_eq!(rx.rx(&mut batch), 0);
    assert!(matches!(rx.state(), State::Down(_)) && rx.wake() == Wake::Poll);
}

#[test]
fn without_faults_the_inner_port_is_unchanged() {
    let pool = pool();
    let (a, b) = veth::pair(&veth::Config::default()).unwrap();
    let port = open(Config::default(), a).unwrap();
    assert_eq!((port.info().name.as_str(), port.info().max_queues), ("fault@veth:pair.a", 8));
    let (mut rx, mut tx) = start(port, &pool);
    let (mut far_rx, mut far_tx) = start(b, &pool);
    rx.set_rx_offloads(Offloads::CSUM);
    assert_eq!(far_tx.offloads(), Offloads::CSUM);
    let mut batch = Batch::new();
    start(source("count=40"), &pool).0.rx(&mut batch);
    assert_eq!(far_tx.tx(&mut batch), 40);
    assert!(matches!(rx.wake(), Wake::Fd(_)));
    assert_eq!(rx.rx(&mut batch), 40);
    let mut taken = 0;
    while !batch.is_empty() {
        taken += tx.tx(&mut batch);
    }
    assert_eq!((taken, far_rx.rx(&mut batch)), (40, 40));
    drop((far_rx, far_tx));
    assert!(rx.state().ended() && matches!(tx.state(), State::Gone(_)));
}

/// The faults of a shape.
fn shaped(direction: FaultDirection, shape: Shape) -> Config {
    Config { direction, shape, ..Config::default() }
}

#[test]
fn what_is_delayed_leaves_in_order_not_too_early_and_none_is_left() {
    let delay = std::time::Duration::from_millis(20);
    let shape = Shape { delay, jitter: delay / 4, limit: 1000, ..Shape::default() };
    for direction in [FaultDirection::Rx, FaultDirection::Tx, FaultDirection::Both] {
        let pool = pool();
        let port = open(shaped(direction, shape), source("count=300,flows=1,size=100,verify=on")).unwrap();
        let sink = source("verify=on,count=300,flows=1");
        let control = sink.control().unwrap();
        let begin = std::time::Instant::now();
        let (mut rx, _) = start(port, &pool);
        let (_, mut tx) = start(open(shaped(direction, shape), sink).unwrap(), &pool);
        let mut batch = Batch::new();
        while !rx.state().ended() || tx.pending() > 0 || !batch.is_empty() {
            tx.reclaim();
            if batch.is_empty() {
                rx.rx(&mut batch);
            }
            tx.tx(&mut batch);
            if begin.elapsed() < delay - shape.jitter {
                assert_eq!(tx.counters().snapshot().packets, 0, "{direction:?}");
            }
        }
        let found = control.verified().unwrap();
        assert_eq!((found.arrived, found.late, found.lost), (300, 0, 0), "{direction:?}");
        drop((rx, tx));
        assert_eq!(pool.stats().free, 1024);
    }
}

#[test]
fn packets_beyond_the_limit_are_dropped_as_faults_and_those_that_wait_at_the_end_as_stopped() {
    let shape = Shape { delay: std::time::Duration::from_secs(3600), limit: 100, ..Shape::default() };
    let pool = pool();
    let port = open(shaped(FaultDirection::Tx, shape), null::open(null::Config::default()).unwrap()).unwrap();
    let faults = port.faults().clone();
    let (mut rx, _) = start(source("count=300,size=100"), &pool);
    let (_, mut tx) = start(port, &pool);
    let mut batch = Batch::new();
    while !rx.state().ended() {
        rx.rx(&mut batch);
        assert!(tx.tx(&mut batch) > 0 && batch.is_empty());
        tx.reclaim();
    }
    assert_eq!((tx.pending(), faults.limited.load(Relaxed)), (100, 200));
    assert!(matches!(tx.wake(), Wake::At(at) if at > std::time::Instant::now()));
    let counters = tx.counters().clone();
    drop((rx, tx));
    let sent = counters.snapshot();
    assert_eq!((sent.packets, sent.dropped(DropReason::Fault), sent.dropped(DropReason::Stopped)), (0, 200, 100));
    assert_eq!(pool.stats().free, 1024);

    let (mut rx, _) = start(open(shaped(FaultDirection::Rx, shape), source("count=300,size=100")).unwrap(), &pool);
    for _ in 0..10 {
        assert_eq!(rx.rx(&mut Batch::new()), 0);
    }
    assert!(rx.state() == State::Up && matches!(rx.wake(), Wake::At(_)));
    let counters = rx.counters().clone();
    drop(rx);
    let received = counters.snapshot();
    assert_eq!((received.dropped(DropReason::Fault), received.dropped(DropReason::Stopped)), (200, 100));
    assert_eq!(pool.stats().free, 1024);
}
