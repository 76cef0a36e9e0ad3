//! Packets of many pieces.

use crate::require;
use crate::rig::{Rig, Setup, protections, sized};
use towpath_packet::Packet;

/// A packet whose pieces have these lengths.
fn in_pieces(rig: &mut Rig, bytes: &[u8], lengths: &[usize]) -> Packet {
    let (mut whole, mut at) = (None::<Packet>, 0);
    for &len in lengths {
        let piece = rig.packet(&bytes[at..at + len]);
        at += len;
        match &mut whole {
            None => whole = Some(piece),
            Some(whole) => whole.append(piece).unwrap(),
        }
    }
    assert_eq!(at, bytes.len());
    whole.unwrap()
}

#[test]
fn one_to_sixty_four_pieces_leave_as_one_frame() {
    require!("one_to_sixty_four_pieces_leave_as_one_frame");
    for protection in protections() {
        let mut rig = Setup::new(protection).start();
        for pieces in 1..=64 {
            // The first piece ends inside a header, at its end, and behind it; odd lengths.
            for first in [1, 6, 14, 34, 61] {
                let mut lengths = vec![first];
                lengths.extend((1..pieces).map(|i| 1 + (i * 7 + first) % 23));
                if lengths.iter().sum::<usize>() < 17 {
                    continue;
                }
                let bytes = sized(pieces * first, lengths.iter().sum());
                let packet = in_pieces(&mut rig, &bytes, &lengths);
                assert_eq!(packet.frags() + 1, pieces);
                rig.send([packet]);
                assert_eq!(rig.out(), bytes, "{pieces} pieces, the first of {first}");
            }
        }
        let faults = rig.control.faults();
        assert_eq!((faults.bounced, faults.linearised), (0, 0), "{faults:?}");
        rig.end();
    }
}

#[test]
fn an_empty_linear_part_and_empty_pieces_are_no_pieces() {
    require!("an_empty_linear_part_and_empty_pieces_are_no_pieces");
    for protection in protections() {
        let mut rig = Setup::new(protection).start();
        let bytes = sized(5, 700);
        let mut packet = rig.cache.alloc().unwrap();
        for part in [&bytes[..100], &[], &bytes[100..101], &[], &bytes[101..]] {
            let piece = rig.packet(part);
            packet.append(piece).unwrap();
        }
        assert_eq!(packet.linear().len(), 0);
        rig.send([packet]);
        assert_eq!(rig.out(), bytes);
        rig.end();
    }
}

/// QEMU drops a frame of more than 64 descriptors, and reports that it was sent.
#[test]
fn more_pieces_than_the_device_takes_are_gathered_and_counted() {
    require!("more_pieces_than_the_device_takes_are_gathered_and_counted");
    for protection in protections() {
        let mut rig = Setup::new(protection).start();
        for (n, pieces) in [65, 66, 100, 200].into_iter().enumerate() {
            let bytes = sized(pieces, pieces * 7);
            let packet = in_pieces(&mut rig, &bytes, &vec![7; pieces]);
            rig.send([packet]);
            assert_eq!(rig.out(), bytes);
            // A frame below the threshold is one piece already.
            let gathered = if bytes.len() < protection.copybreak as usize { 0 } else { n as u64 + 1 };
            assert_eq!(rig.control.faults().linearised, gathered);
        }
        rig.end();
    }
}

#[test]
fn bursts_of_mixed_packets_keep_their_order() {
    require!("bursts_of_mixed_packets_keep_their_order");
    for protection in protections() {
        let mut rig = Setup::new(protection).start();
        for burst in 0..40 {
            let all: Vec<Vec<u8>> = (0..48).map(|n| sized(burst * 48 + n, 64 + (n * 37 + burst) % 1400)).collect();
            let mut packets = Vec::new();
            for (n, bytes) in all.iter().enumerate() {
                let pieces = 1 + n % 5;
                let mut lengths = vec![bytes.len() / pieces; pieces];
                lengths[0] += bytes.len() % pieces;
                packets.push(in_pieces(&mut rig, bytes, &lengths));
            }
            rig.send(packets);
            all.iter().for_each(|bytes| assert!(rig.out() == *bytes));
        }
        rig.end();
    }
}
