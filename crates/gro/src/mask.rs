//! Which header bits packets of an aggregate must have in common.
//!
//! Two packets belong together if their headers are equal under the mask of their layout: one
//! comparison of everything there is, whatever it is. There are two masks of each layout. `invariant`
//! leaves out what may differ within an aggregate: lengths, identifications, sequence numbers,
//! checksums, FIN and PSH. `unpredicted` is for a packet as long as the first: it leaves out only what
//! [`crate::predict`] predicts, and the checksums of transport and tunnel.
//!
//! Masks depend on the layout alone. A cache keeps those in use; a layout that another displaced is
//! made again.

use alloc::boxed::Box;

use crate::layout::{Layout, Outer};
use crate::rules::FIN_PSH;

/// Longer headers, all layers together, are not coalesced.
pub(crate) const MAX_TEMPLATE: usize = 256;
const CACHED: usize = 32;

#[derive(Clone)]
pub(crate) struct Mask {
    packed: u64,
    pub(crate) layout: Layout,
    pub(crate) invariant: Bits,
    pub(crate) unpredicted: Bits,
}

#[derive(Clone)]
#[repr(align(64))]
pub(crate) struct Bits([u8; MAX_TEMPLATE]);

pub(crate) struct Masks(Box<[Mask; CACHED]>);

impl Masks {
    pub(crate) fn new() -> Self {
        let none = || Bits([0; MAX_TEMPLATE]);
        let none = Mask { packed: u64::MAX, layout: Layout::default(), invariant: none(), unpredicted: none() };
        Self(Box::new(core::array::from_fn(|_| none.clone())))
    }

    #[inline(always)]
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
        let (l4, outer_l4) = (layout.l4, layout.outer_l4);
        let mut unpredicted = Bits([0; MAX_TEMPLATE]);
        unpredicted.0.iter_mut().take(layout.header.into()).for_each(|bits| *bits = 0xff);
        unpredicted.clear_ipv4(layout.l3, layout.v6);
        unpredicted.clear(l4 + u16::from(layout.checksum_offset()), 2);
        if !layout.udp {
            unpredicted.clear(l4 + 4, 4);
        }
        match layout.outer {
            Outer::Udp => unpredicted.clear(outer_l4 + 6, 2),
            Outer::Gre { checksum: true } => unpredicted.clear(outer_l4 + 4, 2),
            _ => {}
        }
        let mut invariant = unpredicted.clone();
        invariant.clear(layout.l3 + if layout.v6 { 4 } else { 2 }, 2);
        if layout.udp {
            invariant.clear(l4 + 4, 2);
        } else if let Some(flags) = invariant.0.get_mut(usize::from(l4) + 13) {
            *flags = !FIN_PSH;
        }
        if layout.outer != Outer::None {
            unpredicted.clear_ipv4(layout.outer_l3, layout.outer_v6);
            invariant.clear_ipv4(layout.outer_l3, layout.outer_v6);
            invariant.clear(layout.outer_l3 + if layout.outer_v6 { 4 } else { 2 }, 2);
        }
        if layout.outer == Outer::Udp {
            invariant.clear(outer_l4 + 4, 2);
        }
        *self = Self { packed, layout, invariant, unpredicted };
    }
}

impl Bits {
    /// Identification and checksum.
    fn clear_ipv4(&mut self, l3: u16, v6: bool) {
        if !v6 {
            self.clear(l3 + 4, 2);
            self.clear(l3 + 10, 2);
        }
    }

    fn clear(&mut self, at: u16, len: u16) {
        if let Some(bits) = self.0.get_mut(usize::from(at)..usize::from(at + len)) {
            bits.fill(0);
        }
    }

    /// Whether the first `n` bytes of `a` and `b` are there and equal where the mask is set.
    pub(crate) fn same(&self, a: &[u8], b: &[u8], n: usize) -> bool {
        match (a.get(..n), b.get(..n), self.0.get(..n)) {
            (Some(a), Some(b), Some(m)) => differ_nowhere(a, b, m),
            _ => false,
        }
    }

    /// Those of a header of `n` bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self, n: usize) -> &[u8] {
        &self.0[..n]
    }
}

/// Three slices of one length, which is that of a header and so more than a word. The last word
/// overlaps the one before.
#[inline(always)]
fn differ_nowhere(a: &[u8], b: &[u8], mask: &[u8]) -> bool {
    let (Some(a_end), Some(b_end), Some(m_end)) = (a.last_chunk(), b.last_chunk(), mask.last_chunk()) else {
        return false;
    };
    let mut differ = difference(a_end, b_end, m_end);
    for ((a, b), m) in a.as_chunks().0.iter().zip(b.as_chunks().0).zip(mask.as_chunks().0) {
        differ |= difference(a, b, m);
    }
    differ == 0
}

#[inline(always)]
fn difference(a: &[u8; 8], b: &[u8; 8], mask: &[u8; 8]) -> u64 {
    (u64::from_ne_bytes(*a) ^ u64::from_ne_bytes(*b)) & u64::from_ne_bytes(*mask)
}
