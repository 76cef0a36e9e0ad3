//! Each test violates one rule. Correct steps are not reported.

use super::host::{Host, SIZE};
use towpath_bus::tisci::Tisci;
use towpath_bus::{Bus, Irq, Mmio};
use towpath_model::cpsw::{Config, Injected, IrqMode, Rule, Soc};

const FAMILIES: [Soc; 2] = [Soc::Am64x, Soc::J784s4];

fn each(mut test: impl FnMut(Host)) {
    FAMILIES.into_iter().for_each(|soc| test(Host::new(soc, false)));
}

#[test]
fn a_host_that_follows_the_rules_is_not_reported() {
    each(|mut host| {
        for index in 0..20 {
            host.send(index % 8);
            host.model.settle();
            assert_eq!(host.completions(), 1);
            host.reverse_doorbell(0xff);
        }
        assert_eq!(host.plug.drain().len(), 20);
        host.assert_clean();
        assert_eq!(host.model.owned_descriptors(), 0);
    });
}

#[test]
fn m1_a_push_of_128_is_a_pop_of_128() {
    each(|mut host| {
        host.send(0);
        host.doorbell(host.submit(), 128);
        host.assert_violated(Rule::PopWhileRunning);
    });
}

#[test]
fn m1_a_doorbell_with_other_bits_than_its_count_is_reported() {
    each(|host| {
        host.doorbell(host.submit(), 0x100);
        host.assert_violated(Rule::DoorbellBits);
    });
}

#[test]
fn m1_a_negative_count_that_is_not_masked_acknowledges_teardown() {
    let mut host = Host::new(Soc::Am64x, false);
    host.send(0);
    host.model.settle();
    host.reverse_doorbell(0xffff_ffff);
    host.assert_violated(Rule::AckWithCount);
}

#[test]
fn m1_an_acknowledgement_before_the_end_of_teardown_is_reported() {
    let host = Host::new(Soc::Am64x, false);
    host.reverse_doorbell(1 << 31);
    host.assert_violated(Rule::AckWithoutTeardown);
}

#[test]
fn m2_more_elements_than_slots_are_an_overflow_even_if_forward_occupancy_has_fallen() {
    let mut host = Host::with(Config::default().prefetch(4).ports(1).lag(false), false);
    host.model.stall(1, true);
    (0..SIZE as usize).for_each(|index| host.send(index));
    host.model.settle();
    assert!(host.occupancy(host.submit()) < SIZE, "fetched and not completed");
    host.assert_clean();
    host.send(20);
    host.assert_violated(Rule::Overflow);
}

#[test]
fn m2_a_push_to_a_full_ring_of_the_accelerator_is_reported() {
    let mut host = Host::new(Soc::J784s4, false);
    host.control(0, 0);
    (0..=SIZE as usize).for_each(|index| host.send(index));
    host.assert_violated(Rule::Overflow);
}

#[test]
fn m3_a_pop_of_more_elements_than_there_are_is_reported() {
    each(|mut host| {
        host.send(0);
        host.model.settle();
        host.reverse_doorbell(0xfe);
        host.assert_violated(Rule::Underflow);
        let count = host.completions() & 0x1f_ffff;
        assert!(count > 1 << 20, "the count has wrapped: {count}");
    });
}

#[test]
fn m3_a_pop_from_a_running_channel_is_reported() {
    each(|mut host| {
        host.send(0);
        host.doorbell(host.submit(), 0xff);
        host.assert_violated(Rule::PopWhileRunning);
    });
}

#[test]
fn m4_a_store_to_a_slot_after_its_doorbell_is_reported() {
    each(|mut host| {
        host.send(0);
        host.build(1);
        host.slots.store64(0, host.element(1));
        host.model.settle();
        host.assert_violated(Rule::SlotRewritten);
    });
}

#[test]
fn m4_a_store_to_a_slot_before_its_pop_is_reported() {
    let mut host = Host::new(Soc::Am64x, false);
    host.send(0);
    host.model.settle();
    host.slots.store64(0, host.element(1));
    host.reverse_doorbell(0xff);
    host.assert_violated(Rule::SlotRewritten);
}

