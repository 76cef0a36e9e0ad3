//! The Internet checksum: the sum of 16-bit words in ones'-complement arithmetic
//! ([RFC 1071](https://www.rfc-editor.org/rfc/rfc1071)).
//!
//! ```text
//!   bytes ──sum/copy──▶ u16 ──add──▶ u16 ──finish──▶ the header field
//!                        ▲
//!        pseudo_v4/v6 ───┘           update16/32/bytes: field ──▶ field, without the data
//! ```
//!
//! A *sum* is folded to 16 bits, not complemented, and has the numeric value it has on the wire
//! (big-endian). Sums of neighbouring pieces are joined by [`add`]; a piece that begins at an odd
//! offset goes through [`swap_for_odd`] first, or through a [`Accumulator`], which keeps count.
//! Zero is the sum of zeros only: any other data sums to `1..=0xffff`, with `0xffff` standing for
//! the other zero of ones'-complement. So sums compare with `==` whichever way they were made,
//! and data that holds its own valid checksum sums to [`VALID`].
//!
//! Short inputs are summed in place; long ones by the widest vectors the CPU has, see [`Isa`].
//!
//! | file | |
//! |---|---|
//! | `accumulator` | the checksum of data in several pieces |
//! | `isa` | vector instruction sets: detection, and the two loops of each |
//! | `words` | the portable sum, by machine words |
//! | `partial` | partial checksums, and their completion |

use core::net::{Ipv4Addr, Ipv6Addr};

mod accumulator;
#[allow(unsafe_code)]
mod isa;
mod partial;
mod words;

pub use accumulator::Accumulator;
pub use isa::{Isa, copy_with, sum_with};
pub use partial::complete_partial;

/// The sum of data that contains its own correct checksum
/// ([RFC 1071 section 1](https://www.rfc-editor.org/rfc/rfc1071#section-1)).
pub const VALID: u16 = 0xffff;

/// Inputs up to this length are summed by inlined scalar code: vectors need about as long to be
/// reduced to one number as this many bytes need to be added.
const SHORT: usize = 64;

/// The folded sum of `data`. A last odd byte counts as if a zero followed it.
///
/// Exact for slices up to 16 GiB.
#[inline]
#[must_use]
pub fn sum(data: &[u8]) -> u16 {
    if data.len() <= SHORT { words::to_wire(words::sum(data)) } else { sum_with(Isa::best(), data) }
}

/// Copies `src` to `dst` and returns the [`sum`] of the bytes copied, in one pass.
///
/// Of unequal slices the shorter decides: the first `min(dst.len(), src.len())` bytes are copied.
#[inline]
#[must_use]
pub fn copy(dst: &mut [u8], src: &[u8]) -> u16 {
    let len = dst.len().min(src.len());
    if len <= SHORT { words::to_wire(words::sum(words::copied(dst, src))) } else { copy_with(Isa::best(), dst, src) }
}

/// Ones'-complement addition of two sums.
#[inline]
#[must_use]
pub const fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u16
}

/// The contribution of a piece with the given sum when it begins at an odd offset
/// ([RFC 1071](https://www.rfc-editor.org/rfc/rfc1071) section 2B: byte order independence).
#[inline]
#[must_use]
pub const fn swap_for_odd(sum: u16) -> u16 {
    sum.swap_bytes()
}

/// The checksum field for data with this sum: its complement.
///
/// UDP sends `0xffff` where this gives 0, see [`finish_udp`].
#[inline]
#[must_use]
pub const fn finish(sum: u16) -> u16 {
    !sum
}

/// The checksum field of a UDP header: 0 means "no checksum", so a computed 0 is sent as `0xffff`
/// ([RFC 768](https://www.rfc-editor.org/rfc/rfc768)).
#[inline]
#[must_use]
pub const fn finish_udp(sum: u16) -> u16 {
    match !sum {
        0 => 0xffff,
        check => check,
    }
}

/// The folded sum of a 32-bit number.
#[inline]
const fn fold32(x: u32) -> u16 {
    (x.wrapping_add(x.rotate_left(16)) >> 16) as u16
}

