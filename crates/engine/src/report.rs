//! The counters of ports, routes and pools: for the live view, the summary, and machines.
//!
//! ```text
//!   received + split + flooded + originated  =  sent + merged + drops (each by name)   the balance
//!   buffers allocated =  buffers freed                          once everything has stopped
//!   pages taken       =  pages returned                         the same for applications' memory
//! ```
//!
//! [`Meter`] has the counters, `reading` what they were at one moment.

mod reading;

pub use reading::{Balance, Drops, PortReading, Reading};

use crate::route::RouteId;
use crate::samples::Samples;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;
use towpath_gro::{Flush, Stats};
use towpath_packet::port::{Edge, Info, RxMemory};
use towpath_packet::{Counters, ExtBufGauge, Pool, PoolStats, Snapshot};

/// All counters; they can be read at any time, from any thread. A clone reads the same counters.
#[derive(Debug, Clone)]
pub struct Meter {
    members: Arc<RwLock<Members>>,
    routes: Vec<RouteMeter>,
    pool: Pool,
    started: Instant,
}

/// What a meter reads; ports can be [attached](Meter::attach).
#[derive(Debug, Default)]
struct Members {
    ports: Vec<Row>,
    gro: Vec<Arc<GroCounters>>,
    own_pools: Vec<Pool>,
    ext_buf_gauges: Vec<Arc<ExtBufGauge>>,
    /// What belongs to no port.
    shared: Vec<Arc<Counters>>,
    /// What ports counted that others of their names have replaced: GRO, and pages.
    replaced: (GroReading, u64),
}

impl Members {
    fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.own_pools.iter().chain(self.ports.iter().flat_map(|row| &row.pools))
    }

    fn gauges(&self) -> impl Iterator<Item = &ExtBufGauge> {
        self.ext_buf_gauges.iter().chain(self.ports.iter().filter_map(|row| row.gauge.as_ref())).map(|gauge| &**gauge)
    }

    /// Keeps the numbers of a port that another one of its name replaces, and its memory as long as
    /// packets lie in it.
    fn retire(&mut self, row: Row) {
        let (gro, pages) = self.replaced;
        self.replaced.0 = row.gro.iter().fold(gro, |sum, engine| sum.plus(engine.read()));
        self.replaced.0.bypassed_engines = 0;
        self.own_pools.extend(row.pools.into_iter().filter(|pool| away(pool) > 0));
        match row.gauge {
            Some(gauge) if gauge.in_use() > 0 => self.ext_buf_gauges.push(gauge),
            Some(gauge) => self.replaced.1 = pages + gauge.attached(),
            None => {}
        }
    }
}

/// Chunks of a pool that are not free.
fn away(pool: &Pool) -> usize {
    let stats = pool.stats();
    stats.capacity - stats.free
}

/// A port, and what earlier ports of its name counted. What was attached has its GRO stages and its
/// memory here, so that they go with it.
#[derive(Debug)]
struct Row {
    port: PortMeter,
    earlier: Option<PortReading>,
    gro: Vec<Arc<GroCounters>>,
    pools: Vec<Pool>,
    gauge: Option<Arc<ExtBufGauge>>,
}

impl Row {
    fn new(port: PortMeter) -> Row {
        Row { port, earlier: None, gro: Vec::new(), pools: Vec::new(), gauge: None }
    }

    fn read(&self) -> PortReading {
        let reading = self.port.read();
        self.earlier.as_ref().map_or(reading.clone(), |earlier| PortReading {
            rx: reading.rx.plus(&earlier.rx),
            tx: reading.tx.plus(&earlier.tx),
            routes: reading.routes.plus(&earlier.routes),
            name: reading.name,
        })
    }
}

/// The counters of one port's queues.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PortMeter {
    /// The port's name.
    pub name: String,
    /// Counters of its receive queues.
    pub rx: Vec<Arc<Counters>>,
    /// Counters of its transmit queues.
    pub tx: Vec<Arc<Counters>>,
    /// Counters of the routes to it.
    pub routes: Vec<Arc<Counters>>,
    /// Of a port of a hub: its part at each worker, which is no route. Empty otherwise.
    pub parts: Vec<RouteMeter>,
    /// What it is.
    pub info: Option<Info>,
    /// Counters of what is lost around it.
    pub edge: Option<Arc<dyn Edge>>,
}

