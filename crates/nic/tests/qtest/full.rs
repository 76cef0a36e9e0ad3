//! Full rings and empty pools.

use crate::require;
use crate::rig::{Setup, frame, protections, sized};
use towpath_bus::Mmio;
use towpath_packet::Batch;
use towpath_packet::port::{RxQueue, TxQueue};

/// The transmitter's control register and its enable bit; the tail of its ring.
const TCTL: usize = 0x400;
const TCTL_ENABLE: u32 = 2;
const TDT: usize = 0x3818;

#[test]
fn a_full_transmit_ring_leaves_packets_in_the_batch_and_takes_them_later() {
    require!("a_full_transmit_ring_leaves_packets_in_the_batch_and_takes_them_later");
    for protection in protections() {
        let mut rig = Setup::new(protection).start();
        let mut batch = Batch::<64>::new();
        let (mut next, mut taken) = (0, 0);
        // The transmitter is off, so that no frame is sent: 127 of 128 descriptors can be used.
        let on = rig.raw.r32(TCTL);
        rig.raw.w32(TCTL, on & !TCTL_ENABLE);
        while taken < 300 {
            while batch.room() > 0 {
                let packet = rig.packet(&frame(next));
                batch.push(packet).unwrap();
                next += 1;
            }
            let now = rig.tx[0].tx(&mut batch);
            taken += now;
            if now == 0 {
                break;
            }
        }
        assert_eq!((taken, rig.tx[0].pending()), (127, 127));
        assert_eq!(batch.len(), next - taken);
        assert_eq!(rig.raw.r32(TDT), 127, "all are announced, though the burst has not ended");
        rig.raw.w32(TCTL, on);
        rig.sent();
        rig.tx[0].tx(&mut batch);
        rig.tx[0].kick();
        rig.sent();
        assert!(batch.is_empty());
        (0..next).for_each(|n| assert!(rig.out() == frame(n), "frame {n}"));
        rig.end();
    }
}

/// A receiver that does not poll loses no frame: the device holds them back, then the cable.
#[test]
fn frames_wait_while_no_buffers_are_there_and_arrive_when_some_are() {
    require!("frames_wait_while_no_buffers_are_there_and_arrive_when_some_are");
    for protection in protections() {
        let mut rig = Setup::new(protection).start();
        for round in 0..3 {
            rig.refill();
            let frames: Vec<_> = (0..200).map(|n| sized(round * 200 + n, 60)).collect();
            frames.iter().for_each(|frame| rig.cable.send(frame).unwrap());
            let received = rig.receive(frames.len());
            received.iter().zip(&frames).for_each(|(packet, frame)| assert!(packet.to_vec() == *frame));
        }
        rig.end();
    }
}

#[test]
fn an_empty_pool_is_survived_and_counted() {
    require!("an_empty_pool_is_survived_and_counted");
    for protection in protections().into_iter().filter(|protection| protection.copybreak == 0) {
        let mut rig = Setup::new(protection).start();
        let held: Vec<_> = std::iter::from_fn(|| rig.cache.alloc()).collect();
        let frames: Vec<_> = (0..150).map(|n| sized(n, 60)).collect();
        frames.iter().for_each(|frame| rig.cable.send(frame).unwrap());
        rig.refill();
        let mut batch = Batch::<64>::new();
        let mut received = Vec::new();
        // At most as many as the ring has buffers for; the packets are kept, so that no buffer is
        // freed.
        for _ in 0..20 {
            rig.rx[0].rx(&mut batch);
            received.extend(batch.drain_front(64));
            rig.rx[0].refill();
        }
        assert!(received.len() < 150, "{}", received.len());
        assert!(rig.control.faults().no_buffer > 0);
        drop(held);
        received.extend(rig.receive(150 - received.len()));
        received.iter().zip(&frames).for_each(|(packet, frame)| assert!(packet.to_vec() == *frame));
        drop(received);
        rig.end();
    }
}
