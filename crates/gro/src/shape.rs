//! The most common headers, with layouts known at compile time.
//!
//! [`crate::mask`] compares headers of any layout with the one that is held. For the few that most
//! packets have (TCP with or without timestamps, UDP; IPv4, IPv6; after Ethernet or at the start)
//! the predicted header ([`crate::predict`]) is compared at constant offsets, without a mask, by
//! vectors.

use towpath_wire::checksum::add;

use crate::bytes::array;
use crate::layout::Layout;
use crate::predict::{Expected, Fields};

/// A layout known at compile time, or [`Shape::ANY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(u8);

/// Each shape with the offsets of its IP and transport headers and of its payload. With IPv6 the
/// former two are 40 apart; a UDP header is the only one of 8 bytes.
macro_rules! shapes {
    ($($number:literal: $l3:literal $l4:literal $header:literal;)*) => {
        impl Shape {
            /// The layout; empty for [`Shape::ANY`].
            #[inline(always)]
            pub(crate) const fn layout(self) -> Layout {
                match self.0 {
                    $($number => layout($l3, $l4, $header),)*
                    _ => Layout::NONE,
                }
            }

            /// Runs `task` with the layout, or with the one that is `packed` for [`Shape::ANY`].
            #[inline(always)]
            pub(crate) fn with_layout<T: WithLayout>(self, packed: u64, task: T) -> T::Output {
                match self.0 {
                    $($number => task.with(&const { layout($l3, $l4, $header) }),)*
                    _ => task.with(&Layout::unpack(packed)),
                }
            }

            /// The sum of those fields of transport header `b` that differ from packet to packet.
            #[inline(always)]
            pub(crate) fn changing_sum(self, b: &[u8]) -> u16 {
                match self.0 {
                    $($number => changing_sum::<$l4, $header>(b),)*
                    _ => 0,
                }
            }

            /// Whether `b`, in which IP begins at `L3`, is the beginning of the predicted packet.
            /// If so, the next one is predicted: `size` bytes later, its identification counted up
            /// if `counts`. False for [`Shape::ANY`].
            #[inline(always)]
            pub(crate) fn follows<const L3: usize>(
                self,
                expected: &mut Expected,
                b: &[u8],
                size: u16,
                counts: bool,
            ) -> bool {
                match self.0 {
                    $($number if $l3 == L3 => follows::<$l3, $l4, $header>(expected, b, size, counts),)*
                    _ => false,
                }
            }
        }
    };
}

shapes! {
    0: 14 34 66;
    1: 14 34 54;
    2: 14 34 42;
    3: 14 54 86;
    4: 14 54 74;
    5: 14 54 62;
    6: 0 20 52;
    7: 0 20 40;
    8: 0 20 28;
    9: 0 40 72;
    10: 0 40 60;
    11: 0 40 48;
}

/// A task that is compiled for each shape, with constants: a closure would not be inlined as often.
/// [`with`](Self::with) is `inline(always)`.
pub(crate) trait WithLayout {
    type Output;
    fn with(self, layout: &Layout) -> Self::Output;
}

const fn layout(l3: u16, l4: u16, header: u16) -> Layout {
    Layout { l3, l4, header, v6: l4 - l3 == 40, udp: header - l4 == 8, ..Layout::NONE }
}

impl Shape {
    pub(crate) const ANY: Self = Self(12);
    /// TCP with timestamps over IPv4 over Ethernet.
    pub(crate) const USUAL: Self = Self(0);

    /// Whether this is TCP with timestamps over IPv4: the shape of most packets that merge.
    #[inline(always)]
    pub(crate) fn is_usual(self) -> bool {
        self.0 == 0 || self.0 == 6
    }

    /// The shape of a transport header of `len` bytes behind an IP header without options at `L3`.
    #[inline(always)]
    pub(crate) fn new<const L3: usize>(v6: bool, udp: bool, len: usize) -> Self {
        let transport = match (udp, len) {
            (true, _) => 2,
            (false, 20) => 1,
            (false, 32) => 0,
            _ => return Self::ANY,
        };
        Self(transport + if v6 { 3 } else { 0 } + if L3 == 0 { 6 } else { 0 })
    }
}

/// Whether the first `len` bytes are equal, at least 16. Compares 16 bytes at a time, which compile
/// to a vector comparison each, and to one branch for all; the last 16 may overlap those before.
#[inline(always)]
fn same<const N: usize>(a: &[u8; N], b: &[u8; N], len: usize) -> bool {
    let differing = |at: usize| match (array(a, at), array(b, at)) {
        (Some(a), Some(b)) => u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b),
        _ => 1,
    };
    let (mut all, mut at) = (differing(len - 16), 0);
    while at + 16 < len {
        all |= differing(at);
        at += 16;
    }
    all == 0
}

