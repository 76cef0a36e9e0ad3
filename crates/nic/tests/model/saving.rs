//! What copybreak saves, counted per buffer: the steps whose time the bench measures.

use super::rig::*;
use towpath_bus::DmaPolicy;
use towpath_nic::e1000e::{Copybreak, RecycleMode, RxCounts};

const FRAMES: u64 = 640;

/// The cost of 640 frames of `len` bytes in bursts of 64, after every slot of the ring has had a
/// buffer.
fn cost(policy: DmaPolicy, recycle: RecycleMode, copybreak: u64, len: usize) -> RxCounts {
    let copybreak = Some(Copybreak::new(copybreak).unwrap());
    let mut r = rig(
        with(|c| {
            c.policy = policy;
            c.copybreak = copybreak;
            c.recycle = recycle;
        }),
        strict(),
    );
    let run = |r: &mut Rig, frames: u64| {
        for burst in 0..frames / 64 {
            let frames: Vec<_> = (0..64).map(|i| frame(len, burst * 64 + i)).collect();
            r.arrive(frames.iter().map(Vec::as_slice));
            assert_eq!(r.settle().len(), 64);
        }
    };
    run(&mut r, 128);
    let before = r.rx[0].counts();
    run(&mut r, FRAMES);
    let mut counts = r.rx[0].counts();
    r.end();
    counts.completed -= before.completed;
    counts.copies -= before.copies;
    counts.handed -= before.handed;
    counts.recycled -= before.recycled;
    counts.maps -= before.maps;
    counts.unmaps -= before.unmaps;
    counts.flushes -= before.flushes;
    counts.syncs_for_cpu -= before.syncs_for_cpu;
    counts.syncs_for_device -= before.syncs_for_device;
    counts
}

#[test]
fn with_strict_protection_a_copied_buffer_costs_no_mapping_instead_of_one_each_way() {
    let before = cost(STRICT, RecycleMode::UnmapFirst, 2048, 1500);
    assert_eq!((before.maps, before.unmaps, before.copies, before.handed), (FRAMES, FRAMES, FRAMES, 0));
    assert_eq!(before.flushes, FRAMES / 64, "a burst shares one flush");
    let after = cost(STRICT, RecycleMode::KeepMapped, 2048, 1500);
    assert_eq!((after.maps, after.unmaps, after.flushes), (0, 0, 0));
    assert_eq!(
        (after.copies, after.recycled, after.syncs_for_cpu, after.syncs_for_device),
        (FRAMES, FRAMES, FRAMES, FRAMES)
    );
}

#[test]
fn without_copybreak_both_modes_cost_the_same() {
    for policy in POLICIES {
        let before = cost(policy, RecycleMode::UnmapFirst, 0, 1500);
        let after = cost(policy, RecycleMode::KeepMapped, 0, 1500);
        assert_eq!(before, after, "{policy:?}");
        let maps = if policy == DmaPolicy::Persistent { 0 } else { FRAMES };
        assert_eq!((after.maps, after.unmaps, after.handed, after.copies), (maps, maps, FRAMES, 0));
    }
}

#[test]
fn deferred_protection_shares_an_invalidation_among_many_bursts() {
    let before = cost(DEFERRED, RecycleMode::UnmapFirst, 2048, 1500);
    assert_eq!((before.maps, before.unmaps), (FRAMES, FRAMES));
    assert!(before.flushes <= FRAMES / 256 + 1, "{}", before.flushes);
    let after = cost(DEFERRED, RecycleMode::KeepMapped, 2048, 1500);
    assert_eq!((after.maps, after.unmaps, after.flushes), (0, 0, 0));
}

#[test]
fn without_protection_copybreak_costs_a_copy_and_saves_nothing() {
    for recycle in [RecycleMode::UnmapFirst, RecycleMode::KeepMapped] {
        let copied = cost(DmaPolicy::Persistent, recycle, 2048, 1500);
        assert_eq!((copied.maps, copied.unmaps, copied.flushes, copied.copies), (0, 0, 0, FRAMES));
        let handed = cost(DmaPolicy::Persistent, recycle, 0, 1500);
        assert_eq!((handed.maps, handed.copies, handed.handed), (0, 0, FRAMES));
    }
}

#[test]
fn the_threshold_holds_from_the_burst_after_it_was_set() {
    let mut r = rig(with(|c| c.policy = STRICT), strict());
    for (threshold, copied) in [(0, 0), (1000, 0), (1001, 1), (0, 0), (16384, 1)] {
        r.control.set_copybreak(threshold).unwrap();
        let before = r.rx[0].counts().copies;
        r.arrive([frame(1000, threshold).as_slice()]);
        assert_eq!(r.settle().len(), 1);
        assert_eq!(r.rx[0].counts().copies - before, copied, "threshold {threshold}");
    }
    r.end();
}
