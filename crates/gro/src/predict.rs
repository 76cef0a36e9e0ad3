//! Header prediction: what will the next packet of an aggregate look like?
//!
//! Most packets of an aggregate differ from the first in a few fields that can be predicted: sequence
//! number, identification, and the IPv4 checksum that goes with it. A packet that has them, and is
//! equal in all the rest ([`crate::shape`], [`crate::mask::Mask::unpredicted`]), merges without a look at any
//! rule. What is not as expected goes through [`crate::rules`]: the last packet, and any that does not
//! belong.
//!
//! Of a flow with a [shape](crate::shape) the whole header of the packet to come is written down, ready to
//! be compared with no look at the packet that is held. Of any other flow it is the fields alone.

use crate::bytes::{array, array_mut, be32};
use crate::layout::Layout;
use crate::shape::Shape;

/// What the packet to come is expected to have.
#[derive(Clone, Copy)]
pub(crate) struct Expected([u8; Self::LEN]);

/// Where identification, fragment word, TTL, protocol and checksum are in an IPv4 header.
pub(crate) const IP_WORD: usize = 4;
/// 1 more in the identification is 1 less in the checksum. Where the one or the other begins anew, what
/// comes out is no packet's: the next one goes through the rules, and prediction begins anew with it.
const STEP: u64 = (1 << 48) - 1;

/// Where the fields are that are written down alone: the word at [`IP_WORD`], the sequence number.
const FIELDS_AT: (usize, usize) = (IP_WORD, IP_WORD + 8);

/// The fields that differ from packet to packet, of those that there are.
#[derive(Clone, Copy)]
pub(crate) struct Fields {
    /// The middle of an IPv4 header, see [`IP_WORD`].
    ip: Option<u64>,
    seq: Option<u32>,
}

impl Fields {
    /// Those of packet `b`, whose IP and transport headers are at `l3` and `l4`.
    #[inline(always)]
    pub(crate) fn of(b: &[u8], l3: usize, l4: usize, v6: bool, udp: bool) -> Self {
        let ip = if v6 { None } else { array(b, l3 + IP_WORD) };
        let seq = if udp { None } else { be32(b, l4 + 4) };
        Self { ip: ip.map(|word| u64::from_be_bytes(*word)), seq }
    }

    /// Those of the packet after one with `size` bytes of data.
    #[inline(always)]
    pub(crate) fn next(self, size: u16, counts: bool) -> Self {
        let step = if counts { STEP } else { 0 };
        Self { ip: self.ip.map(|ip| ip.wrapping_add(step)), seq: self.seq.map(|seq| seq.wrapping_add(size.into())) }
    }
}

impl Expected {
    /// The longest header that has a shape: Ethernet, IPv6, TCP with timestamps.
    const LEN: usize = 14 + 40 + 32;
    /// No packet's.
    pub(crate) const NONE: Self = Self([0; Self::LEN]);

    /// The header, for a flow with a shape.
    #[inline(always)]
    pub(crate) fn header<const N: usize>(&self) -> &[u8; N] {
        const { assert!(N <= Self::LEN) };
        self.0.first_chunk().unwrap_or(&[0; N])
    }

    /// Begins anew with packet `b` of a flow with a shape: becomes that packet's header.
    #[inline(always)]
    pub(crate) fn copy_header(&mut self, b: &[u8]) {
        match b.first_chunk() {
            Some(header) => self.0 = *header,
            None => self.copy_short(b),
        }
    }

    #[inline(never)]
    fn copy_short(&mut self, b: &[u8]) {
        for (to, from) in self.0.iter_mut().zip(b) {
            *to = *from;
        }
    }

    /// Expects the fields that differ, in a flow with a shape.
    #[inline(always)]
    pub(crate) fn set(&mut self, l3: usize, l4: usize, fields: Fields) {
        if let Some(ip) = fields.ip
            && let Some(to) = array_mut(&mut self.0, l3 + IP_WORD)
        {
            *to = ip.to_be_bytes();
        }
        if let Some(seq) = fields.seq
            && let Some(to) = array_mut(&mut self.0, l4 + 4)
        {
            *to = seq.to_be_bytes();
        }
    }

    /// Begins anew with packet `b`, and goes on to the next.
    #[inline(always)]
    pub(crate) fn follow(&mut self, b: &[u8], shape: Shape, layout: &Layout, size: u16, counts: bool) {
        let (l3, l4) = (usize::from(layout.l3), usize::from(layout.l4));
        let fields = Fields::of(b, l3, l4, layout.v6, layout.udp).next(size, counts);
        if shape == Shape::ANY {
            self.set_fields(fields);
        } else {
            self.copy_header(b);
            self.set(l3, l4, fields);
        }
    }

    /// Goes on from one packet to the next, in a flow without a shape.
    #[inline]
    pub(crate) fn advance_fields(&mut self, size: u16, counts: bool) {
        let (ip, seq) = FIELDS_AT;
        let word = array(&self.0, ip).map(|word| u64::from_be_bytes(*word));
        self.set_fields(Fields { ip: word, seq: be32(&self.0, seq) }.next(size, counts));
    }

    #[inline]
    fn set_fields(&mut self, fields: Fields) {
        let (ip, seq) = FIELDS_AT;
        self.set(ip - IP_WORD, seq - 4, fields);
    }

    /// Has packet `b` the fields that are expected in a flow without a shape?
    #[inline]
    pub(crate) fn fields_are(&self, b: &[u8], layout: &Layout) -> bool {
        let (l3, l4) = (usize::from(layout.l3), usize::from(layout.l4));
        let ip = || array::<8>(b, l3 + IP_WORD).is_some_and(|word| array(&self.0, FIELDS_AT.0) == Some(word));
        let seq = || be32(b, l4 + 4).is_some_and(|seq| be32(&self.0, FIELDS_AT.1) == Some(seq));
        (layout.v6 || ip()) && (layout.udp || seq())
    }
}
