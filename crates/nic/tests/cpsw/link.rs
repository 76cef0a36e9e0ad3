//! The links of the MAC ports: PHYs by both ways of the management bus, in-band status, and what
//! follows for MAC and queues.

use super::rig::{Rig, Variant, assert_stamps, config, model_config, stamp};
use std::sync::Arc;
use std::time::Duration;
use towpath_bus::{Bus, Mmio};
use towpath_model::cpsw::{self as model, Cpsw, Partner, PhyStart};
use towpath_model::wire::Wire;
use towpath_nic::cpsw::{Config, FlowControl, Interface, LinkSource, MdioAccess, open};
use towpath_packet::port::{Port, Start, State, TxQueue};
use towpath_packet::{Batch, DropReason, Missed, Offloads};

const ENABLED: u32 = 1 << 5;
const GIG: u32 = 1 << 7;

fn phys() -> (Config, model::Config) {
    let model = model_config(Variant::Pktdma, 2).in_band_status(false);
    (config(Variant::Pktdma, 2).link(LinkSource::Phy), model)
}

/// Sends a frame through port `port`, 0 and up, and receives one there.
#[track_caller]
fn exchange(rig: &mut Rig, port: usize, number: u32) {
    let packet = rig.packet(&stamp(port as u8, number, 90));
    rig.send(port, packet);
    assert!(rig.plugs[port].send(&stamp(port as u8, number, 90)));
    rig.settle();
    assert_stamps(&rig.plugs[port].drain(), port as u8, number);
    assert_stamps(&rig.receive(port), port as u8, number);
}

#[test]
fn a_phy_that_negotiates_already_keeps_its_link_and_its_registers() {
    for (access, automatic) in [(None, false), (Some(MdioAccess::Manual), false), (Some(MdioAccess::Automatic), true)] {
        let (config, model) = phys();
        let mut rig = Rig::with(config.mdio(access), model);
        exchange(&mut rig, 0, 0);
        exchange(&mut rig, 1, 0);
        assert_eq!(rig.model.phy_register(1, 0), 0x1140, "autonegotiation, as the boot loader left it");
        // Erratum i2329: by default the driver writes the bits itself on an AM64x.
        assert_eq!(rig.model.automatic_mdio() > 0, automatic, "{access:?}");
        let status = rig.control.link(1).unwrap();
        assert_eq!((status.up, status.speed, status.full_duplex), (true, 1000, true));
        rig.finish();
    }
}

#[test]
fn a_phy_without_power_is_powered_up_and_negotiates_and_loses_its_power_with_the_port() {
    let (config, model) = phys();
    let mut rig = Rig::with(config, model.phy(PhyStart::PoweredDown));
    let down = State::Down("no link".into());
    assert_eq!(rig.ports[0].tx[0].state(), down);
    assert_eq!(rig.model.phy_register(1, 0) & 0x0800, 0, "powered up");
    assert_eq!(rig.model.phy_register(1, 4), 0x0de1, "10 and 100 Mb/s, pause frames");
    assert_eq!(rig.model.phy_register(1, 9) & 0x0300, 0x0200, "1000 Mb/s in full duplex only");
    rig.check_link(0);
    assert_eq!(rig.ports[0].tx[0].state(), down, "the negotiation takes two seconds");
    rig.check_link(0);
    rig.check_link(0);
    assert_eq!(rig.ports[0].tx[0].state(), State::Up);
    exchange(&mut rig, 0, 0);
    // The pause frames on which both ends agreed.
    assert_eq!(rig.model.mac_control(1) & 0x18, 0x18);
    rig.finish();
    assert_eq!(rig.model.phy_register(1, 0) & 0x0800, 0x0800);
    assert_eq!(rig.model.mac_control(1), 0);
}

#[test]
fn without_a_link_packets_stay_and_with_it_they_are_sent() {
    let (config, model) = phys();
    let mut rig = Rig::with(config, model);
    rig.plugs[0].set_carrier(false);
    rig.check_link(0);
    assert_eq!(rig.ports[0].tx[0].state(), State::Down("no link".into()));
    assert_eq!(rig.model.mac_control(1) & ENABLED, 0);
    let mut batch = Batch::<64>::new();
    let packet = rig.packet(&stamp(0, 0, 90));
    batch.push(packet).unwrap();
    assert_eq!(rig.ports[0].tx[0].tx(&mut batch), 0);
    assert!(rig.ports[0].tx[0].burst().push(batch.drain_front(1).next().unwrap()).is_err());
    assert_eq!(rig.ports[0].tx[0].counters().snapshot().dropped(DropReason::LinkDown), 0);
    // The other port goes on.
    exchange(&mut rig, 1, 0);
    rig.plugs[0].set_carrier(true);
    rig.check_link(0);
    exchange(&mut rig, 0, 0);
    rig.finish();
}

#[test]
fn frames_that_the_link_takes_with_it_are_counted_as_missed() {
    let (config, model) = phys();
    let mut rig = Rig::with(config, model);
    exchange(&mut rig, 0, 0);
    // The partner pauses the port: frames wait in its FIFO, and the channel has completed them.
    rig.model.stall(1, true);
    for number in 1..5 {
        let packet = rig.packet(&stamp(0, number, 90));
        rig.send(0, packet);
    }
    rig.settle();
    let counts = |rig: &Rig| {
        let counted = rig.ports[0].tx[0].counters().snapshot();
        (counted.packets, counted.missed_at(Missed::Link))
    };
    rig.check_link(0);
    rig.check_link(0);
    assert_eq!((counts(&rig), rig.ports[0].tx[0].pending()), ((5, 0), 0), "with a link they can still be sent");
    rig.plugs[0].set_carrier(false);
    rig.check_link(0);
    assert_eq!(counts(&rig), (5, 0), "some might be on their way");
    rig.model.stall(1, false);
    rig.settle();
    rig.check_link(0);
    assert_eq!((counts(&rig), rig.model.port_stats(1).tx_dropped), ((5, 4), 4));
    rig.plugs[0].set_carrier(true);
    rig.check_link(0);
    exchange(&mut rig, 0, 5);
    assert_eq!(counts(&rig), (6, 4));
    rig.finish();
}

