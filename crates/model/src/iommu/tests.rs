//! The unit as a whole: what the device can reach, and until when.

use super::*;
use crate::violation::{Violation, Violations};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_bus::{Access, Dma, Iova, MapError, Window};
use towpath_packet::{Backing, Region};

fn unit(config: Config) -> ModelDma {
    ModelDma::new(&config, Arc::new(Violations::new(true))).unwrap()
}

fn region(pages: usize) -> Region {
    Region::new(pages * 4096, Backing::Anonymous).unwrap()
}

/// Maps a region that outlives the mapping.
fn map(dma: &ModelDma, region: &Region, access: Access) -> Result<Iova, MapError> {
    // SAFETY: every test drops its regions after the unit's last access.
    unsafe { dma.map(region.base(), region.len(), access) }
}

fn map_slot(window: &mut ModelWindow, slot: u32, at: NonNull<u8>, len: usize) -> Result<Iova, MapError> {
    // SAFETY: as in `map`; a slot that is mapped or not flushed is only mapped where that is
    // refused.
    unsafe { window.map(slot, at, len, Access::Both) }
}

fn peek(dma: &ModelDma, iova: u64) -> Result<u8, FaultReason> {
    let mut byte = [0];
    dma.probe_read(iova, &mut byte).map(|()| byte[0]).map_err(|fault| fault.reason)
}

fn poke(region: &Region, offset: usize, value: u8) {
    // SAFETY: inside the region; no device runs.
    unsafe { region.at(offset, 1).unwrap().write(value) };
}

fn look(region: &Region, offset: usize) -> u8 {
    // SAFETY: as in `poke`.
    unsafe { region.at(offset, 1).unwrap().read() }
}

#[test]
fn a_mapped_region_is_reached_at_its_iova_and_nowhere_else() {
    for config in [Config::default(), Config::off()] {
        let (dma, region) = (unit(config), region(2));
        poke(&region, 5000, 7);
        let iova = map(&dma, &region, Access::Both).unwrap().get();
        assert_eq!(peek(&dma, iova + 5000), Ok(7));
        assert_eq!(peek(&dma, iova + 8192), Err(FaultReason::NotMapped));
        dma.probe_write(iova + 1, &[9]).unwrap();
        assert_eq!(look(&region, 1), 9);
    }
}

#[test]
fn an_unmapped_region_is_not_reached_and_known_to_have_been_mapped() {
    for config in [Config::default(), Config::off()] {
        let (dma, region) = (unit(config), region(2));
        let iova = map(&dma, &region, Access::Both).unwrap();
        assert_eq!(peek(&dma, iova.get()), Ok(0));
        dma.unmap(iova, region.len()).unwrap();
        assert_eq!(peek(&dma, iova.get()), Err(FaultReason::Unmapped));
        assert!(matches!(dma.violations().first(), Some(Violation::UseAfterUnmap { access: "read", .. })));
    }
}

#[test]
fn iovas_equal_the_memory_addresses_only_without_translation() {
    let region = region(1);
    let (on, off) = (unit(Config::default()), unit(Config::off()));
    assert_eq!(map(&off, &region, Access::Both).unwrap().get(), region.base().as_ptr() as u64);
    let iova = map(&on, &region, Access::Both).unwrap().get();
    assert!(iova >= 1 << 32 && iova != region.base().as_ptr() as u64);
    assert!(!off.limits().iommu && on.limits().iommu);
}

#[test]
fn permissions_are_enforced_and_a_fault_is_recorded_with_its_reason() {
    let (dma, region) = (unit(Config::default()), region(1));
    let iova = map(&dma, &region, Access::Read).unwrap().get();
    assert_eq!(peek(&dma, iova), Ok(0));
    let fault = dma.probe_write(iova + 8, &[1, 2]).unwrap_err();
    assert_eq!(fault, Fault { iova: iova + 8, len: 2, write: true, reason: FaultReason::Permission });
    assert_eq!((fault.reason.code(true), FaultReason::NotMapped.code(false)), (5, 6));
    assert_eq!(dma.take_faults(), [fault]);
    assert_eq!((dma.take_faults(), dma.counts().faults), (vec![], 1));
    assert_eq!(look(&region, 8), 0);
}

