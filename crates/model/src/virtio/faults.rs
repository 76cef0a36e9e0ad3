//! Injected faults of a device, by a seed.

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
        /// Turns with work after which the device needs a reset.
        pub needs_reset: u32,
        /// Turns with work after which it stops for good without a sign, until it is reset.
        pub stall: u32,
        /// Used chains with an id that is not in flight.
        pub used_id: u32,
        /// Used chains with a length beyond their buffers.
        pub used_len: u32,
        /// Received headers with a wrong number of buffers.
        pub num_buffers: u32,
        /// Received headers that ask for what is not in the frame.
        pub header: u32,
        /// Commands of the control queue that are refused.
        pub command: u32,
        /// Messages that are lost.
        pub message: u32,
    }
}

/// The state of fault injection.
#[derive(Debug)]
pub(super) struct Injector {
    pub(super) rates: Faults,
    pub(super) seed: Seed,
}

impl Injector {
    pub(super) fn new(rates: Faults) -> Injector {
        Injector { rates, seed: Seed::new(rates.seed) }
    }

    /// Whether the fault with this rate happens now.
    pub(super) fn happens(&mut self, rate: impl Fn(&Faults) -> u32) -> bool {
        self.seed.chance(rate(&self.rates))
    }
}
