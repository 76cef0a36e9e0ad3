//! Every rule, violated.

use super::*;
use crate::iommu;
use crate::violation::Ring;

fn first(rig: &Rig) -> Violation {
    rig.device.violation().expect("the violated rule is reported")
}

fn rule(rig: &Rig) -> &'static str {
    match first(rig) {
        Violation::Transmit { rule, .. } | Violation::Register { rule, .. } => rule,
        other => panic!("{other}"),
    }
}

/// A rig after an attempt to transmit these descriptors.
fn sent(descriptors: impl Fn(&Rig) -> Vec<[u64; 2]>) -> Rig {
    let mut rig = Rig::new(config());
    let descriptors = descriptors(&rig);
    rig.transmit(0, &descriptors);
    rig
}

#[test]
fn a_tail_outside_the_ring() {
    let rig = Rig::new(config());
    rig.bar.w32(RDBAL + TAIL, RING);
    assert_eq!(first(&rig), Violation::TailOutsideRing { ring: Ring::Rx(0), tail: RING, len: RING });
}

#[test]
fn a_ring_without_a_free_descriptor() {
    let mut rig = Rig::new(config());
    for i in 0..RING {
        rig.set_txd(i, data(rig.buffer(20), 60, txd::EOP));
    }
    rig.bar.w32(TDBAL + TAIL, RING - 1);
    rig.clean();
    rig.bar.w32(TDBAL + TAIL, 0);
    let head = 0;
    assert_eq!(first(&rig), Violation::RingOverrun { ring: Ring::Tx(0), from: RING - 1, tail: 0, head, len: RING });
    rig.tail = 0;
}

#[test]
fn a_tail_moved_twice_is_checked_both_times() {
    let rig = Rig::new(config());
    rig.bar.w32(TDBAL + TAIL, 9);
    rig.clean();
    rig.bar.w32(TDBAL + TAIL, 2);
    assert!(matches!(first(&rig), Violation::RingOverrun { from: 9, tail: 2, .. }));
}

#[test]
fn a_descriptor_changed_while_the_device_owns_it() {
    let mut rig = Rig::new(config());
    rig.post(4);
    rig.device.run_until_idle();
    rig.set_rxd(2, [rig.buffer(9), 0]);
    rig.device.turn();
    let (was, is) = ([rig.buffer(2), 0], [rig.buffer(9), 0]);
    assert_eq!(first(&rig), Violation::OwnedDescriptorWritten { ring: Ring::Rx(0), index: 2, was, is });
}

#[test]
fn address_zero_below_the_tail() {
    let mut rig = Rig::new(config());
    rig.set_rxd(0, [0, 0]);
    rig.bar.w32(RDBAL + TAIL, 1);
    rig.arrive(&frame(60));
    assert_eq!(first(&rig), Violation::AddressZero { ring: Ring::Rx(0), index: 0 });
    assert_eq!(rig.received(0), (rxd::DD, 0, 0), "it is consumed without data");
    rig.tail = 1;
    rig.post(1);
    rig.device.run_until_idle();
    assert_eq!((rig.received(1).0 & rxd::EOP, rig.received(1).1), (rxd::EOP, 60), "the frame continues in the next");
}

#[test]
fn a_receive_descriptor_with_status_from_before() {
    let mut rig = Rig::new(config());
    rig.set_rxd(0, [rig.buffer(0), 0x40_0000_0003]);
    rig.bar.w32(RDBAL + TAIL, 1);
    rig.device.turn();
    assert_eq!(first(&rig), Violation::ReservedBits { ring: Ring::Rx(0), index: 0, bits: 0x40_0000_0003 });
    rig.tail = 1;
}

#[test]
fn a_transmit_descriptor_with_done_set() {
    let rig = sent(|rig| vec![data(rig.buffer(20), 60, txd::EOP | txd::DD)]);
    assert!(matches!(first(&rig), Violation::ReservedBits { bits: txd::DD, .. }));
}

