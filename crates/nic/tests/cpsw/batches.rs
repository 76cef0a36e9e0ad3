//! Accesses per packet follow the formulas (T5, T13). With a mean batch of B submissions and C
//! completions:
//!
//! ```text
//!   TX            1/B + 1/C writes, 1/C reads
//!   RX            1/C writes, 1/C reads
//!   RX refill     1/B writes (exposed), 1 write (message mode)
//! ```

use super::rig::{Rig, Variant, assert_stamps, config, model_config, stamp};
use towpath_model::cpsw::{Accesses, Injected};
use towpath_nic::cpsw::{BatchSize, Config, DescAlloc};
use towpath_packet::Batch;
use towpath_packet::port::{RxQueue, TxQueue};

fn rings(rig: &Rig, rings: &[u16]) -> Accesses {
    rings.iter().fold(Accesses::default(), |sum, &ring| sum + rig.model.ring_accesses(ring))
}

fn tx_rings(variant: Variant) -> Vec<u16> {
    let [(submit, completion), _] = variant.rings();
    if submit == completion { vec![submit] } else { vec![submit, completion] }
}

fn large_config(variant: Variant) -> Config {
    config(variant, 1).tx_ring(516).tx_descriptors(500).rx_ring(500)
}

fn large(variant: Variant, batch: u8) -> Rig {
    let config = large_config(variant).batch(BatchSize::new(batch).unwrap());
    Rig::with(config, model_config(variant, 1).strict(true).host_depth(1024))
}

#[test]
fn a_batch_is_of_1_to_127_packets() {
    assert!([0, 128, 255].iter().all(|&n| BatchSize::new(n).is_none()));
    assert_eq!(BatchSize::new(127), Some(BatchSize::MAX));
}

#[test]
fn t5_transmission_costs_one_write_per_batch_and_a_write_and_a_read_for_all_completions() {
    for variant in Variant::ALL {
        for batch in [1_u8, 2, 8, 31, 32, 64, 126, 127] {
            let mut rig = large(variant, batch);
            let rings_of = tx_rings(variant);
            let before = rings(&rig, &rings_of);
            let bursts = 60_u32;
            let mut number = 0;
            for _ in 0..bursts {
                rig.ports[0].tx[0].reclaim();
                let packets: Vec<_> = (0..batch).map(|i| rig.packet(&stamp(0, number + u32::from(i), 64))).collect();
                let mut burst = rig.ports[0].tx[0].burst();
                packets.into_iter().for_each(|packet| burst.push(packet).unwrap());
                drop(burst);
                number += u32::from(batch);
                rig.model.settle();
            }
            let counts = rig.ports[0].tx[0].counts();
            let cost = rings(&rig, &rings_of) - before;
            let packets = u64::from(number);
            assert_eq!(counts.announced, packets);
            assert_eq!(counts.submit_doorbells, u64::from(bursts), "one write per batch");
            let fewest = counts.completed.div_ceil(127);
            assert!(counts.completion_doorbells <= fewest + counts.occupancy_reads, "{counts:?}");
            assert_eq!(cost.doorbells, counts.submit_doorbells + counts.completion_doorbells);
            assert_eq!(cost.occupancies, counts.occupancy_reads);
            assert!(counts.occupancy_reads <= u64::from(bursts).div_ceil(2), "{variant:?} {batch}: {counts:?}");
            let per_packet = cost.total() as f64 / packets as f64;
            let b = f64::from(batch);
            assert!(per_packet <= 1.0 / b + 2.0 / b, "{variant:?} batch {batch}: {per_packet}");
            if batch == 32 {
                assert!(per_packet <= 0.09, "{variant:?}: {per_packet} accesses a packet");
            }
            assert_stamps(&rig.plugs[0].drain(), 0, 0);
            rig.assert_clean();
        }
    }
}

#[test]
fn t13_without_batches_every_packet_costs_two_writes_and_every_poll_two_reads() {
    for variant in Variant::ALL {
        let config = large_config(variant).desc_alloc(DescAlloc::GenPool).singly(true);
        let mut rig = Rig::with(config, model_config(variant, 1));
        let rings_of = tx_rings(variant);
        let before = rings(&rig, &rings_of);
        for round in 0..10 {
            for i in 0..32 {
                let packet = rig.packet(&stamp(0, round * 32 + i, 64));
                let mut batch = Batch::new();
                batch.push(packet).unwrap();
                rig.ports[0].tx[0].tx(&mut batch);
            }
            rig.model.settle();
            rig.ports[0].tx[0].reclaim();
        }
        let cost = rings(&rig, &rings_of) - before;
        assert_eq!((cost.doorbells, cost.occupancies), (2 * 320, 2 * 10), "{variant:?}");
    }
}

