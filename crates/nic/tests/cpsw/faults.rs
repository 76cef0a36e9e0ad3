//! Faults (T8): firmware that refuses, memory that the device can't reach, an empty pool, and
//! packets that can't be sent.

use super::rig::{Rig, Variant, assert_stamps, config, model_config, pool, stamp};
use std::sync::Arc;
use towpath_bus::tisci::Tisci;
use towpath_model::cpsw::Cpsw;
use towpath_model::wire::{Wire, cable};
use towpath_nic::cpsw::open;
use towpath_packet::port::{Port, RxQueue, Start, TxQueue};
use towpath_packet::{Batch, Direction, DropReason, Gso, GsoKind, Offloads, Packet};

#[test]
fn t8_each_call_that_firmware_refuses_is_reported_and_nothing_leaks() {
    for variant in Variant::ALL {
        let mut refused = 0;
        for call in 1.. {
            let model = Cpsw::new(model_config(variant, 1).steps_per_read(2)).unwrap();
            let (near, mut far) = cable(8);
            model.plug(1, near);
            let firmware = Arc::new(model.firmware());
            firmware.refuse(call);
            let pool = pool(256);
            let opened = open(model.bus(), firmware as Arc<dyn Tisci>, config(variant, 1));
            let (mut ports, control) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    assert!(error.to_string().contains("a refusal was asked for"), "{error}");
                    refused += 1;
                    continue;
                }
            };
            let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL };
            let started = ports.pop().unwrap().start(start);
            match started {
                Err(error) => {
                    assert!(error.to_string().contains("a refusal was asked for"), "{error}");
                    refused += 1;
                }
                Ok(queues) => {
                    assert!(far.send(&stamp(0, 0, 60)));
                    drop(queues);
                    assert!(refused >= 10, "{variant:?}: {refused} calls");
                    drop(control);
                    assert_eq!(pool.stats().free, 256);
                    break;
                }
            }
            drop(control);
            assert!(model.violation().is_none(), "{}", model.violation().unwrap());
            assert_eq!(pool.stats().free, 256, "after refusal of call {call}");
        }
    }
}

#[test]
fn t8_a_packet_of_memory_that_the_device_cannot_reach_is_copied() {
    let mut rig = Rig::new(Variant::Pktdma, 1);
    let other = pool(64);
    let mut cache = other.cache(Direction::Tx).unwrap();
    for number in 0..40 {
        let mut packet = rig.packet(&stamp(0, number, 90)[..20]);
        let rest = Packet::copy_from(&mut cache, &stamp(0, number, 90)[20..]).unwrap();
        packet.append(rest).unwrap();
        rig.send(0, packet);
        rig.run(10);
    }
    rig.settle();
    let sent = rig.plugs[0].drain();
    assert_eq!(sent.len(), 40);
    assert_stamps(&sent, 0, 0);
    assert_eq!(rig.ports[0].tx[0].counters().snapshot().copied, 40);
    drop(cache);
    assert_eq!(other.stats().free, 64);
    rig.finish();
}

#[test]
fn a_packet_of_more_chunks_than_a_chain_has_is_copied() {
    let mut rig = Rig::new(Variant::Udma, 1);
    let packet = rig.fragmented(&stamp(0, 0, 400), 40);
    rig.send(0, packet);
    rig.settle();
    assert_stamps(&rig.plugs[0].drain(), 0, 0);
    rig.assert_clean();
}

#[test]
fn t8_packets_that_can_never_be_sent_are_dropped_with_a_reason_and_strand_no_other_of_the_batch() {
    let mut rig = Rig::new(Variant::Pktdma, 1);
    let mut batch = Batch::new();
    let long = vec![0; 1900];
    for (i, bytes) in [stamp(0, 0, 60), vec![0; 13], stamp(0, 1, 60), long.clone(), stamp(0, 2, 60)].iter().enumerate()
    {
        let mut packet = rig.packet(bytes);
        if i == 3 {
            let tail = rig.packet(&long[..500]);
            packet.append(tail).unwrap();
        }
        batch.push(packet).unwrap();
    }
    let mut segments = rig.packet(&stamp(0, 9, 60));
    segments.set_gso(Some(Gso { kind: GsoKind::Udp, ecn: false, size: 10, segs: 5, hdr_len: 42 }));
    batch.push(segments).unwrap();
    assert_eq!(rig.ports[0].tx[0].tx(&mut batch), 6);
    rig.ports[0].tx[0].kick();
    rig.settle();
    let sent = rig.plugs[0].drain();
    assert_eq!(sent.len(), 3);
    assert_stamps(&sent, 0, 0);
    let counted = rig.ports[0].tx[0].counters().snapshot();
    assert_eq!(counted.packets, 3);
    for reason in [DropReason::Malformed, DropReason::TooLong, DropReason::Offload] {
        assert_eq!(counted.dropped(reason), 1, "{reason:?}");
    }
    rig.assert_clean();
}

#[test]
fn packets_staged_before_the_ring_was_full_are_announced() {
    for variant in Variant::ALL {
        let mut rig = Rig::with(config(variant, 1).tx_ring(4), model_config(variant, 1));
        rig.control.batching(1).unwrap().resize(towpath_nic::cpsw::BatchSize::MAX);
        let mut batch = Batch::new();
        for number in 0..6 {
            let packet = rig.packet(&stamp(0, number, 60));
            batch.push(packet).unwrap();
        }
        // No full batch and no kick: the full ring causes the doorbell.
        assert_eq!((rig.ports[0].tx[0].tx(&mut batch), batch.len()), (4, 2));
        rig.model.settle();
        assert_eq!(rig.plugs[0].drain().len(), 4, "{variant:?}");
    }
}

#[test]
fn staged_packets_have_their_slots_before_they_are_announced() {
    for variant in Variant::ALL {
        let mut rig = Rig::with(config(variant, 1).tx_ring(4), model_config(variant, 1));
        rig.control.batching(1).unwrap().resize(towpath_nic::cpsw::BatchSize::MAX);
        let mut taken = 0;
        for number in 0..6 {
            let packet = rig.packet(&stamp(0, number, 60));
            let mut batch = Batch::new();
            batch.push(packet).unwrap();
            taken += rig.ports[0].tx[0].tx(&mut batch);
        }
        assert_eq!(taken, 4, "{variant:?}");
        rig.finish();
    }
}

#[test]
fn t8_an_empty_pool_stops_reception_only_until_buffers_are_freed() {
    for variant in Variant::ALL {
        let mut rig = Rig::new(variant, 1);
        let taken: Vec<_> = std::iter::from_fn(|| rig.cache.alloc()).collect();
        let mut batch = Batch::new();
        let mut number = 0;
        for _ in 0..10 {
            assert!(rig.plugs[0].send(&stamp(0, number, 60)));
            rig.model.settle();
            rig.ports[0].rx[0].refill();
            number += rig.ports[0].rx[0].rx(&mut batch) as u32;
        }
        assert!(number <= 16);
        taken.into_iter().for_each(|packet| rig.cache.free(packet));
        rig.cache.free_bulk(&mut batch);
        let cache = std::mem::replace(&mut rig.cache, rig.pool.cache(Direction::Tx).unwrap());
        drop(cache);
        rig.ports[0].rx[0].refill();
        assert!(rig.plugs[0].send(&stamp(0, 500, 60)));
        rig.model.settle();
        let last = rig.receive(0).pop().expect("reception resumes");
        assert_eq!(last, stamp(0, 500, 60), "{variant:?}");
        rig.assert_clean();
    }
}
