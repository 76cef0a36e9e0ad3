//! The commonest headers, their layouts known to the compiler.
//!
//! [`crate::mask`] compares headers of any layout. For the few that most packets have (TCP with or
//! without timestamps, UDP; IPv4, IPv6; after Ethernet or at the start) the same comparison is made
//! with constant offsets and a constant mask, which is a third of the instructions.

use crate::layout::{Layout, Outer};
use crate::predict::Expected;

/// A layout that is known to the compiler, or [`Shape::ANY`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Shape(u8);

/// Each shape with the offsets of its IP and transport headers and of its payload. With IPv6 the
/// former two are 40 apart; a UDP header is the only one of 8 bytes.
macro_rules! shapes {
    ($($number:literal: $l3:literal $l4:literal $header:literal;)*) => {
        impl Shape {
            pub(crate) const ANY: Self = Self(0);

            pub(crate) fn of(layout: &Layout) -> Self {
                if layout.outer != Outer::None {
                    return Self::ANY;
                }
                match (layout.l3, layout.l4, layout.header) {
                    $(($l3, $l4, $header) if layout.udp == ($header - $l4 == 8) => Self($number),)*
                    _ => Self::ANY,
                }
            }

            /// Does header `b` follow header `held`, as expected? `None` if that is not known here.
            #[inline(always)]
            pub(crate) fn follows(self, held: &[u8], b: &[u8], expected: &Expected) -> Option<bool> {
                match self.0 {
                    $($number => Some(follows::<$l3, $l4, $header>(held, b, expected)),)*
                    _ => None,
                }
            }
        }
    };
}

shapes! {
    1: 14 34 66;
    2: 14 34 54;
    3: 14 34 42;
    4: 14 54 86;
    5: 14 54 74;
    6: 14 54 62;
    7: 0 20 52;
    8: 0 20 40;
    9: 0 20 28;
    10: 0 40 72;
    11: 0 40 60;
    12: 0 40 48;
}

/// The mask [`crate::mask::Mask::rest`] of this layout.
const fn mask<const N: usize>(l3: usize, l4: usize) -> [u8; N] {
    let mut mask = [0xff; N];
    let v6 = l4 - l3 == 40;
    let udp = N - l4 == 8;
    let mut at = 0;
    while at < N {
        let ip = !v6 && (at == l3 + 4 || at == l3 + 5 || at == l3 + 10 || at == l3 + 11);
        let seq = !udp && at >= l4 + 4 && at < l4 + 8;
        let check = l4 + if udp { 6 } else { 16 };
        if ip || seq || at == check || at == check + 1 {
            mask[at] = 0;
        }
        at += 1;
    }
    mask
}

struct Fixed<const L3: usize, const L4: usize, const N: usize>;

impl<const L3: usize, const L4: usize, const N: usize> Fixed<L3, L4, N> {
    const MASK: [u8; N] = mask::<N>(L3, L4);
}

/// Eight bytes at once. Inlined by force: as a call it costs more than the comparison that it is for.
#[inline(always)]
fn word(h: &[u8], at: usize) -> u64 {
    h.get(at..).and_then(|h| h.first_chunk()).map_or(0, |word| u64::from_ne_bytes(*word))
}

#[inline(always)]
fn follows<const L3: usize, const L4: usize, const N: usize>(a: &[u8], b: &[u8], expected: &Expected) -> bool {
    let (Some(a), Some(b)) = (a.first_chunk::<N>(), b.first_chunk::<N>()) else { return false };
    let mask = &Fixed::<L3, L4, N>::MASK;
    let mut differ = 0;
    let mut at = 0;
    while at < N {
        // The last word overlaps the one before.
        let from = if at + 8 <= N { at } else { N - 8 };
        differ |= (word(a, from) ^ word(b, from)) & word(mask, from);
        at += 8;
    }
    let v6 = L4 - L3 == 40;
    let udp = N - L4 == 8;
    let half = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
    let seq = || u32::from_be_bytes([b[L4 + 4], b[L4 + 5], b[L4 + 6], b[L4 + 7]]);
    differ == 0
        && (v6 || expected.is_ipv4(half(L3 + 4), half(L3 + 10)))
        && (if udp { half(L4 + 6) != 0 } else { expected.is_seq(seq()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Link, plain};

    #[test]
    fn a_shape_masks_what_the_mask_of_its_layout_does() {
        fn check<const N: usize>(l3: u16, l4: u16) {
            let header = N as u16;
            let layout = Layout { l3, l4, header, v6: l4 - l3 == 40, udp: header - l4 == 8, ..Layout::default() };
            assert!(Shape::of(&layout) != Shape::ANY);
            let mut masks = crate::mask::Masks::new();
            assert_eq!(masks.get(layout.pack()).rest.bytes(N), mask::<N>(l3.into(), l4.into()));
        }
        check::<66>(14, 34);
        check::<54>(14, 34);
        check::<42>(14, 34);
        check::<86>(14, 54);
        check::<74>(14, 54);
        check::<62>(14, 54);
        check::<52>(0, 20);
        check::<40>(0, 20);
        check::<28>(0, 20);
        check::<72>(0, 40);
        check::<60>(0, 40);
        check::<48>(0, 40);
    }

    #[test]
    fn headers_of_other_layouts_have_no_shape() {
        let mut b = [0; 80];
        (b[0], b[9], b[32]) = (0x45, 6, 0x60);
        let layout = plain(&b, Link::Ip).unwrap_or_default();
        assert_eq!((layout.header, Shape::of(&layout) == Shape::ANY), (44, true));
    }
}
