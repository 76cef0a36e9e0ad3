//! Coalescing and segmentation, by criterion. `benches/peers/gro/run --alone` of the repository has
//! the finer table: it leaves out what is measured here too, the making of each burst.
#![allow(missing_docs)]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use towpath_gro::{Checksum, Checksums, Gro, GroConfig, Gso, GsoKind, Linear, LinkKind, Offload, Split};
use towpath_wire::checksum;

const BURST: usize = 64;
const SIZE: usize = 1448;
const HEADER: usize = 40;

fn packet(flow: u16, number: u32, payload: usize) -> Vec<u8> {
    let len = HEADER + payload;
    let mut b = vec![number as u8; len];
    b[..20].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
    b[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    b[4..6].copy_from_slice(&(number as u16).to_be_bytes());
    let check = checksum::finish(checksum::sum(&b[..20]));
    b[10..12].copy_from_slice(&check.to_be_bytes());
    let tcp = &mut b[20..];
    tcp[..20].copy_from_slice(&[0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    tcp[2..4].copy_from_slice(&flow.to_be_bytes());
    tcp[4..8].copy_from_slice(&(number * payload as u32).to_be_bytes());
    let pseudo = checksum::pseudo_v4([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), 6, tcp.len() as u32);
    let check = checksum::finish(checksum::add(pseudo, checksum::sum(tcp)));
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
    b
}

fn coalesce(c: &mut Criterion) {
    let mut group = c.benchmark_group("coalesce 64 x 1448, copied");
    group.throughput(Throughput::Elements(BURST as u64));
    for (name, checksum) in [("trusted", Checksum::Verified), ("verified", Checksum::Unknown)] {
        for flows in [1, 8, 64] {
            let burst: Vec<Vec<u8>> = (0..BURST)
                .map(|i| {
                    let mut b = packet((i % flows) as u16, (i / flows) as u32, SIZE);
                    b.resize(65_535, 0);
                    b
                })
                .collect();
            group.bench_function(format!("{name}, {flows} flows"), |b| {
                let offload = Offload::new(checksum, None);
                let mut gro = Gro::new(GroConfig::default().link(LinkKind::Ip));
                let mut out = (drop::<Linear<Vec<u8>>>, drop);
                b.iter_batched(
                    || burst.clone(),
                    |burst| {
                        let linear = burst.into_iter().map(|b| Linear::new(b, HEADER + SIZE, offload));
                        gro.push_and_flush(linear, &mut out);
                    },
                    BatchSize::LargeInput,
                );
            });
        }
    }
    group.finish();
}

fn segment(c: &mut Criterion) {
    let packet = packet(1, 0, 40 * SIZE);
    let gso = Gso { kind: GsoKind::Tcp4, size: SIZE as u16, segs: 40, hdr_len: HEADER as u16, ecn: false };
    let offload = Offload::new(Checksum::Partial { start: 20, offset: 16 }, Some(gso));

    let mut group = c.benchmark_group("segment 40 x 1448");
    group.throughput(Throughput::Elements(40));
    for (name, checksums) in [("complete", Checksums::Complete), ("partial", Checksums::Partial)] {
        let mut buffers = vec![[0; 2048]; 40];
        group.bench_function(name, |b| {
            b.iter(|| {
                let split = Split::new([packet.as_slice()].into_iter(), LinkKind::Ip, &offload, checksums);
                let Ok(mut split) = split else { return };
                for buffer in &mut buffers {
                    std::hint::black_box(split.write(buffer));
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, coalesce, segment);
criterion_main!(benches);
