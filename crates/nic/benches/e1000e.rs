//! The cost of the e1000e driver per frame, over a model of its device: one core, without the
//! device.

#[allow(missing_docs, unreachable_pub)]
mod rig;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rig::{ROUND, Rig, Setup};
use std::time::{Duration, Instant};
use towpath_bus::{DmaPolicy, Flush};
use towpath_nic::e1000e::RecycleMode;

const STRICT: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Strict };
const PLAIN: Setup =
    Setup { policy: DmaPolicy::Persistent, copybreak: 0, tx_copybreak: 0, recycle: RecycleMode::KeepMapped, len: 64 };

/// Time to receive `rounds` rounds.
fn receive(rig: &mut Rig, burst: usize, rounds: u64) -> Duration {
    let mut time = Duration::ZERO;
    for _ in 0..rounds {
        rig.arrive();
        rig.make_room(burst);
        let begun = Instant::now();
        let got = rig.measured_rx(burst);
        time += begun.elapsed();
        assert_eq!(got, ROUND);
        rig.clear_room();
    }
    time
}

/// Time to send `rounds` rounds, and to free the frames before them.
fn send(rig: &mut Rig, burst: usize, rounds: u64) -> Duration {
    let mut time = Duration::ZERO;
    for _ in 0..rounds {
        let mut batches = rig.prepare(burst);
        let begun = Instant::now();
        let sent = rig.measured_tx(&mut batches, burst);
        time += begun.elapsed();
        assert_eq!(sent, ROUND);
        rig.leave();
    }
    time
}

fn bursts(c: &mut Criterion) {
    for (name, work) in [("rx", receive as fn(&mut Rig, usize, u64) -> Duration), ("tx", send)] {
        let mut group = c.benchmark_group(format!("e1000e {name}, 64 bytes, burst"));
        group.throughput(Throughput::Elements(ROUND as u64));
        for burst in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
            let mut rig = Rig::new(PLAIN);
            group.bench_function(BenchmarkId::from_parameter(burst), |b| {
                b.iter_custom(|rounds| work(&mut rig, burst, rounds));
            });
        }
        group.finish();
    }
}

fn policies(c: &mut Criterion) {
    for (policy, protection) in [(DmaPolicy::Persistent, "persistent"), (STRICT, "strict")] {
        for (recycle, way) in [(RecycleMode::UnmapFirst, "unmap first"), (RecycleMode::KeepMapped, "keep mapped")] {
            for copybreak in [0, 2048] {
                let mut group = c.benchmark_group(format!("e1000e rx, {protection}, {way}, copybreak {copybreak}"));
                group.throughput(Throughput::Elements(ROUND as u64));
                for len in [64, 256, 1500] {
                    let mut rig = Rig::new(Setup { policy, copybreak, recycle, len, ..PLAIN });
                    group.bench_function(BenchmarkId::from_parameter(len), |b| {
                        b.iter_custom(|rounds| receive(&mut rig, 64, rounds));
                    });
                }
                group.finish();
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = bursts, policies
}
criterion_main!(benches);
