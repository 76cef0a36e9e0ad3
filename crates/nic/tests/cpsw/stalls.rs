//! Full rings, stalled ports, and wires without a carrier (T6, T9).

use super::rig::{Rig, Variant, assert_stamps, config, model_config, stamp};
use towpath_bus::{Bus, Mmio};
use towpath_model::cpsw::Injected;
use towpath_model::wire::Wire;
use towpath_nic::cpsw::Config;
use towpath_packet::port::{RxQueue, State, TxQueue};
use towpath_packet::{Batch, Missed};

/// Offers one packet; returns whether it was taken.
fn offer(rig: &mut Rig, port: usize, number: u32) -> bool {
    let packet = rig.packet(&stamp(port as u8, number, 100));
    let mut batch = Batch::new();
    batch.push(packet).unwrap();
    let tx = &mut rig.ports[port].tx[0];
    tx.reclaim();
    let taken = tx.tx(&mut batch) == 1;
    tx.kick();
    taken
}

#[test]
fn t6_a_stalled_port_takes_packets_until_its_credits_are_used_up_and_resumes() {
    for variant in Variant::ALL {
        // With more descriptors than slots, only the credits prevent an overrun of the ring.
        let config = config(variant, 1).tx_descriptors(64);
        let mut rig = Rig::with(config, model_config(variant, 1).port_depth(2));
        rig.model.stall(1, true);
        let mut number = 0;
        for _ in 0..100 {
            number += u32::from(offer(&mut rig, 0, number));
            rig.run(20);
        }
        // The ring and the two frames that the port holds.
        assert_eq!(number, 16 + 2, "{variant:?}");
        assert_eq!(rig.ports[0].tx[0].pending(), 16);
        rig.model.stall(1, false);
        for _ in 0..100 {
            rig.run(20);
            number += u32::from(offer(&mut rig, 0, number));
        }
        rig.settle();
        let sent = rig.plugs[0].drain();
        assert_eq!(sent.len(), number as usize);
        assert_stamps(&sent, 0, 0);
        assert_eq!(rig.ports[0].tx[0].pending(), 0);
        rig.assert_clean();
    }
}

/// The state of the first port.
#[derive(Debug, Clone, Copy)]
enum First {
    Fast,
    /// It sends one frame in this many turns.
    Slow(u32),
    Stalled,
}

/// The numbers of frames that the ports except the first send within `steps` steps, while all ports
/// send.
fn sent_by_the_others(variant: Variant, config: Config, first: First, steps: usize) -> Vec<usize> {
    let mut rig = Rig::with(config, model_config(variant, config.ports));
    match first {
        First::Fast => {}
        First::Slow(turns) => rig.model.slow_down(1, turns),
        First::Stalled => rig.model.stall(1, true),
    }
    let mut numbers = vec![0; rig.ports.len()];
    let mut done = 0;
    while done < steps {
        for (port, number) in numbers.iter_mut().enumerate() {
            *number += u32::from(offer(&mut rig, port, *number));
        }
        done += rig.run(16);
    }
    rig.assert_clean();
    (1..numbers.len())
        .map(|port| {
            let sent = rig.plugs[port].drain();
            assert_stamps(&sent, port as u8, 0);
            sent.len()
        })
        .collect()
}

#[track_caller]
fn assert_not_slowed_down(variant: Variant, config: Config, first: First, steps: usize) {
    let free = sent_by_the_others(variant, config, First::Fast, steps);
    let beside = sent_by_the_others(variant, config, first, steps);
    for (&free, &beside) in free.iter().zip(&beside) {
        assert!(free > 200, "{free}");
        assert!(beside * 100 >= free * 95, "{variant:?} {first:?}: {beside} against {free}");
    }
}

#[test]
fn t9_a_stalled_port_does_not_slow_down_a_port_with_its_own_channel() {
    for variant in Variant::ALL {
        assert_not_slowed_down(variant, config(variant, 2), First::Stalled, 8000);
    }
}

#[test]
fn t9_a_stalled_port_does_not_slow_down_ports_that_share_its_channel() {
    for variant in Variant::ALL {
        for ports in [2, 8] {
            let config = config(variant, ports).tx_channels(1).tx_ring(64).tx_descriptors(64);
            assert_not_slowed_down(variant, config, First::Stalled, 4000 * usize::from(ports));
        }
    }
}

