//! Writing lengths and checksums into headers, outermost to innermost.
//!
//! In both directions a header from one packet must describe another one of a different length.
//! Coalescing calls it with the length of the aggregate, segmentation with that of each segment.

use towpath_wire::checksum::{self, VALID, add, finish, finish_udp};

use crate::bytes::{array, array_mut, be16, length_field, put16, sum};
use crate::layout::{Layout, Outer, UDP};

/// The sum of an IP header's two addresses.
#[inline]
pub(crate) fn addresses(h: &[u8], l3: usize, v6: bool) -> u16 {
    if v6 { sum(h, l3 + 8, l3 + 40) } else { words(array::<8>(h, l3 + 12).unwrap_or(&[0; 8])) }
}

/// Whether the checksum of the IPv4 header without options at `l3` is right.
#[inline]
pub(crate) fn is_right(h: &[u8], l3: usize) -> bool {
    array::<20>(h, l3).is_some_and(|h| words(h) == VALID)
}

/// The sum of a few bytes, a multiple of four. The order of bytes makes no difference before the
/// end ([RFC 1071 section 2B](https://www.rfc-editor.org/rfc/rfc1071#section-2)).
#[inline(always)]
fn words<const N: usize>(b: &[u8; N]) -> u16 {
    let sum: u64 = b.as_chunks().0.iter().map(|four| u64::from(u32::from_ne_bytes(*four))).sum();
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    u16::from_be(add(sum as u16, (sum >> 16) as u16))
}

#[inline]
fn fold(sum: u32) -> u16 {
    add(sum as u16, (sum >> 16) as u16)
}

/// The pseudo-header sum, given that of the addresses.
#[inline]
pub(crate) fn pseudo(addresses: u16, protocol: u8, l4_len: usize) -> u16 {
    add(addresses, fold(l4_len as u32 + u32::from(protocol)))
}

/// `sum` without the words at `fields`, which it has.
pub(crate) fn without(sum: u16, h: &[u8], fields: &[usize]) -> u16 {
    fields.iter().fold(sum, |sum, &at| add(sum, !be16(h, at).unwrap_or(0)))
}

/// The sum of the IPv4 header from `l3` to `l4`, without length, identification and checksum.
pub(crate) fn ip_sum(h: &[u8], l3: usize, l4: usize, v6: bool) -> u16 {
    if v6 { 0 } else { without(sum(h, l3, l4), h, &[l3 + 2, l3 + 4, l3 + 10]) }
}

/// Writes into the IP header at `l3` the length of a packet that ends `len` bytes after `l3`, and
/// for IPv4 identification and checksum. Its other fields have the sum `others` ([`ip_sum`]).
#[inline]
pub(crate) fn ip(h: &mut [u8], l3: usize, v6: bool, len: usize, id: u16, others: u16) {
    if v6 {
        put16(h, l3 + 4, length_field(len - 40));
        return;
    }
    let len = length_field(len);
    put16(h, l3 + 2, len);
    put16(h, l3 + 4, id);
    put16(h, l3 + 10, finish(add(add(others, len), id)));
}

/// As [`ip`], for a header whose checksum is right: only the length changes.
#[inline]
pub(crate) fn ip_length(h: &mut [u8], l3: usize, v6: bool, len: usize) {
    if v6 {
        return put16(h, l3 + 4, length_field(len - 40));
    }
    if let Some(h) = array_mut::<20>(h, l3) {
        let (old, check) = (u16::from_be_bytes([h[2], h[3]]), u16::from_be_bytes([h[10], h[11]]));
        let new = length_field(len);
        [h[2], h[3]] = new.to_be_bytes();
        [h[10], h[11]] = checksum::update16(check, old, new).to_be_bytes();
    }
}

/// What the outer headers describe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Describe {
    /// A super-packet: its UDP checksum is partial, the pseudo-header sum.
    Whole,
    /// A segment, with this identification.
    Segment(u16),
}

/// Writes the outer headers of a packet of `len` bytes: IP, then UDP or GRE.
///
/// Their checksums do not need the payload: the innermost transport header, its payload and its
/// pseudo-header sum to all ones once its own checksum is right, so the part from that header on
/// sums to the complement of the pseudo-header.
pub(crate) fn outer(h: &mut [u8], at: &Layout, len: usize, describe: Describe) {
    if at.outer == Outer::None {
        return;
    }
    let (l3, l4) = (usize::from(at.outer_l3), usize::from(at.outer_l4));
    match describe {
        Describe::Whole => ip_length(h, l3, at.outer_v6, len - l3),
        Describe::Segment(id) => ip(h, l3, at.outer_v6, len - l3, id, ip_sum(h, l3, l4, at.outer_v6)),
    }
    match at.outer {
        Outer::Udp => {
            put16(h, l4 + 4, length_field(len - l4));
            if be16(h, l4 + 6).is_some_and(|check| check != 0) {
                let pseudo = pseudo(addresses(h, l3, at.outer_v6), UDP, len - l4);
                put16(h, l4 + 6, 0);
                let check = match describe {
                    Describe::Whole => pseudo,
                    Describe::Segment(_) => finish_udp(add(pseudo, from_outer(h, at, len))),
                };
                put16(h, l4 + 6, check);
            }
        }
        Outer::Gre { checksum: true } => {
            put16(h, l4 + 4, 0);
            let check = finish(from_outer(h, at, len));
            put16(h, l4 + 4, check);
        }
        _ => {}
    }
}

/// The sum of everything from the outer transport header to the end of a packet of `len` bytes
/// whose innermost checksum is right or will be completed.
pub(crate) fn from_outer(h: &[u8], at: &Layout, len: usize) -> u16 {
    let l4 = usize::from(at.l4);
    let inner = pseudo(addresses(h, at.l3.into(), at.v6), at.protocol(), len - l4);
    add(sum(h, at.outer_l4.into(), l4), !inner)
}

/// Finishes the checksum of data that sums to `total`, pseudo-header included.
#[inline]
pub(crate) fn finish_transport(total: u16, udp: bool) -> u16 {
    if udp { finish_udp(total) } else { finish(total) }
}
