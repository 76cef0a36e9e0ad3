//! The control of a running generator: how it keeps its rate, and what it found in tags.

use super::pace::PaceShared;
use super::verify::Verifier;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use towpath_packet::port::{Pacing, PortControl, Verified};

/// The generator's handle. It has no settings.
#[derive(Debug)]
pub(super) struct GenControl {
    /// Of each queue, once the port is started.
    pub(super) paces: OnceLock<Vec<Arc<PaceShared>>>,
    pub(super) verifier: Option<Arc<Verifier>>,
}

impl PortControl for GenControl {
    fn pacing(&self, until: Instant) -> Option<Pacing> {
        let queues = self.paces.get()?.iter().map(|pace| pace.read(until));
        queues.reduce(|sum, pace| {
            Pacing::new(sum.asked + pace.asked, sum.reached + pace.reached, sum.given_up + pace.given_up)
        })
    }

    fn verified(&self) -> Option<Verified> {
        self.verifier.as_ref().map(|verifier| verifier.read())
    }
}
