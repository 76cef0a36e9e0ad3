//! The remapping unit: brought up, told to forget, asked for faults, taken down.

use super::fault::{self, Faults};
use super::queue::{BATCH, Invalidation, Queue, Status};
use super::registers::{
    Capabilities, FECTL, FECTL_MASKED, FSTS, GCMD, GSTS, IQA, IQT, LASTING, LEN, QIE, QUEUE_ERRORS, RTADDR, SRTP, TE,
    VER,
};
use super::space::Space;
use super::words::Words;
use super::{Memory, PAGE};
use crate::bus::BusError;
use crate::dma::MapError;
use crate::mmio::Mmio;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A requester on PCI: bus, device and function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub u16);

impl SourceId {
    /// Of a bus, a device (0 to 31) and a function (0 to 7).
    pub const fn new(bus: u8, device: u8, function: u8) -> SourceId {
        SourceId((bus as u16) << 8 | ((device & 31) as u16) << 3 | (function & 7) as u16)
    }
}

impl std::fmt::Display for SourceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.0 >> 8, self.0 >> 3 & 31, self.0 & 7)
    }
}

/// Invalidations that were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Invalidations {
    /// Of pages.
    pub pages: u64,
    /// Of whole domains.
    pub domains: u64,
    /// Batches: doorbells, and waits.
    pub batches: u64,
}

/// A remapping unit; a clone is another handle of the same. While one exists, or a [`Space`] of it, the devices behind it reach
/// only what was mapped for them.
pub struct Unit<M: Mmio, P: Memory>(pub(super) Arc<Inner<M, P>>);

impl<M: Mmio, P: Memory> Clone for Unit<M, P> {
    fn clone(&self) -> Self {
        Unit(self.0.clone())
    }
}

pub(super) struct Inner<M: Mmio, P: Memory> {
    name: String,
    bar: M,
    pub(super) memory: P,
    pub(super) capabilities: Capabilities,
    queue: Mutex<Queue>,
    status: Status,
    contexts: Mutex<Contexts>,
    counts: [AtomicU64; 3],
}

/// Root table, context tables, and the domain ids in use.
struct Contexts {
    root: Words,
    buses: BTreeMap<u8, Words>,
    /// By domain id.
    attached: BTreeMap<u16, SourceId>,
}

/// Context entry, low half: present; high half: width, domain id (§9.3). Translation type 0: second-level tables.
const PRESENT: u64 = 1;

impl<M: Mmio, P: Memory> Unit<M, P> {
    /// Brings up the unit whose registers are `bar`, with tables in `memory`: from now on no device behind it reaches anything.
    /// What it translated before is forgotten.
    ///
    /// # Errors
    /// [`BusError`] names what the unit lacks, the step that it did not finish, or the memory that was missing.
    pub fn new(name: &str, bar: M, memory: P) -> Result<Unit<M, P>, BusError> {
        let device = |what: String| BusError::Device { device: name.to_owned(), what };
        let map = |source| BusError::Map { device: name.to_owned(), source };
        if bar.len() < LEN {
            return Err(device(format!("a remapping unit has {LEN} bytes of registers, not {}", bar.len())));
        }
        let capabilities = Capabilities::read(&bar).map_err(device)?;
        let queue = Queue::new(&memory).map_err(map)?;
        let contexts = Contexts {
            root: Words::alloc(&memory, 1).map_err(map)?,
            buses: BTreeMap::new(),
            attached: BTreeMap::new(),
        };
        let (root, base, status) = (contexts.root.physical(), queue.base(), queue.status());
        let inner = Inner {
            name: name.to_owned(),
            bar,
            memory,
            capabilities,
            queue: Mutex::new(queue),
            status,
            contexts: Mutex::new(contexts),
            counts: Default::default(),
        };
        inner.enable(root, base)?;
        Ok(Unit(Arc::new(inner)))
    }

    /// Whether there is a unit at these registers (§11.4.1: a version other than zero).
    pub fn is_at(bar: &M) -> bool {
        !matches!(VER.read(bar), 0 | u32::MAX)
    }

    /// What it can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    /// A new space of addresses for a device, empty. There may be one per device.
    ///
    /// # Errors
    /// [`BusError`] when the device has one already, or the memory or the unit fails.
    pub fn attach(&self, source: SourceId) -> Result<Space<M, P>, BusError> {
        Space::new(self, source)
    }

    /// What the devices tried and were refused since the last call.
    pub fn faults(&self) -> Faults {
        fault::take(&self.0.bar, &self.0.capabilities)
    }

    /// Invalidations until now.
    pub fn invalidations(&self) -> Invalidations {
        let [pages, domains, batches] = [0, 1, 2].map(|n: usize| self.0.counts.get(n));
        let read = |count: Option<&AtomicU64>| count.map_or(0, |c| c.load(Ordering::Relaxed));
        Invalidations { pages: read(pages), domains: read(domains), batches: read(batches) }
    }
}

impl<M: Mmio, P: Memory> Inner<M, P> {
    /// As Linux does it (`intel_iommu_init`), but for the order of queue and first invalidation: with the queue there is one
    /// way of invalidating, not two.
    fn enable(&self, root: u64, queue: u64) -> Result<(), BusError> {
        self.command(TE, false, "disabling translation")?;
        self.command(QIE, false, "disabling the invalidation queue")?;
        self.bar.w64(RTADDR.at(), root);
        self.command(SRTP, true, "setting the root table")?;
        self.bar.w64(IQT.at(), 0);
        self.bar.w64(IQA.at(), queue);
        self.command(QIE, true, "enabling the invalidation queue")?;
        FECTL.write(&self.bar, FECTL_MASKED);
        FSTS.write(&self.bar, QUEUE_ERRORS);
        fault::take(&self.bar, &self.capabilities);
        let forget = self.invalidate(&[Invalidation::Contexts, Invalidation::Everything]);
        forget.map_err(|source| BusError::Map { device: self.name.clone(), source })?;
        self.command(TE, true, "enabling translation")
    }

