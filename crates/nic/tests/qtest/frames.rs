//! Frames pass whole and in order.

use crate::require;
use crate::rig::{Setup, frame, out, protections, ring, sized};
use towpath_nic::e1000e::{InterruptMode, Receive};
use towpath_packet::Batch;
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};

#[test]
fn a_port_comes_up_with_its_link_and_receives() {
    require!("a_port_comes_up_with_its_link_and_receives");
    for protection in protections() {
        let mut rig = Setup::new(protection).start();
        let link = rig.control.link();
        assert!(link.up && link.full_duplex && link.speed == 1000, "{link:?}");
        assert_eq!((rig.rx[0].state(), rig.tx[0].state()), (State::Up, State::Up));
        assert_eq!(rig.exchange(&[frame(1)])[0].to_vec(), frame(1));
        rig.end();
    }
}

/// Both directions at once, in bursts of 32; every ring wraps more than 700 times.
#[test]
fn a_hundred_thousand_frames_pass_each_way_byte_for_byte() {
    require!("a_hundred_thousand_frames_pass_each_way_byte_for_byte");
    const FRAMES: usize = 100_000;
    const BURST: usize = 32;
    let each = std::thread::scope(|scope| {
        let threads: Vec<_> =
            protections().into_iter().map(|protection| (protection, scope.spawn(move || run(protection)))).collect();
        threads.into_iter().map(|(protection, thread)| (protection, thread.join())).collect::<Vec<_>>()
    });
    for (protection, done) in each {
        assert!(done.is_ok(), "{protection:?}");
    }

    fn run(protection: crate::rig::Protection) {
        let mut rig = Setup::new(protection).start();
        let mut batch = Batch::<64>::new();
        rig.refill();
        for burst in (0..FRAMES).step_by(BURST) {
            for n in burst..burst + BURST {
                rig.cable.send(&frame(n)).unwrap();
                let packet = rig.packet(&frame(n + FRAMES));
                batch.push(packet).unwrap();
            }
            rig.tx[0].reclaim();
            rig.tx[0].tx(&mut batch);
            rig.tx[0].kick();
            for (n, packet) in (burst..).zip(rig.receive(BURST)) {
                assert!(packet.to_vec() == frame(n), "received frame {n}");
            }
            for n in burst..burst + BURST {
                assert!(rig.out() == frame(n + FRAMES), "sent frame {n}");
            }
            assert!(batch.is_empty());
        }
        rig.sent();
        let counters = [rig.rx[0].counters().snapshot(), rig.tx[0].counters().snapshot()];
        assert!(
            counters.iter().all(|c| c.packets == FRAMES as u64 && c.errors == 0 && c.all_drops() == 0),
            "{counters:?}"
        );
        assert!(rig.control.faults().iter().all(|(_, n)| n == 0), "{:?}", rig.control.faults());
        let counts = rig.rx[0].counts();
        assert_eq!(counts.handed + counts.copies, FRAMES as u64);
        rig.end();
    }
}

/// Packets in memory that the device can't reach: the port has a pool of its own, and copies in
/// each direction.
#[test]
fn packets_out_of_reach_are_copied_and_counted() {
    require!("packets_out_of_reach_are_copied_and_counted");
    for protection in protections() {
        let mut rig = Setup { shared: false, ..Setup::new(protection) }.start();
        assert!(rig.rx[0].memory().pool.is_some());
        for burst in (0..960).step_by(32) {
            let frames: Vec<_> = (burst..burst + 32).map(frame).collect();
            let packets: Vec<_> = frames.iter().map(|frame| rig.packet(frame)).collect();
            rig.send(packets);
            frames.iter().for_each(|frame| assert!(rig.out() == *frame));
            let received = rig.exchange(&frames);
            received.iter().zip(&frames).for_each(|(packet, frame)| assert!(packet.to_vec() == *frame));
        }
        // Short frames in bounce memory, the others in buffers of the port's pool.
        assert_eq!(rig.control.faults().bounced + rig.tx[0].dma_counts().copies, 960);
        rig.end();
    }
}

/// A frame of one byte more than fits into n buffers has n+1 of them.
#[test]
fn long_frames_span_descriptors_in_both_directions() {
    require!("long_frames_span_descriptors_in_both_directions");
    for protection in protections() {
        let mut setup = Setup::new(protection);
        setup.config.mtu = 9216;
        let mut rig = setup.start();
        for (n, len) in [1514, 1515, 2048, 2049, 3072, 3073, 5042, 9000, 9014, 9230].into_iter().enumerate() {
            let bytes = sized(n, len);
            let received = rig.exchange(std::slice::from_ref(&bytes)).remove(0);
            assert_eq!(received.len(), len);
            assert!(received.to_vec() == bytes, "received {len} bytes");
            assert_eq!(received.frags() + 1, if len < protection.copybreak as usize { 1 } else { len.div_ceil(1024) });
            // A chain that was received is sent as a chain.
            rig.send([received]);
            assert!(rig.out() == bytes, "sent {len} bytes");
        }
        rig.end();
    }
}

