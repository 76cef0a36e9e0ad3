//! External pages of applications: the driver maps them with their first packet, sends them without
//! a copy, and unmaps them.

use super::rig::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_bus::DmaPolicy;
use towpath_model::iommu::Refuse;
use towpath_packet::{Backing, ExtBufOwner, ExtBufPool, Packet, Region, UntrustedMem};

const CHUNK: usize = 2048;
const N: usize = 64;

struct NoOwner;
impl ExtBufOwner for NoOwner {
    fn on_free(&self) {}
}

/// An application's memory, a frame in each chunk.
fn memory() -> UntrustedMem {
    let region = UntrustedMem::new(Region::new(N * CHUNK, Backing::Memfd).unwrap());
    let file: File = region.fd().unwrap().try_clone_to_owned().unwrap().into();
    for i in 0..N {
        file.write_all_at(&frame(1000, i as u64), (i * CHUNK) as u64).unwrap();
    }
    region
}

fn packets(r: &mut Rig, pages: &mut ExtBufPool) -> Vec<Packet> {
    let make = |i| {
        let mut packet = r.cache.alloc().unwrap();
        packet.append_buf(pages.attach(i * CHUNK, 1000, i as u64).unwrap()).unwrap();
        packet
    };
    (0..N).map(make).collect()
}

/// Sends every page twice; all arrive, and are freed to their pool.
fn exchange(r: &mut Rig, pages: &mut ExtBufPool) {
    for _ in 0..2 {
        let packets = packets(r, pages);
        r.send(0, packets);
        r.settle();
        let expected: Vec<_> = (0..N as u64).map(|i| frame(1000, i)).collect();
        assert_eq!(r.far.drain(), expected);
        let mut back = Vec::new();
        pages.drain_freed(2 * N, |token, _| back.push(token));
        back.sort_unstable();
        assert!(back.iter().copied().eq(0..N as u64), "each page once: {back:?}");
    }
}

fn until(r: &mut Rig, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain");
        r.turn(&mut Vec::new());
    }
}

#[test]
fn pages_are_sent_without_a_copy_and_unmapped_when_their_owner_is_gone() {
    for policy in POLICIES {
        let mut r = rig(with(|c| c.policy = policy), strict());
        for _ in 0..2 {
            let region = memory();
            let alive = region.handle().downgrade();
            let mut pages = ExtBufPool::new(N, region, Arc::new(NoOwner)).unwrap();
            exchange(&mut r, &mut pages);
            assert_eq!(r.faults(), 0, "nothing is copied: {policy:?}");
            drop(pages);
            until(&mut r, || alive.is_gone());
        }
        r.end();
    }
}

#[test]
fn memory_that_can_not_be_mapped_is_copied_and_counted_and_tried_once() {
    let mut r = rig(config(), strict());
    let mut pages = ExtBufPool::new(N, memory(), Arc::new(NoOwner)).unwrap();
    r.device.iommu().refuse(Refuse::Always);
    exchange(&mut r, &mut pages);
    assert_eq!(r.faults(), 2 * N as u64);
    r.device.iommu().refuse(Refuse::Never);
    exchange(&mut r, &mut pages);
    assert_eq!(r.faults(), 4 * N as u64, "it is not tried again");
    r.end();
}

#[test]
fn external_memory_stays_mapped_over_a_pause() {
    let mut r = rig(with(|c| c.policy = DmaPolicy::Persistent), strict());
    let mut pages = ExtBufPool::new(N, memory(), Arc::new(NoOwner)).unwrap();
    exchange(&mut r, &mut pages);
    let maps = r.device.iommu().counts().maps;
    let begun = Instant::now();
    until(&mut r, || begun.elapsed() > Duration::from_millis(100));
    exchange(&mut r, &mut pages);
    assert_eq!((r.faults(), r.device.iommu().counts().maps), (0, maps));
    drop(pages);
    r.end();
}

#[test]
fn bytes_that_lie_in_no_region_are_copied_and_counted_and_their_owners_dropped_once() {
    for policy in POLICIES {
        let mut r = rig(with(|c| c.policy = policy), strict());
        let frames: Vec<Arc<[u8]>> = (0..N as u64).map(|i| frame(1000, i).into()).collect();
        let owned = |frame: &Arc<[u8]>| Packet::from_owner(frame.clone()).unwrap();
        let alone: Vec<_> = frames.iter().map(owned).collect();
        r.send(0, alone);
        // And behind a head with the headers.
        let behind = frames.iter().map(|frame| {
            let mut packet = Packet::copy_from(&mut r.cache, &frame[..14]).unwrap();
            packet.append(Packet::from_owner(frame[14..].to_vec()).unwrap()).unwrap();
            packet
        });
        let behind: Vec<_> = behind.collect();
        r.send(0, behind);
        r.settle();
        let expected: Vec<_> = frames.iter().chain(&frames).map(|frame| frame.to_vec()).collect();
        assert_eq!(r.far.drain(), expected, "{policy:?}");
        assert_eq!(r.faults(), 2 * N as u64, "each is counted: {policy:?}");
        assert!(frames.iter().all(|frame| Arc::strong_count(frame) == 1));
        r.end();
    }
}
