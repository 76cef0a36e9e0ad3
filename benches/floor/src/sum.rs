//! The smallest sum and the smallest summing copy of a payload, for processors that have AVX2, as
//! callgrind's has: nothing is looked up, the length is known, no end is odd.
//!
//! 16-bit words, made signed, are added in pairs: three instructions for 32 bytes.

#![allow(unsafe_code)]

use crate::PAYLOAD;
use std::arch::x86_64::*;

type Payload = [u8; PAYLOAD];

/// Bytes that the copy takes in a turn: whole turns, and the 8 bytes of a sum's tail.
const TURN: usize = 160;

/// What making a word signed subtracts, for all words of the vectors.
const BIAS: u64 = (PAYLOAD / 32 * 16) as u64 * 0x8000;

/// Proof that the processor has AVX2.
#[derive(Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    pub fn new() -> Option<Avx2> {
        is_x86_feature_detected!("avx2").then_some(Avx2(()))
    }

    /// The folded sum, as it is on the wire.
    #[inline(always)]
    pub fn sum(self, payload: &Payload) -> u16 {
        // SAFETY: the value is proof of AVX2.
        unsafe { sum(payload) }
    }

    /// Copies, and returns the folded sum.
    #[inline(always)]
    pub fn copy(self, to: &mut Payload, from: &Payload) -> u16 {
        // SAFETY: the value is proof of AVX2.
        unsafe { copy(to, from) }
    }
}

#[target_feature(enable = "avx2")]
fn sum(payload: &Payload) -> u16 {
    let (vectors, tail) = payload.as_chunks::<32>();
    let mut lanes = _mm256_setzero_si256();
    for vector in vectors {
        // SAFETY: the array is exactly the 32 bytes read; the load needs no alignment.
        lanes = add(lanes, unsafe { _mm256_loadu_si256(vector.as_ptr().cast()) });
    }
    fold(lanes, tail)
}

#[target_feature(enable = "avx2")]
fn copy(to: &mut Payload, from: &Payload) -> u16 {
    let (sources, from_tail) = from.as_chunks::<TURN>();
    let (targets, to_tail) = to.as_chunks_mut::<TURN>();
    let mut lanes = _mm256_setzero_si256();
    for (target, source) in targets.iter_mut().zip(sources) {
        for (target, source) in target.as_chunks_mut::<32>().0.iter_mut().zip(source.as_chunks::<32>().0) {
            // SAFETY: the arrays are exactly the 32 bytes read and written; neither needs
            // alignment. The empty template hides where the vector came from, or the copy becomes a
            // `memcpy`.
            unsafe {
                let mut v = _mm256_loadu_si256(source.as_ptr().cast());
                std::arch::asm!("/* {0} */", inout(ymm_reg) v, options(pure, nomem, nostack, preserves_flags));
                _mm256_storeu_si256(target.as_mut_ptr().cast(), v);
                lanes = add(lanes, v);
            }
        }
    }
    to_tail.copy_from_slice(from_tail);
    fold(lanes, from_tail)
}

#[target_feature(enable = "avx2")]
#[inline]
fn add(lanes: __m256i, v: __m256i) -> __m256i {
    let signed = _mm256_xor_si256(v, _mm256_set1_epi16(i16::MIN));
    _mm256_add_epi32(lanes, _mm256_madd_epi16(signed, _mm256_set1_epi16(1)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn fold(lanes: __m256i, tail: &[u8]) -> u16 {
    let v = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v));
    let sum = (i64::from(_mm_cvtsi128_si32(v)) as u64).wrapping_add(BIAS);
    let words = tail.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    let halves = words.map(|word| (word >> 32) + (word & 0xffff_ffff));
    let sum = sum + halves.sum::<u64>();
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    u16::from_be(((sum >> 16) + (sum & 0xffff)) as u16)
}
