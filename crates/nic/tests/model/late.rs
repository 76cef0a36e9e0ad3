//! A device that goes on with its DMA as long as the IOMMU lets it: what was handed over does not
//! change. Under strict protection a buffer is handed over when its invalidation is executed, not
//! when its mapping is cleared.

use super::rig::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_model::iommu::{LateCounts, LateWrite, ModelDma, Refuse};
use towpath_nic::e1000e::{Copybreak, RecycleMode};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Backing, Batch, ExtBufOwner, ExtBufPool, Offloads, Packet, Region, UntrustedMem};

/// Frames of a burst.
const BURST: u64 = 24;

/// A rig whose device repeats its accesses to unmapped buffers.
fn late(recycle: RecycleMode, copybreak: u64, mtu: u16, at_invalidation: Option<LateWrite>) -> Rig {
    let copybreak = Some(Copybreak::new(copybreak).unwrap());
    let config = with(|c| (c.policy, c.recycle, c.copybreak, c.mtu) = (STRICT, recycle, copybreak, mtu));
    // Tags are put into the packet.
    let r = rig_with(config, strict(), pool_of(2048), Offloads::NONE);
    r.device.iommu().remember_late(at_invalidation);
    r
}

/// Frames of different lengths arrive, and are in the ring.
fn arrive(r: &mut Rig, first: u64, longest: usize) -> Vec<Vec<u8>> {
    let frames: Vec<_> = (first..first + BURST).map(|n| frame(60 + (n as usize * 397) % (longest - 60), n)).collect();
    r.rx[0].refill();
    r.arrive(frames.iter().map(Vec::as_slice));
    while r.device.turn() > 0 {}
    frames
}

/// Receives in one call, and compares at once.
#[track_caller]
fn receive(r: &mut Rig, expected: &[Vec<u8>]) -> Vec<Packet> {
    let mut out: Batch = Batch::new();
    r.rx[0].rx(&mut out);
    let packets: Vec<_> = out.drain_front(64).collect();
    assert_eq!(bytes(&packets), expected);
    packets
}

fn bytes(packets: &[Packet]) -> Vec<Vec<u8>> {
    packets.iter().map(Packet::to_vec).collect()
}

#[test]
fn no_byte_of_a_received_frame_changes_after_it_was_handed_over() {
    for recycle in [RecycleMode::KeepMapped, RecycleMode::UnmapFirst] {
        for (copybreak, mtu) in [(0, 1500), (700, 1500), (2048, 1500), (0, 9000), (700, 9000)] {
            let mut r = late(recycle, copybreak, mtu, None);
            let mut held = Vec::new();
            for round in 0..8 {
                let expected = arrive(&mut r, round * BURST, usize::from(mtu));
                let packets = receive(&mut r, &expected);
                let LateCounts { reads, writes, .. } = r.device.iommu().late(LateWrite::Scribble);
                assert_eq!((reads, writes), (0, 0), "{recycle:?}, copybreak {copybreak}, mtu {mtu}");
                held.push((packets, expected));
                assert!(held.iter().all(|(packets, expected)| bytes(packets) == *expected));
                if held.len() > 2 {
                    held.remove(0);
                }
            }
            // Where buffers were handed over, the device tried.
            let tried = r.device.iommu().late_counts().blocked > 0;
            assert_eq!(tried, copybreak < 2048 || recycle == RecycleMode::UnmapFirst);
            drop(held);
            r.end();
        }
    }
}

/// The driver moves the addresses of a tagged frame, in the buffer that it hands over. A device
/// that repeats its writes afterwards undoes that.
#[test]
fn a_buffer_is_changed_by_the_driver_only_after_its_invalidation() {
    let mut r = late(RecycleMode::KeepMapped, 0, 1500, Some(LateWrite::Repeat));
    for round in 0..8 {
        let tagged = |n| {
            let plain = frame(100 + n as usize, n);
            [&plain[..12], &[0x81, 0, 0, 5], &plain[12..]].concat()
        };
        let frames: Vec<_> = (round * BURST..(round + 1) * BURST).map(tagged).collect();
        r.rx[0].refill();
        r.arrive(frames.iter().map(Vec::as_slice));
        while r.device.turn() > 0 {}
        drop(receive(&mut r, &frames));
    }
    assert!(r.device.iommu().late_counts().writes >= 8 * BURST, "repeated at the last moment");
    r.end();
}

/// What the device has written by the time of the invalidation is what is received: bytes that were
/// copied before are not.
#[test]
fn an_unmapped_buffer_is_read_only_after_its_invalidation() {
    let mut r = late(RecycleMode::UnmapFirst, 2048, 1500, Some(LateWrite::Scribble));
    for round in 0..8 {
        let frames = arrive(&mut r, round * BURST, 1500);
        let scribbled: Vec<Vec<u8>> = frames.iter().map(|frame| frame.iter().map(|byte| !byte).collect()).collect();
        drop(receive(&mut r, &scribbled));
    }
    assert_eq!((r.rx[0].counts().copies, r.faults()), (8 * BURST, 0));
    r.end();
}

