//! PHY and link: power, the semaphore of firmware, negotiation, pause frames, and their loss.

use crate::rig::{Rig, config, frame, pool_of, rig, strict, with};
use std::time::{Duration, Instant};
use towpath_model::e1000e::{self as model, Faults, PhyStart};
use towpath_model::wire::cable;
use towpath_nic::e1000e::{E1000e, FlowControl, InterruptMode};
use towpath_packet::port::{Port, RxQueue, Start, State, TxQueue};
use towpath_packet::{Batch, Checksum, DropReason, Gso, GsoKind, Offloads};
use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport};

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
    let mut r = rig(config(), strict().phy(PhyStart::PoweredDown).negotiation(5));
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
    let mut r = rig(config(), strict().phy(PhyStart::Hung));
    until(&mut r, is_up);
    r.end();
}

#[test]
fn firmware_that_holds_the_phy_for_a_while_is_waited_for_and_for_ever_is_an_error() {
    // Five requests of the reset, and more.
    let mut r = rig(config(), strict().phy_denied(14));
    until(&mut r, is_up);
    r.end();
    let (near, _far) = cable(8);
    let bus = model::launch(strict().phy_denied(u32::MAX), near).unwrap();
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
        let mut r = rig(with(|c| c.flow_control = flow_control), strict().pause(pause));
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
    let faults = Faults::default().stall(20_000);
    let mut r = rig(config(), strict().faults(faults));
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

/// Frames that lie in the ring of a queue, of which the device has sent none.
fn fill(r: &mut Rig, queue: usize, frames: u64) {
    let mut batch: Batch = Batch::new();
    for n in 0..frames {
        let packet = r.packet(&frame(60, n));
        batch.push(packet).unwrap();
    }
    assert_eq!(r.tx[queue].tx(&mut batch), frames as usize);
    r.tx[queue].kick();
}

/// A link that comes back after each loss is lost often: it is reset, but never given up. Frames
/// that were in the ring are dropped by name, and no frame is counted twice.
#[test]
fn a_healthy_port_outlives_any_number_of_lost_links_and_drops_what_was_in_the_ring() {
    const LOSSES: u64 = 20;
    const FRAMES: u64 = 10;
    let mut r = rig(config(), strict());
    for loss in 1..=LOSSES {
        until(&mut r, is_up);
        fill(&mut r, 0, FRAMES);
        r.far.set_carrier(false);
        until(&mut r, |r| !is_up(r));
        until(&mut r, |r| r.tx[0].pending() == 0);
        r.far.set_carrier(true);
        let faults = r.control.faults();
        assert_eq!((faults.link_losses, faults.resets, faults.hangs), (loss, loss, 0));
        let sent = r.tx[0].counters().snapshot();
        assert_eq!((sent.packets, sent.dropped(DropReason::LinkDown)), (0, loss * FRAMES));
    }
    until(&mut r, is_up);
    fill(&mut r, 0, FRAMES);
    until(&mut r, |r| r.tx[0].pending() == 0);
    let sent = r.tx[0].counters().snapshot();
    assert_eq!((sent.packets, sent.all_drops(), sent.errors), (FRAMES, LOSSES * FRAMES, 0));
    assert_eq!(r.far.drain().len(), FRAMES as usize);
    r.end();
}

#[test]
fn frames_that_left_before_the_link_was_lost_are_counted_as_sent() {
    let mut r = rig(with(|c| c.queues = 2), strict());
    until(&mut r, is_up);
    fill(&mut r, 0, 5);
    r.device.run_until_idle();
    fill(&mut r, 1, 7);
    r.far.set_carrier(false);
    // The second queue sees the loss, before the first one looks at its ring.
    let mut received: Batch = Batch::new();
    let begun = Instant::now();
    while r.control.faults().resets == 0 || r.tx[1].pending() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it takes too long");
        r.device.advance(Duration::from_millis(200));
        r.tx[1].reclaim();
        if !is_up(&r) {
            r.rx.iter_mut().for_each(|rx| _ = rx.rx(&mut received));
            r.tx[0].reclaim();
        }
    }
    until(&mut r, |r| r.tx[0].pending() == 0);
    let sent = [0, 1].map(|queue: usize| r.tx[queue].counters().snapshot());
    assert_eq!((r.far.drain().len(), sent[0].packets, sent[0].all_drops()), (5, 5, 0));
    assert_eq!((sent[1].packets, sent[1].dropped(DropReason::LinkDown)), (0, 7));
    r.end();
}

