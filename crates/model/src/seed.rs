//! Reproducible random numbers.

use towpath_wire::hash::SplitMix64;

/// Random numbers, as faults and delays take them.
#[derive(Debug, Clone)]
pub(crate) struct Seed(SplitMix64);

impl Seed {
    pub(crate) fn new(seed: u64) -> Seed {
        Seed(SplitMix64::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next() % n as u64) as usize }
    }

    /// True with a probability of `per_million` in a million.
    pub(crate) fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.next() % 1_000_000 < u64::from(per_million)
    }
}