#[test]
fn an_extended_descriptor_of_an_unknown_type() {
    let rig = sent(|rig| vec![data(rig.buffer(20), 60, txd::EOP | 2 << 20)]);
    assert!(rule(&rig).contains("context (0) or data (1)"));
}

#[test]
fn a_descriptor_without_data() {
    let rig = sent(|rig| vec![data(rig.buffer(20), 0, txd::EOP)]);
    assert!(rule(&rig).contains("has a length"));
}

#[test]
fn a_descriptor_with_too_much_data() {
    let rig = sent(|rig| vec![data(rig.buffer(20), (16 << 10) + 1, txd::EOP)]);
    assert!(rule(&rig).contains("at most 16 KiB"));
}

#[test]
fn an_unmapped_address_and_the_effect_on_the_frame() {
    let mut rig = Rig::new(config());
    let stray = rig.iova + (1 << 30);
    let sent = rig.transmit(0, &[data(stray, 60, txd::EOP | txd::RS), data(rig.buffer(20), 60, txd::EOP)]);
    assert_eq!(first(&rig), Violation::NotMapped { access: "read", iova: stray, len: 60 });
    assert_eq!(sent.len(), 1, "only the second frame left");
    assert_eq!(rig.txd(0)[1] & txd::DD, txd::DD);
    assert_eq!(rig.device.iommu().take_faults().len(), 1);
}

#[test]
fn a_buffer_unmapped_before_its_completion() {
    let mut rig = Rig::new(config());
    let region = rig.bus.dma().alloc(4096).unwrap();
    // SAFETY: the region lives until the end of the test, after the device.
    let iova = unsafe { rig.bus.dma().map(region.base(), 4096, Access::Both) }.unwrap();
    rig.set_rxd(0, [iova.get(), 0]);
    rig.bar.w32(RDBAL + TAIL, 1);
    rig.tail = 1;
    rig.device.turn();
    rig.bus.dma().unmap(iova, 4096).unwrap();
    assert_eq!(first(&rig), Violation::UnmappedWhileOwned { iova: iova.get() });
    rig.arrive(&frame(60));
    assert_eq!(rig.device.iommu().take_faults()[0].reason, iommu::FaultReason::Unmapped);
    assert_eq!(rig.received(0).1, 60, "the device does not notice a blocked write");
    drop(rig);
}

#[test]
fn a_completed_buffer_may_be_unmapped_and_after_a_reset_every_buffer() {
    for back in [true, false] {
        let mut rig = Rig::new(config());
        let region = rig.bus.dma().alloc(4096).unwrap();
        // SAFETY: the region lives until the end of the test, after the device.
        let iova = unsafe { rig.bus.dma().map(region.base(), 4096, Access::Both) }.unwrap();
        rig.set_rxd(0, [iova.get(), 0]);
        rig.bar.w32(RDBAL + TAIL, 1);
        rig.device.turn();
        if back {
            rig.arrive(&frame(60));
        } else {
            rig.bar.w32(CTRL, CTRL_RST);
        }
        rig.bus.dma().unmap(iova, 4096).unwrap();
        rig.clean();
        drop(rig);
    }
}

#[test]
fn an_unmapped_ring_stops_its_queue() {
    let mut rig = Rig::bare(config());
    rig.bar.w32(RDBAL + BAH, 0x70);
    rig.enable(RCTL_EN, RFCTL_EXTEN);
    rig.post(4);
    rig.arrive(&frame(60));
    assert!(matches!(first(&rig), Violation::NotMapped { access: "read", .. }));
    assert_eq!(rig.bar.r32(RDBAL + HEAD), 0);
}

#[test]
fn offloads_without_a_context() {
    let rig = sent(|rig| vec![data(rig.buffer(20), 60, txd::EOP | txd::TXSM)]);
    assert!(rule(&rig).contains("need a context before"));
}

