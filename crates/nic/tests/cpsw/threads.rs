//! The device on its own thread, the driver on two (T10).

use super::rig::{Variant, assert_stamps, config, model_config, pool, stamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use towpath_bus::tisci::Tisci;
use towpath_model::cpsw::Cpsw;
use towpath_model::wire::cable;
use towpath_nic::cpsw::{CpswRx, CpswTx, open};
use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Batch, Direction, Offloads, Packet};

const FRAMES: u32 = 3000;

fn sender<B: towpath_bus::Bus>(mut tx: CpswTx<B>, pool: towpath_packet::Pool, port: u8) {
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let mut batch = Batch::new();
    let mut number = 0;
    while number < FRAMES || !batch.is_empty() || tx.pending() > 0 {
        while number < FRAMES && batch.room() > 32 {
            match Packet::copy_from(&mut cache, &stamp(port, number, 60 + number as usize % 700)) {
                Some(packet) => drop(batch.push(packet)),
                None => break,
            }
            number += 1;
        }
        tx.reclaim();
        tx.tx(&mut batch);
        tx.kick();
        std::thread::yield_now();
    }
}

fn receiver<B: towpath_bus::Bus>(mut rx: CpswRx<B>, port: u8, stop: &AtomicBool) {
    let mut batch = Batch::new();
    let mut next = 0;
    while next < FRAMES && !stop.load(Ordering::Relaxed) {
        rx.refill();
        if rx.rx(&mut batch) == 0 {
            std::thread::yield_now();
        }
        for packet in batch.drain_front(64) {
            let frame = packet.to_vec();
            let number = u32::from_be_bytes(frame[15..19].try_into().unwrap());
            assert!(number >= next, "frame {number} of port {port} after {next}");
            assert_stamps(std::slice::from_ref(&frame), port, number);
            next = number + 1;
        }
    }
}

/// Two ports on one cable, two threads each: each port receives what the other sends.
fn cross(variant: Variant, tx_channels: u8) {
    let model_config = model_config(variant, 2).host_depth(4096);
    let model = Cpsw::new(model_config).unwrap();
    let (a, b) = cable(64);
    model.plug(1, a);
    model.plug(2, b);
    let running = model.spawn().unwrap();
    let pool = pool(4096);
    let calls: Arc<dyn Tisci> = Arc::new(model.firmware());
    let config = config(variant, 2).tx_channels(tx_channels).tx_ring(128).tx_descriptors(128).rx_ring(256);
    let (ports, control) = open(model.bus(), calls, config).unwrap();
    let stop = AtomicBool::new(false);
    let start = |port: towpath_nic::cpsw::CpswPort<_>| {
        let Queues { mut rx, mut tx } =
            port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL }).unwrap();
        (rx.remove(0), tx.remove(0))
    };
    let mut started: Vec<_> = ports.into_iter().map(start).collect();
    let (second, first) = (started.pop().unwrap(), started.pop().unwrap());
    std::thread::scope(|scope| {
        let senders = [(first.1, 0), (second.1, 1)].map(|(tx, port)| {
            let pool = pool.clone();
            scope.spawn(move || sender(tx, pool, port))
        });
        for (rx, from) in [(first.0, 1), (second.0, 0)] {
            let stop = &stop;
            scope.spawn(move || receiver(rx, from, stop));
        }
        for sender in senders {
            sender.join().unwrap();
        }
        // The last frames may have found no descriptor: the receivers need not wait for them.
        stop.store(true, Ordering::Relaxed);
    });
    if let Some(violation) = model.violation() {
        panic!("{violation}");
    }
    assert!(control.stops().iter().all(|stop| stop.orderly && stop.free == stop.descriptors), "{:?}", control.stops());
    assert_eq!(model.owned_descriptors(), 0);
    drop((running, control));
    assert_eq!(pool.stats().free, 4096);
}

#[test]
fn t10_four_threads_and_the_device_keep_the_order_and_lose_no_packet() {
    for variant in Variant::ALL {
        cross(variant, 2);
        cross(variant, 1);
    }
}
