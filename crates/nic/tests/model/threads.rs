//! Each queue and the device on a thread of its own: the queues agree on resets, and end in any
//! order.

use super::rig::*;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use towpath_model::e1000e::{self as model, Faults};
use towpath_model::wire::{Loopback, Wire};
use towpath_nic::e1000e::{Config, E1000e};
use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Batch, Direction, Offloads, Packet};

/// Runs two queues in each direction on four threads until `enough` is true and packets have passed
/// in both directions, or some seconds are over. Then the queues end one after the other. Returns
/// the number of packets sent and received.
fn run(device: model::Config, wire: impl Wire, mut config: Config, enough: impl Fn(u64) -> bool + Sync) -> (u64, u64) {
    let bus = model::launch(device.threaded(true), wire).unwrap();
    let device = bus.device();
    config.queues = 2;
    let port = E1000e::open(bus, "e1000e:model", config).unwrap();
    let (pool, control) = (pool_of(2048), port.control());
    let start = Start { pool: pool.clone(), queues: 2, accept: Offloads::ALL };
    let Queues { rx, tx } = port.start(start).unwrap();
    let counters: (Vec<_>, Vec<_>) =
        (rx.iter().map(|q| q.counters().clone()).collect(), tx.iter().map(|q| q.counters().clone()).collect());
    let packets = |all: &[std::sync::Arc<towpath_packet::Counters>]| all.iter().map(|c| c.snapshot().packets).sum();
    let passed = || -> (u64, u64) { (packets(&counters.1), packets(&counters.0)) };
    let enough = |resets| enough(resets) && passed().0 > 0 && passed().1 > 0;
    let (stop, begun) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|s| {
        for mut rx in rx {
            let stop = &stop;
            s.spawn(move || {
                let mut out: Batch = Batch::new();
                while !stop.load(Relaxed) {
                    rx.refill();
                    if rx.rx(&mut out) == 0 {
                        std::thread::yield_now();
                    }
                    drop(std::mem::take(&mut out));
                }
            });
        }
        for (number, mut tx) in tx.into_iter().enumerate() {
            let (stop, pool) = (&stop, &pool);
            s.spawn(move || {
                let mut cache = pool.cache(Direction::Tx).unwrap();
                let mut batch: Batch = Batch::new();
                let mut at = 0;
                while !stop.load(Relaxed) {
                    while batch.len() < 16
                        && let Some(packet) =
                            Packet::copy_from(&mut cache, &frame(60 + at % 1000, (at * 2 + number) as u64))
                    {
                        batch.push(packet).unwrap();
                        at += 1;
                    }
                    tx.reclaim();
                    if tx.tx(&mut batch) == 0 {
                        std::thread::yield_now();
                    }
                    tx.kick();
                }
            });
        }
        while !enough(control.faults().resets) && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Relaxed);
    });
    assert!(enough(control.faults().resets), "it took too long: {:?}, {:?}", control.faults(), passed());
    let (stats, counts) = (pool.stats(), device.iommu().counts());
    assert_eq!(stats.free, stats.capacity, "buffers are missing: {:?}", control.faults());
    assert_eq!(counts.maps, counts.unmaps, "mappings are left");
    assert_eq!(device.violation(), None);
    passed()
}

#[test]
fn queues_of_four_threads_send_and_receive_at_once() {
    for policy in POLICIES {
        let begun = Instant::now();
        let enough = |_| begun.elapsed() > Duration::from_millis(300);
        let (sent, received) = run(strict(), Loopback::default(), with(|c| c.policy = policy), enough);
        assert!(sent > 0 && received > 0, "{sent} sent, {received} received");
    }
}

#[test]
fn queues_of_four_threads_agree_on_every_reset() {
    for policy in POLICIES {
        let faults = Faults::default().stall(300).stall_turns(0).seed(1);
        let device = strict().faults(faults);
        run(device, Loopback::default(), with(|c| c.policy = policy), |resets| resets >= 4);
    }
}
