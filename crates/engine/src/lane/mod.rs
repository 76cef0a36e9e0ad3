//! Lanes: threads that each process the packets of their flows, from every receiving worker.
//!
//! ```text
//!   worker 0: rx ──► Steer ──┬─ ring ──► ┐
//!                            └─ ring ─┐  ├─ LaneRx ─► verdict ─► GRO ─► offload ─► tx 0   lane 0
//!                                     │  │
//!   worker 1: rx ──► Steer ──┬─ ring ─│─►┘
//!                            └─ ring ─┴────► LaneRx ─► verdict ─► GRO ─► offload ─► tx 1  lane 1
//! ```
//!
//! | file | content |
//! |---|---|
//! | `table` | [`LaneTable`]: buckets of flows to lanes, like an RSS indirection table |
//! | `steer` | [`Steer`]: the worker's side, a transmit queue |
//! | `rx` | [`LaneRx`]: the lane's side, a receive queue |
//! | `balance` | [`Balancer`]: moves buckets from busy to idle lanes |
//! | `loom_models` | all interleavings of workers and lanes, under `--cfg loom` |
//!
//! A worker only receives and steers; the lane does the work. Rings have one producer and one
//! consumer, are filled and drained in bulk, and notify the lane only if it sleeps. For a worker
//! the rings of all lanes are a transmit queue, for a lane they are a receive queue: ordinary
//! [routes](crate::route) run both. A single lane has all packets: their flows are not looked for.
//!
//! **Order.** A flow belongs to a bucket of the [`LaneTable`], a bucket to a lane. When a bucket
//! moves, the worker first waits until the old lane has sent the last packet of that bucket, GRO
//! included, to where no packet can overtake it. Only then does the next packet go to the new lane.
//! All packets of a flow must arrive in one receive queue: a port that moves flows between its
//! queues has no order to keep (the `steering` ability of `tun` ports).
//!
//! **Balance.** A packet that a full ring refuses is dropped as `lane-full` or held back, by
//! [`FullPolicy`]. Packets left in a ring when both of its sides are dropped are counted as
//! `stopped`.

mod balance;
mod rx;
mod steer;
mod table;

pub use balance::Balancer;
pub use rx::LaneRx;
pub use steer::Steer;
pub use table::{BUCKETS, LaneTable, Steering};

use rx::RingRx;
use std::io;
use std::sync::Arc;
use steer::RingTx;
use towpath_packet::port::Layer;
use towpath_packet::spsc::ring;
use towpath_packet::{Counters, DropReason, Notifier, Offloads};
use towpath_sys::sync::{AtomicU16, AtomicU64, Ordering};

/// Treatment of a packet whose lane has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FullPolicy {
    /// Drop it as `lane-full`.
    Drop,
    /// Hold it and all packets behind it: the ingress is held back.
    #[default]
    Hold,
}

/// Configuration of steering and rings.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LaneConfig {
    /// How the lane of a packet is chosen.
    pub steering: Steering,
    /// Treatment of packets for a full lane.
    pub full: FullPolicy,
    /// Packets per ring, 64 to 65536; rounded up to a power of two.
    pub ring: usize,
    /// The first header of packets.
    pub layer: Layer,
}

impl Default for LaneConfig {
    /// By flow, holding back, 1024 packets per ring, Ethernet.
    fn default() -> LaneConfig {
        LaneConfig { steering: Steering::Flow, full: FullPolicy::Hold, ring: 1024, layer: Layer::Ethernet }
    }
}

/// State shared by the lane and all its workers, besides the rings.
#[derive(Debug)]
struct LaneShared {
    notifier: Notifier,
    /// Offloads of the lane's egress.
    offloads: AtomicU16,
}

/// State shared by the two sides of one ring, besides the ring.
#[derive(Debug)]
#[repr(align(128))]
struct RingShared {
    /// Packets of this ring that have left the lane. Written by the lane.
    completed: AtomicU64,
    /// Packets put into the ring and taken out of it; written when a side is dropped.
    enqueued: AtomicU64,
    dequeued: AtomicU64,
    counters: Arc<Counters>,
}

impl RingShared {
    fn new(counters: Arc<Counters>) -> RingShared {
        let zero = || AtomicU64::new(0);
        RingShared { completed: zero(), enqueued: zero(), dequeued: zero(), counters }
    }
}

impl Drop for RingShared {
    fn drop(&mut self) {
        let lost = self.enqueued.load(Ordering::Relaxed).saturating_sub(self.dequeued.load(Ordering::Relaxed));
        self.counters.dropped(DropReason::Stopped, lost);
    }
}

/// Both sides of all rings of one direction.
#[derive(Debug)]
#[non_exhaustive]
pub struct Lanes {
    /// One per receive queue of the ingress.
    pub steers: Vec<Steer>,
    /// One per lane.
    pub lanes: Vec<LaneRx>,
    /// Drops between workers and lanes, which belong to no port.
    pub counters: Vec<Arc<Counters>>,
}

/// Makes the rings of one direction: from each of `senders` receive queues to each lane of `table`.
///
/// # Errors
/// Fails if the process has no descriptor left for the notifiers, one per lane.
pub fn connect(config: &LaneConfig, table: &Arc<LaneTable>, senders: usize) -> io::Result<Lanes> {
    let new_lane = |_| -> io::Result<_> {
        Ok(Arc::new(LaneShared { notifier: Notifier::new()?, offloads: AtomicU16::new(Offloads::ALL.bits()) }))
    };
    let shared = (0..table.lanes()).map(new_lane).collect::<io::Result<Vec<_>>>()?;
    let mut rx_rings: Vec<Vec<RingRx>> = shared.iter().map(|_| Vec::new()).collect();
    let (mut steers, mut all_counters) = (Vec::new(), Vec::new());
    for _ in 0..senders {
        let counters = Arc::new(Counters::default());
        let mut tx_rings = Vec::new();
        for (lane_shared, rx_rings) in shared.iter().zip(&mut rx_rings) {
            let (producer, consumer) = ring(config.ring.clamp(64, 65536));
            let ring_shared = Arc::new(RingShared::new(counters.clone()));
            tx_rings.push(RingTx::new(producer, ring_shared.clone(), lane_shared.clone()));
            rx_rings.push(RingRx::new(consumer, ring_shared));
        }
        all_counters.push(counters.clone());
        steers.push(Steer::new(tx_rings, config, table.clone(), counters));
    }
    let lanes = rx_rings.into_iter().zip(shared).map(|(rings, shared)| LaneRx::new(rings, shared)).collect();
    Ok(Lanes { steers, lanes, counters: all_counters })
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(test)]
#[cfg(not(loom))]
mod order_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