#[test]
fn m4_a_store_to_a_descriptor_after_its_doorbell_is_reported() {
    each(|mut host| {
        host.send(0);
        host.descriptors.store64(0x18, 0);
        host.model.settle();
        host.assert_violated(Rule::DescriptorRewritten);
    });
}

#[test]
fn m10_a_fetched_descriptor_is_sent_even_if_the_host_stores_to_it_later() {
    each(|mut host| {
        host.send(0);
        assert!(host.model.step(0), "the only action is the fetch");
        host.descriptors.store64(0x20, 7);
        host.model.settle();
        assert_eq!(host.plug.drain()[0].len(), 100);
        host.assert_violated(Rule::DescriptorRewritten);
    });
}

#[test]
fn m5_elements_that_are_no_descriptors_are_reported() {
    each(|host| {
        let soc = host.soc;
        let good = host.element(0);
        let bad = [0, good + 8, good + 16, good ^ 1 << 48, good + 128 * 4096];
        for element in bad {
            let mut host = Host::new(soc, false);
            // The model allocates the same addresses for each host.
            host.stage(element);
            host.doorbell(host.submit(), 1);
            host.model.settle();
            host.assert_violated(Rule::BadElement);
        }
    });
}

#[test]
fn m5_a_descriptor_that_is_announced_twice_is_reported() {
    each(|mut host| {
        host.send(0);
        host.send(0);
        host.assert_violated(Rule::DoubleUse);
    });
}

#[test]
fn m5_a_descriptor_that_is_announced_before_its_pop_is_reported() {
    each(|mut host| {
        host.send(0);
        host.model.settle();
        host.stage(host.element(0));
        host.doorbell(host.submit(), 1);
        host.assert_violated(Rule::DoubleUse);
    });
}

#[test]
fn m6_a_reset_of_a_ring_whose_channel_runs_is_reported() {
    each(|host| {
        host.firmware.ring_reset(host.ids().1, host.submit(), SIZE).unwrap();
        host.assert_violated(Rule::ConfigWhileRunning);
    });
}

#[test]
fn m6_a_doorbell_of_a_ring_that_is_not_configured_is_reported() {
    each(|host| {
        host.doorbell(77, 1);
        host.assert_violated(Rule::Unconfigured);
    });
}

#[test]
fn m6_a_doorbell_of_a_ring_in_message_mode_is_reported() {
    let host = Host::new(Soc::J784s4, true);
    host.doorbell(host.free_ring(), 1);
    host.assert_violated(Rule::MessageDoorbell);
}

#[test]
fn m6_a_store_to_the_memory_of_a_ring_in_message_mode_is_reported() {
    let mut host = Host::new(Soc::J784s4, true);
    host.post(0);
    host.free.store64(0, host.element(1));
    assert!(host.model.inject(1, &[1; 64], Injected::default()));
    host.model.settle();
    host.assert_violated(Rule::MessageMemory);
}

#[test]
fn m6_an_access_to_a_window_except_by_eight_bytes_at_its_end_is_reported() {
    let at = 441 * 0x1000;
    let wrong: [fn(&Host, usize); 3] = [
        |host, at| host.windows.w32(at + 0x3f8, 1),
        |host, at| host.windows.w64(at + 0x200, 1),
        |host, at| assert_eq!(host.windows.r64(at), 0),
    ];
    for access in wrong {
        let host = Host::new(Soc::J784s4, true);
        access(&host, at);
        host.assert_violated(Rule::FifoAccess);
    }
}

#[test]
fn m6_a_full_ring_in_message_mode_loses_elements_and_an_empty_one_reads_as_zero() {
    let mut host = Host::new(Soc::J784s4, true);
    assert_eq!(host.windows.r64(442 * 0x1000 + 0x1f8), 0);
    (0..SIZE as usize).for_each(|index| host.post(index));
    host.assert_clean();
    host.post(8);
    host.assert_violated(Rule::FifoOverflow);
}