#[test]
fn an_access_across_pages_is_done_up_to_the_page_that_faults() {
    let (dma, region) = (unit(Config::default()), region(1));
    let iova = map(&dma, &region, Access::Both).unwrap().get();
    let fault = dma.probe_write(iova + 4094, &[1, 2, 3]).unwrap_err();
    assert_eq!((fault.iova, fault.len), (iova + 4096, 1));
    assert_eq!((look(&region, 4094), look(&region, 4095)), (1, 2));
}

#[test]
fn large_regions_are_mapped_with_large_pages() {
    let (dma, region) = (unit(Config::default()), region(3 << 9));
    let iova = map(&dma, &region, Access::Both).unwrap().get();
    assert_eq!(iova % (2 << 20), region.base().as_ptr() as u64 % (2 << 20), "congruent, so that large pages fit");
    for offset in (0..region.len() as u64).step_by(4096) {
        assert_eq!(peek(&dma, iova + offset), Ok(0));
    }
    let walks = dma.counts().walks;
    assert!(walks <= 2 + 512, "{walks} walks for 1536 pages");
}

#[test]
fn a_stale_translation_of_a_window_lasts_until_the_flush_and_not_longer() {
    let (dma, region) = (unit(Config::default()), region(1));
    let mut window = dma.window(4, 2048).unwrap();
    let iova = map_slot(&mut window, 2, region.base(), 2048).unwrap().get();
    poke(&region, 0, 5);
    assert_eq!(peek(&dma, iova), Ok(5), "and now the translation is cached");
    window.unmap(2).unwrap();
    assert_eq!(peek(&dma, iova), Ok(5), "no entry, but nothing was invalidated");
    window.flush_iotlb().unwrap();
    assert_eq!(peek(&dma, iova), Err(FaultReason::Unmapped));
    let counts = dma.counts();
    assert_eq!((counts.maps, counts.unmaps, counts.page_invalidations, counts.waits), (1, 1, 1, 1));
}

#[test]
fn a_late_device_changes_an_unmapped_buffer_until_the_flush_and_not_afterwards() {
    let (dma, region) = (unit(Config::default()), region(1));
    dma.remember_late(None);
    let mut window = dma.window(4, 2048).unwrap();
    let iova = map_slot(&mut window, 2, region.base(), 2048).unwrap().get();
    dma.probe_write(iova, &[1, 2]).unwrap();
    let mut byte = [0];
    dma.probe_read(iova, &mut byte).unwrap();
    poke(&region, 0, 9);
    assert_eq!((dma.late(LateWrite::Repeat), look(&region, 0)), (LateCounts::default(), 9), "it is mapped");
    window.unmap(2).unwrap();
    let through = LateCounts { reads: 1, writes: 1, blocked: 0 };
    assert_eq!((dma.late(LateWrite::Repeat), look(&region, 0)), (through, 1));
    assert_eq!((dma.late(LateWrite::Scribble), look(&region, 0)), (through, !1));
    dma.refuse_flushes(Refuse::Always);
    assert!(window.flush_iotlb().is_err());
    assert_eq!((dma.late(LateWrite::Repeat), look(&region, 0)), (through, 1), "it was not invalidated");
    dma.refuse_flushes(Refuse::Never);
    window.flush_iotlb().unwrap();
    poke(&region, 0, 9);
    let blocked = LateCounts { blocked: 2, ..LateCounts::default() };
    assert_eq!((dma.late(LateWrite::Scribble), look(&region, 0)), (blocked, 9));
    // In the same slot: another buffer, which the late accesses are not for.
    map_slot(&mut window, 2, region.at(2048, 2048).unwrap(), 2048).unwrap();
    assert_eq!(dma.late(LateWrite::Scribble), LateCounts::default());
    window.unmap(2).unwrap();
    assert_eq!(dma.violations().first(), None, "an IOMMU leaves it that time");
}

