//! Frames are received and sent byte for byte.

use super::rig::*;
use towpath_model::iommu;
use towpath_nic::e1000e::{Copybreak, InterruptMode, RingSize, TxCopybreak};
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Batch, Packet};

#[test]
fn frames_go_both_ways_byte_for_byte_under_every_policy_and_threshold() {
    for policy in POLICIES {
        for copybreak in [0, 256, 2048] {
            for bounce in [false, true] {
                let tx_copybreak = Some(TxCopybreak::new(copybreak).unwrap());
                let copybreak = Some(Copybreak::new(copybreak).unwrap());
                let iommu = iommu::Config::default().bounce(bounce);
                let mut r = rig(
                    with(|c| {
                        c.policy = policy;
                        c.copybreak = copybreak;
                        c.tx_copybreak = tx_copybreak;
                    }),
                    strict().iommu(iommu),
                );
                let frames: Vec<_> = (0..1000).map(|i| frame(60 + i * 7 % 1440, i as u64)).collect();
                for burst in frames.chunks(50) {
                    r.arrive(burst.iter().map(Vec::as_slice));
                    let got: Vec<_> = r.settle().iter().map(Packet::to_vec).collect();
                    assert_eq!(got, burst, "{policy:?} {copybreak:?} bounce {bounce}");
                    let packets: Vec<_> = burst.iter().map(|bytes| r.packet(bytes)).collect();
                    r.send(0, packets);
                    r.settle();
                    assert_eq!(r.far.drain(), burst);
                }
                assert_eq!((r.faults(), r.tx[0].pending()), (0, 0), "{:?}", r.control.faults());
                let (rx, tx) = (r.rx[0].counters().snapshot(), r.tx[0].counters().snapshot());
                assert_eq!((rx.packets, tx.packets, rx.bytes), (1000, 1000, tx.bytes));
                r.end();
            }
        }
    }
}

#[test]
fn without_an_iommu_it_works_as_well() {
    let mut r = rig(config(), strict().iommu(iommu::Config::off()));
    let bytes = frame(1000, 1);
    r.arrive([bytes.as_slice()]);
    assert_eq!(r.settle()[0].to_vec(), bytes);
    r.end();
}

#[test]
fn packets_of_one_to_many_fragments_leave_whole_with_or_without_a_linear_part() {
    for (policy, bounce) in POLICIES.into_iter().flat_map(|policy| [(policy, false), (policy, true)]) {
        let iommu = iommu::Config::default().bounce(bounce);
        let mut r = rig(
            with(|c| {
                c.policy = policy;
                c.mtu = 9000;
            }),
            strict().iommu(iommu),
        );
        for pieces in (1..=64).chain([65, 100, 200]) {
            for empty_head in [false, true] {
                let bytes = frame(14 + pieces * 37, pieces as u64);
                let mut packet = if empty_head { r.cache.alloc().unwrap() } else { r.packet(&bytes[..14]) };
                let skip = if empty_head { 0 } else { 14 };
                let step = (bytes.len() - skip).div_ceil(pieces);
                for piece in bytes[skip..].chunks(step) {
                    let part = r.packet(piece);
                    packet.append(part).unwrap();
                }
                r.send(0, [packet]);
                r.settle();
                let sent = r.far.drain();
                assert_eq!(sent.len(), 1, "{pieces} pieces");
                assert_eq!(&sent[0][..bytes.len()], bytes, "{pieces} pieces, empty head {empty_head}");
            }
        }
        assert!(r.control.faults().linearised > 0);
        r.end();
    }
}

#[test]
fn long_frames_take_several_buffers_and_are_received_and_sent_whole() {
    for policy in POLICIES {
        for (mtu, longest) in [(9000, 9014), (9216, 9230)] {
            let mut r = rig(
                with(|c| {
                    c.policy = policy;
                    c.mtu = mtu;
                }),
                strict(),
            );
            for len in [60, 1024, 1025, 1514, 2048, 4096, 5000, longest] {
                let bytes = frame(len, len as u64);
                r.arrive([bytes.as_slice()]);
                let got = r.settle();
                assert_eq!(got.len(), 1, "{len} bytes");
                assert_eq!(got[0].to_vec(), bytes, "{len} bytes");
                assert_eq!(got[0].frags(), if len < 2048 && policy != POLICIES[0] { 0 } else { (len - 1) / 1024 });
                drop(got);
                let packet = r.packet(&bytes);
                r.send(0, [packet]);
                r.settle();
                assert_eq!(r.far.drain(), [bytes]);
            }
            assert_eq!(r.faults(), 0);
            r.end();
        }
    }
}

