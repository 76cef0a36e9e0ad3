//! Faults: what a device does that it should not, by a seed.

use crate::iommu::Refuse;
use crate::seed::Seed;

/// How often, in a million, and what. The default is a device without faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Which of the occasions are taken.
    pub seed: u64,
    /// Mappings that fail, besides [`iommu::Config::refuse`](crate::iommu::Config::refuse).
    pub mappings: Refuse,
    /// Received frames with a CRC error (CE).
    pub crc: u32,
    /// Received frames with a symbol error (SE).
    pub symbol: u32,
    /// Received frames with a data error (RXE).
    pub data: u32,
    /// Turns at which the link goes down.
    pub flap: u32,
    /// Turns that it is down then.
    pub flap_turns: u32,
    /// Turns at which the device stops fetching and writing back.
    pub stall: u32,
    /// Turns that it does so; 0: until it is reset.
    pub stall_turns: u32,
    /// Receive write-backs with a length that is not that of the data.
    pub bad_length: u32,
    /// Receive write-backs that lack EOP where it belongs.
    pub no_eop: u32,
    /// Receive write-backs with a queue, a hash type and reserved bits that mean nothing.
    pub garbage: u32,
    /// Write-backs that overtake the one before them.
    pub reorder: u32,
    /// Write-backs of a descriptor that nobody asked for, anywhere in the ring.
    pub wild: u32,
    /// Write-backs that never happen.
    pub lose: u32,
    /// Interrupts that never happen.
    pub interrupt: u32,
}

impl Faults {
    /// Whether the device writes to descriptors that are not its own, or not what it should.
    pub(crate) fn writes_wildly(&self) -> bool {
        self.wild > 0 || self.reorder > 0 || self.lose > 0
    }
}

/// Faults at work.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) faults: Faults,
    pub(crate) seed: Seed,
    /// Nothing is ever to be drawn: spares the look at each rate.
    none: bool,
}

impl Plan {
    pub(crate) fn new(faults: Faults) -> Plan {
        let none = faults == Faults { seed: faults.seed, mappings: faults.mappings, ..Faults::default() };
        Plan { faults, seed: Seed::new(faults.seed), none }
    }

    /// Whether an occasion is taken, by one of the rates.
    #[inline]
    pub(crate) fn draw(&mut self, rate: fn(&Faults) -> u32) -> bool {
        !self.none && self.seed.chance(rate(&self.faults))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_faults_never_draws_one() {
        let mut plan = Plan::new(Faults { seed: 3, ..Faults::default() });
        assert!((0..1000).all(|_| !plan.draw(|f| f.crc) && !plan.draw(|f| f.stall)));
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let run = |seed| {
            let mut plan = Plan::new(Faults { seed, crc: 500_000, ..Faults::default() });
            (0..64).map(|_| plan.draw(|f| f.crc)).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
