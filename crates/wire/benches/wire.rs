//! Time per operation, hot in L1: checksums by instruction set, copies that sum, dissection and
//! flow hashes. `cargo bench -p towpath-wire`.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use towpath_wire::checksum::{self, Isa};
use towpath_wire::emit::{self, Checksums, Headers, Ip, Link, Network, Transport};
use towpath_wire::vlan::{Tag, Tci};
use towpath_wire::{Dissected, LinkKind, Toeplitz, dissect};

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
    group.bench_function("ipv4_header", |b| b.iter(|| checksum::sum(black_box(&header))));
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

/// 64 frames of as many flows, so that branches are predicted as in a real burst of one kind.
const BURST: usize = 64;

fn frames(version: u8, udp: bool, tags: [Tag; 2]) -> Vec<Vec<u8>> {
    let frame = |i: usize| {
        let ip = match version {
            4 => Ip::v4([10, 0, 0, i as u8], [10, 0, 1, 2]),
            _ => Ip::v6([i as u8; 16], [0xfd; 16]),
        };
        let (src_port, dst_port) = (40_000 + i as u16, 443);
        let options = &emit::timestamps(1, 2);
        let transport = match udp {
            true => Transport::Udp(emit::Udp { src_port, dst_port }),
            false => Transport::Tcp(emit::Tcp { src_port, dst_port, options, ..Default::default() }),
        };
        let link = Some(Link { tags, ..Link::default() });
        let mut frame = vec![0; 200];
        Headers { link, network: Network::Ip(ip, transport) }
            .write(&mut frame, Checksums::Complete)
            .expect("a frame of legal length");
        frame
    };
    (0..BURST).map(frame).collect()
}

fn dissection(c: &mut Criterion) {
    let mut group = c.benchmark_group("dissect");
    group.throughput(Throughput::Elements(BURST as u64));
    let none = [Tag::default(); 2];
    let one = [Tag { tpid: 0x8100, tci: Tci(42) }, Tag::default()];
    let kinds = [
        ("v4_tcp", frames(4, false, none)),
        ("v4_udp", frames(4, true, none)),
        ("v4_tcp_vlan", frames(4, false, one)),
        ("v6_tcp", frames(6, false, none)),
        ("v6_udp", frames(6, true, none)),
    ];
    for (name, frames) in &kinds {
        group.bench_function(BenchmarkId::new("headers_and_hash", name), |b| {
            b.iter(|| {
                for frame in black_box(frames) {
                    let found = dissect(frame, LinkKind::Ethernet);
                    black_box(&found);
                    black_box(found.symmetric_hash(1));
                }
            });
        });
    }
    let microsoft = Toeplitz::new(&Toeplitz::MICROSOFT_KEY);
    for (name, frames) in kinds.iter().filter(|(name, _)| name.ends_with("_tcp")) {
        let found: Vec<Dissected> = frames.iter().map(|frame| dissect(frame, LinkKind::Ethernet)).collect();
        group.bench_function(BenchmarkId::new("symmetric_hash", name), |b| {
            b.iter(|| black_box(&found).iter().fold(0, |all, f| all ^ f.symmetric_hash(1)));
        });
        group.bench_function(BenchmarkId::new("toeplitz", name), |b| {
            b.iter(|| black_box(&found).iter().fold(0, |all, f| all ^ f.toeplitz(&microsoft)));
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_millis(700));
    targets = sum, copy, dissection
}
criterion_main!(benches);
