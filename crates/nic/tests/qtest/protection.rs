//! What the IOMMU keeps the device from while the driver runs.
//!
//! The test makes the device misbehave: it programs the second transmit queue, which the driver
//! does not use, with addresses of its choice.

use crate::require;
use crate::rig::{DEFERRED, Protection, Rig, STRICT, Setup, frame, out, sized};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;
use towpath_bus::qtest::Width;
use towpath_bus::vtd::{FaultReason, PhysMemory};
use towpath_bus::{Access, Dma, DmaPolicy, Mmio};
use towpath_nic::e1000e::TxCopybreak;
use towpath_packet::RegionHandle;
use towpath_packet::port::{RxQueue, TxQueue};

/// The second transmit queue, under the test's control.
struct RogueQueue {
    ring: RegionHandle,
    tail: u32,
}

impl RogueQueue {
    fn new(rig: &Rig) -> RogueQueue {
        let ring = RegionHandle::from(rig.dma.alloc(4096).unwrap());
        // SAFETY: the ring stays mapped and allocated until the machine ends.
        let iova = unsafe { rig.dma.map(ring.base(), 4096, Access::Both) }.unwrap();
        let bar = &rig.raw;
        [(0x3900, iova.get() as u32), (0x3904, (iova.get() >> 32) as u32), (0x3908, 4096), (0x3910, 0), (0x3918, 0)]
            .into_iter()
            .for_each(|(at, value)| bar.w32(at, value));
        RogueQueue { ring, tail: 0 }
    }

    /// Makes the device send the `len` bytes at `iova`; returns the frame.
    fn sends(&mut self, rig: &Rig, iova: u64, len: usize) -> Vec<u8> {
        let at = self.ring.at(self.tail as usize * 16, 16).unwrap().cast::<u64>();
        // SAFETY: a descriptor of the test's own ring, which the device reads after the write of
        // its tail below. (End of packet, check sequence, report.)
        unsafe {
            at.write_volatile(iova);
            at.add(1).write_volatile(len as u64 | 0xb << 24);
        }
        self.tail = (self.tail + 1) % 256;
        rig.raw.w32(0x3918, self.tail);
        // The read returns after the frame was sent, or was refused.
        rig.raw.r32(0x3910);
        let mut buffer = vec![0; 4096];
        let sent = rig.cable.receive(&mut buffer, Duration::from_millis(300)).unwrap_or(0);
        buffer.truncate(sent);
        buffer
    }
}

fn assert_refused(rig: &Rig, page: u64) {
    let faults = rig.qemu.faults();
    assert!(!faults.records.is_empty(), "nothing was refused");
    for fault in faults.records {
        assert_eq!(
            (fault.page, fault.access, fault.reason),
            (page & !0xfff, Access::Read, FaultReason::READ),
            "{fault}"
        );
    }
}

fn assert_traffic(rig: &mut Rig) {
    for n in 0..100 {
        let packet = rig.packet(&frame(n));
        rig.send([packet]);
        assert!(rig.out() == frame(n));
        assert!(rig.exchange(&[frame(n + 1)])[0].to_vec() == frame(n + 1));
    }
}

fn protection(policy: DmaPolicy, copybreak: u64) -> Protection {
    Protection { policy, iommu: Some(Width::Bits39), copybreak }
}

/// No policy puts memory of the machine that is no packet in reach.
#[test]
fn stray_access_to_other_memory_is_refused_and_leaks_nothing() {
    require!("stray_access_to_other_memory_is_refused_and_leaks_nothing");
    for policy in [DmaPolicy::Persistent, STRICT, DEFERRED] {
        let mut rig = Setup::new(protection(policy, 0)).start();
        let mut rogue = RogueQueue::new(&rig);
        let secret = rig.dma.alloc(4096).unwrap();
        // SAFETY: the region is the test's own.
        unsafe { secret.base().write_bytes(0x5a, 4096) };
        let stretch = rig.qemu.ram().locate(secret.base(), 4096).unwrap();
        let physical = stretch.physical_of(secret.base(), 4096).unwrap();
        for iova in [physical, 0x12_3456_7000] {
            let out = rogue.sends(&rig, iova, 1000);
            assert!(!out.contains(&0x5a), "{policy:?}: bytes of memory that was never mapped were sent");
            assert_refused(&rig, iova);
        }
        assert_traffic(&mut rig);
        rig.end();
    }
}

/// A sent packet is out of reach at once (strict), after the queue was idle (deferred), or never
/// (persistent).
#[test]
fn a_sent_packet_is_in_reach_as_long_as_the_policy_allows() {
    require!("a_sent_packet_is_in_reach_as_long_as_the_policy_allows");
    for policy in [STRICT, DEFERRED, DmaPolicy::Persistent] {
        let mut rig = Setup::new(protection(policy, 0)).start();
        let mut rogue = RogueQueue::new(&rig);
        let secret = sized(7, 900);
        let packet = rig.packet(&secret);
        let at = packet.linear().as_ptr();
        let before = rig.log.flushes.load(Ordering::Relaxed);
        rig.send([packet]);
        assert_eq!(rig.out(), secret);
        let Some(iova) = rig.log.iova(at) else {
            // Persistent: all packets are mapped once, and stay in reach.
            assert_eq!(policy, DmaPolicy::Persistent);
            rig.end();
            continue;
        };
        // The watchdog may have flushed while this thread did not run.
        let is_open = policy == DEFERRED && rig.log.flushes.load(Ordering::Relaxed) == before;
        let again = rogue.sends(&rig, iova, secret.len());
        if is_open {
            assert_eq!(again, secret, "the window of exposure is open");
            // Idle until the queue's watchdog flushes.
            crate::rig::until("the idle queue flushes", || {
                rig.tx[0].reclaim();
                rig.log.flushes.load(Ordering::Relaxed) > before
            });
        }
        let again = rogue.sends(&rig, iova, secret.len());
        assert!(
            again.windows(16).all(|w| !secret.windows(16).any(|s| s == w)),
            "{policy:?}: bytes of a sent packet leaked"
        );
        assert_refused(&rig, iova);
        assert_traffic(&mut rig);
        rig.end();
    }
}

