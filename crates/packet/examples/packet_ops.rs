//! Runs one operation a given number of times, and prints the nanoseconds a packet as JSON. For
//! instruction counts:
//!
//! ```sh
//! valgrind --tool=callgrind --toggle-collect='*measured*' \
//!     target/release/examples/packet_ops bulk 1000
//! ```
//!
//! `prepare` allocates 64 packets, prepared, and frees them; `bulk` also claims 60 bytes of data
//! in each; `ring` passes 64 packets through a ring. `benches/peers/alloc` has DPDK's counterpart.

use std::hint::black_box;
use std::time::Instant;
use towpath_packet::spsc::{Consumer, Producer, ring};
use towpath_packet::{Batch, Cache, Direction, Packet, Pool, PoolConfig};

#[inline(never)]
fn measured_prepare(cache: &mut Cache, batch: &mut Batch) {
    cache.alloc_bulk(black_box(batch), 64);
    cache.free_bulk(black_box(batch));
}

#[inline(never)]
fn measured_bulk(cache: &mut Cache, batch: &mut Batch) {
    cache.alloc_bulk(batch, 64);
    for packet in batch.as_mut_slice() {
        let _ = packet.push_back(60);
    }
    cache.free_bulk(black_box(batch));
}

#[inline(never)]
fn measured_ring(to: &mut Producer<Packet>, from: &mut Consumer<Packet>, batch: &mut Batch) {
    to.push_batch(batch);
    from.pop_batch(batch);
}

fn main() {
    let mut args = std::env::args().skip(1);
    let operation = args.next().unwrap_or_else(|| "bulk".into());
    let rounds: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let pool = Pool::new(PoolConfig::default()).expect("memory");
    let mut cache = pool.cache(Direction::Rx).expect("a cache");
    let mut batch = Batch::new();
    let (mut to, mut from) = ring(256);
    let mut round: Box<dyn FnMut(&mut Batch)> = match operation.as_str() {
        "prepare" => Box::new(|batch| measured_prepare(&mut cache, batch)),
        "bulk" => Box::new(|batch| measured_bulk(&mut cache, batch)),
        "ring" => {
            cache.alloc_bulk(&mut batch, 64);
            Box::new(|batch| measured_ring(&mut to, &mut from, batch))
        }
        other => {
            eprintln!("no operation '{other}': prepare, bulk, ring");
            std::process::exit(2);
        }
    };
    // A fixed number, so that it falls out of the difference between two counts.
    (0..100).for_each(|_| round(&mut batch));
    let begun = Instant::now();
    (0..rounds).for_each(|_| round(&mut batch));
    let ns = begun.elapsed().as_nanos() as f64 / f64::from(rounds) / 64.0;
    println!(r#"{{"operation":"{operation}","rounds":{rounds},"ns":{ns:.3}}}"#);
}
