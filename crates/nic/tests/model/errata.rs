//! What the errata of the chip, and its firmware, ask of the driver.

use super::rig::*;
use std::time::{Duration, Instant};
use towpath_model::e1000e::{self as model, Faults};
use towpath_model::wire::cable;
use towpath_nic::e1000e::E1000e;
use towpath_packet::port::{Port, Start, State, TxQueue};
use towpath_packet::{Backing, Batch, Offloads, Pool, PoolConfig};

/// Bit 28 of CTRL_EXT: a driver controls the device.
fn has_driver(device: &model::Device) -> bool {
    device.register(0x0018) & 1 << 28 != 0
}

#[test]
fn the_device_is_given_back_to_its_firmware_at_every_end() {
    let r = rig(config(), strict());
    assert!(has_driver(&r.device));
    r.end();
    // Opened, and never started.
    let (near, _far) = cable(8);
    let bus = model::launch(strict(), near).unwrap();
    let device = bus.device();
    drop(E1000e::open(bus, "e1000e:model", config()).unwrap());
    assert_eq!((device.violation(), has_driver(&device)), (None, false));
    // A start that fails: firmware holds the PHY.
    let (near, _far) = cable(8);
    let bus = model::launch(strict().phy_denied(u32::MAX), near).unwrap();
    let device = bus.device();
    let port = E1000e::open(bus, "e1000e:model", config()).unwrap();
    assert!(port.start(Start { pool: pool_of(2048), queues: 1, accept: Offloads::ALL }).is_err());
    assert_eq!((device.violation(), has_driver(&device)), (None, false));
}

#[test]
fn a_device_that_hangs_after_every_reset_has_its_function_reset_before_it_is_given_up() {
    let faults = Faults::default().stall(1_000_000);
    let mut r = rig(config(), strict().faults(faults));
    let begun = Instant::now();
    while !matches!(r.tx[0].state(), State::Gone(_)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", r.control.faults());
        let mut batch: Batch = Batch::new();
        let packet = r.packet(&frame(60, 1));
        batch.push(packet).unwrap();
        r.tx[0].tx(&mut batch);
        r.tx[0].kick();
        r.device.advance(Duration::from_millis(10));
        r.turn(&mut Vec::new());
    }
    let faults = r.control.faults();
    assert_eq!((faults.resets, faults.function_resets, faults.hangs), (9, 1, 10));
    r.end();
}

#[test]
fn an_nvm_in_flash_is_not_updated_autonomously() {
    let mut r = rig(config(), strict().flash(true));
    assert_eq!(r.device.register(0x0010) & 1 << 20, 0);
    let packet = r.packet(&frame(60, 1));
    r.send(0, [packet]);
    r.settle();
    assert_eq!(r.far.drain().len(), 1);
    r.end();
}

/// A management controller shares the port: its receive address, its filters and the power of the
/// PHY stay.
#[test]
fn what_a_management_controller_uses_is_left_alone() {
    const ADDRESS: [usize; 2] = [0x5400 + 3 * 8, 0x5404 + 3 * 8];
    let words = |device: &model::Device| ADDRESS.map(|at| device.register(at));
    let (near, _far) = cable(8);
    let bus = model::launch(strict().manageability(true), near).unwrap();
    let expected = words(&bus.device());
    assert!(expected[1] & 1 << 31 != 0, "its address is valid");
    for queues in [1, 2] {
        let r = rig(with(|c| c.queues = queues), strict().manageability(true));
        assert_eq!(words(&r.device), expected);
        let device = r.device.clone();
        r.end();
        assert_eq!(device.phy(0) & 0x0800, 0, "the PHY has power");
    }
    // Without one, an address of an earlier driver is removed.
    let r = rig(config(), strict());
    assert_eq!(words(&r.device), [0, 0]);
    r.end();
}

/// IEEE 802.1Q with two tags: 1526 bytes with the check sequence. The chip takes 1522 by itself.
#[test]
fn frames_with_two_tags_are_received_if_the_buffers_hold_whatever_the_chip_may_write() {
    let tagged = |len: usize| {
        let plain = frame(len, 3);
        [&plain[..12], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6], &plain[12..]].concat()
    };
    let pool = Pool::new(PoolConfig::default().capacity(1024).chunk(4096).backing(Backing::Anonymous)).unwrap();
    let mut r = rig_with(with(|c| c.vlan = false), strict(), pool, Offloads::ALL);
    let (longest, longer) = (tagged(1514), tagged(1515));
    r.arrive([longest.as_slice(), &longer]);
    let got = r.settle();
    assert_eq!(got.iter().map(towpath_packet::Packet::to_vec).collect::<Vec<_>>(), [longest]);
    assert_eq!(r.control.faults().oversize, 1, "the limit of the driver");
    drop(got);
    r.end();
}

/// A frame that is longer than the room behind a buffer's headroom must not be written over the
/// next buffer.
#[test]
fn frames_with_two_tags_and_buffers_without_room_for_the_worst_are_left_to_the_chip() {
    let mut r = rig(with(|c| c.vlan = false), strict());
    let (short, long) = (frame(1518, 1), frame(1522, 2));
    r.arrive([short.as_slice(), &long]);
    let got = r.settle();
    assert_eq!(got.iter().map(towpath_packet::Packet::to_vec).collect::<Vec<_>>(), [short]);
    drop(got);
    r.end();
}