    /// Sets or clears one bit of the state (§11.4.4): the lasting ones are repeated, and the unit says when it is done.
    fn command(&self, bit: u32, on: bool, step: &'static str) -> Result<(), BusError> {
        let state = GSTS.read(&self.bar);
        if state == u32::MAX {
            return Err(BusError::Device { device: self.name.clone(), what: format!("{step}: the unit is gone") });
        }
        if !on && state & bit == 0 {
            return Ok(());
        }
        GCMD.write(&self.bar, state & LASTING & !bit | if on { bit } else { 0 });
        let done = GSTS.wait(&self.bar, bit, if on { bit } else { 0 }, PATIENCE);
        done.map(drop).map_err(|source| BusError::Timeout { device: self.name.clone(), step, source })
    }

    /// Makes the unit forget, and waits until it has: one doorbell for all. More than a batch holds go by several.
    pub(super) fn invalidate(&self, what: &[Invalidation]) -> Result<(), MapError> {
        let mut last = None;
        for batch in what.chunks(BATCH) {
            last = Some(lock(&self.queue).submit(&self.bar, batch)?);
            self.count(batch);
        }
        last.map_or(Ok(()), |number| self.status.wait(&self.bar, number))
    }

    fn count(&self, batch: &[Invalidation]) {
        let pages = batch.iter().filter(|i| matches!(i, Invalidation::Pages { .. })).count();
        let domains = batch.iter().filter(|i| matches!(i, Invalidation::Domain { .. })).count();
        for (count, n) in self.counts.iter().zip([pages, domains, 1]) {
            count.fetch_add(n as u64, Ordering::Relaxed);
        }
    }

    /// The invalidations that `len` bytes from `iova` on need: of aligned pieces, or of the domain when those would be too many.
    pub(super) fn covering(&self, did: u16, iova: u64, len: u64) -> Vec<Invalidation> {
        let mut pieces = Vec::new();
        let (mut at, end) = (iova, iova + len);
        while at < end && pieces.len() < BATCH && self.capabilities.page_selective {
            let fits = (end - at).ilog2().min(at.trailing_zeros()) as u8 - PAGE.trailing_zeros() as u8;
            let mask = fits.min(self.capabilities.max_mask);
            pieces.push(Invalidation::Pages { did, iova: at, mask });
            at += PAGE << mask;
        }
        if at < end { vec![Invalidation::Domain { did }] } else { pieces }
    }

    /// Gives a device tables, under a new domain id.
    pub(super) fn enter(&self, source: SourceId, tables: u64) -> Result<u16, BusError> {
        let refuse = |what: String| BusError::Device { device: self.name.clone(), what };
        let map = |source| BusError::Map { device: self.name.clone(), source };
        let mut contexts = lock(&self.contexts);
        if contexts.attached.values().any(|&s| s == source) {
            return Err(refuse(format!("device {source} has tables already")));
        }
        // Domain id 0 is the unit's own in caching mode (§6.1).
        let domains = self.capabilities.domains.min(1 << 16);
        let did = (1..domains).map(|did| did as u16).find(|did| !contexts.attached.contains_key(did));
        let did = did.ok_or_else(|| refuse(format!("all {domains} domain ids are in use")))?;
        let bus = (source.0 >> 8) as u8;
        if !contexts.buses.contains_key(&bus) {
            let table = Words::alloc(&self.memory, 1).map_err(map)?;
            store(&contexts.root, usize::from(bus) * 2, table.physical() | PRESENT);
            contexts.buses.insert(bus, table);
        }
        if let Some(table) = contexts.buses.get(&bus) {
            let entry = usize::from(source.0 & 0xff) * 2;
            store(table, entry + 1, self.capabilities.width() | u64::from(did) << 8);
            store(table, entry, tables | PRESENT);
        }
        contexts.attached.insert(did, source);
        // In caching mode absent entries are cached too, under domain id 0.
        let forget = [Invalidation::Context { source: source.0, did: 0 }, Invalidation::Domain { did }];
        self.invalidate(&forget).map_err(map)?;
        Ok(did)
    }

    /// Takes a device's tables away: when it returns without an error, the unit does not use them any more.
    pub(super) fn leave(&self, source: SourceId, did: u16) -> Result<(), MapError> {
        let mut contexts = lock(&self.contexts);
        if let Some(table) = contexts.buses.get(&((source.0 >> 8) as u8)) {
            store(table, usize::from(source.0 & 0xff) * 2, 0);
        }
        self.invalidate(&[Invalidation::Context { source: source.0, did }, Invalidation::Domain { did }])?;
        contexts.attached.remove(&did);
        Ok(())
    }
}

impl<M: Mmio, P: Memory> Drop for Inner<M, P> {
    /// Disables what `new` enabled. If the unit does not say that it is off, it may go on reading its tables: they are leaked.
    fn drop(&mut self) {
        let off = self.command(TE, false, "disabling translation");
        if off.and_then(|()| self.command(QIE, false, "disabling the invalidation queue")).is_err() {
            let contexts = lock(&self.contexts);
            contexts.root.leak();
            contexts.buses.values().for_each(Words::leak);
            self.status.leak();
        }
    }
}

fn store(table: &Words, index: usize, word: u64) {
    if let Some(at) = table.at(index) {
        // Release: what the word names, and the half of the entry that was stored before, are complete when the unit sees it.
        at.store(word, Ordering::Release);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
