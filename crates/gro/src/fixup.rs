//! Writing lengths and checksums into headers, outermost to innermost.
//!
//! Both directions need the same thing: a header copied or kept from one packet must describe
//! another of a different length. Coalescing calls it with the aggregate's length, segmentation
//! with each segment's.

use towpath_wire::checksum::{self, add, finish, finish_udp};

use crate::bytes::{array, be16, length_field, put16, sum};
use crate::layout::{Layout, Outer, UDP};

/// The sum of an IP header's two addresses.
#[inline]
pub(crate) fn addresses(h: &[u8], l3: usize, v6: bool) -> u16 {
    if v6 {
        sum(h, l3 + 8, l3 + 40)
    } else {
        let words: &[u8; 8] = array(h, l3 + 12).unwrap_or(&[0; 8]);
        let word = |at: usize| u32::from(u16::from_be_bytes([words[at], words[at + 1]]));
        fold(word(0) + word(2) + word(4) + word(6))
    }
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

/// The IP header at `l3`: its length field for a packet that ends `len` bytes after `l3`, its
/// identification if it has one, its checksum if it has one. `l4` is where its payload begins.
#[inline]
pub(crate) fn ip(h: &mut [u8], l3: usize, l4: usize, v6: bool, len: usize, id: Option<u16>) {
    if v6 {
        put16(h, l3 + 4, length_field(len - 40));
        return;
    }
    put16(h, l3 + 2, length_field(len));
    if let Some(id) = id {
        put16(h, l3 + 4, id);
    }
    put16(h, l3 + 10, 0);
    let check = finish(sum(h, l3, l4));
    put16(h, l3 + 10, check);
}

/// As [`ip`], for a header whose checksum is right: only the length changes.
#[inline]
pub(crate) fn ip_length(h: &mut [u8], l3: usize, v6: bool, len: usize) {
    if v6 {
        return put16(h, l3 + 4, length_field(len - 40));
    }
    if let (Some(old), Some(check)) = (be16(h, l3 + 2), be16(h, l3 + 10)) {
        let new = length_field(len);
        put16(h, l3 + 2, new);
        put16(h, l3 + 10, checksum::update16(check, old, new));
    }
}

/// What an outer UDP checksum is to become, where there is one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OuterUdp {
    /// The pseudo-header sum: the packet will be segmented.
    Partial,
    /// The final value: the packet is a segment.
    Complete,
}

/// The outer headers of a packet of `len` bytes: IP, then UDP or GRE.
///
/// The checksums under them need no look at the payload: the innermost transport header, its
/// payload and its pseudo-header sum to all ones once its own checksum is right, so the part from
/// that header on sums to the complement of the pseudo-header.
pub(crate) fn outer(h: &mut [u8], at: &Layout, len: usize, id: Option<u16>, udp: OuterUdp) {
    if at.outer == Outer::None {
        return;
    }
    let (l3, l4) = (usize::from(at.outer_l3), usize::from(at.outer_l4));
    ip(h, l3, l4, at.outer_v6, len - l3, id);
    match at.outer {
        Outer::Udp => {
            put16(h, l4 + 4, length_field(len - l4));
            if be16(h, l4 + 6).is_some_and(|check| check != 0) {
                let pseudo = pseudo(addresses(h, l3, at.outer_v6), UDP, len - l4);
                put16(h, l4 + 6, 0);
                let check = match udp {
                    OuterUdp::Partial => pseudo,
                    OuterUdp::Complete => finish_udp(add(pseudo, from_outer(h, at, len))),
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
