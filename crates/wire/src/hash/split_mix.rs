//! A sequence of hashes: random numbers that a seed repeats.

/// SplitMix64 (Steele, Lea, Flood,
/// ["Fast splittable pseudorandom number generators"](https://doi.org/10.1145/2714064.2660195)):
/// one addition and a mix per number. Not for secrets.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of a seed.
    #[inline]
    #[must_use]
    pub const fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The next number.
    #[inline]
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_published_algorithm() {
        let mut numbers = SplitMix64::new(1234567);
        let first = [numbers.next_u64(), numbers.next_u64(), numbers.next_u64()];
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }
}
