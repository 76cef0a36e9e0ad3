use super::*;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Direction, Gso, GsoKind, Pool, PoolConfig};

type Ends = (Queues<VethRx, VethTx>, Queues<VethRx, VethTx>);

fn pool() -> Pool {
    Pool::new(PoolConfig::default().capacity(4096).chunk(256)).unwrap()
}

fn started(ring: usize, a: u16, b: u16, pool: &Pool) -> Ends {
    let ends = pair(&Config { ring, ..Config::default() }).unwrap();
    let start =
        |port: VethPort, queues| port.start(Start { pool: pool.clone(), queues, accept: Offloads::ALL }).unwrap();
    (start(ends.0, a), start(ends.1, b))
}

fn packet(cache: &mut Cache, number: u64) -> Packet {
    Packet::copy_from(cache, &number.to_be_bytes()).unwrap()
}

fn number(packet: &Packet) -> u64 {
    u64::from_be_bytes(packet.linear().try_into().unwrap())
}

/// Waits for a descriptor with a deadline that only a defect reaches.
fn sleep_on(wake: Wake) {
    let Wake::Fd(fd) = wake else { panic!("{wake:?}") };
    let mut set = towpath_sys::poll::PollSet::default();
    set.readable(fd);
    set.wait(Duration::from_secs(20));
}

#[test]
fn packets_cross_without_a_copy_and_with_their_metadata() {
    let pool = pool();
    let (mut a, mut b) = started(16, 1, 1, &pool);
    let mut sent = packet(&mut pool.cache(Direction::Tx).unwrap(), 7);
    let gso = Some(Gso { kind: GsoKind::Udp, ecn: false, size: 4, segs: 2, hdr_len: 0 });
    sent.set_gso(gso);
    let at = sent.linear().as_ptr();
    let mut batch = Batch::new();
    batch.push(sent).unwrap();
    assert_eq!(a.tx[0].tx(&mut batch), 1);
    assert_eq!(b.rx[0].rx(&mut batch), 1);
    let got = batch.pop().unwrap();
    assert_eq!((got.linear().as_ptr(), got.gso(), number(&got)), (at, gso, 7));
    assert_eq!(a.tx[0].counters().snapshot(), b.rx[0].counters().snapshot());
}

#[test]
fn bytes_that_a_packet_owns_cross_in_place_and_are_freed_on_the_other_thread_or_with_the_ring() {
    let pool = pool();
    let (mut a, mut b) = started(16, 1, 1, &pool);
    let bytes: Arc<[u8]> = vec![7; 1000].into();
    let mut batch = Batch::new();
    (0..4).for_each(|_| batch.push(Packet::from_owner(bytes.clone()).unwrap()).unwrap());
    assert_eq!((a.tx[0].tx(&mut batch), Arc::strong_count(&bytes)), (4, 5));
    let there = std::thread::scope(|scope| {
        let receive = || {
            let mut got = Batch::new();
            b.rx[0].rx(&mut got);
            got.iter().map(|packet| packet.chunks().next().unwrap().as_ptr().addr()).collect::<Vec<_>>()
        };
        scope.spawn(receive).join().unwrap()
    });
    assert_eq!(there, [bytes.as_ptr().addr(); 4]);
    assert_eq!(Arc::strong_count(&bytes), 1);
    // What was not received ends with the queues.
    batch.push(Packet::from_owner(bytes.clone()).unwrap()).unwrap();
    assert_eq!((a.tx[0].tx(&mut batch), Arc::strong_count(&bytes)), (1, 2));
    drop((a, b));
    assert_eq!(Arc::strong_count(&bytes), 1);
}

