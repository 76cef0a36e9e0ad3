//! QEMU's `virtio-net-pci`, without a guest: the driver's registers, rings and interrupts are those
//! of a PCI function, behind an IOMMU or not.

use crate::rig::{PATIENCE, Rig, frame};
use std::time::{Duration, Instant};
use towpath_bus::qtest::{Cable, Device, Machine, Netdev, Qemu, QtestBus, Width};
use towpath_bus::{Bus, Dma, DmaPolicy, Flush, Mmio};
use towpath_nic::virtio::{Config, PciConfig, PciTransport, VirtioNet};
use towpath_packet::port::{PortControl, RxQueue, State, TxQueue};
use towpath_packet::{Offloads, Pool, PoolConfig};
use towpath_testing::{Namespace, Need, needs};

pub(crate) const STRICT: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Strict };
pub(crate) const DEFERRED: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Deferred };

type Port = VirtioNet<PciTransport<QtestBus>>;

/// A machine with a device, and the far end of its cable.
pub(crate) fn machine(iommu: Option<Width>, properties: &str) -> (Qemu, Cable) {
    let (netdev, cable) = Netdev::cable().unwrap();
    (machine_on(netdev, iommu, properties), cable)
}

/// A machine with a device on a network.
pub(crate) fn machine_on(netdev: Netdev, iommu: Option<Width>, properties: &str) -> Qemu {
    let mut nic = Device::new("virtio-net-pci", 4).property("mac=52:54:00:aa:bb:cc");
    nic.netdev = Some(netdev);
    let nic = properties.split_whitespace().fold(nic, Device::property);
    let nic = if iommu.is_some() { nic.property("iommu_platform=on").property("disable-legacy=on") } else { nic };
    iommu.into_iter().fold(Machine::default(), Machine::iommu).with(nic).start().unwrap()
}

/// Opens the device, and makes a pool in memory that it reaches.
pub(crate) fn open(qemu: &Qemu, config: Config) -> (Port, Pool) {
    open_bus(qemu.open(4).unwrap(), config)
}

pub(crate) fn open_bus(bus: QtestBus, config: Config) -> (Port, Pool) {
    let memory = PoolConfig::default().capacity(2048).chunk(2048);
    let region = bus.dma().alloc(memory.capacity * memory.chunk).unwrap();
    // SAFETY: the region is new, and devices write only to buffers that are in flight to them.
    let pool = unsafe { Pool::in_region(memory, region) }.unwrap();
    let transport = PciTransport::open(bus, PciConfig::new(config.queues, false)).unwrap();
    (VirtioNet::open(transport, "virtio:qtest", config).unwrap(), pool)
}

fn receive(cable: &Cable) -> Vec<u8> {
    let mut bytes = vec![0; 65536];
    let n = cable.receive(&mut bytes, PATIENCE).unwrap();
    bytes.truncate(n);
    bytes
}