#[test]
fn frames_that_arrived_and_were_not_taken_before_a_reset_are_counted() {
    let mut r = rig(config(), strict());
    until(&mut r, is_up);
    let frames = [frame(60, 1), frame(900, 2), frame(1500, 3)];
    r.rx[0].refill();
    r.arrive(frames.iter().map(Vec::as_slice));
    r.device.run_until_idle();
    fill(&mut r, 0, 1);
    r.far.set_carrier(false);
    let begun = Instant::now();
    while is_up(&r) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it takes too long");
        r.device.advance(Duration::from_millis(200));
        r.tx[0].reclaim();
    }
    until(&mut r, |r| r.tx[0].pending() == 0);
    r.turn(&mut Vec::new());
    let received = r.rx[0].counters().snapshot();
    assert_eq!((received.packets, received.errors, r.control.faults().lost_frames), (0, 3, 3));
    r.end();
}

#[test]
fn after_a_reset_nothing_is_taken_until_the_link_is_up_again() {
    let stall = Duration::from_secs(60);
    let mut r = rig(with(|c| c.stall = stall), strict().negotiation(200));
    while !is_up(&r) {
        r.device.advance(Duration::from_millis(200));
        r.turn(&mut Vec::new());
    }
    fill(&mut r, 0, 1);
    let mut batch: Batch = Batch::new();
    let begun = Instant::now();
    while r.control.faults().resets == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the frame never hangs");
        r.device.advance(stall / 2);
        r.tx[0].reclaim();
        r.rx[0].rx(&mut batch);
    }
    let packet = r.packet(&frame(60, 1));
    batch.push(packet).unwrap();
    assert_eq!((r.tx[0].tx(&mut batch), is_up(&r), r.control.faults().link_losses), (0, false, 0));
    until(&mut r, |r| r.tx[0].pending() == 0 && is_up(r));
    assert_eq!(r.tx[0].tx(&mut batch), 1);
    r.end();
}

/// The link is back before a queue looks, but its frames wait for ever. A sleeping worker takes the
/// cause of the interrupt, and finds the link up.
#[test]
fn a_loss_that_no_queue_saw_explains_frames_that_wait() {
    let stall = Duration::from_secs(60);
    for interrupts in [InterruptMode::Off, InterruptMode::Auto] {
        let mut r = rig(with(|c| (c.stall, c.interrupts) = (stall, interrupts)), strict());
        for loss in 1..=12 {
            let begun = Instant::now();
            while !is_up(&r) {
                assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", r.control.faults());
                r.device.advance(Duration::from_millis(200));
                r.turn(&mut Vec::new());
            }
            fill(&mut r, 0, 3);
            r.rx[0].wake();
            r.far.set_carrier(false);
            r.device.turn();
            r.far.set_carrier(true);
            r.device.run_until_idle();
            while r.control.faults().resets < loss {
                assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", r.control.faults());
                r.device.advance(stall / 2);
                r.turn(&mut Vec::new());
            }
            r.turn(&mut Vec::new());
        }
        let (faults, sent) = (r.control.faults(), r.tx[0].counters().snapshot());
        assert_eq!((faults.hangs, sent.dropped(DropReason::LinkDown), sent.all_drops()), (0, 36, 36));
        r.end();
    }
}

/// The receiving queue sees the link go and come. The sending one looks later.
#[test]
fn a_loss_that_another_queue_saw_explains_frames_that_wait() {
    let stall = Duration::from_secs(60);
    let mut r = rig(with(|c| c.stall = stall), strict());
    let mut received: Batch = Batch::new();
    let mut look = |r: &mut Rig, up: bool| {
        let begun = Instant::now();
        while is_up(r) != up {
            assert!(begun.elapsed() < Duration::from_secs(20), "it takes too long");
            r.device.advance(Duration::from_millis(200));
            r.rx[0].rx(&mut received);
        }
    };
    look(&mut r, true);
    fill(&mut r, 0, 3);
    r.far.set_carrier(false);
    look(&mut r, false);
    r.far.set_carrier(true);
    look(&mut r, true);
    let begun = Instant::now();
    while r.control.faults().resets == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", r.control.faults());
        r.device.advance(stall / 2);
        r.turn(&mut Vec::new());
    }
    r.turn(&mut Vec::new());
    let (faults, sent) = (r.control.faults(), r.tx[0].counters().snapshot());
    assert_eq!((faults.hangs, sent.dropped(DropReason::LinkDown)), (0, 3));
    r.end();
}