/// The counters of one route, or of the part of a hub's port that a worker has.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RouteMeter {
    /// Its position among others.
    pub id: RouteId,
    /// The thread that runs it, counted from 0.
    pub worker: usize,
    /// The core that the thread is pinned to.
    pub core: Option<usize>,
    /// The lane that it takes its packets from; `None` if it receives from a port.
    pub lane: Option<usize>,
    /// Drops, splits and merges between its queues.
    pub counters: Arc<Counters>,
    /// Received packets, and samples of them.
    pub samples: Arc<Samples>,
}

impl RouteMeter {
    /// A route that receives from a port, on a thread that is not pinned.
    pub fn new(id: RouteId, worker: usize, counters: Arc<Counters>, samples: Arc<Samples>) -> RouteMeter {
        RouteMeter { id, worker, core: None, lane: None, counters, samples }
    }
}

/// The sum of counters.
fn sum<'a>(counters: impl IntoIterator<Item = &'a Arc<Counters>>) -> Snapshot {
    counters.into_iter().fold(Snapshot::default(), |sum, c| sum.plus(&c.snapshot()))
}

impl PortMeter {
    /// A port of this name, whose counters are those of its queues. Nothing else is known of it.
    pub fn new(name: impl Into<String>, rx: Vec<Arc<Counters>>, tx: Vec<Arc<Counters>>) -> PortMeter {
        let name = name.into();
        PortMeter { name, rx, tx, routes: Vec::new(), parts: Vec::new(), info: None, edge: None }
    }

    fn read(&self) -> PortReading {
        let edge = self.edge.as_deref().inspect(|edge| edge.refresh());
        PortReading {
            name: self.name.clone(),
            rx: sum(self.rx.iter().chain(edge.map(|edge| edge.rx()))),
            tx: sum(self.tx.iter().chain(edge.map(|edge| edge.tx()))),
            routes: sum(&self.routes),
        }
    }
}

impl Meter {
    /// A meter; its clock starts now.
    pub fn new(ports: Vec<PortMeter>, pool: Pool) -> Meter {
        let ports = ports.into_iter().map(Row::new).collect();
        let members = Members { ports, ..Members::default() };
        Meter { members: Arc::new(RwLock::new(members)), routes: Vec::new(), pool, started: Instant::now() }
    }

