//! Runs one operation a given number of times, for instruction counts:
//!
//! ```sh
//! valgrind --tool=callgrind --toggle-collect='*measured*' \
//!     target/release/examples/packet_ops bulk 1000
//! ```

use std::hint::black_box;
use towpath_packet::spsc::{Consumer, Producer, ring};
use towpath_packet::{Batch, Cache, Direction, Packet, Pool, PoolConfig};

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
    match operation.as_str() {
        "bulk" => (0..rounds).for_each(|_| measured_bulk(&mut cache, &mut batch)),
        "ring" => {
            let (mut to, mut from) = ring(256);
            cache.alloc_bulk(&mut batch, 64);
            (0..rounds).for_each(|_| measured_ring(&mut to, &mut from, &mut batch));
        }
        other => eprintln!("no operation '{other}': bulk, ring"),
    }
    eprintln!("{operation}: {rounds} rounds of 64 packets");
}