#[test]
fn the_last_moment_of_a_late_device_is_before_the_invalidation_is_executed() {
    let (dma, region) = (unit(Config::default()), region(1));
    dma.remember_late(Some(LateWrite::Scribble));
    let mut window = dma.window(1, 4096).unwrap();
    for round in 1..4 {
        let iova = map_slot(&mut window, 0, region.base(), 4096).unwrap().get();
        dma.probe_write(iova + 5, &[7]).unwrap();
        window.unmap(0).unwrap();
        assert_eq!(look(&region, 5), 7);
        window.flush_iotlb().unwrap();
        // The earlier rounds' accesses are to the same buffer.
        assert_eq!((look(&region, 5), dma.late_counts().writes), (!7, (1..=round).sum()));
    }
}

#[test]
fn one_flush_covers_all_unmaps_before_it() {
    let (dma, region) = (unit(Config::default()), region(200));
    let mut window = dma.window(200, 4096).unwrap();
    let map_all = |window: &mut ModelWindow, n: u32| -> Vec<u64> {
        let at = |slot: u32| region.at(slot as usize * 4096, 4096).unwrap();
        (0..n).map(|slot| map_slot(window, slot, at(slot), 4096).unwrap().get()).collect()
    };
    for (n, pages, full) in [(64, 64, 0), (200, 0, 1)] {
        let iovas = map_all(&mut window, n);
        assert!(iovas.iter().all(|i| peek(&dma, *i).is_ok()));
        let before = dma.counts();
        (0..n).for_each(|slot| window.unmap(slot).unwrap());
        window.flush_iotlb().unwrap();
        let after = dma.counts();
        assert_eq!(after.page_invalidations - before.page_invalidations, pages);
        assert_eq!((after.full_invalidations - before.full_invalidations, after.waits - before.waits), (full, 1));
        assert!(iovas.iter().all(|i| peek(&dma, *i).is_err()));
    }
}

#[test]
fn buffers_may_begin_anywhere_in_a_page_and_reach_no_further_than_their_pages() {
    let (dma, region) = (unit(Config::default()), region(4));
    let mut window = dma.window(4, 3000).unwrap();
    for (slot, offset) in [(0, 0), (1, 4000), (2, 4095), (3, 100)] {
        poke(&region, offset, 10 + slot as u8);
        poke(&region, offset + 2999, 20 + slot as u8);
        let iova = map_slot(&mut window, slot, region.at(offset, 3000).unwrap(), 3000).unwrap().get();
        assert_eq!((peek(&dma, iova), peek(&dma, iova + 2999)), (Ok(10 + slot as u8), Ok(20 + slot as u8)));
        assert_eq!(iova % 4096, offset as u64 % 4096);
        assert!(peek(&dma, (iova & !0xfff) + 8192).is_err());
    }
    (0..4).for_each(|slot| window.unmap(slot).unwrap());
}

#[test]
fn an_impossible_request_to_a_window_is_refused() {
    let (dma, region) = (unit(Config::default()), region(2));
    let mut window = dma.window(1, 2048).unwrap();
    assert!(map_slot(&mut window, 0, region.base(), 2049).is_err(), "longer than its buffers");
    assert!(map_slot(&mut window, 1, region.base(), 1).is_err(), "no such slot");
    assert!(window.unmap(0).is_err(), "not mapped");
    map_slot(&mut window, 0, region.base(), 2048).unwrap();
    assert!(map_slot(&mut window, 0, region.base(), 2048).is_err(), "mapped already");
    assert_eq!(dma.counts().refused, 3);
    assert!(matches!(unit(Config::off()).window(1, 2048), Err(MapError::NoIommu)));
}

#[test]
fn a_dropped_window_unmaps_its_buffers_and_reports_them() {
    let (dma, region) = (unit(Config::default()), region(1));
    let mut window = dma.window(2, 2048).unwrap();
    let iova = map_slot(&mut window, 1, region.base(), 2048).unwrap().get();
    assert!(peek(&dma, iova).is_ok());
    drop(window);
    assert_eq!(dma.violations().first(), Some(&Violation::MappingsLeft { count: 1 }));
    assert!(peek(&dma, iova).is_err());
}

