//! The queues of rings whose driver is in the same process: no front end, no kicks, no calls. For
//! tests that count allocations.

use super::events::RingEvents;
use super::ring::{RingSetup, RingSlot, Way};
use super::{VhostRx, VhostTx};
use std::sync::Arc;
use towpath_packet::{Direction, Pool};
use towpath_virtio::{Areas, Base, Format, Regions};

/// What both sides of a ring know.
#[derive(Debug)]
pub struct LocalRing {
    /// Its format.
    pub format: Format,
    /// Descriptors.
    pub size: u16,
    /// Its areas.
    pub areas: Areas,
    /// Feature bits.
    pub features: u64,
    /// The memory of its buffers.
    pub memory: Regions,
}

impl LocalRing {
    fn start(self, way: Way) -> Option<Arc<RingSlot>> {
        let LocalRing { format, size, areas, features, memory } = self;
        let slot = RingSlot::new(way, &Arc::<RingEvents>::default()).ok()?;
        let base = Base::start(format);
        slot.start(RingSetup {
            format,
            size,
            areas,
            base,
            features,
            memory,
            kick: None,
            call: None,
            err: None,
            enabled: Some(true),
            log: None,
            record: None,
        })
        .ok()?;
        Some(slot)
    }

    /// The queue behind a transmit ring; `None` if its parts do not fit.
    pub fn rx(self, pool: &Pool) -> Option<VhostRx> {
        Some(VhostRx::new(self.start(Way::FromGuest)?, pool.cache(Direction::Rx).ok()?, 0))
    }

    /// The queue behind a receive ring; `None` if its parts do not fit.
    pub fn tx(self, pool: &Pool) -> Option<VhostTx> {
        Some(VhostTx::new(self.start(Way::ToGuest)?, pool.cache(Direction::Tx).ok()?, u64::MAX))
    }
}
