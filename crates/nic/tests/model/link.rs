//! PHY and link: power, the semaphore of firmware, negotiation, pause frames, and their loss.

use crate::rig::{Rig, config, frame, pool_of, rig, strict, with};
use std::time::{Duration, Instant};
use towpath_model::e1000e::{self as model, Faults, PhyStart};
use towpath_model::wire::cable;
use towpath_nic::e1000e::{E1000e, FlowControl};
use towpath_packet::port::{Port, Start, State, TxQueue};
use towpath_packet::{Batch, DropReason, Offloads};

/// Power down and restart, in register 0 of a PHY (IEEE 802.3 §22.2.4.1).
const POWER_DOWN: u16 = 0x0800;

/// Turns until `done`, which is due within 20 s.
#[track_caller]
fn until(r: &mut Rig, done: impl Fn(&Rig) -> bool) {
    let begun = Instant::now();
    while !done(r) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it takes too long");
        r.turn(&mut Vec::new());
    }
}

fn is_up(r: &Rig) -> bool {
    r.tx[0].state() == State::Up
}

#[test]
fn a_phy_without_power_is_powered_up_and_after_the_end_it_has_none_again() {
    let mut r = rig(config(), model::Config { phy: PhyStart::PoweredDown, negotiation: 5, ..strict() });
    until(&mut r, is_up);
    let device = r.device.clone();
    // What Linux's driver leaves in the PHY of an 82574: full duplex at 1000 Mb/s alone, pause
    // frames, crossover found by itself, downshift.
    assert_eq!((device.phy(0), device.phy(4), device.phy(9)), (0x1140, 0x0de1, 0x0e00));
    assert_eq!((device.phy(16), device.phy(29), device.phy(30)), (0x3b60, 3, 0));
    r.end();
    assert_eq!(device.phy(0) & POWER_DOWN, POWER_DOWN);
}

#[test]
fn a_phy_that_does_not_answer_is_reset() {
    let mut r = rig(config(), model::Config { phy: PhyStart::Hung, ..strict() });
    until(&mut r, is_up);
    r.end();
}

#[test]
fn firmware_that_holds_the_phy_for_a_while_is_waited_for_and_for_ever_is_an_error() {
    // Five requests of the reset, and more.
    let mut r = rig(config(), model::Config { phy_denied: 14, ..strict() });
    until(&mut r, is_up);
    r.end();
    let (near, _far) = cable(8);
    let bus = model::launch(model::Config { phy_denied: u32::MAX, ..strict() }, near).unwrap();
    let port = E1000e::open(bus, "e1000e:model", config()).unwrap();
    let error = port.start(Start { pool: pool_of(2048), queues: 1, accept: Offloads::ALL }).err().unwrap().to_string();
    assert!(error.contains("firmware"), "{error}");
}

#[test]
fn pause_frames_are_used_if_both_ends_agree() {
    let cases = [
        (FlowControl::Full, 0x0c00, true, (true, true)),
        (FlowControl::Rx, 0x0c00, true, (true, false)),
        (FlowControl::Tx, 0x0800, true, (false, false)),
        (FlowControl::Off, 0, true, (false, false)),
        (FlowControl::Full, 0x0c00, false, (false, false)),
    ];
    for (flow_control, offered, pause, used) in cases {
        let mut r = rig(with(|c| c.flow_control = flow_control), model::Config { pause, ..strict() });
        until(&mut r, is_up);
        assert_eq!(r.device.flow_control(), used, "{flow_control:?} {pause}");
        // IEEE 802.3 table 28B-2: the partner must know.
        assert_eq!(r.device.advertised() & 0x0c00, offered, "{flow_control:?}");
        r.end();
    }
}

#[test]
fn pause_frames_are_agreed_on_anew_with_the_partner_at_each_link() {
    let mut r = rig(config(), strict());
    for pause in [true, false, true] {
        r.far.set_carrier(false);
        until(&mut r, |r| !is_up(r));
        r.device.set_partner_pause(pause);
        r.far.set_carrier(true);
        until(&mut r, is_up);
        until(&mut r, |r| r.device.flow_control() == (pause, pause));
    }
    r.end();
}

#[test]
fn a_reset_brings_the_link_and_its_pause_frames_back() {
    let faults = Faults { stall: 20_000, ..Faults::default() };
    let mut r = rig(config(), model::Config { faults, ..strict() });
    until(&mut r, is_up);
    let begun = Instant::now();
    while r.control.faults().resets == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the device never stalls");
        let packet = r.packet(&frame(60, 1));
        r.send(0, [packet]);
    }
    until(&mut r, |r| is_up(r) && r.device.flow_control() == (true, true));
    r.end();
}

#[test]
fn a_pulled_cable_is_a_lost_link_and_what_waits_is_dropped_by_name() {
    let mut r = rig(config(), strict());
    r.settle();
    r.far.set_carrier(false);
    let begun = Instant::now();
    while !matches!(r.tx[0].state(), State::Down(_)) {
        assert!(begun.elapsed() < Duration::from_secs(10));
        r.turn(&mut Vec::new());
    }
    assert_eq!(r.control.faults().link_losses, 1);
    let mut batch: Batch = Batch::new();
    let packet = r.packet(&frame(60, 1));
    batch.push(packet).unwrap();
    assert_eq!(r.tx[0].tx(&mut batch), 0);
    r.far.set_carrier(true);
    while r.tx[0].state() != State::Up {
        assert!(begun.elapsed() < Duration::from_secs(20));
        r.turn(&mut Vec::new());
    }
    assert_eq!(r.tx[0].tx(&mut batch), 1);
    r.tx[0].kick();
    r.settle();
    assert_eq!(r.far.drain().len(), 1);
    assert_eq!(r.tx[0].counters().snapshot().dropped(DropReason::LinkDown), 0);
    r.end();
}
