//! Which header bits packets of an aggregate must have in common.
//!
//! Two packets belong together if their headers are equal under the mask of their layout: one
//! comparison of 16 bytes at a time, of everything there is, whatever it is. What the mask leaves
//! out (lengths, identifications, sequence numbers, checksums, FIN and PSH) is looked at by
//! [`crate::rules`].
//!
//! Masks depend on the layout alone. A cache keeps those in use; a layout that another displaced is
//! made again.

use crate::layout::{Layout, Outer};

/// Longer headers, all layers together, are not coalesced.
pub(crate) const MAX_TEMPLATE: usize = 256;
const CACHED: usize = 32;

#[derive(Clone)]
pub(crate) struct Mask {
    packed: u64,
    pub(crate) layout: Layout,
    bits: [u8; MAX_TEMPLATE],
}

pub(crate) struct Masks(Box<[Mask; CACHED]>);

impl Masks {
    pub(crate) fn new() -> Self {
        let none = Mask { packed: u64::MAX, layout: Layout::default(), bits: [0; MAX_TEMPLATE] };
        Self(Box::new(core::array::from_fn(|_| none.clone())))
    }

    #[inline]
    pub(crate) fn get(&mut self, packed: u64) -> &Mask {
        let index = (packed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as usize % CACHED;
        let mask = &mut self.0[index];
        if mask.packed != packed {
            mask.make(packed);
        }
        mask
    }
}

impl Mask {
    #[cold]
    #[inline(never)]
    fn make(&mut self, packed: u64) {
        let layout = Layout::unpack(packed);
        self.packed = packed;
        self.layout = layout;
        self.bits = [0; MAX_TEMPLATE];
        self.bits.iter_mut().take(layout.header.into()).for_each(|bits| *bits = 0xff);
        self.clear_ip(layout.l3, layout.v6);
        if layout.udp {
            self.clear(layout.l4 + 4, 4);
        } else {
            self.clear(layout.l4 + 4, 4);
            self.clear(layout.l4 + 16, 2);
            if let Some(flags) = self.bits.get_mut(usize::from(layout.l4) + 13) {
                *flags = !crate::rules::FIN_PSH;
            }
        }
        if layout.outer == Outer::None {
            return;
        }
        self.clear_ip(layout.outer_l3, layout.outer_v6);
        match layout.outer {
            Outer::Udp => self.clear(layout.outer_l4 + 4, 4),
            Outer::Gre { checksum: true } => self.clear(layout.outer_l4 + 4, 2),
            _ => {}
        }
    }

    fn clear_ip(&mut self, l3: u16, v6: bool) {
        if v6 {
            self.clear(l3 + 4, 2);
        } else {
            self.clear(l3 + 2, 4);
            self.clear(l3 + 10, 2);
        }
    }

    fn clear(&mut self, at: u16, len: u16) {
        if let Some(bits) = self.bits.get_mut(usize::from(at)..usize::from(at + len)) {
            bits.fill(0);
        }
    }

    /// Whether two headers of this layout are equal in what the mask leaves of them.
    #[inline(always)]
    pub(crate) fn same(&self, a: &[u8], b: &[u8]) -> bool {
        let n = usize::from(self.layout.header);
        let (Some(a), Some(b), Some(m)) = (a.get(..n), b.get(..n), self.bits.get(..n)) else {
            return false;
        };
        let (Some(a_end), Some(b_end), Some(m_end)) = (a.last_chunk(), b.last_chunk(), m.last_chunk()) else {
            return false;
        };
        let mut differ = difference(a_end, b_end, m_end);
        for ((a, b), m) in a.as_chunks().0.iter().zip(b.as_chunks().0).zip(m.as_chunks().0) {
            let d = difference(a, b, m);
            differ[0] |= d[0];
            differ[1] |= d[1];
        }
        differ == [0, 0]
    }
}

#[inline(always)]
fn difference(a: &[u8; 16], b: &[u8; 16], mask: &[u8; 16]) -> [u64; 2] {
    let halves = |x: &[u8; 16]| {
        let x = u128::from_ne_bytes(*x);
        [x as u64, (x >> 64) as u64]
    };
    let (a, b, mask) = (halves(a), halves(b), halves(mask));
    [(a[0] ^ b[0]) & mask[0], (a[1] ^ b[1]) & mask[1]]
}