#[test]
fn t13_reception_costs_a_write_and_a_read_per_batch_and_refill_costs_one_write_if_the_ring_is_exposed() {
    for variant in Variant::ALL {
        for arriving in [8_u32, 32, 64] {
            let mut rig = large(variant, 32);
            let [_, (free, filled)] = variant.rings();
            let before = (rig.model.ring_accesses(free), rig.model.ring_accesses(filled));
            let posted = rig.ports[0].rx[0].counts()[0];
            let rounds = 64;
            for round in 0..rounds {
                for i in 0..arriving {
                    assert!(rig.model.inject(1, &stamp(0, round * arriving + i, 64), Injected::default()));
                }
                rig.model.settle();
                let mut batch = Batch::new();
                rig.ports[0].rx[0].refill();
                assert_eq!(rig.ports[0].rx[0].rx(&mut batch), arriving as usize);
                let frames: Vec<_> = batch.iter().map(|packet| packet.to_vec()).collect();
                assert_stamps(&frames, 0, round * arriving);
            }
            let counts = rig.ports[0].rx[0].counts()[0];
            let (rounds, frames) = (u64::from(rounds), u64::from(rounds * arriving));
            assert_eq!((counts.completion_doorbells, counts.occupancy_reads), (rounds, rounds), "{variant:?}");
            let refill = counts.free_writes - posted.free_writes;
            if variant.exposed() {
                assert!(refill <= frames.div_ceil(32), "{variant:?} {arriving}: {refill} writes for {frames} buffers");
            } else {
                assert_eq!(refill, counts.posted - posted.posted, "one element write per buffer");
            }
            let cost = match free == filled {
                true => rig.model.ring_accesses(free) - before.0,
                false => (rig.model.ring_accesses(free) - before.0) + (rig.model.ring_accesses(filled) - before.1),
            };
            assert_eq!(cost.total(), 2 * rounds + refill, "{variant:?}");
            rig.assert_clean();
        }
    }
}

#[test]
fn t5_long_bursts_wrap_rings_of_any_size_and_are_split_at_127() {
    for variant in Variant::ALL {
        for ring in [127_u32, 128, 129, 255, 500, 516] {
            for packets in [128_u32, 129, 255, 500] {
                let config = large_config(variant).tx_ring(ring).batch(BatchSize::MAX);
                let mut rig = Rig::with(config, model_config(variant, 1));
                let mut sent = 0;
                for _ in 0..3 {
                    let mut left = packets;
                    while left > 0 {
                        let packet = rig.packet(&stamp(0, sent, 64));
                        let mut burst = rig.ports[0].tx[0].burst();
                        match burst.push(packet) {
                            Ok(()) => {
                                std::mem::forget(burst);
                                sent += 1;
                                left -= 1;
                            }
                            Err(_) => {
                                drop(burst);
                                rig.settle();
                            }
                        }
                    }
                    rig.settle();
                }
                assert_eq!(rig.plugs[0].drain().len(), 3 * packets as usize);
                rig.assert_clean();
            }
        }
    }
}

#[test]
fn t5_every_size_wraps_at_every_slot() {
    for variant in Variant::ALL {
        for batch in [1, 2, 3, 5, 7] {
            let config = config(variant, 1).tx_ring(7).tx_descriptors(7).batch(BatchSize::new(batch).unwrap());
            let mut rig = Rig::with(config, model_config(variant, 1));
            for number in 0..100 {
                let packet = rig.packet(&stamp(0, number, 64));
                rig.send(0, packet);
                rig.run(3);
            }
            rig.settle();
            let sent = rig.plugs[0].drain();
            assert_eq!(sent.len(), 100);
            assert_stamps(&sent, 0, 0);
            rig.assert_clean();
        }
    }
}

#[test]
fn the_batch_size_changes_while_packets_flow() {
    let mut rig = large(Variant::Pktdma, 1);
    let mut number = 0;
    for size in [1_u8, 127, 3, 64, 32] {
        rig.control.batching(1).unwrap().resize(BatchSize::new(size).unwrap());
        let before = rig.ports[0].tx[0].counts().submit_doorbells;
        let mut batch = Batch::new();
        for _ in 0..64 {
            let packet = rig.packet(&stamp(0, number, 64));
            batch.push(packet).unwrap();
            number += 1;
        }
        rig.ports[0].tx[0].tx(&mut batch);
        rig.ports[0].tx[0].kick();
        let doorbells = rig.ports[0].tx[0].counts().submit_doorbells - before;
        assert_eq!(doorbells, 64_u64.div_ceil(u64::from(size)), "batch {size}");
        rig.settle();
    }
    let doorbells = rig.ports[0].tx[0].counts().submit_doorbells;
    assert_eq!(rig.ports[0].tx[0].counters().snapshot().calls, doorbells, "the port counts the same");
    let sent = rig.plugs[0].drain();
    assert_eq!(sent.len(), number as usize);
    assert_stamps(&sent, 0, 0);
    rig.assert_clean();
}

#[test]
fn a_burst_that_is_shorter_than_a_batch_is_announced_when_it_ends() {
    for variant in Variant::ALL {
        let mut rig = large(variant, 64);
        let packets: Vec<_> = (0..3).map(|number| rig.packet(&stamp(0, number, 64))).collect();
        let mut burst = rig.ports[0].tx[0].burst();
        packets.into_iter().for_each(|packet| burst.push(packet).unwrap());
        drop(burst);
        rig.model.settle();
        assert_eq!(rig.plugs[0].drain().len(), 3, "{variant:?}");
    }
}