#[test]
fn m11_a_packet_whose_descriptors_are_inconsistent_is_reported() {
    type Case = (fn(&Host), Rule);
    let wrong: [Case; 5] = [
        (|host| host.descriptors.store64(0, 2 << 30 | 100), Rule::DescriptorType),
        (|host| host.descriptors.store64(0x20, 99), Rule::LengthMismatch),
        (|host| host.descriptors.store64(0x10, host.element(0)), Rule::BrokenChain),
        (|host| host.descriptors.store64(0x10, 0x1230), Rule::BrokenChain),
        (|host| host.descriptors.store64(0x18, 0x1230), Rule::BadBuffer),
    ];
    for (corrupt, rule) in wrong {
        each(|mut host| {
            host.build(0);
            corrupt(&host);
            host.stage(host.element(0));
            host.doorbell(host.submit(), 1);
            host.model.settle();
            host.assert_violated(rule);
        });
    }
}

#[test]
fn m11_a_packet_that_returns_to_another_ring_is_reported() {
    let mut host = Host::new(Soc::J784s4, false);
    host.build(0);
    host.descriptors.store64(8, 7 << 27 | 513 | 1 << 32);
    host.stage(host.element(0));
    host.doorbell(host.submit(), 1);
    host.model.settle();
    host.assert_violated(Rule::ReturnRing);
}

#[test]
fn m13_without_a_free_descriptor_frames_are_dropped_and_counted() {
    each(|mut host| {
        host.post(0);
        for _ in 0..3 {
            assert!(host.model.inject(1, &[1; 64], Injected::default()));
        }
        host.model.settle();
        assert_eq!(host.model.starved(), 2);
        host.assert_clean();
    });
}

#[test]
fn stale_control_words_of_a_descriptor_patch_the_next_frame() {
    // This happens to a driver that does not rewrite PS word 2, and is why the driver here does.
    each(|mut host| {
        host.build(0);
        host.descriptors.store64(0x48, 41 << 24 | 35 << 16 | 66);
        host.stage(host.element(0));
        host.doorbell(host.submit(), 1);
        host.model.settle();
        assert_ne!(host.plug.drain()[0], [0; 100]);
    });
}

#[test]
fn m8_a_level_signals_until_its_ring_is_popped_and_an_edge_only_when_it_rises() {
    for irq in [IrqMode::Level, IrqMode::Edge] {
        for soc in FAMILIES {
            let mut host = Host::with(Config::default().soc(soc).ports(1).lag(false).irq(irq), false);
            let line = host.model.bus().irqs(1).unwrap().remove(0);
            host.send(0);
            assert_eq!(line.take(), 0, "nothing is complete");
            host.model.settle();
            assert!(line.take() > 0);
            // The interrupt was taken, and the completion is still on the ring.
            assert_eq!(line.take() > 0, irq == IrqMode::Level, "{irq:?}");
            host.send(1);
            host.model.settle();
            assert_eq!(line.take() > 0, irq == IrqMode::Level, "no edge: the level was high already");
            // After the pop the level falls, and the next completion raises it, although the device
            // makes no step in between.
            host.reverse_doorbell(0xfe);
            line.take();
            assert_eq!(line.take(), 0);
            host.send(2);
            host.model.settle();
            assert!(line.take() > 0, "{irq:?}");
            host.assert_clean();
        }
    }
}

#[test]
fn m8_the_end_of_a_teardown_interrupts() {
    for soc in FAMILIES {
        let host = Host::new(soc, false);
        let line = host.model.bus().irqs(1).unwrap().remove(0);
        host.control(3 << 30, 1 << 31);
        host.model.settle();
        assert!(line.take() > 0, "{soc:?}");
    }
}

#[test]
fn m7_occupancies_show_completions_some_time_after_their_memory() {
    let mut host = Host::with(Config::default().soc(Soc::J784s4).ports(1), false);
    host.send(0);
    // The occupancy changes last: it is zero at each step before.
    let mut steps = 0;
    while host.completion(0) == 0 {
        assert!(host.model.step(steps), "nothing more happens");
        steps += 1;
    }
    assert_eq!(host.completions(), 0);
    host.model.settle();
    assert_eq!(host.completions(), 1);
}
