//! A device behind the remapping unit reaches only memory that is mapped.

use super::raw::{Mapped, Raw, frame, get, machine, put, receive};
use crate::require;
use std::time::Duration;
use towpath_bus::qtest::{Device, Machine, Netdev, Width};
use towpath_bus::vtd::{FaultReason, Faults, SourceId};
use towpath_bus::{Access, Bus, Dma, Pci};

const NIC: SourceId = SourceId::new(0, 4, 0);

/// Asserts that exactly this access was blocked.
#[track_caller]
fn refused(faults: &Faults, source: SourceId, page: u64, access: Access, reason: FaultReason) {
    assert!(!faults.records.is_empty(), "nothing was refused");
    for fault in &faults.records {
        assert_eq!((fault.source, fault.page, fault.access, fault.reason), (source, page, access, reason), "{fault}");
    }
}

#[test]
fn mapped_memory_is_reached_through_tables_of_three_and_four_levels() {
    require!("mapped_memory_is_reached_through_tables_of_three_and_four_levels");
    for (width, bits) in [(Width::Bits39, 39), (Width::Bits48, 48)] {
        let (qemu, cable) = machine(Some(width));
        assert_eq!(qemu.iommu().unwrap().capabilities().address_bits, bits);
        let mut nic = Raw::new(&qemu);
        // Five MiB: large pages in the middle, small ones at the ends.
        let data = Mapped::new(nic.bus.dma(), 5 << 20, Access::Both);
        for (n, offset) in [0, 4095 - 100, (2 << 20) - 700, (4 << 20) - 1, (5 << 20) - 1500].into_iter().enumerate() {
            let out = frame(n as u8, 1500);
            data.put(offset, &out);
            nic.send(data.iova.get() + offset as u64, out.len());
            assert!(receive(&cable) == out, "at {offset:#x}");
            data.put(offset, &[0; 1500]);
            nic.post(data.iova.get() + offset as u64);
            cable.send(&out).unwrap();
            assert_eq!(nic.wait_received(), 1500);
            assert!(data.get(offset, 1500) == out, "at {offset:#x}");
        }
        assert_eq!(qemu.faults(), Faults::default());
    }
}

#[test]
fn a_stray_read_is_refused_and_leaks_nothing() {
    require!("a_stray_read_is_refused_and_leaks_nothing");
    let (qemu, cable) = machine(Some(Width::Bits39));
    let mut nic = Raw::new(&qemu);
    let secret = towpath_packet::RegionHandle::from(nic.bus.dma().alloc(4096).unwrap());
    put(&secret, 0, &[0x5a; 4096]);
    // The physical address would reach it without translation.
    let physical = physical(&qemu, &secret);
    nic.send(physical, 600);
    let mut out = vec![0; 2000];
    let sent = cable.receive(&mut out, Duration::from_millis(500)).unwrap_or(0);
    assert!(!out[..sent].contains(&0x5a), "bytes of memory that was not mapped were sent");
    let faults = qemu.faults();
    refused(&faults, NIC, physical & !0xfff, Access::Read, FaultReason::READ);
    assert!(faults.records[0].to_string().contains("device 00:04.0 tried to read"), "{}", faults.records[0]);
    assert_eq!(qemu.faults(), Faults::default(), "faults are reported once");
}

#[test]
fn a_stray_write_is_refused_and_changes_nothing() {
    require!("a_stray_write_is_refused_and_changes_nothing");
    let (qemu, cable) = machine(Some(Width::Bits48));
    let mut nic = Raw::new(&qemu);
    let ours = towpath_packet::RegionHandle::from(nic.bus.dma().alloc(4096).unwrap());
    put(&ours, 0, &[0x77; 4096]);
    let physical = physical(&qemu, &ours);
    nic.post(physical);
    cable.send(&frame(1, 300)).unwrap();
    nic.wait_received();
    assert_eq!(get(&ours, 0, 4096), [0x77; 4096]);
    refused(&qemu.faults(), NIC, physical, Access::Write, FaultReason::WRITE);
}