    fn with<X>(&self, f: impl FnOnce(&Members) -> X) -> X {
        f(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, f: impl FnOnce(&mut Members)) {
        f(&mut self.members.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Adds the routes.
    #[must_use]
    pub fn with_routes(mut self, routes: Vec<RouteMeter>) -> Meter {
        self.routes = routes;
        self
    }

    /// The ports with their queues.
    pub fn ports(&self) -> Vec<PortMeter> {
        self.with(|members| members.ports.iter().map(|row| row.port.clone()).collect())
    }

    /// The routes, those from ports and those from lanes.
    pub fn routes(&self) -> &[RouteMeter] {
        &self.routes
    }

    /// From now on, and for ten seconds, the largest flows are counted ([`Samples::flows`]).
    pub fn watch_flows(&self) {
        self.with(|members| {
            let parts = members.ports.iter().flat_map(|row| &row.port.parts);
            self.routes.iter().chain(parts).for_each(|route| route.samples.watch());
        });
    }

    /// The common pool, then those that belong to ports.
    pub fn pools(&self) -> Vec<PoolStats> {
        self.with(|members| std::iter::once(&self.pool).chain(members.pools()).map(Pool::stats).collect())
    }

    /// Adds the counters of GRO stages.
    #[must_use]
    pub fn with_gro(self, gro: Vec<Arc<GroCounters>>) -> Meter {
        self.change(|members| members.gro = gro);
        self
    }

    /// Reads everything: memory, and a few system calls for each port with an [`Edge`].
    pub fn read(&self) -> Reading {
        self.with(|members| {
            let mut ports: Vec<_> = members.ports.iter().map(Row::read).collect();
            if let Some(first) = ports.first_mut() {
                first.routes = first.routes.plus(&sum(&members.shared));
            }
            let engines = members.gro.iter().chain(members.ports.iter().flat_map(|row| &row.gro));
            let gro = engines.fold(members.replaced.0, |sum, engine| sum.plus(engine.read()));
            Reading { elapsed: self.started.elapsed(), ports, gro }
        })
    }

    /// Adds a port that was attached, the counters of its GRO stages, and the memory behind its
    /// queues. It continues the line of an earlier port of the same name.
    pub fn attach(&self, port: PortMeter, gro: Vec<Arc<GroCounters>>, memory: Vec<RxMemory>) {
        self.change(|members| {
            // The gauge is that of all queues.
            let gauge = memory.iter().find_map(|memory| memory.ext_bufs.clone());
            let pools = memory.into_iter().filter_map(|memory| memory.pool).collect();
            let mut new = Row { gro, pools, gauge, ..Row::new(port) };
            match members.ports.iter_mut().find(|row| row.port.name == new.port.name) {
                Some(row) => {
                    new.earlier = Some(row.read());
                    let old = std::mem::replace(row, new);
                    members.retire(old);
                }
                None => members.ports.push(new),
            }
        });
    }

    /// Adds counters of what belongs to no port: they are read with those of the first one.
    #[must_use]
    pub fn with_shared(self, shared: Vec<Arc<Counters>>) -> Meter {
        self.change(|members| members.shared = shared);
        self
    }

    /// Adds the pools that belong to ports.
    #[must_use]
    pub fn with_pools(self, pools: Vec<Pool>) -> Meter {
        self.change(|members| members.own_pools = pools);
        self
    }

    /// Adds the gauges of applications' memory.
    #[must_use]
    pub fn with_ext_buf_gauges(self, gauges: Vec<Arc<ExtBufGauge>>) -> Meter {
        self.change(|members| members.ext_buf_gauges = gauges);
        self
    }

    /// Pages of applications' memory that were taken into packets.
    pub fn pages(&self) -> u64 {
        self.with(|members| members.replaced.1 + members.gauges().map(ExtBufGauge::attached).sum::<u64>())
    }

    /// Pages of applications' memory that are not returned. Exact only once every worker has
    /// stopped.
    pub fn pages_away(&self) -> u64 {
        self.with(|members| members.gauges().map(ExtBufGauge::in_use).sum())
    }

    /// Chunks of all pools that are not free. Exact only once every worker has stopped.
    pub fn buffers_away(&self) -> usize {
        away(&self.pool) + self.with(|members| members.pools().map(away).sum::<usize>())
    }

    /// Times that the pool had fewer free buffers than requested.
    pub fn shortages(&self) -> u64 {
        self.pool.stats().shortages
    }
}

/// Counters of the GRO stage of one route, written by its thread after every burst.
#[derive(Debug, Default)]
pub struct GroCounters {
    packets: AtomicU64,
    merged: AtomicU64,
    aggregates: AtomicU64,
    bypassed: AtomicU64,
    is_bypassed: AtomicBool,
    flushed: [AtomicU64; Flush::ALL.len()],
    sizes: [AtomicU64; SIZES.len()],
    bytes: AtomicU64,
}

/// Upper bounds of the sizes of aggregates, in bytes, by which they are counted. The last one has
/// all larger ones.
pub const SIZES: [u32; 7] = [2048, 4096, 8192, 16384, 32768, 65536, u32::MAX];

impl GroCounters {
    pub(crate) fn store(&self, stats: &Stats, is_bypassed: bool) {
        self.packets.store(stats.packets, Relaxed);
        self.merged.store(stats.merged, Relaxed);
        self.aggregates.store(stats.aggregates, Relaxed);
        self.bypassed.store(stats.bypassed, Relaxed);
        self.is_bypassed.store(is_bypassed, Relaxed);
        for (to, reason) in self.flushed.iter().zip(Flush::ALL.iter().copied()) {
            to.store(stats.flushed(reason), Relaxed);
        }
    }

    /// Aggregates of these sizes left. Called by the route's thread, once a burst.
    pub(crate) fn add_sizes(&self, sizes: impl Iterator<Item = usize>) {
        let add = |to: &AtomicU64, n: u64| to.store(to.load(Relaxed).wrapping_add(n), Relaxed);
        for size in sizes {
            // 1 to 2048, to 4096, and so on: the logarithm of what is before the last byte.
            let index = (usize::BITS - (size.saturating_sub(1) >> 11).leading_zeros()) as usize;
            if let Some(bucket) = self.sizes.get(index).or(self.sizes.last()) {
                add(bucket, 1);
            }
            add(&self.bytes, size as u64);
        }
    }

    fn read(&self) -> GroReading {
        GroReading {
            packets: self.packets.load(Relaxed),
            merged: self.merged.load(Relaxed),
            aggregates: self.aggregates.load(Relaxed),
            bypassed: self.bypassed.load(Relaxed),
            bypassed_engines: u64::from(self.is_bypassed.load(Relaxed)),
            flushed: std::array::from_fn(|i| self.flushed[i].load(Relaxed)),
            sizes: std::array::from_fn(|i| self.sizes[i].load(Relaxed)),
            bytes: self.bytes.load(Relaxed),
        }
    }
}

/// The sum of GRO counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroReading {
    /// Packets that the engines processed.
    pub packets: u64,
    /// Packets that were merged into another.
    pub merged: u64,
    /// Super-packets that were sent on.
    pub aggregates: u64,
    /// Packets that passed while an engine bypassed itself because nothing merged.
    pub bypassed: u64,
    /// Engines that bypass themselves at this moment.
    pub bypassed_engines: u64,
    /// Aggregates by size, in the order of [`SIZES`]: those that are no longer than the bound, and
    /// longer than the one before.
    pub sizes: [u64; SIZES.len()],
    /// Bytes of all aggregates.
    pub bytes: u64,
    flushed: [u64; Flush::ALL.len()],
}

impl GroReading {
    /// Flush reasons that occurred, with their counts.
    pub fn flushed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Flush::ALL.iter().copied().zip(self.flushed).filter(|&(_, n)| n > 0).map(|(reason, n)| (reason.name(), n))
    }

    fn plus(self, other: GroReading) -> GroReading {
        GroReading {
            packets: self.packets + other.packets,
            merged: self.merged + other.merged,
            aggregates: self.aggregates + other.aggregates,
            bypassed: self.bypassed + other.bypassed,
            bypassed_engines: self.bypassed_engines + other.bypassed_engines,
            flushed: std::array::from_fn(|i| self.flushed[i] + other.flushed[i]),
            sizes: std::array::from_fn(|i| self.sizes[i] + other.sizes[i]),
            bytes: self.bytes + other.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregates_are_counted_by_the_first_bound_that_they_do_not_exceed() {
        let counters = GroCounters::default();
        let sizes = [1, 2048, 2049, 4096, 65536, 65537, 1 << 31];
        counters.add_sizes(sizes.into_iter());
        for (bound, n) in SIZES.iter().zip(counters.read().sizes) {
            let below = SIZES.iter().filter(|other| *other < bound).max().copied().unwrap_or(0);
            let expected = sizes.iter().filter(|size| **size > below as usize && **size <= *bound as usize).count();
            assert_eq!(n, expected as u64, "{bound}");
        }
        assert_eq!(counters.read().bytes, sizes.iter().sum::<usize>() as u64);
    }

    #[test]
    fn a_port_that_is_attached_again_continues_its_line_and_leaves_nothing_behind() {
        let pool = || Pool::new(towpath_packet::PoolConfig::default().capacity(8).chunk(256)).unwrap();
        let meter = Meter::new(Vec::new(), pool());
        for _ in 0..100 {
            let (rx, gro, gauge) = (Arc::new(Counters::default()), Arc::new(GroCounters::default()), Arc::default());
            rx.moved(3, 180);
            gro.packets.store(2, Relaxed);
            ExtBufGauge::attach(&gauge, 5);
            gauge.free(5);
            let (tx, routes, edge) = (Vec::new(), Vec::new(), None);
            let name = "tap:a".into();
            let port = PortMeter { name, rx: vec![rx], tx, routes, parts: Vec::new(), info: None, edge };
            // Two queues have one gauge.
            let memory = [RxMemory::own_pool(pool()), RxMemory::ext_bufs(gauge.clone()), RxMemory::ext_bufs(gauge)];
            meter.attach(port, vec![gro], memory.into());
        }
        let reading = meter.read();
        assert_eq!((reading.ports.len(), reading.ports[0].rx.packets, reading.gro.packets), (1, 300, 200));
        assert_eq!((meter.pages(), meter.pages_away(), meter.buffers_away()), (500, 0, 0));
        assert_eq!(meter.pools().len(), 2, "the common pool, and that of the last port");
    }
}
