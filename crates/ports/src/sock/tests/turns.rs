//! Several queues that deliver to the same applications.

use super::shared::sharing;
use super::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A batch of packets.
fn batch(cache: &mut towpath_packet::Cache, packets: &[&[u8]]) -> Batch {
    let mut batch = Batch::new();
    for bytes in packets {
        batch.push(Packet::copy_from(cache, bytes).unwrap()).unwrap();
    }
    batch
}

#[test]
fn packets_whose_rings_are_taken_wait_in_order_with_all_behind_them() {
    let mut rig = Rig::with_queues("", 2);
    let (umem, other) = (Umem::new(64, 2048).unwrap(), Umem::new(64, 2048).unwrap());
    let (mut one, mut two) = (rig.connect(&umem, "udp dport 1"), rig.connect(&other, "udp dport 2"));
    one.fill(&mut frames(&umem, 8, 1)).unwrap();
    two.fill(&mut frames(&other, 8, 1)).unwrap();
    rig.until_sessions(2);
    let mut cache = rig.pool.cache(Direction::Tx).unwrap();
    let mut held = batch(&mut cache, &[&udp(1, 60), &udp(2, 61), &udp(1, 62), &udp(2, 63)]);
    // The other queue is in the middle of a burst.
    assert!(rig.more[0].1.queue.apps()[1].take_rings());
    assert_eq!((rig.tx.tx(&mut held), rig.tx.tx(&mut held), held.len()), (1, 0, 3));
    let mut got = Vec::new();
    assert_eq!((one.rx(&mut got).unwrap(), two.rx(&mut got).unwrap()), (1, 0));
    rig.more[0].1.queue.apps()[1].end_burst(false);
    assert_eq!(rig.tx.tx(&mut held), 3);
    assert_eq!((one.rx(&mut got).unwrap(), two.rx(&mut got).unwrap()), (1, 2));
    assert_eq!(got.iter().map(|frame| frame.bytes().len()).collect::<Vec<_>>(), [60, 62, 61, 63]);
    assert_eq!(rig.tx.counters().snapshot().all_drops(), 0);
    drop((got, one, two, cache, held));
    rig.end();
}

#[test]
fn an_application_that_leaves_while_another_queue_has_its_rings_delays_nothing() {
    let mut rig = Rig::with_queues("", 2);
    let umem = Umem::new(64, 2048).unwrap();
    let app = rig.connect(&umem, "default");
    rig.until_sessions(1);
    assert!(rig.more[0].1.queue.apps()[0].take_rings());
    drop(app);
    let mut cache = rig.pool.cache(Direction::Tx).unwrap();
    let mut held = batch(&mut cache, &[&udp(1, 60)]);
    until(|| rig.tx.tx(&mut held) == 1);
    rig.until_sessions(0);
    drop((held, cache));
    rig.end();
}

#[test]
fn an_application_with_a_session_on_each_queue_always_has_free_rings() {
    let mut rig = Rig::with_queues("", 2);
    let umem = Umem::new(64, 2048).unwrap();
    let one = rig.connect(&umem, "default");
    let two = rig.ask_for(&umem, "default", sharing(&one)).unwrap();
    rig.until_sessions(2);
    let mut cache = rig.pool.cache(Direction::Tx).unwrap();
    let queues = [&mut rig.tx, &mut rig.more[0].1];
    for busy in [0, 1] {
        // It is in the middle of a burst to the session of this queue.
        assert!(queues[busy].queue.apps()[busy].take_rings());
        assert_eq!(queues[1 - busy].tx(&mut batch(&mut cache, &[&[1; 60], &[2; 60]])), 2);
        queues[busy].queue.apps()[busy].end_burst(false);
    }
    drop((cache, one, two));
    rig.end();
}

/// Packets of each queue.
const EACH: usize = 4000;
/// Packets in flight to the application, besides one burst of each queue: there are chunks for all.
const WINDOW: usize = 64;

#[test]
fn queues_that_deliver_to_one_application_at_the_same_time_lose_nothing_and_keep_their_order() {
    let mut rig = Rig::with_queues("", 2);
    let umem = Umem::new(512, 2048).unwrap();
    let mut app = rig.ask(&umem, "default", Sizes::all(512)).unwrap();
    app.fill(&mut std::iter::from_fn(|| umem.alloc()).collect()).unwrap();
    rig.until_sessions(1);
    let (seen, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let given = AtomicUsize::new(0);
    let Rig { tx, more, pool, .. } = &mut rig;
    let queues = [&mut *tx, &mut more[0].1];
    std::thread::scope(|scope| {
        for (from, tx) in (0u8..).zip(queues) {
            let (mut cache, seen, over, given) = (pool.cache(Direction::Tx).unwrap(), &seen, &over, &given);
            scope.spawn(move || {
                let mut number = 0u16;
                while usize::from(number) < EACH && !over.load(Ordering::Relaxed) {
                    if given.load(Ordering::Relaxed) > seen.load(Ordering::Relaxed) + WINDOW {
                        std::thread::yield_now();
                        continue;
                    }
                    let numbers: Vec<_> = (number..).take(1 + usize::from(number) % 32).collect();
                    number += numbers.len() as u16;
                    given.fetch_add(numbers.len(), Ordering::Relaxed);
                    let bytes = numbers.iter().map(|n| [[from; 58].as_slice(), &n.to_be_bytes()].concat());
                    let bytes: Vec<_> = bytes.collect();
                    let mut held = batch(&mut cache, &bytes.iter().map(Vec::as_slice).collect::<Vec<_>>());
                    tx.reclaim();
                    while !held.is_empty() && !over.load(Ordering::Relaxed) {
                        if tx.tx(&mut held) == 0 {
                            std::thread::yield_now();
                        }
                    }
                    tx.kick();
                }
            });
        }
        let (mut next, mut got) = ([0u16; 2], Vec::new());
        let begun = Instant::now();
        while next.iter().any(|next| usize::from(*next) < EACH) && begun.elapsed() < Duration::from_secs(60) {
            if app.rx(&mut got).unwrap() == 0 {
                std::thread::yield_now();
            }
            for frame in &got {
                let next = &mut next[usize::from(frame.bytes()[0])];
                assert_eq!(frame.bytes()[58..], next.to_be_bytes(), "in the order of its queue");
                *next += 1;
            }
            seen.fetch_add(got.len(), Ordering::Relaxed);
            app.fill(&mut got).unwrap();
        }
        over.store(true, Ordering::Relaxed);
        assert!(next.iter().all(|next| usize::from(*next) >= EACH), "{next:?}");
    });
    let drops = [&rig.tx, &rig.more[0].1].map(|tx| tx.counters().snapshot().all_drops());
    assert_eq!(drops, [0, 0]);
    drop(app);
    rig.end();
}
