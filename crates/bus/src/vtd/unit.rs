//! The remapping unit: enable, attach and detach devices, invalidate, disable.

use super::fault::{self, Faults};
use super::phys_memory::{PAGE, PhysMemory};
use super::queue::{BATCH, Invalidation, InvalidationQueue, WaitStatus};
use super::registers::{
    Capabilities, FECTL, FECTL_MASKED, FSTS, GCMD, GSTS, IQA, IQT, LEN, PERSISTENT, QIE, QUEUE_ERRORS, RTADDR, SRTP,
    SourceId, TE, VER,
};
use super::table_pages::TablePages;
use crate::bus::BusError;
use crate::dma::MapError;
use crate::mmio::Mmio;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use towpath_sys::lock;

/// The time limit of a command.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The submitted invalidations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Invalidations {
    /// Page-selective.
    pub pages: u64,
    /// Of whole domains.
    pub domains: u64,
    /// Batches: each is one doorbell and one wait.
    pub batches: u64,
}

/// A remapping unit; a clone is another handle. While a handle or an
/// [`AddressSpace`](super::AddressSpace) of it exists, the devices behind the unit reach only
/// memory that was mapped for them.
pub struct Unit<M: Mmio, P: PhysMemory>(pub(super) Arc<UnitInner<M, P>>);

impl<M: Mmio, P: PhysMemory> Clone for Unit<M, P> {
    fn clone(&self) -> Self {
        Unit(self.0.clone())
    }
}

pub(super) struct UnitInner<M: Mmio, P: PhysMemory> {
    name: String,
    bar: M,
    pub(super) memory: P,
    pub(super) capabilities: Capabilities,
    queue: Mutex<InvalidationQueue>,
    status: WaitStatus,
    contexts: Mutex<Contexts>,
    counts: [AtomicU64; 3],
}

/// Root table, context tables, and the domain ids in use.
struct Contexts {
    root: TablePages,
    buses: BTreeMap<u8, TablePages>,
    /// By domain id.
    attached: BTreeMap<u16, SourceId>,
}

/// Context entry, low half: present; high half: address width, domain id (§9.3). Translation type
/// 0: second-level tables.
const PRESENT: u64 = 1;