/// The sum of the IPv4 pseudo-header
/// ([RFC 9293 section 3.1](https://www.rfc-editor.org/rfc/rfc9293#section-3.1)). `l4_len` is the
/// length of transport header and payload.
#[inline]
#[must_use]
pub const fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, proto: u8, l4_len: u32) -> u16 {
    let addresses = add(fold32(src.to_bits()), fold32(dst.to_bits()));
    add(addresses, add(proto as u16, fold32(l4_len)))
}

/// The sum of the IPv6 pseudo-header
/// ([RFC 8200 section 8.1](https://www.rfc-editor.org/rfc/rfc8200#section-8.1)). `l4_len` is the
/// length of transport header and payload.
#[inline]
#[must_use]
pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, proto: u8, l4_len: u32) -> u16 {
    let addresses = words::add(words::sum(&src.octets()), words::sum(&dst.octets()));
    add(words::to_wire(addresses), add(u16::from(proto), fold32(l4_len)))
}

/// The checksum field `check` after a 16-bit word under it changed from `old` to `new`
/// ([RFC 1624](https://www.rfc-editor.org/rfc/rfc1624) equation 3).
#[inline]
#[must_use]
pub const fn update16(check: u16, old: u16, new: u16) -> u16 {
    !add(add(!check, !old), new)
}

/// [`update16`] for a 32-bit number at an even offset: an address, a sequence number.
#[inline]
#[must_use]
pub const fn update32(check: u16, old: u32, new: u32) -> u16 {
    update16(check, fold32(old), fold32(new))
}

/// [`update16`] for a run of bytes that begins at an even offset: an IPv6 address, a rewritten
/// header. The two need not be of equal length if what follows them keeps its parity.
#[inline]
#[must_use]
pub fn update_bytes(check: u16, old: &[u8], new: &[u8]) -> u16 {
    update16(check, sum(old), sum(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header from the wire: 192.168.0.1 to 192.168.0.199, UDP, 115 bytes.
    const HEADER: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0, 0xa8,
        0x00, 0xc7,
    ];

    #[test]
    fn the_example_of_rfc_1071_section_3_sums_to_ddf2() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn a_valid_ipv4_header_sums_to_all_ones_and_its_field_is_found_again() {
        assert_eq!(sum(&HEADER), VALID);
        let mut header = HEADER;
        header[10..12].fill(0);
        assert_eq!(finish(sum(&header)), 0xb861);
    }

    #[test]
    fn the_example_of_rfc_1624_section_4_does_not_come_out_as_minus_zero() {
        assert_eq!(update16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn an_incremental_update_equals_a_new_sum() {
        let mut header = HEADER;
        header[8] = 0x3f;
        header[10..12].copy_from_slice(&update16(0xb861, 0x4011, 0x3f11).to_be_bytes());
        assert_eq!(sum(&header), VALID);

        let mut header = HEADER;
        header[12..16].copy_from_slice(&[10, 1, 2, 3]);
        let check = update32(0xb861, 0xc0a8_0001, 0x0a01_0203);
        header[10..12].copy_from_slice(&check.to_be_bytes());
        assert_eq!(sum(&header), VALID);
        assert_eq!(check, update_bytes(0xb861, &[192, 168, 0, 1], &[10, 1, 2, 3]));
    }

    #[test]
    fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
        assert_eq!(finish_udp(0xffff), 0xffff);
        assert_eq!(finish_udp(0x1234), 0xedcb);
    }

    #[test]
    fn a_pseudo_header_sums_like_its_bytes() {
        let (src, dst) = ([192, 168, 0, 1].into(), [10, 255, 3, 200].into());
        let bytes = [192, 168, 0, 1, 10, 255, 3, 200, 0, 17, 0, 95];
        assert_eq!(pseudo_v4(src, dst, 17, 95), sum(&bytes));
        assert_eq!(pseudo_v4(src, dst, 17, 0x0001_005e), sum(&bytes), "a length past 16 bits");

        let src: [u8; 16] = core::array::from_fn(|i| i as u8 * 17);
        let dst: [u8; 16] = core::array::from_fn(|i| 255 - i as u8);
        let mut bytes = [0; 40];
        bytes[..16].copy_from_slice(&src);
        bytes[16..32].copy_from_slice(&dst);
        bytes[32..36].copy_from_slice(&70_000u32.to_be_bytes());
        bytes[39] = 6;
        assert_eq!(pseudo_v6(src.into(), dst.into(), 6, 70_000), sum(&bytes));
    }
}
