//! Lanes: threads that each take the packets of their flows, from every receiving worker.
//!
//! ```text
//!   worker 0: rx ──► Steer ──┬─ ring ──► ┐
//!                            └─ ring ─┐  ├─ LaneRx ─► verdict ─► GRO ─► finish ─► tx queue 0     lane 0
//!                                     │  │
//!   worker 1: rx ──► Steer ──┬─ ring ─│─►┘
//!                            └─ ring ─┴────► LaneRx ─► verdict ─► GRO ─► finish ─► tx queue 1     lane 1
//! ```
//!
//! A worker only receives and decides where a packet goes; the work is done by the lane. Rings have one producer and one
//! consumer, are filled and drained in bulk, and ring a notifier only when the lane sleeps. To a worker the rings of all lanes are
//! a transmit queue ([`Steer`]), to a lane they are a receive queue ([`LaneRx`]): both are run by ordinary
//! [routes](crate::route).
//!
//! **Order.** A flow belongs to a bucket of the [`Table`], a bucket to a lane. When a bucket moves, the worker first waits until the
//! old lane has sent the last packet of that bucket, GRO included, to where none can overtake it; only then does the next one go to
//! the new lane. What comes in must have been in one queue for that: a port that moves flows between its receive queues has no
//! order that could be kept (`steering` of [`tun`](crate::ports::tun)).
//!
//! **Balance.** What a full ring refuses is dropped as `lane-full`, or held back, as [`Full`] says. What is still in a ring when both
//! of its sides are gone is counted as `stopped`.

mod balance;
mod receive;
mod steer;
mod table;

pub use balance::Balancer;
pub use receive::LaneRx;
pub use steer::Steer;
pub use table::{BUCKETS, Steering, Table};

use std::io;
use std::sync::Arc;
use towpath_packet::Notifier;
use towpath_packet::port::Layer;
use towpath_packet::spsc::ring;
use towpath_packet::{Counters, DropReason, Offloads};
use towpath_sys::sync::{AtomicU16, AtomicU64, Ordering};

/// What happens to a packet whose lane has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Full {
    /// It is dropped, as `lane-full`.
    Drop,
    /// It waits, and with it everything behind it: the ingress is held back.
    #[default]
    Hold,
}

/// How packets get to their lanes.
#[derive(Debug, Clone)]
pub struct LaneConfig {
    /// How the lane of a packet is chosen.
    pub steering: Steering,
    /// What happens when it has no room.
    pub full: Full,
    /// Packets that a ring holds, 64 to 65536; rounded up to a power of two.
    pub ring: usize,
    /// What packets begin with.
    pub layer: Layer,
}

impl Default for LaneConfig {
    /// By flow, holding back, 1024 packets in a ring, Ethernet.
    fn default() -> LaneConfig {
        LaneConfig { steering: Steering::Flow, full: Full::Hold, ring: 1024, layer: Layer::Ethernet }
    }
}

/// What the sides of one lane share besides its rings.
#[derive(Debug)]
struct Gate {
    notifier: Notifier,
    /// What the lane's egress takes.
    accept: AtomicU16,
}

/// What the two sides of one ring share besides the ring.
#[derive(Debug)]
#[repr(align(128))]
struct Link {
    /// Packets of this ring that have left the lane. Written by the lane.
    settled: AtomicU64,
    /// Packets put into the ring, and taken out of it; written when a side goes.
    sent: AtomicU64,
    taken: AtomicU64,
    counters: Arc<Counters>,
}

impl Drop for Link {
    fn drop(&mut self) {
        let lost = self.sent.load(Ordering::Relaxed).saturating_sub(self.taken.load(Ordering::Relaxed));
        self.counters.dropped(DropReason::Stopped, lost);
    }
}

/// The two sides of all rings of one direction.
#[derive(Debug)]
pub struct Lanes {
    /// One for each receive queue of the ingress.
    pub steers: Vec<Steer>,
    /// One for each lane.
    pub lanes: Vec<LaneRx>,
    /// What is dropped between them; not part of any port.
    pub counters: Vec<Arc<Counters>>,
}

/// Makes the rings of one direction: from each of `senders` receive queues to each of `lanes` lanes, which is how many lanes
/// `table` must have been made for.
///
/// # Errors
/// When the process has no descriptor left for the notifiers, one for each lane.
pub fn connect(config: &LaneConfig, table: &Arc<Table>, senders: usize) -> io::Result<Lanes> {
    let gate = || -> io::Result<_> {
        Ok(Arc::new(Gate { notifier: Notifier::new()?, accept: AtomicU16::new(Offloads::ALL.bits()) }))
    };
    let gates = (0..table.lanes()).map(|_| gate()).collect::<io::Result<Vec<_>>>()?;
    let mut inlets: Vec<Vec<receive::Inlet>> = gates.iter().map(|_| Vec::new()).collect();
    let (mut steers, mut all_counters) = (Vec::new(), Vec::new());
    for _ in 0..senders {
        let counters = Arc::new(Counters::default());
        let mut outlets = Vec::new();
        for (gate, inlets) in gates.iter().zip(&mut inlets) {
            let (producer, consumer) = ring(config.ring.clamp(64, 65536));
            let zero = || AtomicU64::new(0);
            let link = Arc::new(Link { settled: zero(), sent: zero(), taken: zero(), counters: counters.clone() });
            outlets.push(steer::Outlet::new(producer, link.clone(), gate.clone()));
            inlets.push(receive::Inlet::new(consumer, link));
        }
        all_counters.push(counters.clone());
        steers.push(Steer::new(outlets, config, table.clone(), counters));
    }
    let lanes = inlets.into_iter().zip(gates).map(|(inlets, gate)| LaneRx::new(inlets, gate)).collect();
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
