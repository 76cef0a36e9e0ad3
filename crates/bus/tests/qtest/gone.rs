//! A machine that ends while its driver runs.

use super::raw::{Raw, machine};
use crate::require;
use towpath_bus::qtest::Width;
use towpath_bus::{Access, Bus, Dma, Mmio, Pci, Window};

#[test]
fn registers_of_a_machine_that_ended_read_as_all_ones() {
    require!("registers_of_a_machine_that_ended_read_as_all_ones");
    let (qemu, _cable) = machine(None);
    let nic = Raw::new(&qemu);
    assert_eq!(nic.bar.r32(8) & 2, 2, "link up");
    assert_eq!(qemu.gone(), None);
    qemu.kill();
    for _ in 0..1000 {
        nic.bar.w32(0x3818, 0);
    }
    assert_eq!(nic.bar.r32(8), u32::MAX);
    assert_eq!(nic.bus.config_r32(0), u32::MAX);
    assert!(qemu.gone().is_some());
    let error = qemu.open(4).err().unwrap().to_string();
    assert!(error.contains(qemu.gone().unwrap()), "{error}");
}

#[test]
fn unmapping_fails_if_it_cannot_be_confirmed() {
    require!("unmapping_fails_if_it_cannot_be_confirmed");
    let (qemu, _cable) = machine(Some(Width::Bits39));
    let bus = qemu.open(4).unwrap();
    let dma = bus.dma();
    let region = dma.alloc(8192).unwrap();
    // SAFETY: the region lives until the end of the test.
    let iova = unsafe { dma.map(region.base(), 4096, Access::Both) }.unwrap();
    let mut window = dma.window(4, 2048).unwrap();
    // SAFETY: as above.
    let _ = unsafe { window.map(0, region.at(4096, 4096).unwrap(), 2048, Access::Write) }.unwrap();
    window.unmap(0).unwrap();
    qemu.kill();
    let error = window.flush_iotlb().unwrap_err().to_string();
    assert!(error.contains("remapping unit is gone"), "{error}");
    assert!(dma.unmap(iova, 4096).is_err());
    assert!(qemu.faults().records.is_empty());
}

#[test]
fn a_machine_that_does_not_answer_times_out_once() {
    require!("a_machine_that_does_not_answer_times_out_once");
    let (qemu, _cable) = machine(None);
    let nic = Raw::new(&qemu);
    let process = qemu.process_id().unwrap() as i32;
    // SAFETY: kill takes no pointer; the process is a child that is not reaped yet.
    assert_eq!(unsafe { libc::kill(process, libc::SIGSTOP) }, 0);
    assert_eq!(nic.bar.r32(8), u32::MAX);
    assert!(qemu.gone().unwrap().contains("does not answer"), "{:?}", qemu.gone());
    assert_eq!(nic.bar.r32(8), u32::MAX, "without a second timeout");
}