#[test]
fn a_link_that_comes_back_at_another_speed_between_two_looks_is_noticed() {
    for (speed, full_duplex, bits) in [(100, true, 1), (10, true, 1 | 1 << 18), (100, false, 0), (1000, true, GIG | 1)]
    {
        let (config, model) = phys();
        let mut rig = Rig::with(config.flow_control(FlowControl::Off), model);
        exchange(&mut rig, 0, 0);
        rig.plugs[0].set_carrier(false);
        // The PHY sees the loss although the driver does not look.
        let _ = rig.model.bus().bar(0, 0x40).unwrap().r32(0x30);
        rig.model.set_partner(1, Partner { speed, full_duplex, pause: true });
        rig.plugs[0].set_carrier(true);
        rig.check_link(0);
        rig.check_link(0);
        let control = rig.model.mac_control(1);
        assert_eq!(control & !0x18, ENABLED | bits, "{speed} {full_duplex}: {control:#x}");
        assert_eq!(rig.control.link(1).unwrap().speed, speed);
        exchange(&mut rig, 0, 1);
        rig.finish();
    }
}

#[test]
fn in_band_status_is_no_link_unless_the_phy_sends_it() {
    for (sends, state) in [(true, State::Up), (false, State::Down("no link".into()))] {
        let (config, model) = phys();
        let rig = Rig::with(config.link(LinkSource::InBand), model.in_band_status(sends));
        assert_eq!(rig.ports[0].tx[0].state(), state);
        assert_eq!(rig.model.mac_control(1) & ENABLED != 0, sends);
    }
}

#[test]
fn a_mac_in_loopback_returns_what_it_sends_without_a_phy_or_a_cable() {
    let (config, model) = phys();
    let model = model.phy(PhyStart::Absent);
    let mut rig = Rig::with(config.link(LinkSource::Loopback), model);
    for number in 0..10 {
        let packet = rig.packet(&stamp(1, number, 200));
        rig.send(1, packet);
    }
    rig.settle();
    rig.receive(0);
    assert_stamps(&rig.receive(1), 1, 0);
    assert_eq!(rig.plugs[1].drain().len(), 0);
    rig.finish();
}

/// Why port 1 does not start.
fn refused(config: Config, model: &Cpsw) -> String {
    let opened = open(model.bus(), Arc::new(model.firmware()), config);
    let mut ports = match opened {
        Ok((ports, _)) => ports,
        Err(error) => return error.to_string(),
    };
    let start = Start { pool: super::rig::pool(256), queues: 1, accept: Offloads::ALL };
    ports.remove(0).start(start).unwrap_err().to_string()
}

#[test]
fn a_phy_that_does_not_answer_and_a_mac_that_hangs_are_named() {
    let (config, model) = phys();
    let with = |phy| model.clone().phy(phy).steps_per_read(2);
    for access in [MdioAccess::Manual, MdioAccess::Automatic] {
        let error = refused(config.mdio(Some(access)), &Cpsw::new(with(PhyStart::Absent)).unwrap());
        assert!(error.contains("the PHY at address 0 of the management bus does not answer"), "{error}");
        let moved = config.mdio(Some(access)).phys([3, 0, 1, 2, 4, 5, 6, 7]);
        let model = Cpsw::new(with(PhyStart::Ready).phy_addresses([5; 8])).unwrap();
        let error = refused(moved, &model);
        assert!(error.contains("the PHY at address 3"), "{error}");
    }
    let model = Cpsw::new(with(PhyStart::Ready)).unwrap();
    model.hang_mac(1);
    let error = refused(config, &model);
    assert!(error.contains("reset of the MAC: register 0x22338"), "{error}");
}

#[test]
fn the_address_of_pause_frames_is_that_of_the_boot_loader_or_a_local_one() {
    let (config, model) = phys();
    let model = Cpsw::new(model.steps_per_read(2)).unwrap();
    let switch = model.bus().bar(0, 0x4_0000).unwrap();
    switch.w32(0x2_2308, 0x0605);
    switch.w32(0x2_230c, 0x0403_0210);
    // A driver that opens the device resets its MACs.
    let addresses = || [model.mac_address(1), model.mac_address(2)];
    let (ports, control) = open(model.bus(), Arc::new(model.firmware()), config).unwrap();
    let started = ports
        .into_iter()
        .map(|port| port.start(Start { pool: super::rig::pool(256), queues: 1, accept: Offloads::ALL }).unwrap());
    let started: Vec<_> = started.collect();
    assert_eq!(addresses(), [[0x10, 2, 3, 4, 5, 6], [2, 0, 0, 0, 0, 2]]);
    drop((started, control));
}

#[test]
fn at_the_interface_of_rmii_the_mac_has_its_own_bit_for_100_mbs() {
    let (config, model) = phys();
    let mut rig = Rig::with(config.interface(Interface::Rmii), model);
    rig.plugs[0].set_carrier(false);
    rig.check_link(0);
    rig.model.set_partner(1, Partner { speed: 100, full_duplex: true, pause: false });
    rig.plugs[0].set_carrier(true);
    rig.check_link(0);
    assert_eq!(rig.model.mac_control(1), ENABLED | 1 | 1 << 15);
    rig.model.advance(Duration::from_secs(1));
    rig.finish();
}
