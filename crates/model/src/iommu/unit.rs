//! The state that both sides of the IOMMU share.

use super::Config;
use super::bounce::BounceBuffers;
use super::engine::Engine;
use super::fault::Fault;
use super::iova_alloc::IovaAllocator;
use super::queue::{Invalidate, InvalidationQueue};
use super::refuse::MapRefusals;
use super::tables::{PAGE, Tables, WIDTH};
use crate::violation::Violations;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use towpath_bus::{Limits, MapError};
use towpath_packet::Region;

/// The counters of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Regions and buffers mapped.
    pub maps: u64,
    /// Regions and buffers unmapped.
    pub unmaps: u64,
    /// Mappings that were refused, for any reason.
    pub refused: u64,
    /// Translations found in the IOTLB.
    pub hits: u64,
    /// Page table walks.
    pub walks: u64,
    /// Page-selective invalidations.
    pub page_invalidations: u64,
    /// Full invalidations.
    pub full_invalidations: u64,
    /// Completed wait descriptors.
    pub waits: u64,
    /// Blocked accesses.
    pub faults: u64,
    /// Syncs that copied.
    pub bounces: u64,
}

/// The counters of a window, which only its owner writes.
#[derive(Debug, Default)]
pub(super) struct WindowCounts {
    pub(super) maps: AtomicU64,
    pub(super) unmaps: AtomicU64,
}

/// A persistent mapping.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) len: u64,
    pub(super) buffer: u64,
    /// The bounce buffer.
    pub(super) bounce_buffer: Option<Region>,
}

pub(super) struct Unit {
    pub(super) on: bool,
    pub(super) bounce: bool,
    /// The time of a wait descriptor.
    pub(super) wait: Duration,
    pub(super) limits: Limits,
    pub(super) tables: Tables,
    pub(super) queue: InvalidationQueue,
    pub(super) bounces: BounceBuffers,
    pub(super) refusals: MapRefusals,
    /// Read for every mapping, therefore separate.
    pub(super) refuses: AtomicBool,
    pub(super) violations: Arc<Violations>,
    pub(super) iovas: Mutex<IovaAllocator>,
    pub(super) mappings: Mutex<BTreeMap<u64, Mapping>>,
    /// Regions from [`Dma::alloc`](towpath_bus::Dma::alloc): base and length.
    pub(super) coherent: Mutex<Vec<(u64, u64)>>,
    /// Strict: buffers that windows have mapped for writing, and their IOVAs.
    pub(super) write_mapped: Mutex<HashMap<u64, u64>>,
    pub(super) windows: Mutex<Vec<Arc<WindowCounts>>>,
    /// The number of mappings; only maintained if it is limited.
    pub(super) mapped: AtomicU64,
    pub(super) locked: AtomicU64,
    pub(super) maps: AtomicU64,
    pub(super) unmaps: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) bounced: AtomicU64,
    /// Whether a thread of the device processes the queue.
    threaded: AtomicBool,
    engine: Mutex<Engine>,
}

/// Polls of the queue's status before the waiting thread processes the queue itself.
const SPINS: u32 = 2000;

impl Unit {
    pub(super) fn new(config: &Config, violations: Arc<Violations>) -> Result<Unit, MapError> {
        let whole = 0..=(1u64 << WIDTH) - 1;
        let ranges = if config.on { config.ranges.clone() } else { vec![0..=(1 << 47) - 1] };
        if config.on && ranges.iter().any(|r| !whole.contains(r.start()) || !whole.contains(r.end())) {
            return Err(MapError::Refused("ranges: addresses of more than 39 bits can't be translated"));
        }
        let mut limits = Limits::new(config.on, PAGE as usize, ranges.clone());
        (limits.mappings, limits.locked) = (config.mappings, config.locked);
        Ok(Unit {
            on: config.on,
            bounce: config.bounce,
            wait: config.wait,
            limits,
            tables: Tables::new()?,
            queue: InvalidationQueue::new(),
            bounces: BounceBuffers::default(),
            refusals: MapRefusals::new(config.refuse),
            refuses: AtomicBool::new(config.refuse != super::Refuse::Never),
            iovas: Mutex::new(IovaAllocator::new(&ranges, 1 << 32)),
            mappings: Mutex::default(),
            coherent: Mutex::default(),
            write_mapped: Mutex::default(),
            windows: Mutex::default(),
            mapped: AtomicU64::new(0),
            locked: AtomicU64::new(0),
            maps: AtomicU64::new(0),
            unmaps: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            bounced: AtomicU64::new(0),
            threaded: AtomicBool::new(false),
            engine: Mutex::new(Engine::new(violations.strict())),
            violations,
        })
    }

    /// Whether the bytes are memory from [`Dma::alloc`](towpath_bus::Dma::alloc).
    pub(super) fn is_coherent(&self, at: u64, len: u64) -> bool {
        let coherent = self.coherent.lock().unwrap_or_else(PoisonError::into_inner);
        coherent.iter().any(|(base, size)| *base <= at && at + len <= base + size)
    }

    /// The device's side. While the lock is held, no memory can be unmapped.
    pub(super) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_threaded(&self, threaded: bool) {
        self.threaded.store(threaded, Ordering::Release);
    }

    /// Submits invalidations and waits until the device uses none of the translations any more.
    pub(super) fn invalidate(&self, what: impl Iterator<Item = Invalidate>) {
        let wait = self.queue.submit(what, || self.process());
        let mut spins = 0;
        while !self.queue.reached(wait) {
            if spins < SPINS && self.threaded.load(Ordering::Acquire) {
                spins += 1;
                std::hint::spin_loop();
            } else {
                self.process();
            }
        }
    }

    /// Processes the queue, or yields to the thread that holds the engine, which processes the
    /// queue when it locks the engine.
    fn process(&self) {
        match self.engine.try_lock() {
            Ok(mut engine) => engine.run(self),
            Err(TryLockError::Poisoned(engine)) => engine.into_inner().run(self),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }

    /// Fails if an injected failure is due.
    #[inline]
    pub(super) fn check_refusal(&self) -> Result<(), MapError> {
        if self.refuses.load(Ordering::Relaxed) && self.refusals.next() {
            return Err(MapError::Refused("an injected failure"));
        }
        Ok(())
    }

    /// Counts a mapping, unless the limit is reached.
    #[inline]
    pub(super) fn count_mapping(&self) -> Result<(), MapError> {
        let Some(limit) = self.limits.mappings else { return Ok(()) };
        if self.mapped.fetch_add(1, Ordering::Relaxed) >= limit {
            self.mapped.fetch_sub(1, Ordering::Relaxed);
            return Err(MapError::Mappings { limit });
        }
        Ok(())
    }

    #[inline]
    pub(super) fn uncount_mapping(&self) {
        if self.limits.mappings.is_some() {
            self.mapped.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let engine = self.engine();
        let windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let sum =
            |of: fn(&WindowCounts) -> &AtomicU64| windows.iter().map(|w| of(w).load(Ordering::Relaxed)).sum::<u64>();
        Counts {
            maps: self.maps.load(Ordering::Relaxed) + sum(|w| &w.maps),
            unmaps: self.unmaps.load(Ordering::Relaxed) + sum(|w| &w.unmaps),
            refused: self.refused.load(Ordering::Relaxed),
            bounces: self.bounced.load(Ordering::Relaxed),
            ..engine.counts
        }
    }

    pub(super) fn take_faults(&self) -> Vec<Fault> {
        std::mem::take(&mut self.engine().faults).into()
    }
}