/// [`Shape::follows`] for a [usual](Shape::is_usual) shape behind `L3`, counting: one jump less.
#[inline(always)]
pub(crate) fn follows_usual<const L3: usize>(expected: &mut Expected, b: &[u8], size: u16) -> bool {
    if L3 == 0 { follows::<0, 20, 52>(expected, b, size, true) } else { follows::<14, 34, 66>(expected, b, size, true) }
}

/// [`Shape::changing_sum`] for a [usual](Shape::is_usual) shape behind `L3`.
#[inline(always)]
pub(crate) fn changing_sum_usual<const L3: usize>(b: &[u8]) -> u16 {
    if L3 == 0 { changing_sum::<20, 52>(b) } else { changing_sum::<34, 66>(b) }
}

/// If `b` is the predicted packet, predicts the next one.
#[inline(always)]
fn follows<const L3: usize, const L4: usize, const N: usize>(
    expected: &mut Expected,
    b: &[u8],
    size: u16,
    counts: bool,
) -> bool {
    let Some(b) = b.first_chunk::<N>() else { return false };
    let a: &[u8; N] = expected.header();
    let udp = N - L4 == 8;
    // Before the comparison, or the compiler puts them together from pieces of vectors.
    let seen = Fields::of(b, L3, L4, L4 - L3 == 40, udp);
    // All but the checksum.
    let checksum = if udp { N - 2 } else { L4 + 16 };
    if !same(a, b, checksum) || a[checksum + 2..] != b[checksum + 2..] || (udp && b[N - 2] | b[N - 1] == 0) {
        return false;
    }
    expected.set(L3, L4, seen.next(size, counts));
    true
}

#[inline(always)]
fn changing_sum<const L4: usize, const N: usize>(b: &[u8]) -> u16 {
    let Some(b) = b.first_chunk::<N>() else { return 0 };
    let word = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
    if N - L4 == 8 { word(L4 + 6) } else { add(add(word(L4 + 4), word(L4 + 6)), word(L4 + 16)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::Masks;

    const ALL: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

    fn follows(shape: Shape, held: &[u8], b: &[u8]) -> bool {
        let mut expected = Expected::NONE;
        expected.copy_header(held);
        let as_ethernet = shape.follows::<14>(&mut expected.clone(), b, 1, true);
        let as_ip = shape.follows::<0>(&mut expected, b, 1, true);
        assert!(!as_ethernet || !as_ip);
        as_ethernet || as_ip
    }

    #[test]
    fn a_shape_is_found_by_its_layout() {
        for number in ALL {
            let at = Shape(number).layout();
            let len = (at.header - at.l4).into();
            let shape =
                if at.l3 == 0 { Shape::new::<0>(at.v6, at.udp, len) } else { Shape::new::<14>(at.v6, at.udp, len) };
            assert_eq!(shape, Shape(number));
        }
        assert_eq!(Shape::new::<0>(false, false, 24), Shape::ANY);
        assert_eq!(Shape::ANY.layout(), Layout::default());
    }

    #[test]
    fn a_shape_compares_the_bits_of_its_mask_and_the_predicted_fields() {
        let mut masks = Masks::new();
        for number in ALL {
            let (shape, at) = (Shape(number), Shape(number).layout());
            let held: Vec<u8> = (1..=at.header as u8).collect();
            assert!(follows(shape, &held, &held));
            assert!(!follows(shape, &held, &held[..held.len() - 1]), "too short");
            let unpredicted = masks.get(at.pack()).unpredicted.bytes(at.header.into());
            let checksum = usize::from(at.l4) + usize::from(at.checksum_offset());
            for bit in 0..held.len() * 8 {
                let mut b = held.clone();
                b[bit / 8] ^= 1 << (bit % 8);
                let is_checksum = (checksum..checksum + 2).contains(&(bit / 8));
                assert!(!is_checksum || unpredicted[bit / 8] == 0);
                assert_eq!(follows(shape, &held, &b), is_checksum, "shape {number}, byte {}", bit / 8);
            }
        }
    }

    #[test]
    fn a_udp_checksum_of_zero_does_not_follow() {
        let held = [1; 42];
        let mut b = held;
        b[40..].fill(0);
        assert!(!follows(Shape(2), &held, &b));
    }
}
