//! A device without a remapping unit: frames, registers, interrupts.

use super::raw::{Mapped, RDT, Raw, TDT, frame, machine, receive, until};
use crate::require;
use towpath_bus::qtest::{Device, Machine, Netdev};
use towpath_bus::{Access, Bus, BusError, Dma, DmaPolicy, Domain, Flush, Irq, MapError, Mmio, Pci};

#[test]
fn a_frame_goes_out_and_comes_in() {
    require!("a_frame_goes_out_and_comes_in");
    let (qemu, cable) = machine(None);
    let mut nic = Raw::new(&qemu);
    let data = Mapped::new(nic.bus.dma(), 8192, Access::Both);
    let out = frame(1, 1500);
    data.put(0, &out);
    nic.send(data.iova.get(), out.len());
    assert_eq!(receive(&cable), out);
    nic.post(data.iova.get() + 4096);
    let back = frame(2, 777);
    cable.send(&back).unwrap();
    assert_eq!(nic.wait_received(), 777);
    assert_eq!(data.get(4096, 777), back);
}

#[test]
fn a_frame_in_loopback_returns_to_its_sender() {
    require!("a_frame_in_loopback_returns_to_its_sender");
    let (qemu, _cable) = machine(None);
    let mut nic = Raw::new(&qemu);
    let data = Mapped::new(nic.bus.dma(), 8192, Access::Both);
    nic.bar.w32(0x100, nic.bar.r32(0x100) | 0x40);
    nic.post(data.iova.get() + 4096);
    data.put(0, &frame(3, 200));
    nic.send(data.iova.get(), 200);
    assert_eq!(nic.wait_received(), 200);
    assert_eq!(data.get(4096, 200), frame(3, 200));
}

#[test]
fn two_devices_on_a_hub_hear_each_other() {
    require!("two_devices_on_a_hub_hear_each_other");
    let two = Machine::default().with(Device::e1000e(4, Netdev::Hub(0))).with(Device::e1000e(9, Netdev::Hub(0)));
    let qemu = two.start().unwrap();
    let found: Vec<u8> =
        qemu.devices().into_iter().filter(|&(_, id)| id == 0x10d3_8086).map(|(slot, _)| slot).collect();
    assert_eq!(found, [4, 9]);
    let (mut a, mut b) = (Raw::in_slot(&qemu, 4), Raw::in_slot(&qemu, 9));
    let data = Mapped::new(a.bus.dma(), 8192, Access::Both);
    data.put(0, &frame(4, 60));
    b.post(data.iova.get() + 4096);
    a.send(data.iova.get(), 60);
    assert_eq!(b.wait_received(), 60);
    assert_eq!(data.get(4096, 60), frame(4, 60));
}

#[test]
fn accesses_are_counted_by_register() {
    require!("accesses_are_counted_by_register");
    let (qemu, cable) = machine(None);
    let mut nic = Raw::new(&qemu);
    let data = Mapped::new(nic.bus.dma(), 4096, Access::Both);
    data.put(0, &frame(5, 64));
    let accesses = nic.bus.accesses(0).unwrap();
    let before = [accesses.total(), accesses.of(TDT..TDT + 4), accesses.of(RDT..RDT + 4)];
    for _ in 0..300 {
        nic.send(data.iova.get(), 64);
        receive(&cable);
    }
    let since = accesses.total() - before[0];
    assert_eq!((since.reads, since.writes), (0, 300), "one doorbell a frame, nothing else");
    assert_eq!((accesses.of(TDT..TDT + 4) - before[1]).writes, 300);
    assert_eq!((accesses.of(RDT..RDT + 4) - before[2]).writes, 0);
    assert_eq!(nic.bar.r32(0x10_0000), u32::MAX, "outside");
    assert_eq!(nic.bar.r32(2), u32::MAX, "between two registers");
    assert_eq!(accesses.total() - before[0], since, "only registers are counted");
    assert!(nic.bus.accesses(5).is_none());
}

#[test]
fn writes_are_executed_in_order_however_many_are_in_flight() {
    require!("writes_are_executed_in_order_however_many_are_in_flight");
    let (qemu, _cable) = machine(None);
    let nic = Raw::new(&qemu);
    const RDTR: usize = 0x2820;
    for n in 0..5000 {
        nic.bar.w32(RDTR, n);
    }
    assert_eq!(nic.bar.r32(RDTR), 4999);
}

#[test]
fn handles_on_several_threads_get_their_own_answers() {
    require!("handles_on_several_threads_get_their_own_answers");
    let (qemu, _cable) = machine(None);
    let nic = Raw::new(&qemu);
    // Address filters: registers that read back as written.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let bar = nic.bar.clone();
            scope.spawn(move || {
                let at = 0x5408 + thread as usize * 8;
                for n in 0..500 {
                    bar.w32(at, thread << 16 | n);
                    assert_eq!(bar.r32(at), thread << 16 | n);
                }
            });
        }
    });
}

