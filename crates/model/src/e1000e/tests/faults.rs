//! Injected faults.

use super::*;
use towpath_bus::Dma;

const ALWAYS: u32 = 1_000_000;

/// Receives ten frames of 60 bytes; returns status, length, and the first word of each descriptor.
fn receive(faults: Faults) -> Vec<(u32, usize, u64)> {
    let mut rig = Rig::new(Config { faults, ..config() });
    rig.post(15);
    for _ in 0..10 {
        assert!(rig.far.send(&frame(60)));
    }
    rig.device.run_until_idle();
    rig.clean();
    (0..10).map(|i| (rig.received(i).0, rig.received(i).1, rig.rxd(i)[0])).collect()
}

#[test]
fn frame_errors_are_in_the_descriptor_and_in_the_statistics() {
    for (faults, bit) in [
        (Faults { crc: ALWAYS, ..Default::default() }, rxd::CE),
        (Faults { symbol: ALWAYS, ..Default::default() }, rxd::SE),
        (Faults { data: ALWAYS, ..Default::default() }, rxd::RXE),
    ] {
        assert!(receive(faults).iter().all(|(status, ..)| status & bit != 0));
    }
    let mut rig = Rig::new(Config { faults: Faults { crc: ALWAYS, ..Default::default() }, ..config() });
    rig.post(1);
    rig.arrive(&frame(60));
    assert_eq!((rig.bar.r32(stats::CRCERRS), rig.bar.r32(stats::GPRC), rig.bar.r32(stats::TPR)), (1, 0, 1));
}

#[test]
fn a_rate_of_one_half_hits_some_frames_and_the_same_seed_the_same_ones() {
    let errors = |seed| {
        let got = receive(Faults { crc: ALWAYS / 2, seed, ..Default::default() });
        got.iter().map(|(status, ..)| status & rxd::CE != 0).collect::<Vec<_>>()
    };
    assert_eq!(errors(1), errors(1));
    assert!((0..8).any(|seed| errors(seed) != errors(1)));
    assert!(errors(1).contains(&true) && errors(1).contains(&false));
}

#[test]
fn lengths_and_queues_can_be_garbage_and_eop_can_be_missing() {
    let lengths = receive(Faults { bad_length: ALWAYS, ..Default::default() });
    assert!(lengths.iter().any(|(_, len, _)| *len > BUFFER) && lengths.iter().all(|(_, len, _)| *len != 60));
    let open = receive(Faults { no_eop: ALWAYS, ..Default::default() });
    assert!(open.iter().all(|(status, ..)| status & (rxd::DD | rxd::EOP) == rxd::DD));
    let garbage = receive(Faults { garbage: ALWAYS, ..Default::default() });
    assert!(garbage.iter().any(|(_, _, first)| first >> 8 & 0x1f > 1));
}

#[test]
fn write_backs_can_be_lost_or_out_of_order() {
    assert!(receive(Faults { lose: ALWAYS, ..Default::default() }).iter().all(|(status, ..)| *status == 0));
    let overtaken = |run: u64| {
        let mut rig = Rig::new(Config { faults: Faults { reorder: ALWAYS, ..Default::default() }, ..config() });
        rig.post(8);
        (0..2).for_each(|_| assert!(rig.far.send(&frame(60))));
        let mut seen = false;
        for seed in 0..100 {
            rig.device.step(run * 1000 + seed);
            seen |= rig.received(0).0 == 0 && rig.received(1).0 & rxd::DD != 0;
        }
        assert!(rig.received(0).0 & rxd::DD != 0, "it is written later");
        seen
    };
    assert!((0..50).any(overtaken));
}

#[test]
fn wild_write_backs_stay_within_the_ring() {
    let mut rig = Rig::new(Config { faults: Faults { wild: ALWAYS, seed: 5, ..Default::default() }, ..config() });
    rig.post(4);
    for _ in 0..4 {
        rig.arrive(&frame(60));
    }
    let marked = (4..RING).filter(|i| rig.received(*i).0 & rxd::DD != 0).count();
    assert!(marked > 0, "descriptors that the device never owned");
    assert_eq!(rig.rxd(RING), [0, 0]);
    rig.clean();
}

#[test]
fn a_stalled_device_does_nothing_until_it_is_reset() {
    let mut rig = Rig::new(Config { faults: Faults { stall: ALWAYS, ..Default::default() }, ..config() });
    rig.post(4);
    rig.arrive(&frame(60));
    assert_eq!((rig.device.run_until_idle(), rig.received(0).0), (0, 0));
}

#[test]
fn a_reset_ends_a_stall() {
    let recovers = |seed| {
        let mut rig =
            Rig::new(Config { faults: Faults { stall: ALWAYS / 50, seed, ..Default::default() }, ..config() });
        let receives = |rig: &mut Rig| {
            rig.tail = 0;
            rig.post(4);
            assert!(rig.far.send(&frame(60)));
            (0..3).for_each(|_| {
                rig.device.turn();
            });
            rig.received(0).0 & rxd::DD != 0
        };
        (0..500).for_each(|_| {
            rig.device.turn();
        });
        let stalled = !receives(&mut rig);
        let (base, high) = (rig.bar.r32(RDBAL), rig.bar.r32(RDBAL + BAH));
        rig.bar.w32(CTRL, CTRL_RST);
        for (at, value) in [(RDBAL, base), (RDBAL + BAH, high), (RDBAL + LEN, RING * 16)] {
            rig.bar.w32(at, value);
        }
        for queue in [0, QUEUE] {
            rig.bar.w32(TDBAL + queue + DCTL, TXDCTL_BIT22);
        }
        rig.enable(RCTL_EN | RCTL_SECRC, RFCTL_EXTEN);
        stalled && receives(&mut rig)
    };
    assert!((0..10).any(recovers));
}

#[test]
fn a_short_stall_ends() {
    let faults = Faults { stall: ALWAYS / 2, stall_turns: 3, seed: 2, ..Default::default() };
    let mut rig = Rig::new(Config { faults, ..config() });
    rig.post(4);
    rig.far.send(&frame(60));
    for _ in 0..100 {
        rig.device.turn();
    }
    assert_eq!(rig.received(0).1, 60);
}

#[test]
fn flaps_take_the_link_down_and_bring_it_back() {
    let faults = Faults { flap: ALWAYS / 10, flap_turns: 2, seed: 1, ..Default::default() };
    let rig = Rig::new(Config { faults, ..config() });
    let states: Vec<_> = (0..100)
        .map(|_| {
            rig.device.turn();
            rig.device.shared.env.registers.get(STATUS) & STATUS_LU
        })
        .collect();
    assert!(states.contains(&0) && states.contains(&STATUS_LU));
}

#[test]
fn interrupts_can_be_lost() {
    let mut rig = Rig::new(Config { faults: Faults { interrupt: ALWAYS, ..Default::default() }, ..config() });
    let irqs = rig.bus.irqs(1).unwrap();
    rig.bar.w32(IVAR, 8);
    rig.bar.w32(IMS, cause::RXQ0);
    rig.post(1);
    rig.arrive(&frame(60));
    assert_eq!((irqs[0].take(), rig.device.interrupts().1), (0, 1));
}

#[test]
fn the_devices_faults_include_failures_of_mappings() {
    let faults = Faults { mappings: Refuse::Always, ..Default::default() };
    let bus = launch(Config { faults, ..config() }, crate::wire::Unplugged).unwrap();
    let region = bus.dma().alloc(4096).unwrap();
    // SAFETY: refused: nothing is mapped.
    assert!(unsafe { bus.dma().map(region.base(), 4096, Access::Both) }.is_err());
}