#[test]
fn a_full_ring_refuses_packets_and_takes_more_after_frames_were_sent() {
    let mut r = rig(config(), strict());
    let mut batch: Batch = Batch::new();
    let mut taken = 0;
    for i in 0..3 {
        for j in 0..64 {
            let packet = r.packet(&frame(60, i * 64 + j));
            batch.push(packet).unwrap();
        }
        taken += r.tx[0].tx(&mut batch);
        r.tx[0].kick();
        if !batch.is_empty() {
            break;
        }
    }
    assert_eq!((taken, r.tx[0].pending()), (127, 127));
    r.device.run_until_idle();
    assert!(r.tx[0].tx(&mut batch) > 0, "sent frames make room without a call of reclaim");
    r.tx[0].kick();
    r.settle();
    drop(batch);
    r.end();
}

#[test]
fn a_receiver_without_buffers_loses_nothing_that_the_wire_can_hold_back() {
    let mut r = rig(with(|c| c.policy = STRICT), strict());
    let mut held: Vec<Packet> = std::iter::from_fn(|| r.cache.alloc()).collect();
    r.settle();
    let frames: Vec<_> = (0..300).map(|i| frame(100, i)).collect();
    r.arrive(frames.iter().map(Vec::as_slice));
    let mut got = Vec::new();
    for _ in 0..20 {
        r.turn(&mut got);
    }
    let before = got.len();
    assert!(before < 300 && r.control.faults().no_buffer > 0);
    held.clear();
    got.extend(r.settle());
    assert_eq!(got.iter().map(Packet::to_vec).collect::<Vec<_>>(), frames);
    got.clear();
    drop((held, got));
    r.end();
}

#[test]
fn a_hundred_thousand_frames_each_way() {
    for policy in [POLICIES[0], STRICT] {
        let ring = |option| RingSize::new(option, 512).unwrap();
        let mut r = rig(
            with(|c| {
                c.policy = policy;
                c.rx_ring = ring("rx");
                c.tx_ring = ring("tx");
            }),
            strict(),
        );
        let samples: Vec<_> = (0..97u64).map(|i| frame(60 + (i as usize * 131) % 1455, i)).collect();
        let (mut sent, mut back) = (0usize, 0usize);
        let total = 100_000;
        while back < total {
            let burst: Vec<_> = (sent..(sent + 64).min(total)).map(|i| r.packet(&samples[i % 97])).collect();
            sent += burst.len();
            let mut got = r.send(0, burst);
            // The far end returns every frame.
            for bytes in r.far.drain() {
                r.arrive([bytes.as_slice()]);
            }
            r.turn(&mut got);
            for packet in got {
                assert_eq!(packet.linear(), samples[back % 97], "frame {back}");
                back += 1;
            }
        }
        let (rx, tx) = (r.rx[0].counters().snapshot(), r.tx[0].counters().snapshot());
        assert_eq!((rx.packets, tx.packets), (total as u64, total as u64));
        assert_eq!(rx.bytes, tx.bytes);
        r.settle();
        assert_eq!(r.faults(), 0);
        r.end();
    }
}

#[test]
fn bursts_of_32_cost_a_sixteenth_of_a_tail_write_a_frame_and_no_register_is_read() {
    let mut r = rig(with(|c| c.stall = std::time::Duration::from_secs(60)), strict());
    r.settle();
    let before = r.device.accesses();
    // So few calls that the watchdog does not read the clock, nor the link.
    for i in 0..16 {
        let frames: Vec<_> = (0..32).map(|j| frame(60, i * 32 + j)).collect();
        r.arrive(frames.iter().map(Vec::as_slice));
        let mut batch: Batch = Batch::new();
        for bytes in &frames {
            let packet = r.packet(bytes);
            batch.push(packet).unwrap();
        }
        r.tx[0].reclaim();
        r.tx[0].tx(&mut batch);
        r.tx[0].kick();
        r.device.run_until_idle();
        let mut out: Batch = Batch::new();
        r.rx[0].refill();
        assert_eq!(r.rx[0].rx(&mut out), 32);
    }
    let after = r.device.accesses();
    assert_eq!((after.reads - before.reads, after.writes - before.writes), (0, 0));
    assert!(after.tails - before.tails <= 2 * 16, "{} tails for 512 frames each way", after.tails - before.tails);
    r.settle();
    r.end();
}

#[test]
fn an_idle_receiver_waits_for_an_interrupt_and_loses_none() {
    use towpath_packet::port::Wake;
    let mut r = rig(with(|c| c.interrupts = InterruptMode::Auto), strict());
    assert!(matches!(r.rx[0].wake(), Wake::Poll), "a device without buffers raises no interrupt");
    r.settle();
    for i in 0..3 {
        let Wake::Fd(_) = r.rx[0].wake() else { panic!("it does not wait for its interrupt") };
        let sent = r.device.interrupts().0;
        r.arrive([frame(60, i).as_slice()]);
        r.device.run_until_idle();
        assert_eq!(r.device.interrupts().0, sent + 1, "one interrupt for each call of wake");
        assert_eq!(r.settle().len(), 1);
        r.arrive([frame(60, i).as_slice()]);
        assert_eq!(r.settle().len(), 1);
        assert_eq!(r.device.interrupts().0, sent + 1, "and none while it is polled");
    }
    r.end();
}
