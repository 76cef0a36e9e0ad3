//! Checksums against an oracle that adds one byte at a time.

use proptest::prelude::*;
use towpath_wire::checksum::{self, Accumulator, Isa, VALID};

/// [RFC 1071](https://www.rfc-editor.org/rfc/rfc1071), slow and obvious.
fn oracle(data: &[u8]) -> u16 {
    let mut sum = 0u64;
    for (i, byte) in data.iter().enumerate() {
        sum += if i % 2 == 0 { u64::from(*byte) << 8 } else { u64::from(*byte) };
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Bytes without a pattern that a wrong order or a lost carry could hide in.
fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    (0..len).map(next).collect()
}

/// Bytes on both sides of a copy's target, which it must not change.
const GUARD: u8 = 0xa5;

fn assert_copies(isa: Isa, src: &[u8], at: usize) {
    let mut dst = vec![GUARD; at + src.len() + 64];
    let target = &mut dst[at..at + src.len()];
    assert_eq!(checksum::copy_with(isa, target, src), oracle(src), "{} {}", isa.name(), src.len());
    assert_eq!(target, src, "{} {}", isa.name(), src.len());
    assert!(dst[..at].iter().chain(&dst[at + src.len()..]).all(|b| *b == GUARD), "{}", isa.name());
}

#[test]
fn every_instruction_set_agrees_with_the_oracle_at_every_length_and_alignment() {
    let data = noise(64 + 300);
    let ones = vec![0xff; 64 + 300];
    for isa in Isa::available() {
        for at in 0..64 {
            for len in 0..=300 {
                let piece = &data[at..at + len];
                assert_eq!(checksum::sum_with(isa, piece), oracle(piece), "{} {at} {len}", isa.name());
                let piece = &ones[at..at + len];
                assert_eq!(checksum::sum_with(isa, piece), oracle(piece), "{} {at} {len}", isa.name());
            }
        }
    }
}

#[test]
fn every_instruction_set_copies_exactly_its_target_at_every_length_and_alignment() {
    let data = noise(64 + 300);
    for isa in Isa::available() {
        for at in 0..64 {
            for len in 0..=300 {
                assert_copies(isa, &data[at..at + len], (at * 7 + len) % 64);
            }
        }
    }
}

/// More than lanes of 32 bits hold, of either sign.
#[test]
fn sums_that_fill_every_lane_do_not_lose_carries() {
    for byte in [0, 0xff] {
        let same = vec![byte; (2 << 20) + 3];
        let mut copy = vec![1; same.len()];
        for len in [1 << 19, (1 << 19) + 1, (1 << 20) - 1, same.len()] {
            let (same, copy, expected) = (&same[..len], &mut copy[..len], oracle(&same[..len]));
            for isa in Isa::available() {
                copy.fill(1);
                assert_eq!(checksum::sum_with(isa, same), expected, "{} {byte} {len}", isa.name());
                assert_eq!(checksum::copy_with(isa, copy, same), expected, "{} {byte} {len}", isa.name());
                assert!(copy == same, "{} {byte} {len}", isa.name());
            }
        }
    }
}

#[test]
fn only_zeros_sum_to_zero() {
    for isa in Isa::available() {
        assert_eq!(checksum::sum_with(isa, &[0; 1500]), 0);
        for at in 0..200 {
            let mut data = [0; 200];
            data[at] = 1;
            assert_ne!(checksum::sum_with(isa, &data), 0, "{} {at}", isa.name());
        }
    }
}

#[test]
fn the_default_is_the_best_available() {
    assert_eq!(Some(Isa::best()), Isa::available().last());
    assert_eq!(Isa::best(), Isa::best());
}

#[test]
fn a_copy_between_unequal_slices_covers_the_shorter() {
    let src = noise(200);
    for isa in Isa::available() {
        let mut short = [0; 77];
        assert_eq!(checksum::copy_with(isa, &mut short, &src), oracle(&src[..77]));
        assert_eq!(short, src[..77]);
        let mut long = [GUARD; 300];
        assert_eq!(checksum::copy_with(isa, &mut long, &src), oracle(&src));
        assert_eq!(long[200..], [GUARD; 100]);
    }
}

proptest! {
    #[test]
    fn a_sum_of_any_bytes_is_the_oracles(data in prop::collection::vec(any::<u8>(), 0..20_000), at in 0usize..64) {
        let data = &data[at.min(data.len())..];
        let expected = oracle(data);
        prop_assert_eq!(checksum::sum(data), expected);
        let mut dst = vec![0; data.len()];
        prop_assert_eq!(checksum::copy(&mut dst, data), expected);
        prop_assert_eq!(&dst, data);
        for isa in Isa::available() {
            prop_assert_eq!(checksum::sum_with(isa, data), expected, "{}", isa.name());
            assert_copies(isa, data, at);
        }
    }

    #[test]
    fn pieces_of_any_parity_sum_like_the_whole(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..99), 0..9)) {
        let whole = pieces.concat();
        let mut check = Accumulator::new();
        let (mut by_hand, mut offset) = (0, 0);
        for piece in &pieces {
            match piece[..] {
                [a, b] => check.add_u16(u16::from_be_bytes([a, b])),
                [a, b, c, d] => check.add_u32(u32::from_be_bytes([a, b, c, d])),
                _ => check.add_bytes(piece),
            }
            let sum = checksum::sum(piece);
            by_hand = checksum::add(by_hand, if offset % 2 == 0 { sum } else { checksum::swap_for_odd(sum) });
            offset += piece.len();
        }
        prop_assert_eq!(check.sum(), oracle(&whole));
        prop_assert_eq!(by_hand, oracle(&whole));
        prop_assert_eq!(check.finish(), !oracle(&whole));
    }

    #[test]
    fn a_field_updated_step_by_step_stays_valid(
        mut data in prop::collection::vec(any::<u8>(), 64..256),
        edits in prop::collection::vec((1usize..31, any::<[u8; 16]>(), 0u8..3), 1..20),
    ) {
        data.truncate(data.len() & !1);
        data[..2].fill(0);
        let check = checksum::finish(checksum::sum(&data));
        data[..2].copy_from_slice(&check.to_be_bytes());
        for (at, new, width) in edits {
            let check = u16::from_be_bytes([data[0], data[1]]);
            let len = [2, 4, 16][usize::from(width)];
            let (at, new) = (2 * at.min(24), &new[..len]);
            let old = data[at..at + len].to_vec();
            let number = |b: &[u8]| b.iter().fold(0u32, |n, b| n << 8 | u32::from(*b));
            let check = match len {
                2 => checksum::update16(check, number(&old) as u16, number(new) as u16),
                4 => checksum::update32(check, number(&old), number(new)),
                _ => checksum::update_bytes(check, &old, new),
            };
            data[at..at + len].copy_from_slice(new);
            data[..2].copy_from_slice(&check.to_be_bytes());
            prop_assert_eq!(checksum::sum(&data), VALID);
        }
    }
}
