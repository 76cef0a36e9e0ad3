//! The counters of ports, routes and the pool together: for the live display, the summary, and machines.
//!
//! ```text
//!   received + split  =  sent + merged + drops (each by name)        the balance
//!   buffers out       =  buffers home                                once everything has stopped
//!   pages taken       =  pages home                                  the same, of applications' memory
//! ```

use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use towpath_gro::{Flush, Stats};
use towpath_packet::port::ExtBufGauge;
use towpath_packet::{Counters, Pool, Snapshot};

/// Where to read everything from; cheap to read at any time, from any thread.
#[derive(Debug, Clone)]
pub struct Meter {
    ports: Vec<PortMeter>,
    routes: Vec<Arc<Counters>>,
    gro: Vec<Arc<GroCounters>>,
    pool: Pool,
    own_pools: Vec<Pool>,
    lent: Vec<Arc<ExtBufGauge>>,
    started: Instant,
}

/// The counters of one port's queues.
#[derive(Debug, Clone)]
pub struct PortMeter {
    /// What the port is called.
    pub name: String,
    /// Of its receive queues.
    pub rx: Vec<Arc<Counters>>,
    /// Of its transmit queues.
    pub tx: Vec<Arc<Counters>>,
}

impl Meter {
    /// A meter; its clock starts now.
    pub fn new(ports: Vec<PortMeter>, routes: Vec<Arc<Counters>>, pool: Pool) -> Meter {
        Meter { ports, routes, gro: Vec::new(), pool, own_pools: Vec::new(), lent: Vec::new(), started: Instant::now() }
    }

    /// Reads these GRO engines as well.
    #[must_use]
    pub fn with_gro(mut self, gro: Vec<Arc<GroCounters>>) -> Meter {
        self.gro = gro;
        self
    }

    /// Reads everything.
    pub fn read(&self) -> Reading {
        let sum = |list: &[Arc<Counters>]| list.iter().fold(Snapshot::default(), |sum, c| sum.plus(&c.snapshot()));
        let port = |p: &PortMeter| PortReading { name: p.name.clone(), rx: sum(&p.rx), tx: sum(&p.tx) };
        Reading {
            elapsed: self.started.elapsed(),
            ports: self.ports.iter().map(port).collect(),
            routes: sum(&self.routes),
            gro: self.gro.iter().fold(GroReading::default(), |sum, engine| sum.plus(engine.read())),
        }
    }

    /// Watches these pools as well, those of the ports' own.
    #[must_use]
    pub fn with_pools(mut self, pools: Vec<Pool>) -> Meter {
        self.own_pools = pools;
        self
    }

    /// Watches these counts of others' memory as well.
    #[must_use]
    pub fn with_lent(mut self, lent: Vec<Arc<ExtBufGauge>>) -> Meter {
        self.lent = lent;
        self
    }

    /// Pieces of others' memory that were put into packets.
    pub fn pages(&self) -> u64 {
        self.lent.iter().map(|lent| lent.taken()).sum()
    }

    /// Pieces of others' memory that are not home. Exact only once every worker has stopped.
    pub fn pages_away(&self) -> u64 {
        self.lent.iter().map(|lent| lent.away()).sum()
    }

    /// Chunks of all pools that are not home. Exact only once every worker has stopped.
    pub fn buffers_away(&self) -> usize {
        let away = |pool: &Pool| {
            let stats = pool.stats();
            stats.capacity - stats.home
        };
        away(&self.pool) + self.own_pools.iter().map(away).sum::<usize>()
    }

    /// Times that the pool had fewer buffers than were asked for.
    pub fn shortages(&self) -> u64 {
        self.pool.stats().shortages
    }
}

/// All counters at one moment.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Time since the meter was made.
    pub elapsed: Duration,
    /// By port.
    pub ports: Vec<PortReading>,
    /// Of all routes together: what was dropped or split between the queues.
    pub routes: Snapshot,
    /// What GRO did, since the start.
    pub gro: GroReading,
}

/// The counters of one port.
#[derive(Debug, Clone)]
pub struct PortReading {
    /// What the port is called.
    pub name: String,
    /// Of its receive queues together.
    pub rx: Snapshot,
    /// Of its transmit queues together.
    pub tx: Snapshot,
}

impl Reading {
    /// The difference to an earlier reading of the same meter.
    #[must_use]
    pub fn since(&self, earlier: &Reading) -> Reading {
        let port = |(now, then): (&PortReading, &PortReading)| PortReading {
            name: now.name.clone(),
            rx: now.rx.since(&then.rx),
            tx: now.tx.since(&then.tx),
        };
        Reading {
            elapsed: self.elapsed.saturating_sub(earlier.elapsed),
            ports: self.ports.iter().zip(&earlier.ports).map(port).collect(),
            routes: self.routes.since(&earlier.routes),
            gro: self.gro,
        }
    }

