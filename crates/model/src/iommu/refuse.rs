//! Injected failures of mappings and invalidations.

use crate::seed::Seed;
use std::sync::{Mutex, PoisonError};

/// Which mappings of buffers and regions fail, or which invalidations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Refuse {
    /// None.
    #[default]
    Never,
    /// Every `n`-th.
    Every(u32),
    /// At random, by a seed.
    Chance {
        /// The rate in a million.
        per_million: u32,
        /// The seed.
        seed: u64,
    },
    /// All of them.
    Always,
}

/// The state of a [`Refuse`]; it can be replaced at any time.
#[derive(Debug)]
pub(super) struct MapRefusals(Mutex<(Refuse, u32, Seed)>);

impl MapRefusals {
    pub(super) fn new(refuse: Refuse) -> MapRefusals {
        let seed = if let Refuse::Chance { seed, .. } = refuse { seed } else { 0 };
        MapRefusals(Mutex::new((refuse, 0, Seed::new(seed))))
    }

    pub(super) fn set(&self, refuse: Refuse) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            MapRefusals::new(refuse).0.into_inner().unwrap_or_else(PoisonError::into_inner);
    }

    /// Whether the next one fails.
    pub(super) fn next(&self) -> bool {
        let (refuse, count, seed) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *refuse {
            Refuse::Never => false,
            Refuse::Always => true,
            Refuse::Every(n) => {
                *count += 1;
                n > 0 && count.is_multiple_of(n)
            }
            Refuse::Chance { per_million, .. } => seed.chance(per_million),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_third_is_every_third() {
        let refusals = MapRefusals::new(Refuse::Every(3));
        let got: Vec<_> = (0..7).map(|_| refusals.next()).collect();
        assert_eq!(got, [false, false, true, false, false, true, false]);
    }

    #[test]
    fn the_same_seed_refuses_the_same() {
        let run = |seed| {
            let refusals = MapRefusals::new(Refuse::Chance { per_million: 300_000, seed });
            (0..100).map(|_| refusals.next()).collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        assert!((10..60).contains(&run(7).iter().filter(|refused| **refused).count()));
    }
}