#[test]
fn frames_may_wait_longer_on_a_slow_link() {
    let stall = Duration::from_secs(10);
    for (speed, factor) in [(1000, 1), (100, 10), (10, 16)] {
        // A device that stalls, with its first burst.
        let faults = Faults::default().stall(1_000_000);
        let mut r = rig(with(|c| c.stall = stall), strict().speed(speed).faults(faults));
        assert!(is_up(&r));
        fill(&mut r, 0, 1);
        let mut waited = Duration::ZERO;
        while r.control.faults().hangs == 0 {
            assert!(waited < 40 * stall, "{speed}");
            r.device.advance(stall / 2);
            waited += stall / 2;
            (0..16).for_each(|_| _ = r.tx[0].reclaim());
        }
        assert!((factor * stall..(factor + 2) * stall).contains(&waited), "{speed}: {waited:?}");
        r.settle();
        r.end();
    }
}

#[test]
fn segmentation_ends_below_1000_megabits_and_comes_back() {
    let mut r = rig(config(), strict());
    let tso = Offloads::TSO4.with(Offloads::TSO6);
    let mut seen = Vec::new();
    for speed in [1000, 100, 10, 1000] {
        until(&mut r, is_up);
        r.device.set_speed(speed);
        until(&mut r, |r| is_up(r) && r.control.link().speed == speed);
        seen.push((r.tx[0].offloads().has(tso), r.tx[0].offloads().has(Offloads::CSUM)));
        assert!(r.tx[0].max_offloads().has(tso));
    }
    assert_eq!(seen, [(true, true), (false, true), (false, true), (true, true)]);
    r.end();
}

/// A super-packet for another speed is refused once, so that its sender looks at the offloads, and
/// dropped by name if the sender comes again. The watchdog of the receiving queue sees the speed:
/// the sending one follows before its own looks.
#[test]
fn a_super_packet_that_comes_too_late_is_given_back_first() {
    let mut r = rig(config(), strict());
    until(&mut r, is_up);
    r.device.set_speed(100);
    let begun = Instant::now();
    let mut received: Batch = Batch::new();
    while !is_up(&r) || r.control.link().speed != 100 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it takes too long");
        r.device.advance(Duration::from_millis(200));
        r.rx[0].rx(&mut received);
    }
    let headers = Headers {
        link: Some(Link::default()),
        network: Network::Ip(Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]), Transport::Tcp(Tcp::default())),
    };
    let mut bytes = vec![0; 2000];
    let len = headers.emit(&mut bytes, &[7; 1500], Checksums::Partial).unwrap();
    let mut packet = r.packet(&bytes[..len]);
    packet.set_csum(Checksum::Partial { start: 34, offset: 16 });
    packet.set_gso(Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 500, segs: 3, hdr_len: 54 }));
    let mut batch: Batch = Batch::new();
    batch.push(packet).unwrap();
    assert_eq!((r.tx[0].tx(&mut batch), batch.len()), (0, 1));
    assert_eq!((r.tx[0].tx(&mut batch), batch.len()), (1, 0));
    assert_eq!(r.tx[0].counters().snapshot().dropped(DropReason::Offload), 1);
    r.end();
}

#[test]
fn a_port_without_a_link_counts_no_errors() {
    let mut r = rig(config(), strict());
    until(&mut r, is_up);
    r.far.set_carrier(false);
    until(&mut r, |r| !is_up(r));
    for _ in 0..200 {
        r.device.advance(Duration::from_millis(10));
        r.turn(&mut Vec::new());
    }
    r.far.set_carrier(true);
    until(&mut r, is_up);
    for _ in 0..200 {
        r.device.advance(Duration::from_millis(10));
        r.turn(&mut Vec::new());
    }
    assert!(r.device.register(0x4008) > 0, "the device has counted errors of symbols");
    assert_eq!((r.rx[0].counters().snapshot().errors, r.tx[0].counters().snapshot().errors), (0, 0));
    r.end();
}

#[test]
fn a_pulled_cable_is_a_lost_link_and_what_waits_is_dropped_by_name() {
    let mut r = rig(config(), strict());
    r.settle();
    r.far.set_carrier(false);
    let begun = Instant::now();
    while !matches!(r.tx[0].state(), State::Down(_)) {
        assert!(begun.elapsed() < Duration::from_secs(20));
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