#[test]
fn without_its_invalidation_no_buffer_is_handed_over_and_none_is_used_again() {
    for (recycle, copybreak) in
        [(RecycleMode::KeepMapped, 0), (RecycleMode::UnmapFirst, 0), (RecycleMode::UnmapFirst, 2048)]
    {
        let mut r = late(recycle, copybreak, 1500, None);
        r.device.iommu().refuse_flushes(Refuse::Always);
        arrive(&mut r, 0, 1500);
        drop(receive(&mut r, &[]));
        let faults = r.control.faults();
        assert_eq!((faults.lost_frames, faults.leaked), (BURST, BURST), "{recycle:?}, copybreak {copybreak}");
        assert_eq!(r.device.iommu().late(LateWrite::Scribble).writes, BURST, "the device may go on for ever");
        r.device.iommu().refuse_flushes(Refuse::Never);
        for round in 1..6 {
            let expected = arrive(&mut r, round * BURST, 1500);
            let packets = receive(&mut r, &expected);
            r.device.iommu().late(LateWrite::Scribble);
            assert_eq!(bytes(&packets), expected);
        }
        let Rig { rx, tx, pool, cache, .. } = r;
        drop((rx, tx, cache));
        assert_eq!(pool.stats().capacity - pool.stats().free, BURST as usize);
    }
}

/// An application that looks, in the moment in which it has a page again, whether the device can
/// still read it.
struct Watcher {
    iommu: ModelDma,
    returned: AtomicU64,
    reached: AtomicU64,
}

impl ExtBufOwner for Watcher {
    fn on_free(&self) {
        self.returned.fetch_add(1, Ordering::Relaxed);
        self.reached.fetch_add(self.iommu.late(LateWrite::Repeat).reads, Ordering::Relaxed);
    }
}

#[test]
fn a_page_is_returned_to_its_application_only_after_its_invalidation() {
    const PAGES: usize = 32;
    for headless in [true, false] {
        let mut r = late(RecycleMode::KeepMapped, 0, 1500, None);
        let iommu = r.device.iommu().clone();
        let watcher = Arc::new(Watcher { iommu, returned: AtomicU64::new(0), reached: AtomicU64::new(0) });
        let region = UntrustedMem::new(Region::new(PAGES * 2048, Backing::Memfd).unwrap());
        let mut pages = ExtBufPool::new(PAGES, region, watcher.clone()).unwrap();
        for _ in 0..4 {
            let packets: Vec<_> = (0..PAGES)
                .map(|i| {
                    if headless {
                        return pages.packet(i * 2048, 1000, i as u64).unwrap();
                    }
                    let mut packet = r.cache.alloc().unwrap();
                    packet.append_buf(pages.attach(i * 2048, 1000, i as u64).unwrap()).unwrap();
                    packet
                })
                .collect();
            r.send(0, packets);
            r.settle();
            assert_eq!(r.far.drain().len(), PAGES);
            let mut back = Vec::new();
            pages.drain_freed(2 * PAGES, |token, _| back.push(token));
            back.sort_unstable();
            assert!(back.iter().copied().eq(0..PAGES as u64), "each once: {back:?}");
        }
        assert!(watcher.returned.load(Ordering::Relaxed) > 0 && r.device.iommu().late_counts().blocked > 0);
        assert_eq!(watcher.reached.load(Ordering::Relaxed), 0, "pages that the device still reads");
        drop(pages);
        r.end();
    }
}

#[test]
fn without_its_invalidation_no_page_is_returned() {
    let mut r = late(RecycleMode::KeepMapped, 0, 1500, None);
    let iommu = r.device.iommu().clone();
    let watcher = Arc::new(Watcher { iommu, returned: AtomicU64::new(0), reached: AtomicU64::new(0) });
    let region = UntrustedMem::new(Region::new(4096, Backing::Memfd).unwrap());
    let mut pages = ExtBufPool::new(2, region, watcher.clone()).unwrap();
    r.device.iommu().refuse_flushes(Refuse::Always);
    let packets = [pages.packet(0, 1000, 0).unwrap(), pages.packet(2048, 1000, 1).unwrap()];
    r.send(0, packets);
    r.settle();
    assert_eq!(r.far.drain().len(), 2);
    assert_eq!((pages.drain_freed(2, |_, _| {}), watcher.returned.load(Ordering::Relaxed)), (0, 0));
    assert_eq!((r.control.faults().leaked, r.tx[0].pending()), (2, 0));
}
