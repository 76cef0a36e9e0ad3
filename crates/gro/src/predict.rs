//! Header prediction, as of Van Jacobson: the header of the next packet of an aggregate.
//!
//! Most packets of an aggregate differ from the first in a few predictable fields: sequence number,
//! identification, and the IPv4 checksum that depends on it. A packet that has them, and is equal
//! in everything else ([`crate::shape`], [`crate::mask::Mask::unpredicted`]), merges without
//! evaluation of the rules. Other packets go through [`crate::rules`]: the last of an aggregate,
//! and those that do not belong.
//!
//! For a flow with a [shape](crate::shape) the whole predicted header is stored, so that the held
//! packet is not read. For other flows only the fields are stored.

use crate::bytes::{array, array_mut, be32};
use crate::layout::Layout;
use crate::shape::Shape;
use towpath_wire::{ethernet, ipv6};

/// The predicted header; without a shape its fields, and the layout.
#[derive(Clone, Copy)]
pub(crate) struct Expected([u8; Self::LEN]);

/// Offset of identification, fragment word, TTL, protocol and checksum in an IPv4 header.
pub(crate) const IP_WORD: usize = 4;
/// Adds 1 to the identification and subtracts 1 from the checksum. If either wraps around, no
/// packet equals the result: the next one goes through the rules, and prediction restarts with it.
const STEP: u64 = (1 << 48) - 1;

/// Offsets of the fields of a flow without a shape: the word at [`IP_WORD`], the sequence number.
const FIELDS_AT: (usize, usize) = (IP_WORD, IP_WORD + 8);
/// Offset of the layout of such a flow.
const LAYOUT_AT: usize = 16;

/// The fields that differ from packet to packet, as far as the header has them.
#[derive(Clone, Copy)]
pub(crate) struct Fields {
    /// The middle of an IPv4 header, see [`IP_WORD`].
    ip: Option<u64>,
    seq: Option<u32>,
}

impl Fields {
    /// The fields of packet `b`, whose IP and transport headers are at `l3` and `l4`.
    #[inline(always)]
    pub(crate) fn of(b: &[u8], l3: usize, l4: usize, v6: bool, udp: bool) -> Self {
        let ip = if v6 { None } else { array(b, l3 + IP_WORD) };
        let seq = if udp { None } else { be32(b, l4 + 4) };
        Self { ip: ip.map(|word| u64::from_be_bytes(*word)), seq }
    }

    /// The fields of the packet after one with `size` bytes of data.
    #[inline(always)]
    pub(crate) fn next(self, size: u16, counts: bool) -> Self {
        let step = if counts { STEP } else { 0 };
        Self { ip: self.ip.map(|ip| ip.wrapping_add(step)), seq: self.seq.map(|seq| seq.wrapping_add(size.into())) }
    }
}

impl Expected {
    /// The longest header that has a shape: Ethernet, IPv6, TCP with timestamps.
    const LEN: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + 32;
    /// The header of no packet.
    pub(crate) const NONE: Self = Self([0; Self::LEN]);

    /// The header, for a flow with a shape.
    #[inline(always)]
    pub(crate) fn header<const N: usize>(&self) -> &[u8; N] {
        const { assert!(N <= Self::LEN) };
        self.0.first_chunk().unwrap_or(&[0; N])
    }

    /// Restarts prediction with packet `b` of a flow with a shape: becomes that packet's header.
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

    /// Whether `b` has the predicted [word](IP_WORD), in a flow with a shape of IPv4 at `L3`.
    #[inline(always)]
    pub(crate) fn has_ip_word<const L3: usize>(&self, b: &[u8]) -> bool {
        array::<8>(b, L3 + IP_WORD).is_some_and(|word| array(&self.0, L3 + IP_WORD) == Some(word))
    }

    /// Stores the predicted fields, in a flow with a shape.
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

    /// Restarts prediction with packet `b`, and predicts the next one.
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

    /// Predicts the packet after the next, in a flow without a shape.
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

    /// The [packed](Layout::pack) layout of a flow without a shape.
    #[inline]
    pub(crate) fn layout(&self) -> u64 {
        array(&self.0, LAYOUT_AT).map_or(0, |packed| u64::from_ne_bytes(*packed))
    }

    /// Stores it.
    #[inline]
    pub(crate) fn set_layout(&mut self, packed: u64) {
        if let Some(to) = array_mut(&mut self.0, LAYOUT_AT) {
            *to = packed.to_ne_bytes();
        }
    }

    /// Whether packet `b` has the predicted fields, in a flow without a shape.
    #[inline]
    pub(crate) fn fields_are(&self, b: &[u8], layout: &Layout) -> bool {
        let (l3, l4) = (usize::from(layout.l3), usize::from(layout.l4));
        let ip = || array::<8>(b, l3 + IP_WORD).is_some_and(|word| array(&self.0, FIELDS_AT.0) == Some(word));
        let seq = || be32(b, l4 + 4).is_some_and(|seq| be32(&self.0, FIELDS_AT.1) == Some(seq));
        (layout.v6 || ip()) && (layout.udp || seq())
    }
}
