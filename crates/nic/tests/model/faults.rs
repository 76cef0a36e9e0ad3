//! A device with faults causes no panic and no leak; recovery is bounded, and each fault is counted
//! by name.

use super::rig::*;
use std::time::{Duration, Instant};
use towpath_model::e1000e::{self as model, Faults};
use towpath_model::iommu::Refuse;
use towpath_model::wire::Wire;
use towpath_nic::e1000e::InterruptMode;
use towpath_packet::Batch;
use towpath_packet::port::{RxQueue, State, TxQueue};

/// Traffic of `frames` frames in both directions, then some time for the watchdog; ends earlier if
/// the device is given up.
fn traffic(r: &mut Rig, frames: u64) {
    let begun = Instant::now();
    let mut got = Vec::new();
    let (mut sent, mut batch) = (0, Batch::new());
    while sent < frames || r.tx[0].pending() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "traffic does not end: {:?}", r.control.faults());
        if matches!(r.tx[0].state(), State::Gone(_)) {
            return;
        }
        let before = sent;
        while batch.room() > 0 && sent < frames {
            let bytes = frame(60 + (sent as usize * 37) % 1400, sent);
            let packet = r.packet(&bytes);
            batch.push(packet).unwrap();
            let _ = r.far.send(&bytes);
            sent += 1;
        }
        r.tx[0].tx(&mut batch);
        r.tx[0].kick();
        if r.turn(&mut got) == 0 && before == sent {
            std::thread::sleep(Duration::from_micros(50));
        }
        r.far.drain();
        got.clear();
    }
    for _ in 0..300 {
        r.turn(&mut got);
        got.clear();
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn faulty(faults: Faults) -> model::Config {
    // The model does not check the rules that a fault itself breaks.
    strict().faults(faults)
}

/// Runs traffic over a device with a fault, then ends the port: buffers and mappings balance.
fn survive(name: &str, faults: Faults, check: impl Fn(&Rig)) {
    for policy in POLICIES {
        for seed in 0..3 {
            let mut r = rig(with(|c| c.policy = policy), faulty(faults.seed(seed)));
            traffic(&mut r, 3000);
            check(&r);
            let Rig { device, rx, tx, pool, cache, control, .. } = r;
            let counters = tx[0].counters().clone();
            drop((rx, tx, cache));
            let (stats, counts) = (pool.stats(), device.iommu().counts());
            assert_eq!(stats.free, stats.capacity, "{name}: buffers are missing: {:?}", control.faults());
            assert_eq!(counts.maps, counts.unmaps, "{name}: mappings are left");
            let sent = counters.snapshot();
            assert!(sent.packets + sent.all_drops() <= 3000, "{name}: a packet was counted twice");
        }
    }
}

const OFTEN: u32 = 20_000;
const SELDOM: u32 = 2_000;

#[test]
fn frames_that_are_broken_on_the_wire_are_counted_and_their_buffers_recycled() {
    survive("crc", Faults::default().crc(OFTEN).symbol(OFTEN).data(OFTEN), |r| {
        assert!(r.control.faults().broken_frames > 0);
        assert_eq!(r.control.faults().resets, 0);
    });
}

#[test]
fn wrong_lengths_are_bounded() {
    survive("length", Faults::default().bad_length(OFTEN), |r| {
        let f = r.control.faults();
        assert!(f.bad_lengths + f.runts + f.oversize > 0, "{f:?}");
    });
}

#[test]
fn frames_that_do_not_end_are_discarded() {
    survive("end", Faults::default().no_eop(OFTEN), |r| {
        let f = r.control.faults();
        assert!(f.oversize + f.endless_frames > 0, "{f:?}");
    });
}

#[test]
fn garbage_in_fields_does_no_harm() {
    survive("garbage", Faults::default().garbage(OFTEN), |r| {
        assert!(r.rx[0].counters().snapshot().packets > 0);
    });
}

#[test]
fn write_backs_out_of_order_lost_or_wild_are_survived() {
    survive("reorder", Faults::default().reorder(SELDOM), |_| {});
    survive("lose", Faults::default().lose(SELDOM), |r| {
        assert!(r.control.faults().resets > 0, "{:?}", r.control.faults());
    });
    survive("wild", Faults::default().wild(SELDOM), |_| {});
}

#[test]
fn a_device_that_stalls_for_a_while_is_waited_for_and_one_that_stalls_for_good_is_reset() {
    survive("stall", Faults::default().stall(SELDOM).stall_turns(20), |_| {});
    survive("stall for good", Faults::default().stall(SELDOM).stall_turns(0), |r| {
        assert!(r.control.faults().hangs > 0 || r.control.faults().resets == 0);
    });
}

#[test]
fn frames_hang_by_the_clock_of_the_device() {
    let stall = Duration::from_secs(60);
    let mut r = rig(with(|c| c.stall = stall), strict());
    let mut batch: Batch = Batch::new();
    batch.push(r.packet(&[0; 60])).unwrap();
    r.tx[0].tx(&mut batch);
    r.tx[0].kick();
    // The first time they are suspected. Idle calls of that number read the clock.
    for hangs in [0, 0, 1] {
        (0..16).for_each(|_| _ = r.tx[0].reclaim());
        assert_eq!(r.control.faults().hangs, hangs);
        r.device.advance(stall);
    }
    drop(r.settle());
    assert_eq!(r.control.faults().resets, 1);
    r.end();
}

#[test]
fn a_link_that_flaps_costs_frames_and_nothing_else() {
    survive("flap", Faults::default().flap(SELDOM).flap_turns(30), |_| {});
}

#[test]
fn mappings_that_fail_are_tried_again() {
    for refuse in [Refuse::Every(7), Refuse::Chance { per_million: 100_000, seed: 1 }] {
        let mut r = rig(with(|c| c.policy = STRICT), strict());
        r.device.iommu().refuse(refuse);
        traffic(&mut r, 3000);
        let (faults, rx, tx) = (r.control.faults(), r.rx[0].counters().snapshot(), r.tx[0].counters().snapshot());
        assert!(faults.map_failed > 0);
        assert_eq!((tx.packets, tx.all_drops()), (3000, 0), "{refuse:?}");
        assert!(rx.packets > 0);
        r.end();
    }
}

#[test]
fn lost_interrupts_are_no_lost_packets_because_sleepers_wake_up() {
    let faults = Faults::default().interrupt(1_000_000);
    let mut r = rig(with(|c| c.interrupts = InterruptMode::Auto), faulty(faults));
    r.settle();
    r.rx[0].wake();
    r.arrive([frame(60, 1).as_slice()]);
    assert_eq!(r.settle().len(), 1);
    r.end();
}

#[test]
fn all_faults_at_once_are_survived() {
    let all = Faults::default()
        .seed(0)
        .mappings(Refuse::Chance { per_million: 10_000, seed: 5 })
        .crc(SELDOM)
        .symbol(SELDOM)
        .data(SELDOM)
        .flap(200)
        .flap_turns(10)
        .stall(200)
        .stall_turns(0)
        .bad_length(SELDOM)
        .no_eop(SELDOM)
        .garbage(SELDOM)
        .reorder(200)
        .wild(200)
        .lose(200)
        .interrupt(SELDOM);
    survive("all", all, |_| {});
}
