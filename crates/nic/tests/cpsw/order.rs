//! Order; no frame is lost, duplicated or mixed up (T2, T3, T12).

use super::rig::{Rig, Variant, assert_stamps, config, model_config, stamp};
use towpath_model::cpsw::Injected;
use towpath_model::wire::Wire;
use towpath_nic::cpsw::DescAlloc;

/// Sends and receives `frames` frames on each port, with up to `chunks` chunks each, and tears
/// down.
pub(crate) fn traffic(mut rig: Rig, frames: u32, chunks: usize) {
    let ports = rig.ports.len();
    let (mut sent, mut received) = (vec![Vec::new(); ports], vec![Vec::new(); ports]);
    for number in 0..frames {
        for port in 0..ports {
            let len = 60 + (number as usize * 37) % 1400;
            let frame = stamp(port as u8, number, len);
            let packet = rig.fragmented(&frame, 1 + number as usize % chunks);
            rig.send(port, packet);
            if number % 3 == 0 {
                rig.kick();
            }
            assert!(rig.plugs[port].send(&stamp(port as u8, number, len)));
            rig.run(number as usize % 23);
            received[port].extend(rig.receive(port));
            sent[port].extend(rig.plugs[port].drain());
        }
    }
    for _ in 0..20 {
        rig.settle();
        for port in 0..ports {
            received[port].extend(rig.receive(port));
            sent[port].extend(rig.plugs[port].drain());
        }
    }
    rig.assert_clean();
    for port in 0..ports {
        assert_eq!(sent[port].len(), frames as usize, "frames sent by port {port}");
        assert_stamps(&sent[port], port as u8, 0);
        assert_stamps(&received[port], port as u8, 0);
        assert_eq!(received[port].len() as u64 + rig.model.starved(), u64::from(frames));
    }
    rig.stop();
    rig.assert_all_free();
    rig.assert_no_leak();
}

#[test]
fn t2_frames_arrive_once_in_order_and_unchanged_on_every_family_and_with_every_prefetch() {
    for variant in Variant::ALL {
        for prefetch in [1, 4, 16] {
            let model = model_config(variant, 1).prefetch(prefetch).steps_per_read(3);
            traffic(Rig::with(config(variant, 1), model), 300, 5);
        }
    }
}

#[test]
fn t2_two_ports_do_not_mix_their_frames_with_or_without_a_shared_channel() {
    for variant in Variant::ALL {
        for tx_channels in [1, 2] {
            let model = model_config(variant, 2).steps_per_read(3);
            traffic(Rig::with(config(variant, 2).tx_channels(tx_channels), model), 200, 4);
        }
    }
}

#[test]
fn t12_eight_ports_share_one_channel_and_eight_flows_on_every_family() {
    for variant in Variant::ALL {
        let config = config(variant, 8).tx_channels(1).rx_flows(8);
        let model = model_config(variant, 8).steps_per_read(2);
        traffic(Rig::with(config, model), 20, 3);
    }
}

#[test]
fn t3_a_minimum_of_descriptors_turns_over_every_few_packets() {
    for variant in Variant::ALL {
        for descriptors in [2, 3, 5, 7, 18, 20] {
            let config =
                config(variant, 1).tx_descriptors(descriptors).tx_ring(descriptors.max(3)).rx_ring(descriptors);
            let model = model_config(variant, 1).steps_per_read(2);
            traffic(Rig::with(config, model), 120, descriptors.min(18) as usize);
        }
    }
}

#[test]
fn t3_both_allocators_put_the_same_frames_on_the_wire() {
    for variant in Variant::ALL {
        for (desc_alloc, singly) in
            [(DescAlloc::Recycled, false), (DescAlloc::GenPool, false), (DescAlloc::GenPool, true)]
        {
            let model = model_config(variant, 1).steps_per_read(3).poison(true);
            traffic(Rig::with(config(variant, 1).desc_alloc(desc_alloc).singly(singly), model), 200, 6);
        }
    }
}

#[test]
fn priorities_spread_over_flows_and_keep_their_order() {
    for flows in [2, 4, 8] {
        let config = config(Variant::Pktdma, 1).rx_flows(flows).tx_channels(8).rx_ring(64);
        let mut rig = Rig::with(config, model_config(Variant::Pktdma, 1));
        assert_eq!(rig.ports[0].rx.len(), usize::from(flows));
        for number in 0..64 {
            let meta = Injected { priority: (number % 8) as u8, ..Injected::default() };
            assert!(rig.model.inject(1, &stamp(0, number, 100), meta));
        }
        rig.model.settle();
        let frames = rig.receive(0);
        assert_eq!(frames.len(), 64);
        for priority in 0..8 {
            let of: Vec<_> = frames.iter().map(|f| u32::from_be_bytes(f[15..19].try_into().unwrap())).collect();
            let of: Vec<_> = of.into_iter().filter(|number| number % 8 == priority).collect();
            assert!(of.is_sorted() && of.len() == 8, "priority {priority}: {of:?}");
        }
        rig.assert_clean();
    }
}
