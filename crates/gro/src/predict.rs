//! Header prediction: what will the next packet of an aggregate look like?
//!
//! Most packets of an aggregate differ from the first in a few fields that can be foretold: sequence
//! number, identification, and the IPv4 checksum that goes with it. A packet that has them, and is
//! equal in all the rest ([`crate::mask::Mask::rest`]), merges without a look at any rule. What is
//! not as expected goes through [`crate::rules`]: the second packet, the last, and any that does
//! not belong.

use crate::bytes::{array, be32};
use crate::layout::{Layout, Outer};

/// The fields of the packet to come that are not those of the first.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    seq: u32,
    ip: Ipv4,
    outer: Ipv4,
}

/// Identification and checksum. In one number: what is stored as two and loaded as one waits for
/// the stores.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Ipv4(u32);

impl Ipv4 {
    #[inline(always)]
    fn new(id: u16, check: u16) -> Self {
        Self(u32::from(id) << 16 | u32::from(check))
    }

    #[inline(always)]
    fn of(b: &[u8], l3: u16) -> Self {
        let h: &[u8; 12] = array(b, l3.into()).unwrap_or(&[0; 12]);
        Self::new(u16::from_be_bytes([h[4], h[5]]), u16::from_be_bytes([h[10], h[11]]))
    }

    /// Adds 1 to the identification, and so takes 1 from the checksum.
    #[inline(always)]
    fn count(&mut self) {
        let (id, check) = ((self.0 >> 16) as u16, self.0 as u16);
        // From 0xffff to 0 is no difference in ones' complement.
        *self = match (id, check) {
            (0xffff, _) => Self::new(0, check),
            (_, 0) => Self::new(id + 1, 0xfffe),
            _ => Self(self.0 + 0xffff),
        };
    }
}

impl Expected {
    /// What a packet has of it.
    #[inline]
    pub(crate) fn of(b: &[u8], layout: &Layout) -> Self {
        let seq = if layout.udp { 0 } else { be32(b, usize::from(layout.l4) + 4).unwrap_or(0) };
        let ip = if layout.v6 { Ipv4::default() } else { Ipv4::of(b, layout.l3) };
        let outer =
            if layout.outer == Outer::None || layout.outer_v6 { Ipv4::default() } else { Ipv4::of(b, layout.outer_l3) };
        Self { seq, ip, outer }
    }

    /// Does a packet have it?
    #[inline(always)]
    pub(crate) fn is(&self, b: &[u8], layout: &Layout) -> bool {
        (layout.udp || be32(b, usize::from(layout.l4) + 4) == Some(self.seq))
            && (layout.v6 || Ipv4::of(b, layout.l3) == self.ip)
            && (layout.outer == Outer::None || layout.outer_v6 || Ipv4::of(b, layout.outer_l3) == self.outer)
    }

    #[inline(always)]
    pub(crate) fn is_seq(&self, seq: u32) -> bool {
        seq == self.seq
    }

    #[inline(always)]
    pub(crate) fn is_ipv4(&self, id: u16, check: u16) -> bool {
        Ipv4::new(id, check) == self.ip
    }

    /// Goes on from a packet of `size` bytes to the next.
    #[inline(always)]
    pub(crate) fn advance(&mut self, size: u16, counts: bool, outer_counts: bool) {
        self.seq = self.seq.wrapping_add(size.into());
        if counts {
            self.ip.count();
        }
        if outer_counts {
            self.outer.count();
        }
    }
}
