//! The device goes away, the system wants it back, the bus reports an error: each ends the port by
//! name or is repaired, and nothing is left behind.

use super::rig::*;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use towpath_model::e1000e::Absence;
use towpath_model::wire::Wire;
use towpath_nic::e1000e::InterruptMode;
use towpath_packet::Batch;
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};
use towpath_sys::poll::is_readable;

/// Frames in both directions, as many as the rings take, until `done`.
#[track_caller]
fn traffic_until(r: &mut Rig, done: impl Fn(&Rig) -> bool) {
    let (begun, mut got, mut batch) = (Instant::now(), Vec::new(), Batch::new());
    while !done(r) {
        assert!(begun.elapsed() < Duration::from_secs(30), "waited in vain: {:?}", r.control.faults());
        let _ = r.far.send(&frame(60, 1));
        for queue in 0..r.tx.len() {
            let packet = r.packet(&frame(300, 2));
            let _ = batch.push(packet);
            r.tx[queue].tx(&mut batch);
            r.tx[queue].kick();
        }
        r.turn(&mut got);
        r.far.drain();
        got.clear();
    }
}

fn received(r: &Rig) -> u64 {
    r.rx.iter().map(|queue| queue.counters().snapshot().packets).sum()
}

/// Why the port is gone, by all of its queues.
fn reason(r: &Rig) -> Option<String> {
    let states = r.rx.iter().map(RxQueue::state).chain(r.tx.iter().map(TxQueue::state));
    let reasons: Vec<_> =
        states.map(|s| if let State::Gone(why) = s { Some(why.into_owned()) } else { None }).collect();
    assert!(reasons.iter().all(|reason| *reason == reasons[0]), "{reasons:?}");
    reasons[0].clone()
}

/// A port in the middle of traffic.
fn running(policy: towpath_bus::DmaPolicy, queues: u16, interrupts: InterruptMode) -> Rig {
    let mut r = rig(with(|c| (c.policy, c.queues, c.interrupts) = (policy, queues, interrupts)), strict());
    traffic_until(&mut r, |r| received(r) > 50);
    r
}

#[test]
fn a_device_that_was_removed_is_gone_whether_it_reads_as_ones_or_as_zeros() {
    for policy in POLICIES {
        for absence in [Absence::Removed, Absence::RemovedInQemu] {
            let mut r = running(policy, 2, InterruptMode::Off);
            r.device.vanish(absence);
            traffic_until(&mut r, |r| reason(r).is_some());
            assert_eq!(reason(&r).as_deref(), Some("the device was removed"), "{absence:?}");
            assert_eq!((r.tx[0].pending(), r.control.faults().resets), (0, 0), "nothing is waited for");
            r.end();
        }
    }
}

#[test]
fn a_device_that_the_system_wants_back_is_given_back_with_all_that_it_could_reach() {
    for policy in POLICIES {
        let mut r = running(policy, 2, InterruptMode::Off);
        r.device.request_removal();
        traffic_until(&mut r, |r| reason(r).is_some());
        assert!(reason(&r).unwrap().starts_with("the system wants the device back"), "{:?}", reason(&r));
        assert_eq!(r.tx[0].pending(), 0, "nothing is waited for");
        r.end();
    }
}

#[test]
fn a_worker_that_sleeps_wakes_up_for_a_request_and_for_an_error() {
    for error in [false, true] {
        let mut r = running(STRICT, 1, InterruptMode::Auto);
        let Wake::Fd(fd) = r.rx[0].wake() else { panic!("it does not wait for its interrupt") };
        // SAFETY: the queue holds the descriptor, and outlives this handle of it.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        r.settle();
        r.rx[0].wake();
        assert!(!is_readable(fd));
        if error {
            r.device.vanish(Absence::Contained)
        } else {
            r.device.request_removal()
        }
        assert!(is_readable(fd));
        // One call of the worker, without the watchdog's period.
        r.rx[0].refill();
        assert_eq!(reason(&r).is_some(), !error);
        assert_eq!(r.control.faults().bus_errors, u64::from(error));
        r.end();
    }
}

#[test]
fn an_error_of_the_bus_is_mended_by_a_reset_of_the_function() {
    for (policy, queues) in [(STRICT, 1), (DEFERRED, 2)] {
        let mut r = running(policy, queues, InterruptMode::Off);
        r.device.vanish(Absence::Contained);
        traffic_until(&mut r, |r| r.control.faults().resets == 1);
        assert_eq!(r.control.faults().bus_errors, 1);
        let before = received(&r);
        // The device receives as soon as its link is up, and the driver looks a little later.
        traffic_until(&mut r, |r| received(r) > before + 50 && r.tx[0].state() == State::Up);
        assert_eq!(r.control.faults().resets, 1);
        r.end();
    }
}

#[test]
fn after_an_error_of_the_bus_no_queue_touches_its_ring_until_the_reset() {
    let mut r = running(STRICT, 2, InterruptMode::Off);
    r.device.vanish(Absence::Contained);
    // One queue learns of the error, and the others have not halted.
    let begun = Instant::now();
    while r.control.faults().bus_errors == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        r.rx[0].rx(&mut Batch::new());
    }
    let tails = r.device.accesses().tails;
    let mut batch: Batch = Batch::new();
    for _ in 0..64 {
        let packet = r.packet(&frame(60, 3));
        let _ = batch.push(packet);
        r.tx[1].tx(&mut batch);
        r.tx[1].kick();
        r.rx[1].refill();
    }
    assert_eq!((r.device.accesses().tails, r.control.faults().resets), (tails, 0));
    drop(batch);
    r.end();
}

#[test]
fn an_error_of_the_bus_that_no_reset_mends_ends_the_port_by_name() {
    let mut r = running(STRICT, 1, InterruptMode::Off);
    r.device.vanish(Absence::ContainedForGood);
    traffic_until(&mut r, |r| reason(r).is_some());
    let reason = reason(&r).unwrap();
    assert!(reason.contains("the bus has reported an error") && reason.contains("can't be reset"), "{reason}");
    r.end();
}

#[test]
fn memory_decoding_that_another_program_has_switched_off_is_switched_on_again() {
    let mut r = running(STRICT, 1, InterruptMode::Off);
    r.device.write_config(4, 0);
    traffic_until(&mut r, |r| r.control.faults().resets == 1);
    let before = received(&r);
    traffic_until(&mut r, |r| received(r) > before + 50 && r.tx[0].state() == State::Up);
    r.end();
}
