//! A recycled descriptor carries nothing over (T4), and the driver bounds what the device writes.

use super::rig::{Rig, Variant, config, model_config, stamp};
use towpath_model::cpsw::Injected;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Batch, Checksum};

/// UDP in IPv4 with `len` bytes of payload. The checksum field holds the pseudo-header's sum or, if
/// `complete`, the checksum.
fn udp(len: usize, complete: bool) -> Vec<u8> {
    let total = (28 + len) as u16;
    let mut f = vec![2; 12];
    f.extend([8, 0, 0x45, 0]);
    f.extend(total.to_be_bytes());
    f.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2]);
    f.extend((8 + len as u16).to_be_bytes());
    f.extend([0, 0]);
    f.extend((0..len).map(|i| i as u8));
    let fold = |sum: u32| ((sum & 0xffff) + (sum >> 16)) as u16;
    let words = |bytes: &[u8]| -> u32 {
        bytes.chunks(2).map(|p| u32::from(p[0]) << 8 | u32::from(*p.get(1).unwrap_or(&0))).sum()
    };
    let pseudo = words(&f[26..34]) + 17 + 8 + len as u32;
    let value = if complete { !fold(u32::from(fold(pseudo + words(&f[34..])))) } else { fold(pseudo) };
    f[40..42].copy_from_slice(&value.to_be_bytes());
    f
}

#[test]
fn t4_checksums_chunks_and_ports_of_one_packet_do_not_affect_the_next() {
    for variant in Variant::ALL {
        for poison in [false, true] {
            let config = config(variant, 2).tx_descriptors(4).tx_ring(5);
            let model = model_config(variant, 2).poison(poison);
            let mut rig = Rig::with(config.tx_channels(1), model);
            let mut expected = [Vec::new(), Vec::new()];
            for number in 0..80_u32 {
                let port = (number as usize / 3) % 2;
                let (bytes, wire) = match number % 4 {
                    0 | 3 => (udp(200, false), udp(200, true)),
                    _ => (stamp(port as u8, number, 250), stamp(port as u8, number, 250)),
                };
                let mut packet = rig.fragmented(&bytes, 1 + number as usize % 3);
                if bytes != wire {
                    packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
                }
                expected[port].push(wire);
                rig.send(port, packet);
                rig.kick();
                rig.run(7);
            }
            rig.settle();
            rig.assert_clean();
            for (plug, expected) in rig.plugs.iter_mut().zip(&expected) {
                let sent = plug.drain();
                let at = sent.iter().zip(expected).position(|(sent, wanted)| sent != wanted);
                assert_eq!((at, sent.len()), (None, expected.len()), "{variant:?}");
            }
        }
    }
}

#[test]
fn short_frames_are_padded_and_a_checksum_of_zero_is_sent_as_all_ones() {
    let mut rig = Rig::new(Variant::Pktdma, 1);
    let mut bytes = udp(2, false);
    // This payload makes the checksum zero.
    let sum = !u16::from_be_bytes(udp(2, true)[40..42].try_into().unwrap());
    let payload = u16::from_be_bytes(bytes[42..44].try_into().unwrap());
    let needed = payload.wrapping_add(0xffff - sum);
    bytes[42..44].copy_from_slice(&needed.to_be_bytes());
    let mut packet = rig.packet(&bytes);
    packet.set_csum(Checksum::Partial { start: 34, offset: 6 });
    rig.send(0, packet);
    rig.settle();
    let frame = rig.plugs[0].pop().unwrap();
    assert_eq!(frame.len(), 60);
    assert_eq!(frame[40..42], [0xff, 0xff]);
}

#[test]
fn checked_frames_are_verified_and_damaged_ones_are_not() {
    for variant in Variant::ALL {
        let mut rig = Rig::new(variant, 1);
        let good = udp(64, true);
        let mut bad = good.clone();
        bad[50] ^= 1;
        let mut fragment = good.clone();
        fragment[20] = 0x20;
        for frame in [&good, &bad, &fragment, &stamp(0, 0, 64)] {
            assert!(rig.model.inject(1, frame, Injected::default()));
        }
        rig.model.settle();
        let mut batch = Batch::new();
        rig.ports[0].rx[0].rx(&mut batch);
        let checked: Vec<_> = batch.iter().map(|packet| packet.csum()).collect();
        assert_eq!(
            checked,
            [Checksum::Verified, Checksum::Unknown, Checksum::Unknown, Checksum::Unknown],
            "{variant:?}"
        );
    }
}

#[test]
fn frames_that_the_switch_marks_as_damaged_are_counted_and_not_delivered() {
    let mut rig = Rig::new(Variant::Pktdma, 1);
    for error in [0, 1, 6, 0] {
        assert!(rig.model.inject(1, &stamp(0, 0, 100), Injected { error, ..Injected::default() }));
    }
    rig.model.settle();
    assert_eq!(rig.receive(0).len(), 2);
    assert_eq!(rig.ports[0].rx[0].counts()[0].broken, 2);
}

#[test]
fn frames_longer_than_a_buffer_never_reach_it() {
    let mut rig = Rig::new(Variant::Udma, 1);
    assert!(!rig.model.inject(1, &vec![0; 2000], Injected::default()));
    assert!(rig.model.inject(1, &vec![0; 1900], Injected::default()));
    rig.model.settle();
    assert_eq!(rig.receive(0).len(), 1);
}

#[test]
fn a_packet_that_is_completed_twice_at_once_is_freed_once_and_counted_as_a_stray() {
    for variant in [Variant::Udma, Variant::UdmaMessages] {
        let mut rig = Rig::new(variant, 1);
        let mut expected = Vec::new();
        for round in 0..6_u32 {
            rig.model.repeat_completions(round % 3);
            for number in round * 4..(round + 1) * 4 {
                let packet = rig.fragmented(&stamp(0, number, 90), 1 + number as usize % 2);
                rig.send(0, packet);
                expected.push(stamp(0, number, 90));
            }
            rig.settle();
            let (free, all) = rig.ports[0].tx[0].descriptors();
            assert_eq!((free, all), (16, 16), "{variant:?}, round {round}");
            assert_eq!(rig.ports[0].tx[0].pending(), 0);
        }
        let counts = rig.ports[0].tx[0].counts();
        assert_eq!((counts.strays, counts.completed), (2 * (1 + 2), 24), "{variant:?}");
        assert_eq!(rig.plugs[0].drain(), expected);
        rig.assert_no_leak();
    }
}

#[test]
fn an_engine_that_repeats_every_completion_fills_the_ring_to_its_end_and_still_stops_in_order() {
    for variant in [Variant::Udma, Variant::UdmaMessages] {
        let mut rig = Rig::new(variant, 1);
        rig.model.repeat_completions(u32::MAX);
        let mut batch = Batch::new();
        for number in 0..16 {
            let packet = rig.packet(&stamp(0, number, 90));
            batch.push(packet).unwrap();
        }
        // All slots of the ring: their completions alone fill the other ring but for one slot.
        assert_eq!(rig.ports[0].tx[0].tx(&mut batch), 16);
        rig.ports[0].tx[0].kick();
        rig.model.settle();
        assert!(rig.model.in_flight() > 0, "the engine waits for the driver");
        rig.finish();
        let stops = rig.control.stops();
        let undelivered: usize = stops.iter().filter(|stop| stop.channel == Some(0)).map(|stop| stop.undelivered).sum();
        assert_eq!(rig.plugs[0].drain().len() + undelivered, 16, "{variant:?}");
        rig.assert_no_leak();
    }
}
