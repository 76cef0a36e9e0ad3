//! Time per operation, hot in L1: checksums by instruction set, copies that sum, dissection and
//! flow hashes. `cargo bench -p towpath-wire`.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use towpath_wire::checksum::{self, Isa};

/// A bare header, the shortest and a middling packet, a full segment, a jumbo frame.
const LENGTHS: [usize; 5] = [20, 64, 512, 1468, 9000];

/// Where Ethernet puts the IP header: what is summed is rarely aligned.
const OFFSET: usize = 14;

fn sum(c: &mut Criterion) {
    let mut group = c.benchmark_group("checksum");
    let data: Vec<u8> = (0..OFFSET + 9000).map(|i| (i * 7) as u8).collect();
    for len in LENGTHS {
        let data = &data[OFFSET..OFFSET + len];
        group.throughput(Throughput::Bytes(len as u64));
        for isa in Isa::available() {
            group.bench_function(BenchmarkId::new(isa.name(), len), |b| {
                b.iter(|| checksum::sum_with(isa, black_box(data)));
            });
        }
        group.bench_function(BenchmarkId::new("best", len), |b| {
            b.iter(|| checksum::sum(black_box(data)));
        });
    }
    let header: [u8; 20] = std::array::from_fn(|i| i as u8);
    group.bench_function("ipv4_header", |b| {
        b.iter(|| checksum::sum(black_box(&header)))
    });
}

fn copy(c: &mut Criterion) {
    let mut group = c.benchmark_group("copy");
    let src: Vec<u8> = (0..OFFSET + 9000).map(|i| (i * 7) as u8).collect();
    let mut dst = vec![0; 9000];
    for len in [64, 512, 1448, 9000] {
        let (src, dst) = (&src[OFFSET..OFFSET + len], &mut dst[..len]);
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("plain", len), |b| {
            b.iter(|| black_box(&mut *dst).copy_from_slice(black_box(src)));
        });
        for isa in Isa::available() {
            group.bench_function(BenchmarkId::new(format!("sum_{}", isa.name()), len), |b| {
                b.iter(|| checksum::copy_with(isa, black_box(&mut *dst), black_box(src)));
            });
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_millis(700));
    targets = sum, copy
}
criterion_main!(benches);