/// A context for segmentation with the given payload, header and MSS.
fn tse(payload: u64, header: u64, mss: u64) -> [u64; 2] {
    let low = 14 | 24 << 8 | 33 << 16 | 34 << 32 | 50 << 40;
    [low, payload | txd::TCP | txd::IPV4 | txd::TSE | txd::DEXT | header << 40 | mss << 48]
}

#[test]
fn contexts_with_invalid_segmentation() {
    for (context, expected) in [
        (tse(100, 54, 0), "needs an MSS"),
        (tse(100, 241, 100), "at most 240 bytes"),
        (tse(0, 54, 100), "needs a payload length"),
        ([34 << 32 | 10 << 40, txd::DEXT], "behind its header's start"),
    ] {
        let rig = sent(|_| vec![context]);
        assert!(rule(&rig).contains(expected), "{}", rule(&rig));
    }
}

#[test]
fn frames_that_do_not_match_their_context() {
    let all = txd::TSE | txd::TXSM;
    type Make = fn(&Rig, u64) -> Vec<[u64; 2]>;
    let cases: [(Make, &str); 7] = [
        (
            |r, all| vec![tse(346, 54, 100), data(r.buffer(20), 40, all), data(r.buffer(21), 360, all | txd::EOP)],
            "all of its header",
        ),
        (
            |r, all| vec![tse(346, 54, 100), data(r.buffer(20), 54, all), data(r.buffer(21), 346, all | txd::EOP)],
            "more than its header",
        ),
        (|r, all| vec![tse(300, 54, 100), data(r.buffer(20), 400, all | txd::EOP)], "as long as its context says"),
        (
            |r, all| vec![[34 << 32 | 50 << 40, txd::DEXT | txd::TCP], data(r.buffer(20), 400, all | txd::EOP)],
            "context for it",
        ),
        (|r, _| vec![tse(346, 54, 100), data(r.buffer(20), 400, txd::TXSM | txd::EOP)], "context without it"),
        (|r, _| vec![data(r.buffer(20), 60, 0), data(r.buffer(20), 60, txd::EOP | 5 << 48)], "are the same"),
        (
            |r, _| vec![data(r.buffer(20), 60, 0), [34 << 32 | 50 << 40, txd::DEXT], data(r.buffer(20), 60, txd::EOP)],
            "between the descriptors",
        ),
    ];
    for (make, expected) in cases {
        let rig = sent(|rig| make(rig, all));
        assert!(rule(&rig).contains(expected), "{} instead of {expected}", rule(&rig));
    }
}

#[test]
fn registers_written_with_invalid_values() {
    let cases: [(usize, u32, &str); 12] = [
        (CTRL, CTRL_SLU | CTRL_BIT29, "bit 29"),
        (RDBAL, 0x1000, "receive ring must not be moved"),
        (RDBAL + HEAD, 0, "receive ring must not be moved"),
        (0x0110, 0x1000, "receive ring must not be moved"),
        (TDBAL + LEN, 256, "transmit ring must not be moved"),
        (TDBAL + DCTL, 1, "bit 22"),
        (RFCTL, 0, "descriptor format must not change"),
        (RCTL, RCTL_EN | 1 << 16, "buffer sizes must not change"),
        (RCTL, RCTL_EN | RCTL_BSEX, "buffer sizes must not change"),
        (MANC, 1 << 21, "firmware's"),
        (MDEF.start, 0, "firmware's"),
        (TCTL, TCTL_MULR | TCTL_EN, "threshold of read requests"),
    ];
    for (at, value, expected) in cases {
        let rig = Rig::new(config());
        rig.bar.w32(at, value);
        assert!(rule(&rig).contains(expected), "{at:#x}: {}", rule(&rig));
    }
}

