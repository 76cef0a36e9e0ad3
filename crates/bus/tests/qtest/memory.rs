//! Memory shared with the machine, and the end of the machine.

use super::raw::machine;
use crate::require;
use std::path::PathBuf;
use towpath_bus::qtest::Width;
use towpath_bus::{Access, Bus, Dma, DmaPolicy, Domain, Flush, MapError};
use towpath_packet::{Backing, Direction, Packet, Pool, PoolConfig, Region, RegionHandle};

#[test]
fn only_memory_of_the_machine_can_be_mapped() {
    require!("only_memory_of_the_machine_can_be_mapped");
    let (qemu, _cable) = machine(Some(Width::Bits39));
    let bus = qemu.open(4).unwrap();
    let strict = DmaPolicy::PerBuffer { flush: Flush::Strict };
    let [domain, per_buffer] =
        [DmaPolicy::Persistent, strict].map(|policy| Domain::new(bus.dma().clone(), policy).unwrap());
    for backing in [Backing::Anonymous, Backing::Memfd] {
        let foreign = RegionHandle::from(Region::new(8192, backing).unwrap());
        for domain in [&domain, &per_buffer] {
            // SAFETY: the devices of this machine do nothing in this test.
            let refused = unsafe { domain.register(&foreign) };
            assert!(matches!(refused, Err(MapError::Foreign)), "before the first packet");
        }
    }
    let (region, iova) = domain.alloc(5000, Access::Both).unwrap();
    assert_eq!((region.len(), iova.get() % 4096), (8192, 0));
    assert!(iova.get() >= 1 << 20, "the first MiB of a PC has holes");
    let whole = bus.dma().alloc(64 << 20);
    assert!(matches!(whole, Err(MapError::Range { len }) if len == 64 << 20), "more than there is");
}

#[test]
fn a_pool_in_the_machines_memory_is_registered_and_outlives_every_handle() {
    require!("a_pool_in_the_machines_memory_is_registered_and_outlives_every_handle");
    let (qemu, _cable) = machine(None);
    let bus = qemu.open(4).unwrap();
    let config = PoolConfig::default().capacity(1024);
    // SAFETY: the region is new; the devices of this machine do nothing in this test.
    let pool = unsafe { Pool::in_region(config, bus.dma().alloc(1024 * 2048).unwrap()) }.unwrap();
    let domain = Domain::new(bus.dma().clone(), DmaPolicy::Persistent).unwrap();
    // SAFETY: the devices of this machine do nothing in this test.
    unsafe { domain.register(pool.region().unwrap()) }.unwrap();
    let packet = Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), b"kept").unwrap();
    drop((pool, domain, bus, qemu));
    assert_eq!(packet.linear(), b"kept");
}

#[test]
fn memory_can_be_allocated_and_freed_repeatedly() {
    require!("memory_can_be_allocated_and_freed_repeatedly");
    let (qemu, _cable) = machine(Some(Width::Bits39));
    for _ in 0..40 {
        let bus = qemu.open(4).unwrap();
        let region = bus.dma().alloc(20 << 20).unwrap();
        // SAFETY: unmapped below, before the region is dropped.
        let iova = unsafe { bus.dma().map(region.base(), region.len(), Access::Both) }.unwrap();
        drop(bus.dma().window(700, 4096).unwrap());
        bus.dma().unmap(iova, region.len()).unwrap();
    }
}

#[test]
fn a_machine_ends_with_its_last_handle_and_is_reaped() {
    require!("a_machine_ends_with_its_last_handle_and_is_reaped");
    let (qemu, _cable) = machine(None);
    let process = format!("/proc/{}", qemu.process_id().unwrap());
    let bus = std::thread::spawn(move || qemu.open(4).unwrap()).join().unwrap();
    assert!(std::fs::exists(&process).unwrap(), "the thread that used it has ended, the machine has not");
    let dma = bus.dma().clone();
    drop(bus);
    assert!(std::fs::exists(&process).unwrap(), "memory is still in use");
    drop(dma);
    assert!(!std::fs::exists(&process).unwrap());
}

#[test]
fn a_machine_leaves_no_file_behind() {
    require!("a_machine_leaves_no_file_behind");
    let (qemu, _cable) = machine(None);
    let files = |process: String| -> Vec<PathBuf> {
        let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
        open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()).collect()
    };
    let ours = files("self".to_owned());
    for file in files(qemu.process_id().unwrap().to_string()) {
        let places = ["/tmp", "/dev/shm", "/run", "/var"];
        let named = places.iter().any(|place| file.starts_with(place)) && !file.to_string_lossy().contains("(deleted)");
        assert!(!named || ours.contains(&file), "{}", file.display());
    }
}