#[test]
fn a_buffer_mapped_twice_is_reported_as_reused_without_unmap() {
    let (dma, region) = (unit(Config::default()), region(1));
    let mut window = dma.window(2, 2048).unwrap();
    map_slot(&mut window, 0, region.base(), 2048).unwrap();
    map_slot(&mut window, 1, region.base(), 2048).unwrap();
    assert!(matches!(dma.violations().first(), Some(Violation::ReturnedWhileMapped { .. })));
    (0..2).for_each(|slot| window.unmap(slot).unwrap());
}

#[test]
fn unmapping_a_buffer_of_an_owned_descriptor_is_reported() {
    let (dma, region) = (unit(Config::default()), region(1));
    let mut window = dma.window(2, 2048).unwrap();
    let iova = map_slot(&mut window, 0, region.base(), 2048).unwrap().get();
    dma.transfer().own(iova, 2048);
    window.unmap(0).unwrap();
    assert_eq!(dma.violations().first(), Some(&Violation::UnmappedWhileOwned { iova: iova & !0xfff }));
}

#[test]
fn limits_are_named() {
    let memory = region(4);
    let dma = unit(Config { mappings: Some(2), ..Config::default() });
    let first = map(&dma, &memory, Access::Both).unwrap();
    let mut window = dma.window(4, 1024).unwrap();
    map_slot(&mut window, 0, memory.base(), 1024).unwrap();
    assert!(matches!(map_slot(&mut window, 1, memory.base(), 1024), Err(MapError::Mappings { limit: 2 })));
    dma.unmap(first, memory.len()).unwrap();
    map_slot(&mut window, 1, memory.at(2048, 1024).unwrap(), 1024).unwrap();
    (0..2).for_each(|slot| window.unmap(slot).unwrap());

    let dma = unit(Config { locked: Some(8192), ..Config::default() });
    assert!(matches!(map(&dma, &memory, Access::Both), Err(MapError::Locked { len: 16384, limit: 8192 })));

    let dma = unit(Config { ranges: vec![0x1000..=0x2fff], ..Config::default() });
    assert!(matches!(map(&dma, &memory, Access::Both), Err(MapError::Range { len: 16384 })));
    assert!(matches!(dma.window(64, 2048), Err(MapError::Range { .. })));

    let dma = unit(Config::default());
    // SAFETY: refused: nothing is mapped.
    let odd = unsafe { dma.map(memory.at(16, 4096).unwrap(), 4096, Access::Both) };
    assert!(matches!(odd, Err(MapError::Granule { granule: 4096, .. })));
}

#[test]
fn ranges_that_three_levels_can_not_translate_are_refused() {
    let config = Config { ranges: vec![0..=1 << 39], ..Config::default() };
    assert!(ModelDma::new(&config, Arc::new(Violations::new(false))).is_err());
}

#[test]
fn an_unmap_that_cuts_a_mapping_is_refused() {
    let (dma, region) = (unit(Config::default()), region(2));
    let iova = map(&dma, &region, Access::Both).unwrap();
    assert!(dma.unmap(iova, 4096).is_err());
    assert!(dma.unmap(iova.add(4096), 4096).is_err());
    assert_eq!(peek(&dma, iova.get()), Ok(0));
}

#[test]
fn injected_failures_leave_nothing_mapped() {
    let (dma, region) = (unit(Config::default()), region(1));
    let mut window = dma.window(8, 2048).unwrap();
    dma.refuse(Refuse::Every(2));
    let got: Vec<_> = (0..4).map(|slot| map_slot(&mut window, slot, region.base(), 16).is_ok()).collect();
    assert_eq!(got, [true, false, true, false]);
    assert!(window.unmap(1).is_err() && window.unmap(0).is_ok() && window.unmap(2).is_ok());
    dma.refuse(Refuse::Never);
    assert!(map(&dma, &region, Access::Both).is_ok());
}