#[test]
fn read_only_memory_is_not_written() {
    require!("read_only_memory_is_not_written");
    let (qemu, cable) = machine(Some(Width::Bits39));
    let mut nic = Raw::new(&qemu);
    let [read, write] = [Access::Read, Access::Write].map(|access| Mapped::new(nic.bus.dma(), 4096, access));
    nic.post(read.iova.get());
    cable.send(&frame(1, 300)).unwrap();
    nic.wait_received();
    assert_eq!(read.get(0, 4096), [0; 4096]);
    refused(&qemu.faults(), NIC, read.iova.get(), Access::Write, FaultReason::WRITE);
    write.put(0, &[0x5a; 100]);
    nic.send(write.iova.get(), 100);
    refused(&qemu.faults(), NIC, write.iova.get(), Access::Read, FaultReason::READ);
    let mut out = vec![0; 2000];
    let sent = cable.receive(&mut out, Duration::from_millis(500)).unwrap_or(0);
    assert!(!out[..sent].contains(&0x5a));
}

#[test]
fn unmapped_memory_is_out_of_reach_when_unmap_returns() {
    require!("unmapped_memory_is_out_of_reach_when_unmap_returns");
    let (qemu, cable) = machine(Some(Width::Bits39));
    let mut nic = Raw::new(&qemu);
    for len in [4096, 12288, 5 << 20] {
        let data = Mapped::new(nic.bus.dma(), len, Access::Both);
        let last = data.iova.get() + len as u64 - 4096;
        data.put(len - 4096, &frame(9, 64));
        nic.send(last, 64);
        assert_eq!(receive(&cable), frame(9, 64));
        nic.bus.dma().unmap(data.iova, len).unwrap();
        nic.send(last, 64);
        assert_ne!(receive(&cable), frame(9, 64));
        refused(&qemu.faults(), NIC, last, Access::Read, FaultReason::READ);
        assert!(nic.bus.dma().unmap(data.iova, len).is_err(), "unmapped already");
    }
}

#[test]
fn a_device_does_not_reach_memory_mapped_for_another() {
    require!("a_device_does_not_reach_memory_mapped_for_another");
    let (netdev, cable) = Netdev::cable().unwrap();
    let two = Machine::default().iommu(Width::Bits39).with(Device::e1000e(4, netdev));
    let qemu = two.with(Device::e1000e(5, Netdev::Hub(0))).start().unwrap();
    let (mut nic, other) = (Raw::in_slot(&qemu, 4), qemu.open(5).unwrap());
    let _same_addresses: Vec<Mapped> = (0..2).map(|_| Mapped::new(other.dma(), 4096, Access::Both)).collect();
    let theirs = Mapped::new(other.dma(), 4096, Access::Both);
    theirs.put(0, &[0x5a; 4096]);
    nic.send(theirs.iova.get(), 64);
    refused(&qemu.faults(), NIC, theirs.iova.get(), Access::Read, FaultReason::READ);
    assert!(!receive(&cable).contains(&0x5a));
    assert!(qemu.open(4).is_err(), "one driver per device");
}

#[test]
fn a_detached_device_reaches_nothing() {
    require!("a_detached_device_reaches_nothing");
    let (qemu, _cable) = machine(Some(Width::Bits39));
    let nic = Raw::new(&qemu);
    let tail = nic.bar.clone();
    drop(nic);
    // A driver's last defect: bus mastering without an address space.
    let again = qemu.open(4).unwrap();
    again.set_master(true);
    towpath_bus::Mmio::w32(&tail, super::raw::TDT, 5);
    towpath_bus::Mmio::r32(&tail, 8);
    let faults = qemu.faults();
    assert!(faults.records.iter().all(|f| f.source == NIC && f.access == Access::Read), "{faults:?}");
    assert!(!faults.records.is_empty(), "the old ring was read");
}

fn physical(qemu: &towpath_bus::qtest::Qemu, region: &towpath_packet::RegionHandle) -> u64 {
    use towpath_bus::vtd::PhysMemory;
    qemu.ram().locate(region.base(), region.len()).unwrap().physical_of(region.base(), region.len()).unwrap()
}