#[test]
fn a_full_ring_accepts_no_more_and_the_rest_of_the_batch_stays_in_order() {
    let pool = pool();
    let (mut a, mut b) = started(4, 1, 1, &pool);
    let (mut cache, mut batch) = (pool.cache(Direction::Tx).unwrap(), Batch::new());
    (0..6).for_each(|n| batch.push(packet(&mut cache, n)).unwrap());
    assert_eq!(a.tx[0].tx(&mut batch), 4);
    assert_eq!(a.tx[0].tx(&mut batch), 0);
    assert_eq!(batch.iter().map(number).collect::<Vec<_>>(), [4, 5]);
    let mut got = Batch::new();
    b.rx[0].rx(&mut got);
    assert_eq!(a.tx[0].tx(&mut batch), 2);
    b.rx[0].rx(&mut got);
    assert_eq!(got.iter().map(number).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn the_offloads_of_the_receiver_are_those_of_the_sender() {
    let (a, mut b) = started(4, 1, 1, &pool());
    assert_eq!(a.tx[0].offloads(), Offloads::ALL);
    b.rx[0].set_rx_offloads(Offloads::CSUM.with(Offloads::VLAN));
    assert_eq!(a.tx[0].offloads(), Offloads::CSUM.with(Offloads::VLAN));
    assert_eq!(b.tx[0].offloads(), Offloads::ALL, "the other direction is not concerned");
}

#[test]
fn a_closed_end_is_gone_for_the_other_once_the_rings_are_empty() {
    let pool = pool();
    let (mut a, mut b) = started(4, 1, 1, &pool);
    let (mut cache, mut batch) = (pool.cache(Direction::Tx).unwrap(), Batch::new());
    batch.push(packet(&mut cache, 1)).unwrap();
    a.tx[0].tx(&mut batch);
    drop(a);
    assert_eq!(b.rx[0].state(), State::Up, "a packet is still there");
    assert_eq!(b.rx[0].rx(&mut batch), 1);
    assert!(matches!(b.rx[0].state(), State::Gone(_)));
    assert_eq!((b.tx[0].tx(&mut batch), batch.len()), (0, 1), "refused, not lost");
    assert!(matches!(b.tx[0].state(), State::Gone(_)));
}

#[test]
fn an_end_that_was_never_started_is_gone_when_it_is_dropped_and_wakes_the_other() {
    let (a, b) = pair(&Config::default()).unwrap();
    let mut a = a.start(Start { pool: pool(), queues: 1, accept: Offloads::ALL }).unwrap();
    assert_eq!(a.rx[0].state(), State::Up);
    let wake = a.rx[0].wake();
    let other = std::thread::spawn(move || drop(b));
    sleep_on(wake);
    other.join().unwrap();
    assert_eq!((a.rx[0].rx(&mut Batch::new()), a.rx[0].state().ended()), (0, true));
}

#[test]
fn nothing_is_signalled_to_a_receiver_that_does_not_sleep() {
    let pool = pool();
    let (mut a, mut b) = started(64, 1, 1, &pool);
    let (mut cache, mut batch) = (pool.cache(Direction::Tx).unwrap(), Batch::new());
    let mut send = |n, kick| {
        batch.push(packet(&mut cache, n)).unwrap();
        a.tx[0].tx(&mut batch);
        if kick {
            a.tx[0].kick();
        }
    };
    let rung = |b: &VethRx| towpath_testing::eventfd_count(b.notifier().fd());
    send(1, true);
    assert_eq!(rung(&b.rx[0]), 0, "the receiver is awake");
    let mut got = Batch::new();
    b.rx[0].rx(&mut got);
    b.rx[0].wake();
    send(2, true);
    send(3, true);
    assert_eq!(rung(&b.rx[0]), 1, "armed, and rung once for both");
    b.rx[0].rx(&mut got);
    b.rx[0].wake();
    assert_eq!(rung(&b.rx[0]), 0, "the old signal is gone");
    send(4, false);
    b.rx[0].rx(&mut got);
    send(5, true);
    assert_eq!(rung(&b.rx[0]), 0, "the last look found something, so it does not sleep");
    b.rx[0].wake();
    assert_eq!(rung(&b.rx[0]), 1, "a packet that was there before the notifier was armed");
}

#[test]
fn names_join_two_ends_and_no_third() {
    let mut links = Pairs::new();
    let config = |text: &str| Config::from_uri(&text.parse().unwrap()).unwrap();
    let a = links.open(&config("veth:x")).unwrap();
    assert!(links.open(&config("veth:x?ring=8")).unwrap_err().to_string().contains("ring=1024"));
    let b = links.open(&config("veth:x")).unwrap();
    assert_eq!((a.info().name.as_str(), b.info().name.as_str()), ("veth:x.a", "veth:x.b"));
    assert!(links.open(&config("veth:x")).unwrap_err().to_string().contains("open already"));
    links.open(&config("veth:y?ring=8,queues=1")).unwrap();
    assert!(Config::from_uri(&"veth:".parse().unwrap()).unwrap_err().to_string().contains("needs a name"));
    assert!(Config::from_uri(&"veth:x?ring=1".parse().unwrap()).unwrap_err().to_string().contains("ring=1"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn whatever_the_queues_at_both_ends_each_ring_keeps_its_order_and_nothing_is_lost(
        senders in 1u16..=8, receivers in 1u16..=8, bursts in proptest::collection::vec((0usize..8, 1usize..20), 1..40),
    ) {
        let pool = pool();
        let (mut a, mut b) = started(1024, senders, receivers, &pool);
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let mut sent = vec![0u64; 8];
        for (queue, n) in bursts {
            let queue = queue % usize::from(senders);
            let mut batch = Batch::new();
            for _ in 0..n {
                batch.push(packet(&mut cache, (queue as u64) << 32 | sent[queue])).unwrap();
                sent[queue] += 1;
            }
            prop_assert_eq!(a.tx[queue].tx(&mut batch), n);
        }
        let mut got = vec![0u64; 8];
        for rx in &mut b.rx {
            loop {
                let mut batch = Batch::new();
                if rx.rx(&mut batch) == 0 {
                    break;
                }
                for packet in &batch {
                    let queue = (number(packet) >> 32) as usize;
                    prop_assert_eq!(number(packet) & 0xffff_ffff, got[queue]);
                    got[queue] += 1;
                }
            }
        }
        prop_assert_eq!(got, sent);
    }
}

#[test]
fn between_threads_that_sleep_nothing_is_lost_reordered_or_left_in_a_ring() {
    const N: u64 = 200_000;
    let pool = pool();
    let (mut a, mut b) = started(64, 1, 1, &pool);
    let slept = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut cache, mut batch, mut next) = (pool.cache(Direction::Tx).unwrap(), Batch::new(), 0);
            while next < N || !batch.is_empty() {
                // Bursts of up to thirteen, so that the receiver often finds nothing.
                for _ in 0..(next % 13 + 1).min(N - next).min(batch.room() as u64) {
                    batch.push(packet(&mut cache, next)).unwrap();
                    next += 1;
                }
                if a.tx[0].tx(&mut batch) == 0 {
                    std::thread::yield_now();
                }
                a.tx[0].kick();
            }
        });
        let (mut cache, mut batch, mut expected) = (pool.cache(Direction::Tx).unwrap(), Batch::new(), 0);
        while expected < N {
            if b.rx[0].rx(&mut batch) == 0 {
                slept.fetch_add(1, Ordering::Relaxed);
                // As a worker does it: arm the notifier, poll once more, sleep.
                let wake = b.rx[0].wake();
                if b.rx[0].rx(&mut batch) == 0 {
                    sleep_on(wake);
                }
            }
            for packet in &batch {
                assert_eq!(number(packet), expected);
                expected += 1;
            }
            cache.free_bulk(&mut batch);
        }
    });
    assert!(slept.into_inner() > 0);
    assert_eq!(a.tx[0].counters().snapshot().packets, b.rx[0].counters().snapshot().packets);
    drop((a, b));
    assert_eq!(pool.stats().free, 4096);
}
