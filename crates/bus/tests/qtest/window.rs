//! Buffers mapped one by one: the cost, and the need for the invalidation.

use super::raw::{Mapped, Raw, frame, machine, receive};
use crate::require;
use towpath_bus::qtest::Width;
use towpath_bus::vtd::FaultReason;
use towpath_bus::{Access, Bus, Dma, MapError, Window};

/// This test leaves the flush out. If the unit dropped translations by itself, or `unmap` waited,
/// no test of a driver could detect a missing invalidation.
#[test]
fn a_buffer_stays_in_reach_until_the_flush() {
    require!("a_buffer_stays_in_reach_until_the_flush");
    let (qemu, cable) = machine(Some(Width::Bits39));
    let mut nic = Raw::new(&qemu);
    let data = towpath_packet::RegionHandle::from(nic.bus.dma().alloc(8192).unwrap());
    let mut window = nic.bus.dma().window(8, 2048).unwrap();
    let buffer = data.at(256, 2048).unwrap();
    // SAFETY: the region lives longer than the window and the machine.
    let iova = unsafe { window.map(3, buffer, 2048, Access::Write) }.unwrap();
    assert_eq!(iova.get() % 4096, 256);
    let arrives = |nic: &mut Raw, seed| {
        nic.post(iova.get());
        cable.send(&frame(seed, 500)).unwrap();
        nic.wait_received();
        super::raw::get(&data, 256, 500) == frame(seed, 500)
    };
    assert!(arrives(&mut nic, 1));
    window.unmap(3).unwrap();
    assert!(arrives(&mut nic, 2), "the translation is still cached");
    assert!(qemu.faults().records.is_empty());
    window.flush_iotlb().unwrap();
    assert!(!arrives(&mut nic, 3), "written to after the flush");
    let faults = qemu.faults();
    assert_eq!((faults.records[0].page, faults.records[0].reason), (iova.get() & !0xfff, FaultReason::WRITE));
}

#[test]
fn a_reused_slot_maps_its_new_buffer() {
    require!("a_reused_slot_maps_its_new_buffer");
    let (qemu, cable) = machine(Some(Width::Bits48));
    let mut nic = Raw::new(&qemu);
    let data = towpath_packet::RegionHandle::from(nic.bus.dma().alloc(64 << 10).unwrap());
    let mut window = nic.bus.dma().window(2, 4000).unwrap();
    // Across page boundaries, and each time to other pages: the slot's second page is stale as
    // well.
    for (n, offset) in [3000, 11_500, 4095, 19_000, 0, 30_000, 3500, 12_200].into_iter().enumerate() {
        let out = frame(n as u8, 1500 - n);
        super::raw::put(&data, offset, &out);
        let at = data.at(offset, out.len()).unwrap();
        // SAFETY: the region lives longer than the window and the machine.
        let iova = unsafe { window.map(1, at, out.len(), Access::Read) }.unwrap();
        nic.send(iova.get(), out.len());
        assert_eq!(receive(&cable), out, "at {offset}");
        window.unmap(1).unwrap();
        window.flush_iotlb().unwrap();
    }
    assert!(qemu.faults().records.is_empty());
}

#[test]
fn a_burst_costs_one_write_of_one_register_and_no_read() {
    require!("a_burst_costs_one_write_of_one_register_and_no_read");
    const IQT: usize = 0x88;
    let (qemu, _cable) = machine(Some(Width::Bits39));
    let bus = qemu.open(4).unwrap();
    let data = towpath_packet::RegionHandle::from(bus.dma().alloc(1 << 20).unwrap());
    let mut window = bus.dma().window(512, 2048).unwrap();
    let unit = qemu.iommu().unwrap();
    for (burst, by_page, by_domain) in [(1, 1, 0), (32, 32, 0), (64, 64, 0), (65, 0, 1), (512, 0, 1)] {
        let (accesses, before) = (qemu.iommu_accesses().total(), unit.invalidations());
        for slot in 0..burst {
            let at = data.at(slot as usize * 2048, 2048).unwrap();
            // SAFETY: the region lives longer than the window and the machine.
            unsafe { window.map(slot, at, 2048, Access::Write) }.unwrap();
        }
        assert_eq!(qemu.iommu_accesses().total(), accesses, "mapping is a store");
        (0..burst).for_each(|slot| window.unmap(slot).unwrap());
        assert_eq!(qemu.iommu_accesses().total(), accesses, "unmapping is a store");
        window.flush_iotlb().unwrap();
        let since = qemu.iommu_accesses().total() - accesses;
        assert_eq!((since.reads, since.writes), (0, 1));
        let after = unit.invalidations();
        let done = [after.pages - before.pages, after.domains - before.domains, after.batches - before.batches];
        assert_eq!(done, [by_page, by_domain, 1], "{burst} buffers");
    }
    assert!(qemu.iommu_accesses().of(IQT..IQT + 4).writes >= 5);
}

#[test]
fn windows_on_several_threads_share_the_queue() {
    require!("windows_on_several_threads_share_the_queue");
    let (qemu, _cable) = machine(Some(Width::Bits39));
    let bus = qemu.open(4).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let dma = bus.dma().clone();
            scope.spawn(move || {
                let data = towpath_packet::RegionHandle::from(dma.alloc(1 << 20).unwrap());
                let mut window = dma.window(300, 2048).unwrap();
                for burst in (1..300).step_by(7) {
                    for slot in 0..burst {
                        let at = data.at(slot as usize * 2048, 2048).unwrap();
                        // SAFETY: the region lives longer than the window.
                        unsafe { window.map(slot, at, 2048, Access::Write) }.unwrap();
                    }
                    (0..burst).for_each(|slot| window.unmap(slot).unwrap());
                    window.flush_iotlb().unwrap();
                }
            });
        }
    });
    assert!(qemu.faults().records.is_empty());
}

#[test]
fn an_impossible_request_to_a_window_is_named_and_changes_nothing() {
    require!("an_impossible_request_to_a_window_is_named_and_changes_nothing");
    let (qemu, _cable) = machine(Some(Width::Bits39));
    let bus = qemu.open(4).unwrap();
    let data = Mapped::new(bus.dma(), 64 << 10, Access::Read);
    let mut window = bus.dma().window(4, 2048).unwrap();
    // SAFETY: every call is refused.
    let mut map = |slot, at, len| unsafe { window.map(slot, at, len, Access::Read) }.map(drop);
    assert!(matches!(map(4, data.at(0), 10), Err(MapError::Mappings { limit: 4 })));
    assert!(matches!(map(0, data.at(0), 20_000), Err(MapError::Range { .. })));
    let foreign = Box::new([0u8; 64]);
    assert!(matches!(map(0, std::ptr::NonNull::from(&foreign[0]), 64), Err(MapError::Foreign)));
    assert!(matches!(window.unmap(0), Err(MapError::Unregistered)));
    assert!(window.flush_iotlb().is_ok(), "nothing to wait for");
    assert!(matches!(bus.dma().window(u32::MAX, 1 << 20), Err(MapError::Range { .. })));
    assert!(matches!(bus.dma().window(1, usize::MAX), Err(MapError::Range { .. })));
}