/// Frames of many lengths in both directions, byte by byte.
fn exchange(rig: &mut Rig<PciTransport<QtestBus>>, cable: &Cable, rounds: usize) {
    for round in 0..rounds {
        for i in 0..16 {
            let bytes = frame(round * 16 + i, 60 + (round * 16 + i) * 97 % 1455);
            let (a, b) = bytes.split_at(30);
            let pieces: &[&[u8]] = if i % 3 == 0 { &[a, b] } else { &[&bytes] };
            let packet = rig.packet(pieces);
            assert!(rig.send(0, packet));
            assert!(receive(cable) == bytes, "a frame was changed on its way out");
            cable.send(&bytes).unwrap();
            assert!(rig.receive_some(0, 1) == [bytes], "a frame was changed on its way in");
        }
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn frames_go_both_ways_under_every_policy_in_both_kinds_of_ring() {
    let name = "frames_go_both_ways_under_every_policy_in_both_kinds_of_ring";
    if !needs(name, &[Need::Program("qemu-system-x86_64")]) {
        return;
    }
    for (iommu, properties) in [(None, "packed=on"), (Some(Width::Bits48), "packed=on")] {
        let (qemu, cable) = machine(iommu, properties);
        let policies: &[_] =
            if iommu.is_some() { &[DmaPolicy::Persistent, STRICT, DEFERRED] } else { &[DmaPolicy::Persistent] };
        // One after the other: each port finds the device as the one before it left it.
        for (&policy, packed, mergeable) in
            policies.iter().flat_map(|policy| [(policy, false, true), (policy, true, true), (policy, false, false)])
        {
            let mut config = Config::default();
            (config.policy, config.packed, config.mergeable, config.ring) = (policy, packed, mergeable, 64);
            let (port, pool) = open(&qemu, config);
            assert_eq!(port.mac(), Some([0x52, 0x54, 0, 0xaa, 0xbb, 0xcc]));
            let mut rig = Rig::start(port, pool, Offloads::NONE);
            exchange(&mut rig, &cable, 8);
            until("all frames are used", || {
                rig.tx[0].reclaim();
                rig.tx[0].pending() == 0
            });
            let events: u64 = rig.control.events().iter().map(|(_, count)| count).sum();
            assert_eq!((events, rig.rx[0].state()), (0, State::Up), "{policy:?} {:?}", rig.control.events());
            rig.end();
        }
    }
}

/// QEMU before 9.0 writes the second half of a used element that lies on two pages to its offset in
/// the ring, as an address behind the IOMMU.
#[test]
fn every_used_element_is_written_where_it_belongs() {
    let name = "every_used_element_is_written_where_it_belongs";
    if !needs(name, &[Need::Program("qemu-system-x86_64")]) {
        return;
    }
    let (qemu, cable) = machine(Some(Width::Bits48), "");
    let (port, pool) = open(&qemu, Config::default());
    let mut rig = Rig::start(port, pool, Offloads::NONE);
    // Around both rings of 256 descriptors, each of which is longer than half a page.
    exchange(&mut rig, &cable, 20);
    rig.end();
    assert_eq!(qemu.faults().records, []);
}

#[test]
fn a_device_that_would_pass_by_the_iommu_is_refused() {
    let name = "a_device_that_would_pass_by_the_iommu_is_refused";
    if !needs(name, &[Need::Program("qemu-system-x86_64")]) {
        return;
    }
    let (netdev, _cable) = Netdev::cable().unwrap();
    let mut nic = Device::new("virtio-net-pci", 4);
    nic.netdev = Some(netdev);
    let qemu = Machine::default().iommu(Width::Bits39).with(nic).start().unwrap();
    let error = PciTransport::open(qemu.open(4).unwrap(), PciConfig::new(1, false)).unwrap_err().to_string();
    assert!(error.contains("iommu_platform=on"), "{error}");
}

#[test]
fn more_pairs_than_the_device_has_are_refused_with_their_number() {
    let name = "more_pairs_than_the_device_has_are_refused_with_their_number";
    if !needs(name, &[Need::Program("qemu-system-x86_64"), Need::Program("ip"), Need::Root, Need::Tun]) {
        return;
    }
    // Nothing tells a device without a control queue that more than one pair is in use.
    for (properties, most, asked) in [("mq=on", 2, 3), ("mq=on ctrl_vq=off", 1, 2), ("mq=off", 1, 2)] {
        let space = Namespace::new("pairs");
        let qemu = machine_on(crate::hashing::tap(&space), None, properties);
        let transport = PciTransport::open(qemu.open(4).unwrap(), PciConfig::new(asked, false)).unwrap();
        let mut config = Config::default();
        config.queues = asked;
        let error = VirtioNet::open(transport, "virtio:qtest", config).unwrap_err().to_string();
        let hint = "QEMU: queues= of its netdev, mq=on of the device";
        let expected = format!("queues={asked}: must be at most {most}: the device has no more ({hint})");
        assert!(error.contains(&expected), "{properties}: {error}");
    }
}

#[test]
fn a_filter_of_the_control_queue_lets_only_its_addresses_through() {
    let name = "a_filter_of_the_control_queue_lets_only_its_addresses_through";
    if !needs(name, &[Need::Program("qemu-system-x86_64")]) {
        return;
    }
    let (qemu, cable) = machine(None, "");
    let mut config = Config::default();
    for (option, value) in [("mac", "02:00:00:00:00:05"), ("receive", "own"), ("addresses", "02:00:00:00:00:06")] {
        config.filter.set(option, value).unwrap();
    }
    let (port, pool) = open(&qemu, config);
    let mut rig = Rig::start(port, pool, Offloads::NONE);
    let to = |last: u8| {
        let mut bytes = frame(1, 100);
        bytes[5] = last;
        bytes
    };
    for last in [7, 5, 8, 6] {
        cable.send(&to(last)).unwrap();
    }
    assert_eq!(rig.receive_some(0, 2), [to(5), to(6)]);
    assert_eq!(rig.control.faults().refused_commands, 0);
    rig.end();
}

#[test]
fn a_device_that_has_lost_its_state_is_reset_and_goes_on() {
    let name = "a_device_that_has_lost_its_state_is_reset_and_goes_on";
    if !needs(name, &[Need::Program("qemu-system-x86_64")]) {
        return;
    }
    for packed in [false, true] {
        let (qemu, cable) = machine(Some(Width::Bits48), "packed=on");
        let mut config = Config::default();
        (config.policy, config.packed) = (STRICT, packed);
        let bus = qemu.open(4).unwrap();
        // The common configuration of QEMU's device is at the beginning of BAR 4; byte 20 is its
        // status.
        let registers = bus.bar(4, 0x1000).unwrap();
        let (port, pool) = open_bus(bus, config);
        let mut rig = Rig::start(port, pool, Offloads::NONE);
        exchange(&mut rig, &cable, 2);
        for resets in 1..=3 {
            registers.w8(20, 0);
            let begun = Instant::now();
            while rig.control.faults().resets < resets || !rig.control.link_is_up() {
                assert!(begun.elapsed() < PATIENCE, "it is not reset");
                assert!(rig.receive(0).is_empty());
                rig.tx[0].reclaim();
            }
            // All queues have found out.
            rig.receive(0);
            rig.tx[0].reclaim();
            exchange(&mut rig, &cable, 1);
        }
        assert_eq!(rig.rx[0].state(), State::Up);
        rig.end();
    }
}
