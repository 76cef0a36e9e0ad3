//! Channels, flows and rings: those of the SoC, and only if firmware granted them.

use super::rig::{Rig, Variant, assert_stamps, config, model_config, stamp};
use std::sync::Arc;
use towpath_bus::tisci::Range;
use towpath_model::cpsw::{self as model, Cpsw, Grants};
use towpath_model::wire::Wire;
use towpath_nic::cpsw::{Config, Soc, open};

/// Why the driver refuses to open a device.
#[track_caller]
fn refused(config: Config, model: model::Config) -> String {
    let model = Cpsw::new(model).unwrap();
    open(model.bus(), Arc::new(model.firmware()), config).unwrap_err().to_string()
}

#[test]
fn traffic_passes_with_the_numbers_of_each_soc() {
    for (soc, modelled) in [
        (Soc::AM62X, model::Soc::Am62x),
        (Soc::AM64X, model::Soc::Am64x),
        (Soc::J7200, model::Soc::J7200),
        (Soc::J784S4, model::Soc::J784s4),
        (Soc::J784S4_MCU, model::Soc::J784s4Mcu),
    ] {
        let config = config(Variant::Pktdma, 2).soc(soc).tx_channels(8).rx_flows(8);
        let mut rig = Rig::with(config, model_config(Variant::Pktdma, 2).soc(modelled));
        for number in 0..40 {
            let packet = rig.packet(&stamp(1, number, 90));
            rig.send(1, packet);
        }
        rig.settle();
        assert_stamps(&rig.plugs[1].drain(), 1, 0);
        assert!(rig.plugs[1].send(&stamp(1, 0, 90)));
        rig.settle();
        assert_eq!(rig.receive(0).len(), 0, "{}", soc.name);
        assert_stamps(&rig.receive(1), 1, 0);
        rig.finish();
    }
}

#[test]
fn the_numbers_of_another_soc_are_refused_before_any_ring_is_touched() {
    let on = |soc| model_config(Variant::Pktdma, 2).soc(soc);
    let config = config(Variant::Pktdma, 2).tx_channels(8);
    let error = refused(config.soc(Soc::AM64X), on(model::Soc::Am62x));
    let expected = "soc=am64x takes 8 transmit channels from 16 on, of which firmware grants this host 8 from 19 on";
    assert!(error.starts_with(expected), "{error}");
    let error = refused(config.soc(Soc::AM62X), on(model::Soc::Am64x));
    assert!(error.starts_with("soc=am62x takes 8 transmit channels from 19 on"), "{error}");
    // Another engine has another device id.
    let error = refused(config.soc(Soc::AM64X), on(model::Soc::J7200));
    assert_eq!(error, "firmware refused get_range: no such resource");
}

#[test]
fn the_numbers_of_udma_are_the_first_that_firmware_grants() {
    let range = |start, count| Range { start, count };
    let grants =
        Grants { tx_channels: range(41, 2), rx_channels: range(7, 1), rx_flows: range(101, 2), rings: range(300, 6) };
    let with = |grants| model_config(Variant::Udma, 2).grants(Some(grants));
    let config = config(Variant::Udma, 2).rx_flows(2);
    let mut rig = Rig::with(config, with(grants));
    let packet = rig.packet(&stamp(1, 0, 90));
    rig.send(1, packet);
    rig.settle();
    assert_stamps(&rig.plugs[1].drain(), 1, 0);
    assert_eq!(rig.model.ring_accesses(42).doorbells, 1, "the ring of the second channel");
    rig.finish();
    for (grants, error) in [
        (Grants { rings: range(300, 5), ..grants }, "soc=j7200 takes 6 rings from 300 on"),
        (Grants { tx_channels: range(41, 1), ..grants }, "soc=j7200 takes 2 transmit channels from 41 on"),
        (Grants { rx_flows: range(101, 1), ..grants }, "soc=j7200 takes 2 receive flows from 101 on"),
        (Grants { rx_channels: range(0, 0), ..grants }, "soc=j7200 takes 1 receive channels from 0 on"),
    ] {
        let refusal = refused(config, with(grants));
        assert!(refusal.starts_with(error), "{refusal}");
    }
}