#[test]
fn t9_a_slow_port_does_not_slow_down_ports_that_share_its_channel() {
    for variant in [Variant::Pktdma, Variant::Udma] {
        let config = config(variant, 3).tx_channels(1).tx_ring(64).tx_descriptors(64);
        assert_not_slowed_down(variant, config, First::Slow(400), 15_000);
    }
}

#[test]
fn t9_a_port_that_has_nothing_in_flight_gets_the_slots_that_others_used() {
    for variant in Variant::ALL {
        let config = config(variant, 4).tx_channels(1);
        let mut rig = Rig::with(config, model_config(variant, 4));
        // The first three ports fill the ring, and never poll it again.
        let mut batch = Batch::new();
        for port in 0..3 {
            for number in 0..7 {
                let packet = rig.packet(&stamp(port as u8, number, 100));
                batch.push(packet).unwrap();
            }
            rig.ports[port].tx[0].tx(&mut batch);
            rig.ports[port].tx[0].kick();
            rig.cache.free_bulk(&mut batch);
        }
        assert!(!offer(&mut rig, 3, 0), "the ring is full");
        assert_eq!(rig.ports[3].tx[0].pending(), 0);
        rig.model.settle();
        assert!(offer(&mut rig, 3, 0), "{variant:?}");
        rig.settle();
        assert_stamps(&rig.plugs[3].drain(), 3, 0);
        rig.assert_clean();
    }
}

#[test]
fn t9_all_ports_that_share_a_channel_go_on_when_the_stalled_port_resumes() {
    let config = config(Variant::Pktdma, 4).tx_channels(1);
    let mut rig = Rig::with(config, model_config(Variant::Pktdma, 4));
    rig.model.stall(2, true);
    let mut numbers = [0_u32; 4];
    for turn in 0..400 {
        if turn == 200 {
            // Its FIFO is full, and the channel holds no frame for it.
            assert_eq!((rig.ports[1].tx[0].pending(), numbers[1]), (0, 7));
            rig.model.stall(2, false);
        }
        for (port, number) in numbers.iter_mut().enumerate() {
            *number += u32::from(offer(&mut rig, port, *number));
        }
        rig.run(24);
    }
    rig.settle();
    for (port, &number) in numbers.iter().enumerate() {
        let sent = rig.plugs[port].drain();
        assert_eq!(sent.len(), number as usize, "port {port}");
        assert!(number > 50, "port {port} sent {number}");
        assert_stamps(&sent, port as u8, 0);
        assert_eq!(rig.ports[port].tx[0].counters().snapshot().packets, u64::from(number));
    }
    rig.assert_clean();
}

#[test]
fn t9_a_port_without_a_carrier_does_not_block_a_shared_channel() {
    let config = config(Variant::Udma, 2).tx_channels(1);
    let mut rig = Rig::with(config, model_config(Variant::Udma, 2));
    rig.plugs[0].set_carrier(false);
    let mut number = 0;
    for _ in 0..100 {
        offer(&mut rig, 0, 0);
        number += u32::from(offer(&mut rig, 1, number));
        rig.run(40);
    }
    rig.settle();
    assert_eq!(rig.plugs[1].drain().len(), number as usize);
    assert!(number > 90, "{number}");
    assert!(rig.model.port_stats(1).tx_dropped > 0);
}

#[test]
fn frames_that_a_link_lost_do_not_keep_its_port_from_sending_after_the_link_is_up() {
    let config = config(Variant::Udma, 2).tx_channels(1);
    let mut rig = Rig::with(config, model_config(Variant::Udma, 2));
    rig.plugs[0].set_carrier(false);
    // All credits; the port has not looked at its link yet.
    (0..7).for_each(|number| assert!(offer(&mut rig, 0, number)));
    rig.settle();
    rig.check_link(0);
    assert_ne!(rig.ports[0].tx[0].state(), State::Up);
    rig.plugs[0].set_carrier(true);
    rig.check_link(0);
    assert_eq!(rig.ports[0].tx[0].state(), State::Up);
    (0..7).for_each(|number| assert!(offer(&mut rig, 0, number)));
    rig.settle();
    assert_stamps(&rig.plugs[0].drain(), 0, 0);
    assert_eq!(rig.model.port_stats(1).tx_dropped, 7);
}