impl<M: Mmio, P: PhysMemory> Unit<M, P> {
    /// Enables the unit at the registers `bar`, with tables in `memory`. From then on no device
    /// behind it reaches any memory. All earlier translations are invalidated.
    ///
    /// # Errors
    /// [`BusError`] names the missing capability, the step that did not complete, or the failed
    /// allocation.
    pub fn new(name: &str, bar: M, memory: P) -> Result<Unit<M, P>, BusError> {
        let device = |what: String| BusError::device(name, what);
        let map = BusError::map(name);
        if bar.len() < LEN {
            return Err(device(format!("a remapping unit has {LEN} bytes of registers, not {}", bar.len())));
        }
        let capabilities = Capabilities::read(&bar).map_err(device)?;
        let queue = InvalidationQueue::new(&memory).map_err(&map)?;
        let contexts = Contexts {
            root: TablePages::alloc(&memory, 1).map_err(&map)?,
            buses: BTreeMap::new(),
            attached: BTreeMap::new(),
        };
        let (root, base, status) = (contexts.root.physical(), queue.base(), queue.status());
        let inner = UnitInner {
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

    /// Whether these registers are a remapping unit's (§11.4.1: a version other than zero).
    pub fn is_at(bar: &M) -> bool {
        !matches!(VER.read(bar), 0 | u32::MAX)
    }

    /// The capabilities of the unit.
    pub fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    /// The blocked accesses since the last call.
    pub fn faults(&self) -> Faults {
        fault::take(&self.0.bar, &self.0.capabilities)
    }

    /// The invalidations submitted so far.
    pub fn invalidations(&self) -> Invalidations {
        let [pages, domains, batches] = [0, 1, 2].map(|n: usize| self.0.counts.get(n));
        let read = |count: Option<&AtomicU64>| count.map_or(0, |c| c.load(Ordering::Relaxed));
        Invalidations { pages: read(pages), domains: read(domains), batches: read(batches) }
    }
}

impl<M: Mmio, P: PhysMemory> UnitInner<M, P> {
    /// As Linux does it (`intel_iommu_init`), except that the queue is enabled before the first
    /// invalidation: one mechanism of invalidation suffices.
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
        let invalidated = self.invalidate(&[Invalidation::Contexts, Invalidation::Everything]);
        invalidated.map_err(BusError::map(&self.name))?;
        self.command(TE, true, "enabling translation")
    }

    /// Sets or clears one bit of the global command register (§11.4.4), repeats the persistent bits
    /// and waits until the status register reports the change.
    fn command(&self, bit: u32, on: bool, step: &'static str) -> Result<(), BusError> {
        let state = GSTS.read(&self.bar);
        if state == u32::MAX {
            return Err(BusError::device(&self.name, format!("{step}: the unit is gone")));
        }
        if !on && state & bit == 0 {
            return Ok(());
        }
        GCMD.write(&self.bar, state & PERSISTENT & !bit | if on { bit } else { 0 });
        let done = GSTS.wait(&self.bar, bit, if on { bit } else { 0 }, TIMEOUT);
        done.map(drop).map_err(|source| BusError::Timeout { device: self.name.clone(), step, source })
    }

    /// Submits invalidations and waits for them: one doorbell per batch, one wait for all.
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

    /// The invalidations for `len` bytes from `iova` on: page-selective in aligned blocks, or of
    /// the whole domain if that takes more than a batch.
    pub(super) fn invalidations_for(&self, did: u16, iova: u64, len: u64) -> Vec<Invalidation> {
        let mut blocks = Vec::new();
        let (mut at, end) = (iova, iova + len);
        while at < end && blocks.len() < BATCH && self.capabilities.page_selective {
            let fits = (end - at).ilog2().min(at.trailing_zeros()) as u8 - PAGE.trailing_zeros() as u8;
            let mask = fits.min(self.capabilities.max_mask);
            blocks.push(Invalidation::Pages { did, iova: at, mask });
            at += PAGE << mask;
        }
        if at < end { vec![Invalidation::Domain { did }] } else { blocks }
    }

    /// Attaches a device: a new domain id and a context entry that points to `tables`.
    pub(super) fn attach(&self, source: SourceId, tables: u64) -> Result<u16, BusError> {
        let refuse = |what: String| BusError::device(&self.name, what);
        let map = BusError::map(&self.name);
        let mut contexts = lock(&self.contexts);
        if contexts.attached.values().any(|&s| s == source) {
            return Err(refuse(format!("device {source} has tables already")));
        }
        // Domain id 0 is reserved in caching mode (§6.1).
        let domains = self.capabilities.domains.min(1 << 16);
        let did = (1..domains).map(|did| did as u16).find(|did| !contexts.attached.contains_key(did));
        let did = did.ok_or_else(|| refuse(format!("all {domains} domain ids are in use")))?;
        let bus = (source.0 >> 8) as u8;
        if !contexts.buses.contains_key(&bus) {
            let table = TablePages::alloc(&self.memory, 1).map_err(&map)?;
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
        let stale = [Invalidation::Context { source: source.0, did: 0 }, Invalidation::Domain { did }];
        if let Err(error) = self.invalidate(&stale) {
            // The domain id stays in use: the unit may have seen the entry.
            if let Some(table) = contexts.buses.get(&bus) {
                store(table, usize::from(source.0 & 0xff) * 2, 0);
            }
            return Err(map(error));
        }
        Ok(did)
    }

    /// Detaches a device. When it returns without an error, the unit does not use the tables any
    /// more.
    pub(super) fn detach(&self, source: SourceId, did: u16) -> Result<(), MapError> {
        let mut contexts = lock(&self.contexts);
        if let Some(table) = contexts.buses.get(&((source.0 >> 8) as u8)) {
            store(table, usize::from(source.0 & 0xff) * 2, 0);
        }
        self.invalidate(&[Invalidation::Context { source: source.0, did }, Invalidation::Domain { did }])?;
        contexts.attached.remove(&did);
        Ok(())
    }
}

impl<M: Mmio, P: PhysMemory> Drop for UnitInner<M, P> {
    /// Disables the unit. If that fails, the unit may still read its tables: they are leaked.
    fn drop(&mut self) {
        let off = self.command(TE, false, "disabling translation");
        if off.and_then(|()| self.command(QIE, false, "disabling the invalidation queue")).is_err() {
            let contexts = lock(&self.contexts);
            contexts.root.leak();
            contexts.buses.values().for_each(TablePages::leak);
            self.status.leak();
        }
    }
}

fn store(table: &TablePages, index: usize, word: u64) {
    if let Some(at) = table.at(index) {
        // Release: the table behind the entry, and the half of the entry that was stored before,
        // are complete when the unit reads it.
        at.store(word, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
