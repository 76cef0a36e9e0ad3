//! The indirection table: from the hash of a flow to its lane.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use towpath_wire::hash::Toeplitz;

/// Buckets of the table: flows that share a bucket share a lane.
pub const BUCKETS: usize = 256;
/// Most lanes of a table.
pub(super) const MAX_LANES: usize = 64;

/// How the lane of a packet is chosen. A verdict that names a lane has precedence.
#[derive(Debug, Clone, Default)]
pub enum Steering {
    /// By a hash that is equal for both directions of a flow.
    #[default]
    Flow,
    /// By the Toeplitz hash of receive-side scaling.
    Rss(Box<Toeplitz>),
    /// All packets to one lane.
    Lane(u8),
    /// In turn. Packets of one flow overtake each other: only for traffic without order.
    RoundRobin,
}

impl Steering {
    /// The lane of a packet if no bucket decides; `turn` is that of the last packet.
    #[inline]
    pub(super) fn next_lane(&self, turn: &mut usize, lanes: usize) -> usize {
        if let Steering::Lane(lane) = self {
            return usize::from(*lane) % lanes;
        }
        *turn = (*turn + 1) % lanes;
        *turn
    }
}

/// The indirection table: buckets to lanes. Shared by all workers, changed while they run.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LaneTable {
    /// Read for each packet, written when one moves: lines of their own.
    buckets: [AtomicU8; BUCKETS],
    /// Packets per bucket, from all workers: the load that the balancer evens out.
    load: [AtomicU64; BUCKETS],
    lanes: u8,
}

impl LaneTable {
    /// A table that spreads buckets evenly over `lanes`; `None` unless there are 1 to 64.
    pub fn new(lanes: usize) -> Option<LaneTable> {
        if !(1..=MAX_LANES).contains(&lanes) {
            return None;
        }
        let buckets = std::array::from_fn(|i| AtomicU8::new((i % lanes) as u8));
        Some(LaneTable { buckets, load: [const { AtomicU64::new(0) }; BUCKETS], lanes: lanes as u8 })
    }

    /// Number of lanes.
    pub fn lanes(&self) -> usize {
        usize::from(self.lanes)
    }

    /// The lane of a bucket.
    #[inline]
    pub fn lane(&self, bucket: usize) -> u8 {
        self.buckets[bucket % BUCKETS].load(Ordering::Relaxed)
    }

    /// Moves a bucket to another lane; returns false and changes nothing if there is no such bucket
    /// or lane. Workers follow once the old lane has sent its packets of the bucket.
    pub fn set(&self, bucket: usize, lane: u8) -> bool {
        let valid = bucket < BUCKETS && lane < self.lanes;
        if valid {
            self.buckets[bucket].store(lane, Ordering::Relaxed);
        }
        valid
    }

    /// Packets steered by each bucket so far.
    pub fn loads(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|i| self.load[i].load(Ordering::Relaxed))
    }

    /// Adds to a bucket's load. Concurrent updates may be lost, which the balancer tolerates.
    #[inline]
    pub(super) fn count(&self, bucket: usize, packets: u64) {
        let load = &self.load[bucket % BUCKETS];
        load.store(load.load(Ordering::Relaxed) + packets, Ordering::Relaxed);
    }
}