/// All devices share one pair of ports: address, then data.
#[test]
fn configuration_space_is_read_correctly_from_several_threads() {
    require!("configuration_space_is_read_correctly_from_several_threads");
    let two = Machine::default().with(Device::e1000e(4, Netdev::Hub(0))).with(Device::e1000e(9, Netdev::Hub(0)));
    let qemu = two.start().unwrap();
    let buses = [4, 9].map(|slot| qemu.open(slot).unwrap());
    std::thread::scope(|scope| {
        for (n, bus) in (0..).zip(&buses) {
            scope.spawn(move || {
                // The interrupt line is a byte that only software uses.
                bus.config_w32(0x3c, 0x50 + n);
                for _ in 0..2000 {
                    assert_eq!(bus.config_r32(0x3c) as u8, 0x50 + n as u8);
                    assert_eq!(bus.config_r32(0), 0x10d3_8086);
                }
            });
        }
    });
}

#[test]
fn an_interrupt_is_seen_in_memory() {
    require!("an_interrupt_is_seen_in_memory");
    for iommu in [None, Some(towpath_bus::qtest::Width::Bits39)] {
        let (qemu, _cable) = machine(iommu);
        let nic = Raw::new(&qemu);
        let irqs = nic.bus.irqs(3).unwrap();
        assert!(irqs.iter().all(|irq| irq.fd().is_none()), "it cannot be waited for");
        assert_eq!(irqs.iter().map(Irq::take).collect::<Vec<_>>(), [0, 0, 0]);
        // Other causes (24) raise vector 2; unmask, then set the cause.
        nic.bar.w32(0xe4, (8 | 2) << 16);
        nic.bar.w32(0xd0, 1 << 24);
        nic.bar.w32(0xc8, 1 << 24);
        until("the message arrives", || irqs[2].take() == 1);
        assert_eq!(irqs.iter().map(Irq::take).collect::<Vec<_>>(), [0, 0, 0], "it is taken once");
        assert!(nic.bus.irqs(0).unwrap().is_empty());
        let error = nic.bus.irqs(6).err().unwrap().to_string();
        assert!(error.contains("has 5 interrupts, not 6"), "{error}");
    }
}

#[test]
fn without_a_remapping_unit_single_buffers_can_not_be_protected() {
    require!("without_a_remapping_unit_single_buffers_can_not_be_protected");
    let (qemu, _cable) = machine(None);
    let bus = qemu.open(4).unwrap();
    assert!(!bus.dma().limits().iommu && qemu.iommu().is_none());
    assert!(matches!(bus.dma().window(1, 2048), Err(MapError::NoIommu)));
    let per_buffer = DmaPolicy::PerBuffer { flush: Flush::Strict };
    assert!(matches!(Domain::new(bus.dma().clone(), per_buffer), Err(MapError::NoIommu)));
}

#[test]
fn absent_devices_and_impossible_requests_are_named() {
    require!("absent_devices_and_impossible_requests_are_named");
    let (qemu, _cable) = machine(None);
    let refused = |slot| qemu.open(slot).err().unwrap().to_string();
    assert!(refused(7).contains("no device in this slot"), "{}", refused(7));
    assert!(refused(31).contains("from 1 to 29"));
    let bus = qemu.open(4).unwrap();
    let bar = |index, len| bus.bar(index, len).err().unwrap().to_string();
    assert!(bar(0, 1 << 20).contains("131072 bytes of registers, 1048576 are needed"), "{}", bar(0, 1 << 20));
    assert!(bar(2, 4).contains("BAR 2 has 0 bytes"), "an I/O BAR: {}", bar(2, 4));
    let reset = bus.reset().err().unwrap().to_string();
    assert!(reset.contains("no function-level reset"), "{reset}");
}

#[test]
fn a_machine_that_does_not_start_reports_why() {
    require!("a_machine_that_does_not_start_reports_why");
    let wrong = Device::new("no-such-nic", 4);
    let error = Machine::default().with(wrong).start().unwrap_err().to_string();
    assert!(error.contains("no-such-nic") && error.contains("did not start"), "{error}");
    let device = |slot| Device::e1000e(slot, Netdev::Hub(0));
    let refused = |machine: Machine| match machine.start().unwrap_err() {
        BusError::Device { what, .. } => what,
        other => panic!("{other}"),
    };
    assert!(refused(Machine::default().with(device(30))).contains("slot=30"));
    assert!(refused(Machine::default().with(device(3)).with(device(3))).contains("slot=3"));
    assert!(refused(Machine::default().memory(12345)).contains("memory=12345"));
    assert!(refused(Machine::default().with(device(3).property("mac=1,romfile=x"))).contains("commas"));
}