/// The smallest buffers of the device: the longest frame has 37 of them.
#[test]
fn long_frames_arrive_in_as_many_small_buffers_as_they_need() {
    require!("long_frames_arrive_in_as_many_small_buffers_as_they_need");
    for protection in protections() {
        let mut setup = Setup { chunk: 128 + 256, ..Setup::new(protection) };
        setup.config.mtu = 9216;
        let copybreak = setup.config.copybreak.map_or(0, |bytes| bytes.get() as usize);
        let mut rig = setup.start();
        for (n, pieces) in (1..=36).enumerate() {
            for len in [pieces * 256, pieces * 256 + 1] {
                let bytes = sized(n, len);
                let received = rig.exchange(std::slice::from_ref(&bytes)).remove(0);
                assert!(received.to_vec() == bytes, "received {len} bytes");
                // A frame that does not fit into one buffer is never copied.
                let copied = len < copybreak && len <= 256;
                assert_eq!(received.frags() + 1, if copied { 1 } else { len.div_ceil(256) }, "{len} bytes");
                rig.send([received]);
                assert!(rig.out() == bytes, "sent {len} bytes");
            }
        }
        rig.end();
    }
}

#[test]
fn short_frames_pass_and_frames_beyond_the_mtu_do_not() {
    require!("short_frames_pass_and_frames_beyond_the_mtu_do_not");
    let mut rig = Setup::new(protections()[2]).start();
    for len in [17, 18, 59, 60, 61, 1513, 1514] {
        let packet = rig.packet(&sized(len, len));
        rig.send([packet]);
        assert_eq!(rig.out(), sized(len, len));
    }
    for len in [14, 15, 16] {
        let packet = rig.packet(&sized(len, len));
        rig.send([packet]);
        let padded = rig.out();
        assert!(padded.len() >= 17 && padded[..len] == sized(len, len) && padded[len..].iter().all(|&b| b == 0));
    }
    let packet = rig.packet(&sized(1, 1600));
    rig.send([packet]);
    rig.refill();
    rig.cable.send(&sized(2, 1600)).unwrap();
    assert_eq!(rig.exchange(&[sized(3, 60)])[0].to_vec(), sized(3, 60), "only the frame behind arrives");
    let packet = rig.packet(&sized(4, 60));
    rig.send([packet]);
    assert_eq!(rig.out(), sized(4, 60));
    assert_eq!(rig.tx[0].counters().snapshot().all_drops(), 1);
    rig.end();
}

#[test]
fn the_filter_decides_which_frames_to_others_are_received() {
    require!("the_filter_decides_which_frames_to_others_are_received");
    let to = |address: [u8; 6]| {
        let mut bytes = sized(1, 60);
        bytes[..6].copy_from_slice(&address);
        bytes
    };
    let all = [
        to([0x52, 0x54, 0, 0xaa, 0xbb, 0xcc]),
        to([0xff; 6]),
        to([1, 0, 0x5e, 0, 0, 0xfb]),
        to([1, 0, 0x5e, 0, 0, 0x16]),
        to([2, 0, 0, 0, 0, 9]),
    ];
    for (receive, wanted) in [(Receive::All, 5), (Receive::Multicast, 4), (Receive::Own, 3)] {
        let mut setup = Setup::new(protections()[0]);
        setup.config.filter.receive = receive;
        setup.config.filter.groups = vec![[1, 0, 0x5e, 0, 0, 0xfb]];
        let mut rig = setup.start();
        rig.refill();
        all.iter().for_each(|frame| rig.cable.send(frame).unwrap());
        let received = rig.receive(wanted);
        received.iter().zip(&all).for_each(|(packet, frame)| assert_eq!(packet.to_vec(), *frame));
        drop(received);
        rig.delivered();
        assert_eq!(rig.rx[0].rx(&mut Batch::new()), 0);
        rig.end();
    }
}

#[test]
fn a_port_with_interrupts_is_polled_where_none_can_be_waited_for() {
    require!("a_port_with_interrupts_is_polled_where_none_can_be_waited_for");
    let mut setup = Setup::new(protections()[3]);
    setup.config.interrupts = InterruptMode::Auto;
    setup.config.rx_ring = ring(80);
    let mut rig = setup.start();
    assert_eq!(rig.rx[0].wake(), Wake::Poll);
    for n in 0..200 {
        assert_eq!(rig.exchange(&[frame(n)])[0].to_vec(), frame(n));
        assert_eq!(rig.rx[0].wake(), Wake::Poll);
    }
    rig.end();
}

/// The ports of two machines: each receives what the other sends.
#[test]
fn two_ports_on_one_cable_exchange_frames() {
    require!("two_ports_on_one_cable_exchange_frames");
    let mut a = Setup::new(protections()[1]).start();
    let mut b = Setup::new(protections()[2]).start();
    for n in 0..200 {
        let packet = a.packet(&frame(n));
        a.send([packet]);
        b.refill();
        b.cable.send(&out(&a.cable)).unwrap();
        let arrived = b.receive(1);
        assert_eq!(arrived[0].to_vec(), frame(n));
        b.send(arrived);
        assert_eq!(a.exchange(&[out(&b.cable)])[0].to_vec(), frame(n));
    }
    a.end();
    b.end();
}