/// The numbers of frames that two queues get onto the wires, while the second always has packets:
/// the queues of two ports, or of one. With `legacy`, the switch's registers get these values of
/// PRI_CTL and RX_PRI_MAP after the driver's.
fn sent_beside_a_busy_queue(variant: Variant, ports: u8, legacy: Option<(u32, u32)>) -> [usize; 2] {
    let config = config(variant, ports).tx_channels(2).rx_flows(if ports == 1 { 2 } else { 1 });
    let mut rig = Rig::with(config, model_config(variant, ports));
    if let Some((control, map)) = legacy {
        let switch = rig.model.bus().bar(0, 0x4_0000).unwrap();
        switch.w32(0x2_101c, control);
        switch.w32(0x2_1020, map);
        (1..=usize::from(ports)).for_each(|port| switch.w32(0x2_1018 + 0x1000 * port, map));
    }
    if ports == 1 {
        rig.model.slow_down(1, 8);
    }
    let mut sent = [0; 2];
    for _ in 0..600 {
        for queue in [1, 0] {
            let mut batch = Batch::<64>::new();
            for _ in 0..16 {
                let packet = rig.packet(&stamp(queue as u8, 0, 100));
                batch.push(packet).unwrap();
            }
            let port = if ports == 1 { 0 } else { queue };
            let tx = &mut rig.ports[port].tx[if ports == 1 { queue } else { 0 }];
            tx.reclaim();
            tx.tx(&mut batch);
            tx.kick();
            rig.cache.free_bulk(&mut batch);
        }
        rig.run(12);
        for plug in &mut rig.plugs {
            for frame in plug.drain() {
                sent[usize::from(frame[14])] += 1;
            }
        }
    }
    sent
}

#[test]
fn no_channel_starves_beside_a_busy_one_of_a_higher_thread() {
    for variant in Variant::ALL {
        for ports in [1, 2] {
            let [first, busy] = sent_beside_a_busy_queue(variant, ports, None);
            assert!(busy > 100 && first * 2 > busy, "{variant:?}, {ports} ports: {first} beside {busy}");
            // Fixed priorities starve it: between channels, or in the FIFOs of the MAC.
            let [first, busy] = sent_beside_a_busy_queue(variant, ports, Some((0, 0x7654_3210)));
            assert!(busy > 100 && first * 10 < busy, "{variant:?}, {ports} ports: {first} beside {busy}");
        }
        let [first, busy] = sent_beside_a_busy_queue(variant, 1, Some((1 << 8, 0x7654_3210)));
        assert!(first * 4 < busy, "{variant:?}: the FIFOs of a MAC: {first} beside {busy}");
    }
}

#[test]
fn a_port_that_does_not_receive_loses_only_its_own_frames() {
    for variant in Variant::ALL {
        let mut rig = Rig::with(config(variant, 2), model_config(variant, 2));
        let mut received = Vec::new();
        for number in 0..500 {
            assert!(rig.plugs[0].send(&stamp(0, number, 80)) && rig.plugs[1].send(&stamp(1, number, 80)));
            rig.model.settle();
            received.extend(rig.receive(1));
        }
        assert_eq!((received.len(), rig.model.starved()), (500, 0), "{variant:?}");
        assert_stamps(&received, 1, 0);
        // The frames that fitted into the ring are still there, in order.
        let kept = rig.receive(0);
        assert!(kept.len() >= 16);
        assert_stamps(&kept, 0, 0);
        let lost = rig.ports[0].rx[0].counters().snapshot().all_missed();
        assert_eq!(kept.len() as u64 + lost, 500);
        rig.assert_clean();
    }
}

#[test]
fn t6_frames_without_a_free_descriptor_are_dropped_by_the_device_and_reception_goes_on() {
    for variant in Variant::ALL {
        let mut rig = Rig::new(variant, 1);
        for number in 0..40 {
            assert!(rig.model.inject(1, &stamp(0, number, 80), Injected::default()));
        }
        rig.model.settle();
        assert_eq!(rig.model.starved(), 40 - 16);
        let mut batch = Batch::new();
        assert_eq!(rig.ports[0].rx[0].rx(&mut batch), 16);
        rig.cache.free_bulk(&mut batch);
        rig.ports[0].rx[0].refill();
        assert!(rig.model.inject(1, &stamp(0, 77, 80), Injected::default()));
        rig.model.settle();
        assert_stamps(&rig.receive(0), 0, 77);
        // The device does not report them: the port's statistics do.
        let missed = |rig: &Rig| rig.ports[0].rx[0].counters().snapshot().missed_at(Missed::Device);
        rig.polls_for_a_second(0);
        assert_eq!(missed(&rig), 0, "they might have been on their way");
        rig.polls_for_a_second(0);
        rig.polls_for_a_second(0);
        assert_eq!(missed(&rig), 24);
        rig.assert_clean();
    }
}
