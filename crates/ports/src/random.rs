//! Random numbers for repeatable runs.

use towpath_wire::hash::SplitMix64;

/// The numbers of a seed.
#[derive(Debug, Clone)]
pub(super) struct Random(SplitMix64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(SplitMix64::new(seed))
    }

    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n` (0 for `n` = 0); biased by less than `n` / 2^64.
    #[inline]
    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_a_bound_stay_below_it_and_reach_all_of_it() {
        let mut random = Random::new(7);
        let mut seen = [false; 6];
        (0..200).for_each(|_| seen[random.below(6) as usize] = true);
        assert_eq!(seen, [true; 6]);
        assert_eq!(random.below(0), 0);
    }
}
