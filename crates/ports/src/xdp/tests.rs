//! Tests that need private access: stalled queues of a veth pair, what a sleeping one waits for.

use towpath_testing as support;

use super::*;
use std::time::{Duration, Instant};
use support::{Namespace, Need, needs};
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};
use towpath_packet::{Backing, Batch, Direction, Packet, Pool, PoolConfig};

/// Type of the frames that are sent.
const TYPE: [u8; 2] = [0x90, 0];

/// A veth pair `v0`, `v1` in a namespace of its own, and a pool.
fn pair(name: &str) -> (Namespace, Pool) {
    let ns = Namespace::new(name);
    ns.ip("link add v0 type veth peer name v1");
    ns.ip("link set v0 up");
    ns.ip("link set v1 up");
    (ns, Pool::new(PoolConfig::default().capacity(4096).backing(Backing::Anonymous)).unwrap())
}

/// A turn of a worker; returns the number of test frames that it received.
fn turn(queues: &mut Queues<XdpRx, XdpTx>) -> usize {
    let mut batch = Batch::new();
    queues.tx[0].reclaim();
    queues.rx[0].refill();
    queues.rx[0].rx(&mut batch);
    batch.iter().filter(|packet| packet.linear().get(12..14) == Some(&TYPE)).count()
}

#[track_caller]
fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !true_now() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Frames pass in both directions. A device may drop one while its program is replaced.
fn works(pool: &Pool, queues: &mut Queues<XdpRx, XdpTx>, other: &mut Queues<XdpRx, XdpTx>) {
    let mut frame = [0xff; 60];
    frame[12..14].copy_from_slice(&TYPE);
    for there in [true, false] {
        let (from, to) = if there { (&mut *queues, &mut *other) } else { (&mut *other, &mut *queues) };
        let sent = from.tx[0].counters().snapshot().packets;
        until("a frame is sent and arrives", || {
            if from.tx[0].pending() == 0 {
                let mut batch = Batch::new();
                batch.push(Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &frame).unwrap()).unwrap();
                from.tx[0].tx(&mut batch);
            }
            turn(from);
            turn(to) > 0 && from.tx[0].counters().snapshot().packets > sent
        });
    }
}

#[test]
fn a_queue_that_stays_stalled_goes_on_in_the_stack_unless_the_driver_is_required() {
    const NAME: &str = "a_queue_that_stays_stalled_goes_on_in_the_stack_unless_the_driver_is_required";
    if !needs(NAME, &[Need::Root, Need::Program("ip")]) {
        return;
    }
    for (options, falls) in [("", true), (",native=require", false), (",generic=off", false)] {
        let (ns, pool) = pair("fall");
        let begin = |uri: String| {
            let port = open(Config::from_uri(&uri.parse().unwrap()).unwrap()).unwrap();
            let watch = port.control().unwrap();
            (port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL }).unwrap(), watch)
        };
        let (mut other, _) = begin(format!("xdp:v1?netns={}", ns.name()));
        let (mut queues, watch) = begin(format!("xdp:v0?netns={}{options}", ns.name()));
        let happened = |name| watch.events().into_iter().find(|(known, _)| *known == name).unwrap().1;
        works(&pool, &mut queues, &mut other);
        for stalls in 1..=3 {
            let XdpTx::Socket(tx) = &queues.tx[0] else { panic!("a socket sends") };
            tx.queue.stalled(false);
            until("the queue is reopened", || {
                turn(&mut queues);
                happened("made-anew") == stalls && queues.tx[0].state() == State::Up
            });
            let fell = falls && stalls > 1;
            assert_eq!(happened("fell-back-to-generic"), u64::from(fell), "{options}");
            assert_eq!(ns.ip("-d link show dev v0").contains("xdpgeneric"), fell, "{options}");
            works(&pool, &mut queues, &mut other);
        }
        assert_eq!(happened("stalled"), 3);
        drop((queues, other));
        let stats = pool.stats();
        assert_eq!(stats.free, stats.capacity);
        until("no program is left", || !ns.ip("-d link show dev v0").contains("prog/xdp"));
    }
}

#[test]
fn a_queue_that_only_sends_is_reopened_as_often_as_it_stalls() {
    if !needs("a_queue_that_only_sends_is_reopened_as_often_as_it_stalls", &[Need::Root, Need::Program("ip")]) {
        return;
    }
    let (ns, pool) = pair("only");
    let config = Config::from_uri(&format!("xdp:v0?netns={},rx=off", ns.name()).parse().unwrap()).unwrap();
    let port = open(config).unwrap();
    let watch = port.control().unwrap();
    let mut queues = port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL }).unwrap();
    let happened = |name| watch.events().into_iter().find(|(known, _)| *known == name).unwrap().1;
    for stalls in 1..=3 {
        let sent = queues.tx[0].counters().snapshot().packets;
        let mut batch = Batch::new();
        batch.push(Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &[0xff; 60]).unwrap()).unwrap();
        queues.tx[0].tx(&mut batch);
        until("a frame is completed", || {
            turn(&mut queues);
            queues.tx[0].counters().snapshot().packets > sent
        });
        let XdpTx::Socket(tx) = &queues.tx[0] else { panic!("a socket sends") };
        tx.queue.stalled(false);
        until("the queue is reopened", || {
            turn(&mut queues);
            happened("made-anew") == stalls && queues.tx[0].state() == State::Up
        });
    }
    assert_eq!((happened("fell-back-to-generic"), happened("fell-back-to-copy")), (0, 0));
    drop(queues);
    let stats = pool.stats();
    assert_eq!(stats.free, stats.capacity);
}

#[test]
fn a_socket_wakes_for_sent_frames_only_while_its_queue_may_sleep() {
    if !needs("a_socket_wakes_for_sent_frames_only_while_its_queue_may_sleep", &[Need::Root, Need::Program("ip")]) {
        return;
    }
    let (ns, pool) = pair("wake");
    let config = Config::from_uri(&format!("xdp:v0?netns={},rx=off", ns.name()).parse().unwrap()).unwrap();
    let mut queues =
        open(config).unwrap().start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL }).unwrap();
    let tx = &mut queues.tx[0];
    for _ in 0..2 {
        until("the queue may sleep", || {
            tx.reclaim();
            matches!(tx.wake(), Wake::Readable(_))
        });
        let Wake::Readable(set) = tx.wake() else { panic!("it is woken by a descriptor") };
        // The kernel's own list of what is in the set.
        let waits = || std::fs::read_to_string(format!("/proc/self/fdinfo/{set}")).unwrap().contains("tfd:");
        assert!(waits());
        for sleeps in [true, false] {
            let mut batch = Batch::new();
            batch.push(Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &[0xff; 60]).unwrap()).unwrap();
            assert_eq!(tx.tx(&mut batch), 1);
            assert_eq!(waits(), sleeps, "a wake-up for each frame of a busy queue");
        }
    }
}
