//! Big-endian reads and writes that cannot panic.

use towpath_wire::checksum;

/// The `N` bytes at `at`, an offset inside a packet.
#[inline(always)]
pub(crate) fn array<const N: usize>(b: &[u8], at: usize) -> Option<&[u8; N]> {
    b.get(at..at + N)?.first_chunk()
}

/// As [`array`](fn@array), to be written.
#[inline(always)]
pub(crate) fn array_mut<const N: usize>(b: &mut [u8], at: usize) -> Option<&mut [u8; N]> {
    b.get_mut(at..at + N)?.first_chunk_mut()
}

#[inline]
pub(crate) fn u8_at(b: &[u8], at: usize) -> Option<u8> {
    b.get(at).copied()
}

#[inline]
pub(crate) fn be16(b: &[u8], at: usize) -> Option<u16> {
    array(b, at).map(|a| u16::from_be_bytes(*a))
}

#[inline]
pub(crate) fn be32(b: &[u8], at: usize) -> Option<u32> {
    array(b, at).map(|a| u32::from_be_bytes(*a))
}

/// Stores `v` at `at`, if it fits there.
#[inline]
pub(crate) fn put16(b: &mut [u8], at: usize, v: u16) {
    if let Some(field) = b.get_mut(at..at + 2) {
        field.copy_from_slice(&v.to_be_bytes());
    }
}

/// As [`put16`].
#[inline]
pub(crate) fn put32(b: &mut [u8], at: usize, v: u32) {
    if let Some(field) = b.get_mut(at..at + 4) {
        field.copy_from_slice(&v.to_be_bytes());
    }
}

/// The ones'-complement sum of `from..to`; of nothing if the range is not inside `b`.
#[inline]
pub(crate) fn sum(b: &[u8], from: usize, to: usize) -> u16 {
    checksum::sum(b.get(from..to).unwrap_or_default())
}

/// A length as a header field; 0 if it does not fit, as the kernel writes packets above 64 KiB
/// ("BIG TCP").
#[inline]
pub(crate) fn length_field(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(0)
}
