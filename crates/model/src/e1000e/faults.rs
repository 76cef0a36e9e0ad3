//! Injected faults of a device, by a seed.

use crate::iommu::Refuse;
use crate::seed::Seed;
use towpath_packet::setters;

setters! {
    /// The rates of faults, in a million. The default is a device without faults. Each field has a
    /// setter of its name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    #[non_exhaustive]
    pub struct Faults {
        /// The seed of the random decisions.
        pub seed: u64,
        /// Failures of mappings, in place of
        /// [`iommu::Config::refuse`](crate::iommu::Config::refuse).
        pub mappings: Refuse,
        /// Received frames with a CRC error (CE).
        pub crc: u32,
        /// Received frames with a symbol error (SE).
        pub symbol: u32,
        /// Received frames with a data error (RXE).
        pub data: u32,
        /// Bursts at which the link goes down.
        pub flap: u32,
        /// Bursts for which it stays down.
        pub flap_turns: u32,
        /// Bursts at which the device stops fetching and writing back.
        pub stall: u32,
        /// Bursts for which it stays stopped; 0: until reset.
        pub stall_turns: u32,
        /// Receive write-backs with a wrong length.
        pub bad_length: u32,
        /// Receive write-backs without the EOP bit of the last descriptor.
        pub no_eop: u32,
        /// Receive write-backs with a random queue, hash type and reserved bits.
        pub garbage: u32,
        /// Write-backs that overtake the previous one.
        pub reorder: u32,
        /// Unsolicited write-backs of a descriptor anywhere in the ring.
        pub wild: u32,
        /// Write-backs that are lost.
        pub lose: u32,
        /// Interrupts that are lost.
        pub interrupt: u32,
    }
}

impl Faults {
    /// Whether the device writes to descriptors that it does not own, or leaves them unwritten.
    pub(crate) fn writes_wildly(&self) -> bool {
        self.wild > 0 || self.reorder > 0 || self.lose > 0
    }
}

/// The state of fault injection.
#[derive(Debug)]
pub(crate) struct FaultInjector {
    pub(crate) rates: Faults,
    pub(crate) seed: Seed,
    /// All rates are zero: no random number is needed.
    none: bool,
}

impl FaultInjector {
    pub(crate) fn new(faults: Faults) -> FaultInjector {
        let none = faults == Faults { seed: faults.seed, mappings: faults.mappings, ..Faults::default() };
        FaultInjector { rates: faults, seed: Seed::new(faults.seed), none }
    }

    /// Whether a fault with this rate occurs now.
    #[inline]
    pub(crate) fn inject(&mut self, rate: fn(&Faults) -> u32) -> bool {
        !self.none && self.seed.chance(rate(&self.rates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_faults_never_draws_one() {
        let mut faults = FaultInjector::new(Faults { seed: 3, ..Faults::default() });
        assert!((0..1000).all(|_| !faults.inject(|f| f.crc) && !faults.inject(|f| f.stall)));
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let run = |seed| {
            let mut faults = FaultInjector::new(Faults { seed, crc: 500_000, ..Faults::default() });
            (0..64).map(|_| faults.inject(|f| f.crc)).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
