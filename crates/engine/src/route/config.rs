//! Configuration of a route, its limit, and its position among others.

use crate::rules::PortSide;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use towpath_packet::Offloads;
use towpath_packet::port::{Layer, TxLayout};

/// Configuration of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteConfig {
    /// How long an egress may refuse packets before they are dropped as `egress-full`. Zero drops
    /// at once.
    pub egress_wait: Duration,
    /// The first header of packets.
    pub layer: Layer,
    /// Offloads that the egress may use. Without segmentation, super-packets are segmented before
    /// it.
    pub offloads: Offloads,
    /// The memory layout that the egress requires.
    pub tx_layout: TxLayout,
    /// The ingress is a ring between threads: after a stop its packets are still received, until
    /// its producer closes it.
    pub internal: bool,
}

impl Default for RouteConfig {
    /// Ten milliseconds; Ethernet.
    fn default() -> RouteConfig {
        RouteConfig {
            egress_wait: Duration::from_millis(10),
            layer: Layer::Ethernet,
            offloads: Offloads::ALL,
            tx_layout: TxLayout::default(),
            internal: false,
        }
    }
}

/// A number of packets that several routes share.
#[derive(Debug)]
pub struct Limit(AtomicI64);

impl Limit {
    /// A limit of `n` packets.
    pub fn new(n: u64) -> Limit {
        Limit(AtomicI64::new(i64::try_from(n).unwrap_or(i64::MAX)))
    }

    /// Takes up to `n`; returns how many were left.
    pub(crate) fn take(&self, n: usize) -> usize {
        let before = self.0.fetch_sub(n as i64, Ordering::Relaxed);
        before.clamp(0, n as i64) as usize
    }

    pub(crate) fn used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) <= 0
    }
}

/// The position of a route among others: verdicts refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteId {
    /// The end of `fwd A B` that its packets come from.
    pub side: PortSide,
    /// A number that is shared with the route of the other direction, if there is one: both run on
    /// the same thread.
    pub pair: usize,
}