#[test]
fn invalid_configurations_when_enabled() {
    let cases: [(usize, u32, usize, u32, &str); 6] = [
        (RDBAL, 0x40, RCTL, 0, "multiple of 128 bytes"),
        (TDBAL + LEN, 0x90, TCTL, TCTL_RRTHRESH_RESET, "length is a multiple of 128"),
        (RXCSUM, 0, RCTL, RCTL_EN | RCTL_BSEX, "BSEX is reserved"),
        (TDBAL + DCTL, TXDCTL_BIT22 | 1, TCTL, TCTL_ON, "must be alike"),
        (TDBAL + QUEUE + DCTL, 1, TCTL, TCTL_RRTHRESH_RESET, "bit 22"),
        (TCTL, TCTL_RRTHRESH_RESET, 0x3828, 1, "bit 22"),
    ];
    for (at, value, then, with, expected) in cases {
        let rig = Rig::bare(config());
        rig.bar.w32(at, value);
        rig.bar.w32(then, with);
        assert!(rule(&rig).contains(expected), "{at:#x}: {}", rule(&rig));
    }
    let rig = Rig::bare(config());
    rig.bar.w32(RDBAL + DCTL, 4 << 16);
    rig.bar.w32(RCTL, RCTL_EN);
    assert!(rule(&rig).contains("needs RDTR"));
    let rig = Rig::bare(config());
    for queue in [0, QUEUE] {
        rig.bar.w32(TDBAL + queue + DCTL, TXDCTL_BIT22 | 1 << 16);
    }
    rig.bar.w32(TCTL, TCTL_ON);
    assert!(rule(&rig).contains("needs TIDV"));
}

#[test]
fn transmission_enabled_without_the_bits_of_errata() {
    let enabled = |tctl: u32, arbitration: [u32; 2], second_ring: u32| {
        let rig = Rig::bare(config());
        rig.bar.w32(TDBAL + TARC, arbitration[0]);
        rig.bar.w32(TDBAL + QUEUE + TARC, arbitration[1]);
        rig.bar.w32(TDBAL + QUEUE + LEN, second_ring);
        rig.bar.w32(TCTL, tctl);
        rig
    };
    let one = 0x403 | TARC_ONE;
    let two = one | TARC_TWO_QUEUES;
    enabled(TCTL_ON, [one, 0x403], 0).clean();
    enabled(TCTL_ON, [two, two], 256).clean();
    for arbitration in [[0x403; 2], [one | 1 << 28, 0x403]] {
        assert!(rule(&enabled(TCTL_ON, arbitration, 0)).contains("TARC"));
    }
    for arbitration in [[one, one], [two, one], [one, two]] {
        assert!(rule(&enabled(TCTL_ON, arbitration, 256)).contains("TARC"), "{arbitration:x?}");
    }
    assert!(rule(&enabled(TCTL_ON & !TCTL_MULR, [one, one], 0)).contains("MULR"));
}

#[test]
fn a_context_of_the_other_queue() {
    let mut rig = Rig::bare(config());
    let arbitration = 0x403 | TARC_ONE | TARC_TWO_QUEUES;
    for queue in [0, QUEUE] {
        rig.bar.w32(TDBAL + queue + TARC, arbitration);
    }
    // The second ring lies behind the first one.
    rig.bar.w32(TDBAL + QUEUE, (rig.iova + 4096 + 2048) as u32);
    rig.bar.w32(TDBAL + QUEUE + BAH, ((rig.iova + 4096 + 2048) >> 32) as u32);
    rig.bar.w32(TDBAL + QUEUE + LEN, RING * 16);
    rig.enable(RCTL_EN, RFCTL_EXTEN);
    let context = [34 << 32 | 50 << 40, txd::DEXT | txd::TCP];
    let offloaded = |rig: &Rig| data(rig.buffer(20), 60, txd::TXSM | txd::EOP | txd::RS);
    rig.transmit(0, &[context, offloaded(&rig)]);
    let second = [[34 << 32 | 40 << 40, txd::DEXT], offloaded(&rig)];
    second.iter().zip(128..).for_each(|(words, index)| rig.set_txd(index, *words));
    rig.bar.w32(TDBAL + QUEUE + TAIL, 2);
    rig.device.run_until_idle();
    rig.clean();
    rig.transmit(2, &[offloaded(&rig)]);
    assert!(rule(&rig).contains("that of the other queue"));
}

