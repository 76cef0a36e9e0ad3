//! How a route behaves, how much it may move, and where it stands among others.

use crate::rules::PortSide;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use towpath_packet::Offloads;
use towpath_packet::port::{Layer, TxLayout};

/// How a route behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteConfig {
    /// How long an egress may refuse before what is held is dropped as `egress-full`. Zero drops at once.
    pub egress_wait: Duration,
    /// What packets begin with.
    pub layer: Layer,
    /// What the egress may be given, of what it can take: without segmentation abilities, super-packets are cut before it.
    pub allow: Offloads,
    /// What the egress wants of the memory of packets.
    pub shape: TxLayout,
    /// The ingress is a queue between threads: when stopping, what is in it is still received, until its other side has
    /// closed it.
    pub internal: bool,
}

impl Default for RouteConfig {
    /// Ten milliseconds; Ethernet.
    fn default() -> RouteConfig {
        RouteConfig {
            egress_wait: Duration::from_millis(10),
            layer: Layer::Ethernet,
            allow: Offloads::ALL,
            shape: TxLayout::default(),
            internal: false,
        }
    }
}

/// A number of packets that several routes may move together.
#[derive(Debug)]
pub struct Limit(AtomicI64);

impl Limit {
    /// `n` packets.
    pub fn new(n: u64) -> Limit {
        Limit(AtomicI64::new(i64::try_from(n).unwrap_or(i64::MAX)))
    }

    /// Takes up to `n`; returns how many there were.
    pub(super) fn take(&self, n: usize) -> usize {
        let before = self.0.fetch_sub(n as i64, Ordering::Relaxed);
        before.clamp(0, n as i64) as usize
    }

    pub(super) fn used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) <= 0
    }
}

/// Where a route stands among others: what its verdicts refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The end of `fwd A B` that its packets come from.
    pub side: PortSide,
    /// A number that it shares with the route of the other direction, if there is one: both run on the same thread.
    pub pair: usize,
}
