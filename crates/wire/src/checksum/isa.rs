//! Vector instruction sets: detection, and the two loops for each.
//!
//! AVX2 adds signed 16-bit words in lanes of 32 bits, where nothing is lost. AVX-512 adds 64-bit
//! words in 64-bit lanes, where carries are lost, and separately their high halves, where none is
//! lost. The first sum minus the second, shifted up again, is the sum of the low halves.
//!
//! This is the crate's only file with `unsafe`: loads and stores of whole vectors, and calls of
//! functions compiled for more than the base instruction set.

use super::words;
use core::sync::atomic::{AtomicU8, Ordering};

/// An instruction set that this CPU has.
///
/// A value is proof of its presence: it only comes from [`Isa::best`] and [`Isa::available`], which
/// detect it. That makes [`sum_with`] and [`copy_with`] safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Portable = 1,
    #[cfg(target_arch = "x86_64")]
    Avx2 = 2,
    #[cfg(target_arch = "x86_64")]
    Avx512 = 3,
}

/// All of them, the best last.
const KINDS: &[Kind] = &[
    Kind::Portable,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx2,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx512,
];

impl Kind {
    #[cfg(feature = "std")]
    fn is_available(self) -> bool {
        match self {
            Kind::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => std::arch::is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => {
                std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512bw")
            }
        }
    }

    /// Detection at run time needs `std`: without it, the instruction sets are those that the
    /// target has at compile time.
    #[cfg(not(feature = "std"))]
    fn is_available(self) -> bool {
        match self {
            Kind::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => cfg!(target_feature = "avx2"),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => cfg!(all(target_feature = "avx512f", target_feature = "avx512bw")),
        }
    }
}

impl Isa {
    /// Every instruction set this CPU has, the best last. Never empty.
    pub fn available() -> impl Iterator<Item = Isa> {
        KINDS.iter().copied().filter(|kind| kind.is_available()).map(Isa)
    }

    /// The best that this CPU has: detected once, one relaxed load after that.
    #[inline]
    #[must_use]
    pub fn best() -> Isa {
        static BEST: AtomicU8 = AtomicU8::new(0);
        match BEST.load(Ordering::Relaxed) {
            #[cfg(target_arch = "x86_64")]
            3 => Isa(Kind::Avx512),
            #[cfg(target_arch = "x86_64")]
            2 => Isa(Kind::Avx2),
            1 => Isa(Kind::Portable),
            _ => detect(&BEST),
        }
    }

    /// The name: `portable`, `avx2`, `avx512`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
        }
    }
}

/// Two threads may both detect: their results are equal.
#[cold]
fn detect(cache: &AtomicU8) -> Isa {
    let best = Isa::available().last().unwrap_or(Isa(Kind::Portable));
    cache.store(best.0 as u8, Ordering::Relaxed);
    best
}

/// [`sum`](super::sum) with a given instruction set, for tests and benches.
#[inline]
#[must_use]
pub fn sum_with(isa: Isa, data: &[u8]) -> u16 {
    words::to_wire(match isa.0 {
        Kind::Portable => words::sum_long(data),
        // SAFETY: an `Isa` of this kind exists only on a CPU that reported AVX2.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { x86::sum_avx2(data) },
        // SAFETY: an `Isa` of this kind exists only on a CPU that reported AVX-512 F and BW.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { x86::sum_avx512(data) },
    })
}

