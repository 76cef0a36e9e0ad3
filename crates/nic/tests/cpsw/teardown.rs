//! Teardown after each step of a scripted run (T7): nothing is missing, and traffic resumes.

use super::rig::{Rig, Variant, assert_stamps, config, model_config, stamp};
use towpath_model::cpsw::RxMarker;
use towpath_model::wire::Wire;
use towpath_nic::cpsw::BatchSize;
use towpath_packet::Batch;
use towpath_packet::port::{RxQueue, TxQueue};

/// A step of the script; teardown can follow each.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Packets of one and of three chunks, staged and perhaps not announced.
    Stage,
    Kick,
    Arrive,
    Device(usize),
    Reclaim,
    Receive,
    Refill,
}

const SCRIPT: [Step; 30] = [
    Step::Stage,
    Step::Device(1),
    Step::Stage,
    Step::Kick,
    Step::Device(1),
    Step::Arrive,
    Step::Device(2),
    Step::Stage,
    Step::Device(3),
    Step::Arrive,
    Step::Arrive,
    Step::Device(5),
    Step::Reclaim,
    Step::Device(4),
    Step::Receive,
    Step::Stage,
    Step::Device(1),
    Step::Refill,
    Step::Kick,
    Step::Device(1),
    Step::Device(1),
    Step::Reclaim,
    Step::Device(1),
    Step::Arrive,
    Step::Device(6),
    Step::Receive,
    Step::Device(9),
    Step::Reclaim,
    Step::Refill,
    Step::Device(30),
];

fn perform(rig: &mut Rig, step: Step, number: &mut u32, batch: &mut Batch) {
    for port in 0..rig.ports.len() {
        match step {
            Step::Stage => {
                for chunks in [1, 3] {
                    let packet = rig.fragmented(&stamp(port as u8, *number, 90), chunks);
                    *number += 1;
                    let mut one = Batch::new();
                    one.push(packet).unwrap();
                    rig.ports[port].tx[0].tx(&mut one);
                }
            }
            Step::Kick => rig.ports[port].tx[0].kick(),
            Step::Arrive => {
                for _ in 0..3 {
                    assert!(rig.plugs[port].send(&stamp(port as u8, *number, 90)));
                }
            }
            Step::Device(_) => {}
            Step::Reclaim => drop(rig.ports[port].tx[0].reclaim() + rig.ports[port].tx[0].reclaim()),
            Step::Receive => {
                rig.ports[port].rx[0].rx(batch);
                rig.cache.free_bulk(batch);
            }
            Step::Refill => drop(rig.ports[port].rx[0].refill()),
        }
    }
    if let Step::Device(steps) = step {
        rig.run(steps);
    }
}

/// Stops after `until` steps and starts again: all frames arrive after that.
fn stop_after(mut rig: Rig, until: usize) {
    let (mut number, mut batch) = (0, Batch::new());
    for &step in &SCRIPT[..until] {
        perform(&mut rig, step, &mut number, &mut batch);
    }
    rig.stop();
    rig.assert_all_free();
    rig.restart();
    let ports = rig.ports.len();
    // Frames that are still on the wires arrive now, and MAC ports send the frames that they hold.
    rig.settle();
    for port in 0..ports {
        rig.plugs[port].drain();
        while !rig.receive(port).is_empty() {
            rig.settle();
        }
    }
    let (mut sent, mut received) = (vec![Vec::new(); ports], vec![Vec::new(); ports]);
    for number in 0..24 {
        for (port, received) in received.iter_mut().enumerate() {
            let packet = rig.fragmented(&stamp(port as u8, number, 90), 1 + number as usize % 3);
            rig.send(port, packet);
            assert!(rig.plugs[port].send(&stamp(port as u8, number, 90)));
            rig.run(11);
            received.extend(rig.receive(port));
        }
    }
    for _ in 0..8 {
        rig.settle();
        for port in 0..ports {
            received[port].extend(rig.receive(port));
            sent[port].extend(rig.plugs[port].drain());
        }
    }
    for port in 0..ports {
        assert_eq!((sent[port].len(), received[port].len()), (24, 24), "port {port} after {until} steps");
        assert_stamps(&sent[port], port as u8, 0);
        assert_stamps(&received[port], port as u8, 0);
    }
    rig.stop();
    rig.assert_all_free();
    rig.assert_no_leak();
}

