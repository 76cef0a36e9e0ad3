//! Frames go through, whole and in order.

use crate::require;
use crate::rig::{Setup, frame, out, ring, sized, ways};
use towpath_nic::e1000e::{Config, Filter};
use towpath_packet::Batch;
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};

#[test]
fn a_port_comes_up_says_what_it_is_and_can_be_opened_again() {
    require!("a_port_comes_up_says_what_it_is_and_can_be_opened_again");
    for way in ways() {
        let mut rig = Setup::new(way).start();
        let link = rig.control.link();
        assert!(link.up && link.full_duplex && link.speed == 1000, "{link:?}");
        assert_eq!((rig.rx[0].state(), rig.tx[0].state()), (State::Up, State::Up));
        assert_eq!(rig.exchange(&[frame(1)])[0].to_vec(), frame(1));
        rig.end();
    }
}

/// Both directions at once, in bursts of 32; every ring turns more than 700 times.
#[test]
fn a_hundred_thousand_frames_pass_each_way_byte_for_byte() {
    require!("a_hundred_thousand_frames_pass_each_way_byte_for_byte");
    const FRAMES: usize = 100_000;
    const BURST: usize = 32;
    let each = std::thread::scope(|scope| {
        let threads: Vec<_> = ways().into_iter().map(|way| (way, scope.spawn(move || run(way)))).collect();
        threads.into_iter().map(|(way, thread)| (way, thread.join())).collect::<Vec<_>>()
    });
    for (way, done) in each {
        assert!(done.is_ok(), "{way:?}");
    }

    fn run(way: crate::rig::Way) {
        let mut rig = Setup::new(way).start();
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

/// Memory of the datapath that the device can't reach: a pool of the port's own, and a copy each way.
#[test]
fn packets_out_of_reach_are_copied_and_counted() {
    require!("packets_out_of_reach_are_copied_and_counted");
    for way in ways() {
        let mut rig = Setup { shared: false, ..Setup::new(way) }.start();
        assert!(rig.rx[0].memory().pool.is_some());
        for burst in (0..960).step_by(32) {
            let frames: Vec<_> = (burst..burst + 32).map(frame).collect();
            let packets: Vec<_> = frames.iter().map(|frame| rig.packet(frame)).collect();
            rig.send(packets);
            frames.iter().for_each(|frame| assert!(rig.out() == *frame));
            let received = rig.exchange(&frames);
            received.iter().zip(&frames).for_each(|(packet, frame)| assert!(packet.to_vec() == *frame));
        }
        assert_eq!(rig.control.faults().bounced, 960);
        rig.end();
    }
}

/// A frame of one byte more than fits into n buffers has n+1 of them.
#[test]
fn long_frames_span_descriptors_in_both_directions() {
    require!("long_frames_span_descriptors_in_both_directions");
    for way in ways() {
        let setup = Setup::new(way);
        let mut rig = Setup { config: Config { mtu: 9216, ..setup.config }, ..setup }.start();
        for (n, len) in [1514, 1515, 2048, 2049, 3072, 3073, 5042, 9000, 9014, 9230].into_iter().enumerate() {
            let bytes = sized(n, len);
            let received = rig.exchange(std::slice::from_ref(&bytes)).remove(0);
            assert_eq!(received.len(), len);
            assert!(received.to_vec() == bytes, "received {len} bytes");
            assert_eq!(received.frags() + 1, if len < way.copybreak as usize { 1 } else { len.div_ceil(1024) });
            // What came in pieces goes out in pieces.
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
    for way in ways() {
        let setup = Setup { chunk: 128 + 256, ..Setup::new(way) };
        let copybreak = setup.config.copybreak.map_or(0, |bytes| bytes.get() as usize);
        let mut rig = Setup { config: Config { mtu: 9216, ..setup.config }, ..setup }.start();
        for (n, pieces) in (1..=36).enumerate() {
            for len in [pieces * 256, pieces * 256 + 1] {
                let bytes = sized(n, len);
                let received = rig.exchange(std::slice::from_ref(&bytes)).remove(0);
                assert!(received.to_vec() == bytes, "received {len} bytes");
                // What does not fit into one buffer is never copied.
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
    let mut rig = Setup::new(ways()[2]).start();
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
    assert_eq!(rig.exchange(&[sized(3, 60)])[0].to_vec(), sized(3, 60), "only the one behind arrives");
    let packet = rig.packet(&sized(4, 60));
    rig.send([packet]);
    assert_eq!(rig.out(), sized(4, 60));
    assert_eq!(rig.tx[0].counters().snapshot().all_drops(), 1);
    rig.end();
}

#[test]
fn what_is_for_others_is_received_as_the_filter_says() {
    require!("what_is_for_others_is_received_as_the_filter_says");
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
    let group = Filter::Groups(vec![[1, 0, 0x5e, 0, 0, 0xfb]]);
    for (filter, wanted) in [(Filter::Promiscuous, 5), (Filter::AllMulticast, 4), (group, 3)] {
        let setup = Setup::new(ways()[0]);
        let mut rig = Setup { config: Config { filter, ..setup.config }, ..setup }.start();
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
fn a_port_that_asked_for_interrupts_is_polled_where_none_can_be_waited_for() {
    require!("a_port_that_asked_for_interrupts_is_polled_where_none_can_be_waited_for");
    let setup = Setup::new(ways()[3]);
    let mut rig = Setup { config: Config { interrupts: true, rx_ring: ring(80), ..setup.config }, ..setup }.start();
    assert_eq!(rig.rx[0].wake(), Wake::Poll);
    for n in 0..200 {
        assert_eq!(rig.exchange(&[frame(n)])[0].to_vec(), frame(n));
        assert_eq!(rig.rx[0].wake(), Wake::Poll);
    }
    rig.end();
}

/// Two machines' ports, joined: what one sends the other receives, and back.
#[test]
fn two_ports_on_one_cable_hear_each_other() {
    require!("two_ports_on_one_cable_hear_each_other");
    let mut a = Setup::new(ways()[1]).start();
    let mut b = Setup::new(ways()[2]).start();
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
