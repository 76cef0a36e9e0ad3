//! Times and limits of neighbours, and what finds their addresses.

use std::time::Duration;

/// Times and limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NeighbourConfig {
    /// What finds addresses.
    pub resolver: Resolver,
    /// How long an address is known to be right after an answer.
    pub reachable: Duration,
    /// How long an address that may be wrong is used before it is asked for.
    pub delay: Duration,
    /// Time between two solicitations.
    pub retransmit: Duration,
    /// Solicitations without an answer after which the neighbour has failed.
    pub solicitations: u8,
    /// How long a neighbour that failed is not asked again.
    pub hold_down: Duration,
    /// How long an entry stays without a packet that uses it.
    pub unused: Duration,
    /// Most entries.
    pub limit: usize,
    /// Packets that wait for one neighbour; the oldest leaves for a newer one.
    pub queue: usize,
    /// Packets that wait in all.
    pub queued: usize,
}

impl Default for NeighbourConfig {
    fn default() -> NeighbourConfig {
        let seconds = Duration::from_secs;
        NeighbourConfig {
            resolver: Resolver::Own,
            reachable: seconds(30),
            delay: seconds(5),
            retransmit: seconds(1),
            solicitations: 3,
            hold_down: seconds(1),
            unused: seconds(300),
            limit: 16_384,
            queue: 16,
            queued: 1024,
        }
    }
}

/// What finds addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resolver {
    /// The router, by ARP and neighbour discovery.
    #[default]
    Own,
    /// The kernel, which the entries are mirrored from.
    Kernel,
}