#[test]
fn segmentation_at_100_megabits() {
    let mut rig = Rig::new(Config { speed: 100, ..config() });
    assert_eq!(rig.bar.r32(STATUS) & STATUS_SPEED, STATUS_100);
    let frame = data(rig.buffer(20), 400, txd::TSE | txd::TXSM | txd::EOP);
    rig.transmit(0, &[tse(346, 54, 100), frame]);
    assert!(rule(&rig).contains("below 1000 Mb/s"));
}

#[test]
fn a_device_that_is_used_without_its_driver_bit_or_closed_with_it() {
    let rig = Rig::bare(config());
    rig.bar.w32(CTRL_EXT, 0);
    rig.bar.w32(RCTL, RCTL_EN);
    assert!(rule(&rig).contains("before reception"));
    for (back, expected) in [(false, true), (true, false)] {
        let rig = Rig::new(config());
        let device = rig.device.clone();
        // A reset does not give the device back.
        rig.bar.w32(CTRL, CTRL_RST);
        if back {
            rig.bar.w32(CTRL_EXT, 0);
        }
        drop(rig);
        assert_eq!(device.violation().is_some_and(|v| v.to_string().contains("DRV_LOAD is given back")), expected);
    }
}

#[test]
fn filters_changed_in_an_order_that_loses_frames_or_mixes_addresses() {
    let cases: [(&[(usize, u32)], &str); 6] = [
        (&[(RAL + 8, 1), (RAH + 8, RAH_AV | 1)], "read behind each half"),
        (&[(RAH + 8, RAH_AV | 1), (RAL + 16, 1)], "read behind each half"),
        (&[(RAL, 5)], "invalid while its first half changes"),
        (&[(RCTL, 0), (RCTL, RCTL_EN)], "only after a reset"),
        (&[(RCTL, RCTL_EN | RCTL_CFIEN)], "CFIEN"),
        (&[(RCTL, RCTL_EN | RCTL_VFE)], "VLAN 0"),
    ];
    for (writes, expected) in cases {
        let rig = Rig::new(config());
        writes.iter().for_each(|&(at, value)| rig.bar.w32(at, value));
        assert!(rule(&rig).contains(expected), "{writes:x?}: {}", rule(&rig));
    }
    let rig = Rig::new(config());
    for (at, value) in [(RAH, 0), (RAL, 5), (RAH, RAH_AV | 1), (VFTA, 1), (RCTL, RCTL_EN | RCTL_VFE)] {
        rig.bar.w32(at, value);
        rig.bar.r32(STATUS);
    }
    rig.clean();
}

#[test]
fn a_buffer_changed_without_a_sync() {
    let mut rig = Rig::new(Config { iommu: iommu::Config { bounce: true, ..Default::default() }, ..config() });
    let region = Region::new(4096, towpath_packet::Backing::Anonymous).unwrap();
    // SAFETY: the region lives until the end of the test, after the device.
    let iova = unsafe { rig.bus.dma().map(region.base(), 4096, Access::Both) }.unwrap();
    let wrong = rig.transmit(0, &[data(iova.get(), 60, txd::EOP)]);
    assert_eq!(first(&rig), Violation::MissingSync { iova: iova.get(), len: 60 });
    assert_ne!(wrong[0], [0; 60]);
    rig.bus.dma().sync_for_device(iova, 60);
    assert_eq!(rig.transmit(1, &[data(iova.get(), 60, txd::EOP)]), [[0; 60]]);
    drop(rig);
}

#[test]
fn a_model_that_is_not_strict_reports_nothing() {
    let rig = Rig::new(Config { strict: false, ..config() });
    rig.bar.w32(RDBAL + TAIL, RING);
    rig.bar.w32(CTRL, CTRL_BIT29);
    rig.clean();
}
