//! What the counters were at one moment, the differences of such readings, and the balance.

use super::GroReading;
use serde::Serialize;
use std::time::Duration;
use towpath_packet::{DropReason, Snapshot};

/// All counters at one moment.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Reading {
    /// Time since the meter was made.
    pub elapsed: Duration,
    /// By port.
    pub ports: Vec<PortReading>,
    /// GRO counters since the start.
    pub gro: GroReading,
}

/// The counters of one port.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PortReading {
    /// The port's name.
    pub name: String,
    /// Sum of its receive queues, and what was lost before they had it.
    pub rx: Snapshot,
    /// Sum of its transmit queues, and what was lost after they sent it.
    pub tx: Snapshot,
    /// Sum of the routes to it: drops and splits in front of its transmit queues.
    pub routes: Snapshot,
}

impl PortReading {
    /// Reasons for which an egress does not send a packet that reached it.
    const UNSENT: [DropReason; 7] = [
        DropReason::EgressFull,
        DropReason::TooLong,
        DropReason::Malformed,
        DropReason::Offload,
        DropReason::LinkDown,
        DropReason::Refused,
        DropReason::PortGone,
    ];

    /// If the port sent none of the packets that reached it: why, with their numbers.
    ///
    /// Packets that a rule or a requested fault dropped did not reach it, nor did those that were
    /// on their way at a stop, nor those for which a receiver gave no buffer.
    pub fn sent_none(&self) -> Option<Vec<Drops>> {
        let all = self.tx.plus(&self.routes);
        let lost = Self::UNSENT.map(|reason| Drops::new(reason, all.dropped(reason)));
        let lost: Vec<_> = lost.into_iter().filter(|drops| drops.packets > 0).collect();
        (self.tx.packets == 0 && !lost.is_empty()).then_some(lost)
    }
}

impl Reading {
    /// The difference to an earlier reading of the same meter.
    #[must_use]
    pub fn since(&self, earlier: &Reading) -> Reading {
        let port = |(now, then): (&PortReading, &PortReading)| PortReading {
            name: now.name.clone(),
            rx: now.rx.since(&then.rx),
            tx: now.tx.since(&then.tx),
            routes: now.routes.since(&then.routes),
        };
        Reading {
            elapsed: self.elapsed.saturating_sub(earlier.elapsed),
            ports: self.ports.iter().zip(&earlier.ports).map(port).collect(),
            gro: self.gro,
        }
    }

    /// The ports of both, as one: of datapaths that run beside each other.
    #[must_use]
    pub fn and(mut self, other: Reading) -> Reading {
        self.ports.extend(other.ports);
        Reading { elapsed: self.elapsed.max(other.elapsed), ports: self.ports, gro: self.gro.plus(other.gro) }
    }

    /// Packets that had to be copied for their egress, and the number of copied bytes.
    pub fn copied(&self) -> (u64, u64) {
        let of = |port: &PortReading| port.rx.plus(&port.tx).plus(&port.routes);
        let all = self.ports.iter().fold(Snapshot::default(), |sum, port| sum.plus(&of(port)));
        (all.copied, all.copied_bytes)
    }

    /// The balance at this moment.
    pub fn balance(&self) -> Balance {
        let [mut rx, mut tx, mut routes] = [Snapshot::default(); 3];
        for port in &self.ports {
            rx = rx.plus(&port.rx);
            tx = tx.plus(&port.tx);
            routes = routes.plus(&port.routes);
        }
        let all = rx.plus(&tx).plus(&routes);
        Balance {
            // A packet that a receive queue drops was received, although the route never gets it.
            received: rx.packets + rx.all_drops(),
            split: all.split,
            flooded: all.flooded,
            originated: all.originated,
            sent: tx.packets,
            merged: all.merged,
            drops: Drops::of(&all),
        }
    }
}

/// Whether every packet is accounted for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Balance {
    /// Packets that ports received or generated.
    pub received: u64,
    /// Packets that segmentation added.
    pub split: u64,
    /// Packets that copying for several egresses added.
    pub flooded: u64,
    /// Packets that the datapath made itself: a router's solicitations, answers and errors.
    pub originated: u64,
    /// Packets that ports sent, delivered or consumed.
    pub sent: u64,
    /// Packets that were merged into others.
    pub merged: u64,
    /// Packets that were dropped, by reason.
    pub drops: Vec<Drops>,
}

/// Packets dropped for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Drops {
    /// Name of the reason.
    pub reason: &'static str,
    /// Number of packets.
    pub packets: u64,
}

impl Drops {
    /// Packets that were dropped for `reason`.
    pub fn new(reason: DropReason, packets: u64) -> Drops {
        Drops { reason: reason.name(), packets }
    }

    /// The reasons for which packets were dropped, with their numbers.
    pub fn of(counters: &Snapshot) -> Vec<Drops> {
        counters.drops().map(|(reason, packets)| Drops::new(reason, packets)).collect()
    }
}

impl Balance {
    /// Packets dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().map(|d| d.packets).sum()
    }

    /// Packets under way: 0 once everything has stopped. A negative value means duplicated packets.
    pub fn in_flight(&self) -> i64 {
        (self.received + self.split + self.flooded + self.originated)
            .wrapping_sub(self.sent + self.merged + self.dropped()) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::Counters;

    fn reading(sent: u64, tx: &[(DropReason, u64)], routes: &[(DropReason, u64)]) -> PortReading {
        let counters = |packets, drops: &[(DropReason, u64)]| {
            let counters = Counters::default();
            counters.moved(packets, 0);
            drops.iter().for_each(|&(reason, n)| counters.dropped(reason, n));
            counters.snapshot()
        };
        let name = "packet:e0".to_owned();
        PortReading { name, rx: counters(7, &[]), tx: counters(sent, tx), routes: counters(0, routes) }
    }

    #[test]
    fn an_egress_that_drops_all_that_reaches_it_sent_none_whether_it_or_the_route_drops() {
        let (down, full) = ((DropReason::LinkDown, 5), (DropReason::EgressFull, 2));
        let drops = |reason: DropReason, packets| Drops { reason: reason.name(), packets };
        let both = vec![drops(DropReason::EgressFull, 2), drops(DropReason::LinkDown, 5)];
        assert_eq!(reading(0, &[down], &[full]).sent_none(), Some(both));
        assert_eq!(reading(0, &[], &[full]).sent_none(), Some(vec![drops(DropReason::EgressFull, 2)]));
        assert_eq!(reading(1, &[down], &[full]).sent_none(), None);
    }

    #[test]
    fn an_egress_that_nothing_reaches_did_not_fail() {
        assert_eq!(reading(0, &[], &[]).sent_none(), None);
        let asked_for = [DropReason::Filtered, DropReason::Fault, DropReason::Stopped, DropReason::NoBuffer];
        let asked_for = asked_for.map(|reason| (reason, 3));
        assert_eq!(reading(0, &asked_for, &asked_for).sent_none(), None);
    }
}
