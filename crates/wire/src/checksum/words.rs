//! Portable summing, by machine words in native byte order. The sum does not depend on byte order
//! until it is folded to 16 bits ([RFC 1071](https://www.rfc-editor.org/rfc/rfc1071) section 2B),
//! so bytes are swapped once, in [`to_wire`].

/// Ones'-complement addition.
#[inline(always)]
pub(super) const fn add(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u64
}

/// Folds a native-order sum to 16 bits and gives it the value it has on the wire.
///
/// Adding a number to itself with the halves exchanged leaves in the upper half the sum of both,
/// end-around carry included.
#[inline(always)]
pub(super) const fn to_wire(sum: u64) -> u16 {
    let x = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    u16::from_be((x.wrapping_add(x.rotate_left(16)) >> 16) as u16)
}

/// The sum of the last 0 to 7 bytes.
#[inline(always)]
pub(super) fn sum_tail(data: &[u8]) -> u64 {
    let (quads, rest) = data.as_chunks::<4>();
    let (pairs, rest) = rest.as_chunks::<2>();
    let quad = quads.first().map_or(0, |b| u64::from(u32::from_ne_bytes(*b)));
    let pair = pairs.first().map_or(0, |b| u64::from(u16::from_ne_bytes(*b)));
    let odd = rest.first().map_or(0, |b| u64::from(u16::from_ne_bytes([*b, 0])));
    quad + pair + odd
}

/// The sum of a few words, with a chain of additions with carry.
#[inline(always)]
pub(super) fn sum(data: &[u8]) -> u64 {
    let (words, tail) = data.as_chunks::<8>();
    words.iter().fold(sum_tail(tail), |sum, word| add(sum, u64::from_ne_bytes(*word)))
}

/// Copies as much as fits, and returns the copied bytes.
#[inline(always)]
pub(super) fn copied<'a>(dst: &mut [u8], src: &'a [u8]) -> &'a [u8] {
    let len = dst.len().min(src.len());
    dst[..len].copy_from_slice(&src[..len]);
    &src[..len]
}

/// The sum of many words. 32-bit words are added in 64-bit lanes, which need no carry: a shape that
/// compilers turn into vector code on every target.
pub(super) fn sum_long(data: &[u8]) -> u64 {
    let (blocks, tail) = data.as_chunks::<32>();
    let mut lanes = [0; 4];
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            let word = u64::from_ne_bytes(*word);
            *lane += (word & 0xffff_ffff) + (word >> 32);
        }
    }
    lanes.into_iter().fold(sum(tail), add)
}
