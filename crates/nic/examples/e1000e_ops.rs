//! Moves rounds of 256 frames of 64 bytes through the e1000e driver and a model of its device.
//! Prints the time per frame of the best round and of the median round: their difference shows the
//! load of the machine. For instruction counts:
//!
//! ```sh
//! valgrind --tool=callgrind --toggle-collect='*measured_rx*' target/release/examples/e1000e_ops rx 64 1000 0
//! valgrind --tool=callgrind --toggle-collect='*measured_tx*' target/release/examples/e1000e_ops tx 64 1000
//! ```
//!
//! Arguments: `rx` or `tx`, frames of a burst, rounds, copybreak, bytes of a frame, `persistent`,
//! `strict` or `deferred`, `old` or `new`.

#[allow(missing_docs, unreachable_pub)]
#[path = "../benches/rig/mod.rs"]
mod rig;

use rig::{ROUND, Rig, Setup};
use std::time::Instant;
use towpath_bus::{DmaPolicy, Flush};
use towpath_nic::e1000e::RecycleMode;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| args.get(at).and_then(|n| n.parse().ok()).unwrap_or(default);
    let word = |at: usize| args.get(at).map_or("", String::as_str);
    let (burst, rounds, copybreak, len) = (number(1, 64) as usize, number(2, 1000), number(3, 0), number(4, 64));
    let policy = match word(5) {
        "strict" => DmaPolicy::PerBuffer { flush: Flush::Strict },
        "deferred" => DmaPolicy::PerBuffer { flush: Flush::Deferred },
        _ => DmaPolicy::Persistent,
    };
    let recycle = if word(6) == "old" { RecycleMode::UnmapFirst } else { RecycleMode::KeepMapped };
    // The threshold of the direction that is measured.
    let (copybreak, tx_copybreak) = if word(0) == "tx" { (0, copybreak) } else { (copybreak, 0) };
    let mut rig = Rig::new(Setup { policy, copybreak, tx_copybreak, recycle, len: len as usize });
    let mut times = Vec::new();
    for _ in 0..rounds {
        if word(0) == "tx" {
            let mut batches = rig.prepare(burst);
            let begun = Instant::now();
            assert_eq!(rig.measured_tx(&mut batches, burst), ROUND);
            times.push(begun.elapsed());
            rig.leave();
        } else {
            rig.arrive();
            rig.make_room(burst);
            let begun = Instant::now();
            assert_eq!(rig.measured_rx(burst), ROUND);
            times.push(begun.elapsed());
            rig.clear_room();
        }
    }
    times.sort_unstable();
    let per_frame = |at: usize| times.get(at).map_or(0.0, |t| t.as_nanos() as f64 / ROUND as f64);
    println!("{} of {burst}: best {:.1} ns a frame, median {:.1}", word(0), per_frame(0), per_frame(times.len() / 2));
}
