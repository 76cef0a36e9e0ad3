//! Moves bursts of frames of 64 bytes through the virtio driver, against a back end of vhost-user
//! that is stepped in between. Prints the time per frame of the best burst and of the median one.
//! For instruction counts:
//!
//! ```sh
//! valgrind --tool=callgrind --toggle-collect='*measured_rx*' target/release/examples/virtio_ops rx 32 1000
//! valgrind --tool=callgrind --toggle-collect='*measured_tx*' target/release/examples/virtio_ops tx 32 1000
//! ```
//!
//! Arguments: `rx` or `tx`, frames of a burst, bursts, bytes of a frame, `split` or `packed`.

#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../tests/virtio/backend.rs"]
mod backend;
#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../tests/virtio/rig.rs"]
mod rig;

use backend::Backend;
use rig::{EVERYTHING, Rig, frame};
use std::time::{Duration, Instant};
use towpath_nic::virtio::Config;
use towpath_packet::Batch;
use towpath_packet::port::{RxQueue, TxQueue};

/// Sends a burst, and frees the one before it.
#[inline(never)]
fn measured_tx(rig: &mut Rig, batch: &mut Batch) -> usize {
    rig.tx[0].reclaim();
    let taken = rig.tx[0].tx(batch);
    rig.tx[0].kick();
    taken
}

/// Receives a burst, and posts buffers in place of its own.
#[inline(never)]
fn measured_rx(rig: &mut Rig, batch: &mut Batch) -> usize {
    rig.rx[0].refill();
    rig.rx[0].rx(batch)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| args.get(at).and_then(|n| n.parse().ok()).unwrap_or(default);
    let word = |at: usize| args.get(at).map_or("", String::as_str);
    let (burst, bursts, len) = (number(1, 32).clamp(1, 64), number(2, 1000), number(3, 64).max(14));
    let mut config = Config::default();
    config.packed = word(4) == "packed";
    let backend = Backend::new(EVERYTHING, 1);
    let mut rig = Rig::new(config, &backend);
    let bytes = frame(1, len);
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..bursts {
        let mut batch: Batch = Batch::new();
        let moved = if word(0) == "rx" {
            (0..burst).for_each(|_| assert!(backend.give(0, [0; 10], &bytes)));
            let begun = Instant::now();
            let moved = measured_rx(&mut rig, &mut batch);
            times.push(begun.elapsed());
            rig.cache.free_bulk(&mut batch);
            moved
        } else {
            (0..burst).for_each(|_| drop(batch.push(rig.packet(&[&bytes]))));
            let begun = Instant::now();
            let moved = measured_tx(&mut rig, &mut batch);
            times.push(begun.elapsed());
            backend.take(0);
            moved
        };
        assert_eq!(moved, burst);
    }
    times.sort_unstable();
    let per_frame = |at: usize| times.get(at).map_or(0.0, |t| t.as_nanos() as f64 / burst as f64);
    println!("{} of {burst}: best {:.1} ns a frame, median {:.1}", word(0), per_frame(0), per_frame(times.len() / 2));
}