#[test]
fn bounce_buffers_show_a_missing_sync() {
    for config in [Config::default(), Config::off()] {
        let (dma, region) = (unit(Config { bounce: true, ..config }), region(1));
        let iova = map(&dma, &region, Access::Both).unwrap();
        poke(&region, 10, 7);
        assert_ne!(peek(&dma, iova.get() + 10), Ok(7), "not synchronised for the device");
        assert!(matches!(dma.violations().first(), Some(Violation::MissingSync { .. })));
        dma.sync_for_device(iova.add(10), 1);
        assert_eq!(peek(&dma, iova.get() + 10), Ok(7));
        dma.probe_write(iova.get() + 20, &[9]).unwrap();
        assert_eq!(look(&region, 20), 0, "not synchronised for the processor");
        dma.sync_for_cpu(iova.add(20), 1);
        assert_eq!(look(&region, 20), 9);
        assert_eq!(dma.counts().bounces, 2);
    }
}

#[test]
fn the_buffers_of_a_window_bounce_and_unmapping_copies_nothing() {
    let (dma, region) = (unit(Config { bounce: true, ..Config::default() }), region(1));
    let mut window = dma.window(2, 2048).unwrap();
    let iova = map_slot(&mut window, 0, region.at(100, 2000).unwrap(), 2000).unwrap();
    dma.probe_write(iova.get(), &[1, 2]).unwrap();
    dma.sync_for_cpu(iova, 1);
    window.unmap(0).unwrap();
    window.flush_iotlb().unwrap();
    assert_eq!((look(&region, 100), look(&region, 101)), (1, 0));
    assert_eq!(dma.violations().first(), None);
    dma.sync_for_cpu(iova, 1);
    assert!(matches!(dma.violations().first(), Some(Violation::SyncOfUnmapped { len: 1, .. })));
}

#[test]
fn allocated_memory_is_coherent() {
    let dma = unit(Config { bounce: true, ..Config::default() });
    let region = dma.alloc(4096).unwrap();
    let iova = map(&dma, &region, Access::Both).unwrap();
    poke(&region, 1, 3);
    assert_eq!(peek(&dma, iova.get() + 1), Ok(3));
    dma.sync_for_device(iova, 64);
    assert_eq!(dma.violations().first(), None);
}

#[test]
fn concurrent_flushes_of_many_queues_all_complete() {
    let (dma, memory) = (unit(Config::default()), region(64));
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (dma, memory) = (&dma, &memory);
            scope.spawn(move || {
                let mut window = dma.window(16, 2048).unwrap();
                for round in 0..500 {
                    for slot in 0..16u32 {
                        let at = memory.at((thread * 16 + slot as usize) * 4096, 2048).unwrap();
                        let iova = map_slot(&mut window, slot, at, 2048).unwrap().get();
                        dma.probe_write(iova, &[round as u8]).unwrap();
                    }
                    (0..16).for_each(|slot| window.unmap(slot).unwrap());
                    window.flush_iotlb().unwrap();
                }
            });
        }
    });
    let counts = dma.counts();
    assert_eq!((counts.maps, counts.unmaps, counts.faults), (32000, 32000, 0));
    assert_eq!((counts.waits, counts.page_invalidations), (2000, 32000));
    assert_eq!(dma.violations().first(), None);
}

#[test]
fn an_invalidation_takes_the_time_of_the_configuration_and_maps_take_none() {
    let wait = Duration::from_millis(2);
    let dma = unit(Config { wait, ..Config::default() });
    let (region, mut window) = (region(1), dma.window(1, 64).unwrap());
    let begun = Instant::now();
    for _ in 0..3 {
        map_slot(&mut window, 0, region.base(), 64).unwrap();
        window.unmap(0).unwrap();
        window.flush_iotlb().unwrap();
    }
    assert!(begun.elapsed() >= 3 * wait);
    assert_eq!(dma.counts().waits, 3);
}
