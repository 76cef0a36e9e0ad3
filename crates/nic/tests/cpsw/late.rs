//! An engine that goes on with its DMA as long as the IOMMU lets it. Under strict protection what
//! was handed over does not change, and pages are returned when the engine can't read them any
//! more.

use super::rig::{Rig, Variant, config, model_config, stamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_bus::{DmaPolicy, Flush};
use towpath_model::cpsw::Injected;
use towpath_model::iommu::{LateWrite, ModelDma, Refuse};
use towpath_packet::port::RxQueue;
use towpath_packet::{Backing, Batch, ExtBufOwner, ExtBufPool, Packet, Region, UntrustedMem};

const BURST: u32 = 12;

/// A rig under strict protection whose engine repeats its accesses to unmapped buffers.
fn late(variant: Variant, buffers: u8) -> Rig {
    let policy = DmaPolicy::PerBuffer { flush: Flush::Strict };
    let config = config(variant, 1).policy(policy).rx_ring(64).rx_buffers(buffers);
    let rig = Rig::with(config, model_config(variant, 1));
    rig.model.iommu().remember_late(None);
    rig
}

/// Frames arrive and are received in one burst.
fn receive(rig: &mut Rig, first: u32) -> Vec<Packet> {
    rig.ports[0].rx[0].refill();
    for number in first..first + BURST {
        assert!(rig.model.inject(1, &stamp(0, number, 60 + number as usize * 97 % 1000), Injected::default()));
    }
    rig.model.settle();
    let mut batch: Batch = Batch::new();
    rig.ports[0].rx[0].rx(&mut batch);
    batch.drain_front(64).collect()
}

#[track_caller]
fn are_stamps(packets: &[Packet], first: u32) {
    super::rig::assert_stamps(&packets.iter().map(Packet::to_vec).collect::<Vec<_>>(), 0, first);
}

#[test]
fn no_byte_of_a_received_frame_changes_after_it_was_handed_over() {
    for variant in Variant::ALL {
        // Chains of buffers, where the driver has them.
        for buffers in if variant == Variant::Udma { 1..=1 } else { 1..=2 } {
            let mut rig = late(variant, buffers);
            let mut held = Vec::new();
            for round in 0..6 {
                let packets = receive(&mut rig, round * BURST);
                assert_eq!(packets.len(), BURST as usize, "{variant:?}");
                let reached = rig.model.iommu().late(LateWrite::Scribble);
                assert_eq!((reached.reads, reached.writes), (0, 0), "{variant:?}, {buffers} buffers");
                held.push((packets, round * BURST));
                held.iter().for_each(|(packets, first)| are_stamps(packets, *first));
            }
            assert!(rig.model.iommu().late_counts().blocked > 0, "the engine tried");
            drop(held);
            rig.finish();
            rig.assert_no_leak();
        }
    }
}

#[test]
fn without_its_invalidation_no_buffer_is_handed_over_and_none_is_used_again() {
    for variant in Variant::ALL {
        let mut rig = late(variant, 1);
        rig.model.iommu().refuse_flushes(Refuse::Always);
        assert_eq!(receive(&mut rig, 0).len(), 0, "{variant:?}");
        let reached = rig.model.iommu().late(LateWrite::Scribble);
        assert_eq!(reached.writes, u64::from(BURST), "the engine may go on for ever");
        rig.model.iommu().refuse_flushes(Refuse::Never);
        for round in 1..4 {
            let packets = receive(&mut rig, round * BURST);
            rig.model.iommu().late(LateWrite::Scribble);
            assert_eq!(packets.len(), BURST as usize);
            are_stamps(&packets, round * BURST);
        }
        let pool = rig.pool.clone();
        drop(rig);
        assert_eq!(pool.stats().capacity - pool.stats().free, BURST as usize, "{variant:?}");
    }
}

/// An application that looks, in the moment in which it has a page again, whether the engine can
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
    for variant in Variant::ALL {
        for refused in [false, true] {
            let mut rig = late(variant, 1);
            let iommu = rig.model.iommu().clone();
            let watcher = Arc::new(Watcher { iommu, returned: AtomicU64::new(0), reached: AtomicU64::new(0) });
            let region = UntrustedMem::new(Region::new(8 * 2048, Backing::Memfd).unwrap());
            let mut pages = ExtBufPool::new(8, region, watcher.clone()).unwrap();
            let rounds = if refused { 1 } else { 4 };
            for _ in 0..rounds {
                rig.model.iommu().refuse_flushes(if refused { Refuse::Always } else { Refuse::Never });
                for page in 0..8 {
                    rig.send(0, pages.packet(page * 2048, 100, page as u64).unwrap());
                }
                rig.settle();
                assert_eq!(rig.plugs[0].drain().len(), 8, "{variant:?}");
                let mut back = Vec::new();
                pages.drain_freed(16, |token, _| back.push(token));
                back.sort_unstable();
                assert_eq!(back, if refused { vec![] } else { (0..8).collect::<Vec<_>>() }, "{variant:?}");
            }
            assert_eq!(watcher.returned.load(Ordering::Relaxed) > 0, !refused);
            assert_eq!(watcher.reached.load(Ordering::Relaxed), 0, "pages that the engine still reads");
            rig.model.iommu().refuse_flushes(Refuse::Never);
        }
    }
}