    /// Packets that could not be handed to their egress as they lay, and how many bytes of them were copied.
    pub fn copied(&self) -> (u64, u64) {
        let all = self.ports.iter().fold(self.routes, |sum, port| sum.plus(&port.rx).plus(&port.tx));
        (all.copied, all.copied_bytes)
    }

    /// The balance at this moment.
    pub fn balance(&self) -> Balance {
        let mut rx = Snapshot::default();
        let mut tx = Snapshot::default();
        for port in &self.ports {
            rx = rx.plus(&port.rx);
            tx = tx.plus(&port.tx);
        }
        let all = rx.plus(&tx).plus(&self.routes);
        Balance {
            // What a receive queue had to drop was received, though it never handed it over.
            received: rx.packets + rx.all_drops(),
            split: all.split,
            sent: tx.packets,
            merged: all.merged,
            drops: all.drops().map(|(reason, n)| Drops { reason: reason.name(), packets: n }).collect(),
        }
    }
}

/// What the GRO engine of one route did, written by its thread after every burst.
#[derive(Debug, Default)]
pub struct GroCounters {
    packets: AtomicU64,
    merged: AtomicU64,
    aggregates: AtomicU64,
    aside: AtomicU64,
    is_aside: AtomicBool,
    flushed: [AtomicU64; Flush::ALL.len()],
}

impl GroCounters {
    pub(crate) fn store(&self, stats: &Stats, is_aside: bool) {
        self.packets.store(stats.packets, Relaxed);
        self.merged.store(stats.merged, Relaxed);
        self.aggregates.store(stats.aggregates, Relaxed);
        self.aside.store(stats.bypassed, Relaxed);
        self.is_aside.store(is_aside, Relaxed);
        for (to, reason) in self.flushed.iter().zip(Flush::ALL) {
            to.store(stats.flushed(reason), Relaxed);
        }
    }

    fn read(&self) -> GroReading {
        GroReading {
            packets: self.packets.load(Relaxed),
            merged: self.merged.load(Relaxed),
            aggregates: self.aggregates.load(Relaxed),
            aside: self.aside.load(Relaxed),
            engines_aside: u64::from(self.is_aside.load(Relaxed)),
            flushed: std::array::from_fn(|i| self.flushed[i].load(Relaxed)),
        }
    }
}

/// What GRO did, all engines together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroReading {
    /// Packets that engines saw.
    pub packets: u64,
    /// Of these, packets that became part of another.
    pub merged: u64,
    /// Super-packets that left.
    pub aggregates: u64,
    /// Packets that passed while an engine stood aside, because nothing merged.
    pub aside: u64,
    /// Engines that stand aside at this moment.
    pub engines_aside: u64,
    flushed: [u64; Flush::ALL.len()],
}

impl GroReading {
    /// Why what was held left, with how often; only what happened.
    pub fn flushed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Flush::ALL.into_iter().zip(self.flushed).filter(|&(_, n)| n > 0).map(|(reason, n)| (reason.name(), n))
    }

    fn plus(self, other: GroReading) -> GroReading {
        GroReading {
            packets: self.packets + other.packets,
            merged: self.merged + other.merged,
            aggregates: self.aggregates + other.aggregates,
            aside: self.aside + other.aside,
            engines_aside: self.engines_aside + other.engines_aside,
            flushed: std::array::from_fn(|i| self.flushed[i] + other.flushed[i]),
        }
    }
}

/// Whether everything that came in is accounted for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Balance {
    /// Packets that ports received or generated.
    pub received: u64,
    /// Packets that segmentation added.
    pub split: u64,
    /// Packets that ports sent, delivered or consumed.
    pub sent: u64,
    /// Packets that became part of others.
    pub merged: u64,
    /// Packets that were dropped, by reason.
    pub drops: Vec<Drops>,
}

/// Packets dropped for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drops {
    /// Name of the reason.
    pub reason: &'static str,
    /// How many.
    pub packets: u64,
}

impl Balance {
    /// Packets dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().map(|d| d.packets).sum()
    }

    /// Packets on their way: 0 once everything has stopped. Negative would mean that packets were invented.
    pub fn in_flight(&self) -> i64 {
        (self.received + self.split).wrapping_sub(self.sent + self.merged + self.dropped()) as i64
    }
}