/// [`copy`](super::copy) with a given instruction set, for tests and benches.
#[inline]
#[must_use]
pub fn copy_with(isa: Isa, dst: &mut [u8], src: &[u8]) -> u16 {
    words::to_wire(match isa.0 {
        Kind::Portable => words::sum_long(words::copied(dst, src)),
        // SAFETY: an `Isa` of this kind exists only on a CPU that reported AVX2.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { x86::copy_avx2(dst, src) },
        // SAFETY: an `Isa` of this kind exists only on a CPU that reported AVX-512 F and BW.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { x86::copy_avx512(dst, src) },
    })
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::words;
    use core::arch::asm;
    use core::arch::x86_64::*;

    /// A block of 64 bytes, as one AVX-512 register holds.
    type Pair = [__m256i; 2];

    #[target_feature(enable = "avx2")]
    #[inline]
    fn load256(bytes: &[u8; 64]) -> Pair {
        let at: *const __m256i = bytes.as_ptr().cast();
        // SAFETY: the array is exactly the 64 bytes read; the loads need no alignment.
        unsafe { [_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))] }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn load256_half(bytes: &[u8; 32]) -> __m256i {
        // SAFETY: the array is exactly the 32 bytes read; the load needs no alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    /// Up to 8 words of 32 bits, zeros after them.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn load256_dwords(dwords: &[[u8; 4]]) -> __m256i {
        let n = _mm256_set1_epi32(dwords.len() as i32);
        let mask = _mm256_cmpgt_epi32(n, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        // SAFETY: the mask has the words of the slice (the first 8 if there are more) and no other,
        // and words that it does not have are not accessed.
        unsafe { _mm256_maskload_epi32(dwords.as_ptr().cast(), mask) }
    }

    /// The empty `asm!` hides where `v` came from. Without it the compiler recognises a copying
    /// loop and takes the stores out of it into a `memcpy`: two passes instead of one.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn store256(bytes: &mut [u8; 64], [mut v, mut w]: Pair) {
        // SAFETY: the template has no instruction.
        unsafe {
            asm!("/* {0} {1} */", inout(ymm_reg) v, inout(ymm_reg) w, options(pure, nomem, nostack, preserves_flags))
        };
        let at: *mut __m256i = bytes.as_mut_ptr().cast();
        // SAFETY: the array is exactly the 64 bytes written; the stores need no alignment.
        unsafe {
            _mm256_storeu_si256(at, v);
            _mm256_storeu_si256(at.add(1), w);
        }
    }

    /// 16-bit words, made signed by subtracting `0x8000`, are added in pairs to lanes of 32 bits:
    /// three instructions a vector, where lanes of 64 bits take four. The two sums take turns.
    struct Sum256(Pair);

    /// Bytes that are summed at a time: lanes could overflow after 1 MiB.
    const MOST256: usize = 1 << 19;

    impl Sum256 {
        #[target_feature(enable = "avx2")]
        #[inline]
        fn new() -> Self {
            Self([_mm256_setzero_si256(); 2])
        }

        #[target_feature(enable = "avx2")]
        #[inline]
        fn add(&mut self, pair: Pair) {
            for (lanes, v) in self.0.iter_mut().zip(pair) {
                let signed = _mm256_xor_si256(v, _mm256_set1_epi16(i16::MIN));
                *lanes = _mm256_add_epi32(*lanes, _mm256_madd_epi16(signed, _mm256_set1_epi16(1)));
            }
        }

        /// The sum of so many pairs, and of those of the `tail`, fewer than 64 bytes.
        #[target_feature(enable = "avx2")]
        #[inline]
        fn reduce(mut self, mut pairs: usize, tail: &[u8]) -> u64 {
            let mut odd = 0;
            if !tail.is_empty() {
                let (whole, rest) = tail.as_chunks::<32>();
                let first = if let [half] = whole { load256_half(half) } else { _mm256_setzero_si256() };
                let (dwords, last) = rest.as_chunks::<4>();
                self.add([first, load256_dwords(dwords)]);
                (pairs, odd) = (pairs + 1, words::sum_tail(last));
            }
            let [a, b] = self.0;
            // A lane has four words of each pair. Four times 0x8000 a pair make them unsigned again.
            // The sum is below 2^32.
            let lanes = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_set1_epi32((pairs as i32) << 17));
            let low = _mm256_and_si256(lanes, _mm256_set1_epi64x(0xffff_ffff));
            add_lanes(_mm256_add_epi64(low, _mm256_srli_epi64::<32>(lanes))) + odd
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn sum_avx2(data: &[u8]) -> u64 {
        if data.len() <= 64 {
            return sum_short_avx2(data);
        }
        if data.len() > MOST256 {
            return sum_long_avx2(data);
        }
        let (blocks, tail) = data.as_chunks::<64>();
        let (twos, one) = blocks.as_chunks::<2>();
        let mut sum = Sum256::new();
        for [a, b] in twos {
            sum.add(load256(a));
            sum.add(load256(b));
        }
        if let [block] = one {
            sum.add(load256(block));
        }
        sum.reduce(blocks.len(), tail)
    }

    /// The sum of up to 64 bytes. For one block, the multiplications of [`Sum256`] would be most of
    /// the wait for its result: the halves of its 64-bit words are added in lanes as wide instead.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn sum_short_avx2(data: &[u8]) -> u64 {
        let Ok(block) = data.try_into() else { return words::sum(data) };
        let [low, high] = load256(block).map(|v| {
            let low = _mm256_and_si256(v, _mm256_set1_epi64x(0xffff_ffff));
            _mm256_add_epi64(low, _mm256_srli_epi64::<32>(v))
        });
        add_lanes(_mm256_add_epi64(low, high))
    }

    /// The sum of four 64-bit words, which is below 2^64.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn add_lanes(v: __m256i) -> u64 {
        let v = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        (_mm_cvtsi128_si64(v) as u64).wrapping_add(_mm_extract_epi64::<1>(v) as u64)
    }

    #[target_feature(enable = "avx2")]
    #[cold]
    #[inline(never)]
    fn sum_long_avx2(data: &[u8]) -> u64 {
        data.chunks(MOST256).fold(0, |sum, data| words::add(sum, sum_avx2(data)))
    }

    /// The end is copied first, by a store that overlaps the last whole block: cheaper than a call
    /// for the odd bytes.
    #[target_feature(enable = "avx2")]
    pub(super) fn copy_avx2(dst: &mut [u8], src: &[u8]) -> u64 {
        let len = dst.len().min(src.len());
        let (dst, src) = (&mut dst[..len], &src[..len]);
        if len > MOST256 {
            return copy_long_avx2(dst, src);
        }
        match (dst.last_chunk_mut::<64>(), src.last_chunk::<64>()) {
            (Some(to), Some(from)) => store256(to, load256(from)),
            _ => dst.copy_from_slice(src),
        }
        let (to, _) = dst.as_chunks_mut::<64>();
        let (from, tail) = src.as_chunks::<64>();
        let (to_twos, to_one) = to.as_chunks_mut::<2>();
        let (twos, one) = from.as_chunks::<2>();
        let mut sum = Sum256::new();
        for (to, from) in to_twos.iter_mut().zip(twos) {
            for (to, from) in to.iter_mut().zip(from) {
                let v = load256(from);
                store256(to, v);
                sum.add(v);
            }
        }
        if let ([to], [from]) = (to_one, one) {
            let v = load256(from);
            store256(to, v);
            sum.add(v);
        }
        sum.reduce(from.len(), tail)
    }

    #[target_feature(enable = "avx2")]
    #[cold]
    #[inline(never)]
    fn copy_long_avx2(dst: &mut [u8], src: &[u8]) -> u64 {
        let pieces = dst.chunks_mut(MOST256).zip(src.chunks(MOST256));
        pieces.fold(0, |sum, (dst, src)| words::add(sum, copy_avx2(dst, src)))
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn load512(bytes: &[u8; 64]) -> __m512i {
        // SAFETY: the array is exactly the 64 bytes read; the load needs no alignment.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    /// The empty `asm!` has the reason given at [`store256`].
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn store512(bytes: &mut [u8; 64], mut v: __m512i) {
        // SAFETY: the template has no instruction.
        unsafe { asm!("/* {0} */", inout(zmm_reg) v, options(pure, nomem, nostack, preserves_flags)) };
        // SAFETY: the array is exactly the 64 bytes written; the store needs no alignment.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), v) }
    }

    /// Up to 64 bytes, zeros after them.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn load512_tail(bytes: &[u8]) -> __m512i {
        let mask = u64::MAX.checked_shr(64 - bytes.len().min(64) as u32).unwrap_or(0);
        // SAFETY: the mask has a bit for each byte of the slice and no other, and bytes whose bit
        // is clear are not accessed.
        unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
    }

    /// Up to 64 bytes, zeros before them.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn load512_end(bytes: &[u8]) -> __m512i {
        let before = 64 - bytes.len().min(64);
        let mask = u64::MAX.checked_shl(before as u32).unwrap_or(0);
        // SAFETY: the mask has a bit for each byte of the slice (the first 64 if there are more)
        // and no other, and bytes whose bit is clear are not accessed.
        unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().wrapping_sub(before).cast()) }
    }

    /// 64-bit words without carries, and their high 32 bits.
    struct Sum512(__m512i, __m512i);

    impl Sum512 {
        #[target_feature(enable = "avx512f")]
        #[inline]
        fn new(first: __m512i) -> Self {
            let mut sum = Self(_mm512_setzero_si512(), _mm512_setzero_si512());
            sum.add(first);
            sum
        }

        #[target_feature(enable = "avx512f")]
        #[inline]
        fn add(&mut self, v: __m512i) {
            self.0 = _mm512_add_epi64(self.0, v);
            self.1 = _mm512_add_epi64(self.1, _mm512_srli_epi64::<32>(v));
        }

        #[target_feature(enable = "avx512f")]
        #[inline]
        fn reduce(self) -> u64 {
            let low = _mm512_sub_epi64(self.0, _mm512_slli_epi64::<32>(self.1));
            _mm512_reduce_add_epi64(_mm512_add_epi64(low, self.1)) as u64
        }
    }

    /// Whole cache lines are loaded: each unaligned block of 64 bytes is two accesses, and a
    /// payload seldom begins at a line. If it begins at an odd address, all 16-bit words are
    /// swapped, and rotating the sum by a byte corrects it.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn sum_avx512(data: &[u8]) -> u64 {
        let (begin, lines) = data.split_at(data.as_ptr().align_offset(64).min(data.len()));
        let (lines, tail) = lines.as_chunks::<64>();
        let mut sum = Sum512::new(load512_end(begin));
        sum.add(load512_tail(tail));
        for line in lines {
            sum.add(load512(line));
        }
        sum.reduce().rotate_left(if begin.len() % 2 == 0 { 0 } else { 8 })
    }

    /// The end is copied first, as in [`copy_avx2`].
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn copy_avx512(dst: &mut [u8], src: &[u8]) -> u64 {
        let len = dst.len().min(src.len());
        let (dst, src) = (&mut dst[..len], &src[..len]);
        match (dst.last_chunk_mut::<64>(), src.last_chunk::<64>()) {
            (Some(to), Some(from)) => store512(to, load512(from)),
            _ => dst.copy_from_slice(src),
        }
        let (to, _) = dst.as_chunks_mut::<64>();
        let (from, tail) = src.as_chunks::<64>();
        let mut sum = Sum512::new(load512_tail(tail));
        for (to, from) in to.iter_mut().zip(from) {
            let v = load512(from);
            store512(to, v);
            sum.add(v);
        }
        sum.reduce()
    }
}
