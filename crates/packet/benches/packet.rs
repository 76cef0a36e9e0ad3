//! The costs of a packet without its bytes: allocation, preparation, freeing, and the hop between
//! two cores.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::{Duration, Instant};
use towpath_packet::spsc::ring;
use towpath_packet::{Batch, Direction, Packet, Pool, PoolConfig};

fn pool() -> Pool {
    Pool::new(PoolConfig::default()).expect("memory for the bench")
}

fn bulk(c: &mut Criterion) {
    let mut group = c.benchmark_group("pool");
    for burst in [1usize, 8, 32, 64] {
        let mut cache = pool().cache(Direction::Rx).expect("a cache");
        let mut batch: Batch = Batch::new();
        group.throughput(Throughput::Elements(burst as u64));
        group.bench_function(format!("allocate, prepare, append 60 bytes, free, burst {burst}"), |b| {
            b.iter(|| {
                cache.alloc_bulk(&mut batch, burst);
                for packet in batch.as_mut_slice() {
                    let _ = packet.push_back(60);
                }
                cache.free_bulk(&mut batch);
            });
        });
    }
    let mut cache = pool().cache(Direction::Rx).expect("a cache");
    let mut batch: Batch = Batch::new();
    group.bench_function("allocate, prepare, free, burst 64", |b| {
        b.iter(|| {
            cache.alloc_bulk(black_box(&mut batch), 64);
            cache.free_bulk(&mut batch);
        });
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("drop without a cache, allocate again", |b| b.iter(|| drop(black_box(cache.alloc()))));
    group.finish();
}

fn chain(c: &mut Criterion) {
    let mut cache = pool().cache(Direction::Rx).expect("a cache");
    c.bench_function("packet/append 4 fragments and free", |b| {
        b.iter(|| {
            let mut head = cache.alloc().expect("a buffer");
            for _ in 0..4 {
                let mut next = cache.alloc().expect("a buffer");
                let _ = next.push_back(1000);
                let _ = head.append(next);
            }
            cache.free(black_box(head));
        });
    });
    c.bench_function("packet/copy_from 1448", |b| {
        b.iter_batched_ref(
            || [7u8; 1448],
            |bytes| {
                if let Some(p) = Packet::copy_from(&mut cache, black_box(bytes)) {
                    cache.free(p);
                }
            },
            BatchSize::SmallInput,
        );
    });
}

fn pin(core: usize) {
    // SAFETY: the set is a plain bit array that lives across both calls; pid 0 is this thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Packets through a ring and back, so that the same buffers go round: two hops, so half of the
/// time is one.
fn two_cores(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring between two cores");
    for burst in [1usize, 32] {
        group.throughput(Throughput::Elements(2 * burst as u64));
        group.bench_function(format!("burst {burst}, there and back"), |b| {
            b.iter_custom(|rounds| {
                let pool = pool();
                let (mut to, mut there) = ring::<Packet>(512);
                let (mut back, mut from) = ring::<Packet>(512);
                std::thread::scope(|s| {
                    s.spawn(move || {
                        pin(1);
                        let mut batch: Batch<64> = Batch::new();
                        while !there.is_closed() {
                            there.pop_batch(&mut batch);
                            back.push_batch(&mut batch);
                        }
                    });
                    pin(0);
                    let mut cache = pool.cache(Direction::Rx).expect("a cache");
                    let (mut out, mut returned): (Batch, Batch) = (Batch::new(), Batch::new());
                    let total = rounds * burst as u64;
                    let (mut sent, mut got) = (0, 0);
                    let start = Instant::now();
                    while got < total {
                        if sent < total && sent - got < 256 {
                            let want = burst.min((total - sent) as usize) - out.len();
                            cache.alloc_bulk(&mut out, want);
                            sent += to.push_batch(&mut out) as u64;
                        }
                        got += from.pop_batch(&mut returned) as u64;
                        cache.free_bulk(&mut returned);
                    }
                    let took = start.elapsed();
                    drop(to);
                    took
                })
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = bulk, chain, two_cores
}
criterion_main!(benches);