#[test]
fn t7_teardown_after_every_step_returns_everything_and_traffic_resumes() {
    for variant in Variant::ALL {
        for ports in [1, 2] {
            for batch in [1, 3, 127] {
                for until in 0..=SCRIPT.len() {
                    let config = config(variant, ports)
                        .tx_ring(6)
                        .tx_descriptors(8)
                        .rx_ring(5)
                        .batch(BatchSize::new(batch).unwrap());
                    let model = model_config(variant, ports)
                        .prefetch(1 + (until % 4) as u8)
                        .steps_per_read(1 + (until % 3) as u16)
                        .seed(until as u64 * 31 + u64::from(batch))
                        .rx_marker(if until % 2 == 0 { RxMarker::FirstFlow } else { RxMarker::AllFlows });
                    stop_after(Rig::with(config, model), until);
                }
            }
        }
    }
}

#[test]
fn the_end_of_a_teardown_shows_even_if_the_completion_ring_is_full() {
    for variant in Variant::ALL {
        let mut rig = Rig::with(config(variant, 1).tx_descriptors(64), model_config(variant, 1));
        let mut batch = Batch::new();
        for number in 0..16 {
            let packet = rig.packet(&stamp(0, number, 90));
            batch.push(packet).unwrap();
        }
        assert_eq!(rig.ports[0].tx[0].tx(&mut batch), 16);
        rig.ports[0].tx[0].kick();
        rig.model.settle();
        // The device finishes before the first poll of the driver.
        rig.model.set_steps_per_read(1000);
        rig.stop();
        rig.assert_all_free();
        rig.assert_no_leak();
    }
}

#[test]
fn a_shared_channel_stops_with_its_last_port() {
    let config = config(Variant::Pktdma, 2).tx_channels(1);
    let mut rig = Rig::with(config, model_config(Variant::Pktdma, 2).steps_per_read(2));
    drop(rig.ports.remove(0));
    assert!(rig.control.stops().is_empty(), "the other port still uses channel and flow");
    let packet = rig.packet(&stamp(1, 0, 90));
    rig.send(0, packet);
    rig.settle();
    assert_stamps(&rig.plugs[1].drain(), 1, 0);
    rig.stop();
    assert_eq!(rig.control.stops().len(), 2);
    rig.assert_all_free();
}

#[test]
fn an_engine_that_does_not_finish_teardown_keeps_its_buffers_and_is_reported() {
    // The device makes no steps: it never finishes.
    let mut rig = Rig::new(Variant::Pktdma, 1);
    let packet = rig.packet(&stamp(0, 0, 90));
    rig.send(0, packet);
    rig.stop();
    let stops = rig.control.stops();
    assert_eq!(stops.len(), 2);
    assert!(stops.iter().all(|stop| !stop.orderly), "{stops:?}");
    assert!(stops.iter().all(|stop| stop.free < stop.descriptors), "{stops:?}");
    let pool = rig.pool.clone();
    drop(rig);
    assert!(pool.stats().free < pool.stats().capacity, "buffers that the engine may still write to must not be freed");
}

#[test]
fn everything_can_be_brought_up_and_down_many_times() {
    for variant in Variant::ALL {
        let mut rig = Rig::with(config(variant, 2), model_config(variant, 2).steps_per_read(2));
        for round in 0..20 {
            let packet = rig.packet(&stamp(1, round, 90));
            rig.send(1, packet);
            rig.settle();
            rig.stop();
            rig.assert_all_free();
            rig.restart();
        }
        assert_stamps(&rig.plugs[1].drain(), 1, 0);
        rig.stop();
        let iommu = rig.model.iommu().clone();
        drop(rig);
        let counts = iommu.counts();
        assert!(counts.maps > 0 && counts.maps == counts.unmaps, "memory stays mapped: {counts:?}");
    }
}