/// If only the IOTLB flushes are left out, the device goes on using delivered buffers, and the test
/// sees wrong frames.
#[test]
fn a_missing_invalidation_is_caught() {
    require!("a_missing_invalidation_is_caught");
    for policy in [STRICT, DEFERRED] {
        for forget in [false, true] {
            let mut rig = Setup::new(protection(policy, 0)).start();
            rig.log.forget.store(forget, Ordering::Relaxed);
            let wrong = wrong_frames(&mut rig);
            assert_eq!(wrong > 0, forget, "{policy:?}: {wrong} frames were wrong");
            if !forget {
                rig.end();
            }
        }
    }

    /// Receives frames, keeps the packets for a while, and counts those that differ from the frames
    /// sent.
    fn wrong_frames(rig: &mut Rig) -> usize {
        let (mut kept, mut wrong) = (VecDeque::new(), 0);
        for burst in (0..3200).step_by(32) {
            let frames: Vec<_> = (burst..burst + 32).map(frame).collect();
            kept.extend((burst..).zip(rig.exchange(&frames)));
            while kept.len() > 300 {
                let (n, packet) = kept.pop_front().unwrap();
                wrong += usize::from(packet.to_vec() != frame(n));
            }
        }
        wrong
    }
}

/// The same in the other direction: the device sends the wrong buffer.
#[test]
fn a_missing_invalidation_is_caught_on_transmission() {
    require!("a_missing_invalidation_is_caught_on_transmission");
    for forget in [false, true] {
        // Received frames are copied, and sent ones mapped.
        let mut setup = Setup::new(protection(STRICT, 2048));
        setup.config.tx_copybreak = Some(TxCopybreak::OFF);
        let mut rig = setup.start();
        rig.log.forget.store(forget, Ordering::Relaxed);
        let mut wrong = 0;
        for burst in (0..1600).step_by(32) {
            let packets: Vec<_> = (burst..burst + 32 + burst % 7).map(|n| rig.packet(&frame(n))).collect();
            let sent = packets.len();
            // Buffers in another order than their addresses.
            let packets = packets.into_iter().rev();
            rig.send(packets);
            wrong += (burst..burst + sent).rev().filter(|&n| out(&rig.cable) != frame(n)).count();
        }
        assert_eq!(wrong > 0, forget, "{wrong} frames were wrong");
        if !forget {
            rig.end();
        }
    }
}

/// A frame that is copied out costs no mapping.
#[test]
fn policy_and_copybreak_decide_how_often_buffers_are_mapped_and_unmapped() {
    require!("policy_and_copybreak_decide_how_often_buffers_are_mapped_and_unmapped");
    for (policy, copybreak) in
        [(STRICT, 0), (STRICT, 2048), (DEFERRED, 0), (DEFERRED, 2048), (DmaPolicy::Persistent, 0)]
    {
        let setup = Setup::new(protection(policy, copybreak));
        let mut rig = setup.start();
        // Once around the ring: one slot is always empty, and at first it is always the same.
        drop(rig.exchange(&(0..64).map(frame).collect::<Vec<_>>()));
        drop(rig.exchange(&(0..64).map(frame).collect::<Vec<_>>()));
        rig.refill();
        let (begin, begun) = (rig.rx[0].counts(), std::time::Instant::now());
        for burst in (0..3200).step_by(32) {
            let frames: Vec<_> = (burst..burst + 32).map(frame).collect();
            frames.iter().for_each(|frame| rig.cable.send(frame).unwrap());
            rig.delivered();
            let received = rig.receive(32);
            received.iter().zip(&frames).for_each(|(packet, frame)| assert!(packet.to_vec() == *frame));
            drop(received);
            rig.refill();
        }
        let end = rig.rx[0].counts();
        let [maps, unmaps, flushes] = [end.maps - begin.maps, end.unmaps - begin.unmaps, end.flushes - begin.flushes];
        let expected = match (policy, copybreak) {
            (DmaPolicy::Persistent, _) | (_, 2048) => [0, 0, 0],
            (STRICT, _) => [3200, 3200, 100],
            _ => [3200, 3200, 3200 / 256],
        };
        // The watchdog flushes as well, five times a second.
        let watchdog = 8 + begun.elapsed().as_millis() as u64 / 200;
        assert_eq!([maps, unmaps], expected[..2], "{policy:?} {copybreak}");
        assert!((expected[2]..=expected[2] + watchdog).contains(&flushes), "{policy:?} {copybreak}: {flushes}");
        assert_eq!(end.copies - begin.copies, if copybreak > 0 { 3200 } else { 0 });
        let counters = rig.rx[0].counters().snapshot();
        assert_eq!((counters.packets, counters.errors), (3328, 0));
        rig.end();
    }
}
