//! The cost of a model for a driver, and of the model itself.
//!
//! The first group is part of every figure that is measured on a model: a register store, mapping,
//! unmapping, invalidation. The second is not: the device is stepped outside the measured time.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use towpath_bus::{Access, Bus, Dma, Mmio, Pci, Window};
use towpath_model::{e1000e, iommu, wire};
use towpath_packet::Region;

const RDT: usize = 0x2818;
const BUFFERS: u32 = 64;

fn bus(on: bool) -> e1000e::ModelBus {
    let iommu = iommu::Config::default().on(on);
    let config = e1000e::Config::default().iommu(iommu).phy(e1000e::PhyStart::Ready);
    let bus = e1000e::launch(config, wire::Loopback::default()).unwrap();
    bus.set_master(true);
    bus
}

fn registers(c: &mut Criterion) {
    let bus = bus(true);
    let bar = bus.bar(0, 128 << 10).unwrap();
    c.bench_function("driver/tail write", |b| b.iter(|| bar.w32(black_box(RDT), black_box(0))));
    c.bench_function("driver/sync, coherent", |b| {
        let iova = towpath_bus::Iova::new(4096).unwrap();
        b.iter(|| bus.dma().sync_for_cpu(black_box(iova), 64));
    });
}

fn window(c: &mut Criterion) {
    let bus = bus(true);
    let region = bus.dma().alloc(BUFFERS as usize * 2048).unwrap();
    let mut window = bus.dma().window(BUFFERS, 2048).unwrap();
    let at = |slot: u32| region.at(slot as usize * 2048, 1920).unwrap();
    let mut group = c.benchmark_group("driver/map, unmap, flush of 64 buffers");
    group.throughput(Throughput::Elements(BUFFERS.into()));
    for (name, each) in [("one flush", false), ("a flush each", true)] {
        group.bench_function(name, |b| {
            b.iter(|| {
                for slot in 0..BUFFERS {
                    // SAFETY: unmapped and flushed below, before the region is dropped.
                    let _ = black_box(unsafe { window.map(slot, at(slot), 1920, Access::Write) });
                }
                for slot in 0..BUFFERS {
                    let _ = window.unmap(slot);
                    if each {
                        let _ = window.flush_iotlb();
                    }
                }
                let _ = window.flush_iotlb();
            });
        });
    }
}

/// A receive ring of 512 extended descriptors, followed by buffers.
fn ring(bus: &e1000e::ModelBus) -> (Region, u64) {
    let region = bus.dma().alloc(8192 + 512 * 2048).unwrap();
    // SAFETY: the caller drops the region after the bus.
    let iova = unsafe { bus.dma().map(region.base(), region.len(), Access::Both) }.unwrap().get();
    let bar = bus.bar(0, 128 << 10).unwrap();
    for (at, value) in [
        (0x5008, 0x8000),
        (0x2800, iova as u32),
        (0x2804, (iova >> 32) as u32),
        (0x2808, 8192),
        // RXCSUM: checksums are verified. RCTL: on, all broadcast and unicast, FCS stripped.
        (0x5000, 0x300),
        (0x0100, 0x0400_801a),
    ] {
        bar.w32(at, value);
    }
    (region, iova)
}

fn device(c: &mut Criterion) {
    let mut group = c.benchmark_group("device/receive 64 frames");
    group.throughput(Throughput::Elements(64));
    for on in [false, true] {
        let bus = bus(on);
        let (region, iova) = ring(&bus);
        let (bar, device) = (bus.bar(0, 128 << 10).unwrap(), bus.device());
        let (frame, mut tail) = ([7; 60], 0u32);
        group.bench_function(if on { "IOMMU on" } else { "IOMMU off" }, |b| {
            b.iter(|| {
                for _ in 0..64 {
                    let at = region.at(tail as usize * 16, 16).unwrap().cast::<[u64; 2]>();
                    // SAFETY: inside the ring; the device is stepped by this thread, so it is not
                    // running.
                    unsafe { at.write([iova + 8192 + u64::from(tail) * 2048, 0]) };
                    tail = (tail + 1) % 512;
                }
                bar.w32(RDT, tail);
                assert_eq!(device.deliver((0..64).map(|_| &frame[..])), 64);
            });
        });
        drop((bus, region));
    }
}

criterion_group!(benches, registers, window, device);
criterion_main!(benches);
