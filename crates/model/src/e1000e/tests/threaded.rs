//! The device with a thread.

use super::*;
use crate::wire::Loopback;
use std::time::{Duration, Instant};

fn threaded() -> Config {
    Config { threaded: true, ..config() }
}

/// Waits for the device's thread, within a time limit.
fn until(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < Duration::from_secs(20), "timeout: the device's thread does nothing");
        std::thread::yield_now();
    }
}

#[test]
fn frames_move_without_steps_by_the_caller() {
    let mut rig = Rig::new(threaded());
    rig.post(15);
    rig.fill(20, &frame(60));
    for i in 0..8u32 {
        rig.set_txd(i, data(rig.buffer(20), 60, txd::EOP | txd::RS));
        rig.bar.w32(TDBAL + TAIL, i + 1);
        assert!(rig.far.send(&frame(60 + i as usize)));
    }
    until(|| rig.txd(7)[1] & txd::DD != 0 && rig.received(7).0 & rxd::DD != 0);
    assert_eq!((rig.far.drain().len(), rig.received(7).1), (8, 67));
    rig.clean();
}

#[test]
fn a_sleeping_thread_is_woken_by_a_tail() {
    let rig = Rig::new(threaded());
    rig.fill(20, &frame(60));
    until(|| rig.device.shared.runner.is_asleep());
    rig.set_txd(0, data(rig.buffer(20), 60, txd::EOP | txd::RS));
    rig.bar.w32(TDBAL + TAIL, 1);
    until(|| rig.txd(0)[1] & txd::DD != 0);
}

#[test]
fn a_flush_returns_while_the_thread_sleeps() {
    use towpath_bus::Window;
    let rig = Rig::new(threaded());
    let region = rig.bus.dma().alloc(4096).unwrap();
    let mut window = rig.bus.dma().window(1, 4096).unwrap();
    for _ in 0..200 {
        // SAFETY: unmapped and flushed before the region is dropped.
        unsafe { window.map(0, region.base(), 4096, Access::Both) }.unwrap();
        window.unmap(0).unwrap();
        window.flush_iotlb().unwrap();
    }
    until(|| rig.device.shared.runner.is_asleep());
    // SAFETY: as before.
    unsafe { window.map(0, region.base(), 4096, Access::Both) }.unwrap();
    window.unmap(0).unwrap();
    window.flush_iotlb().unwrap();
    assert_eq!(rig.bus.dma().counts().waits, 201);
}

#[test]
fn dropping_the_bus_ends_the_thread_during_traffic() {
    for _ in 0..20 {
        let bus = launch(threaded(), Loopback::default()).unwrap();
        bus.set_master(true);
        let bar = bus.bar(0, BAR_LEN).unwrap();
        bar.w32(RCTL, RCTL_EN | RCTL_UPE);
        bar.w32(TCTL, TCTL_EN);
        let shared = Arc::downgrade(&bus.shared);
        drop((bus, bar));
        assert!(shared.upgrade().is_none(), "no handle is left");
    }
}

#[test]
fn two_devices_on_a_cable_reach_each_other() {
    let (a, b) = cable(64);
    let mut a = Rig::on(config(), a, cable(1).0);
    let mut b = Rig::on(threaded(), b, cable(1).0);
    a.enable(RCTL_EN | RCTL_SECRC, RFCTL_EXTEN);
    b.enable(RCTL_EN | RCTL_SECRC, RFCTL_EXTEN);
    b.post(8);
    a.fill(20, &frame(99));
    a.transmit(0, &[data(a.buffer(20), 99, txd::EOP)]);
    until(|| b.received(0).0 & rxd::DD != 0);
    assert_eq!((b.received(0).1, b.bytes(0, 99)), (99, frame(99)));
    a.clean();
    b.clean();
}
