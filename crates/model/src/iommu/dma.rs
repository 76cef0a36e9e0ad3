//! Persistent mappings.

use super::Config;
use super::engine::Transfer;
use super::fault::Fault;
use super::late::{LateCounts, LateWrite};
use super::queue::Invalidate;
use super::refuse::Refuse;
use super::tables::permissions;
use super::unit::{Counts, Mapping, Unit};
use super::window::ModelWindow;
use crate::memory::HostAddr;
use crate::violation::{Violation, Violations};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use towpath_bus::{Access, Dma, Iova, Limits, MapError};
use towpath_packet::{Backing, Region};

/// The driver's side of an IOMMU, or of memory without one.
#[derive(Clone)]
pub struct ModelDma {
    pub(super) unit: Arc<Unit>,
    /// Copied here, so that syncs need no other state.
    bounce: bool,
}

impl ModelDma {
    /// A new unit.
    ///
    /// # Errors
    /// [`MapError`] if there is no memory for its tables, or its ranges exceed the address width.
    pub fn new(config: &Config, violations: Arc<Violations>) -> Result<ModelDma, MapError> {
        Ok(ModelDma { unit: Arc::new(Unit::new(config, violations)?), bounce: config.bounce })
    }

    /// The counters.
    pub fn counts(&self) -> Counts {
        self.unit.counts()
    }

    /// The first 64 faults since the last call.
    pub fn take_faults(&self) -> Vec<Fault> {
        self.unit.take_faults()
    }

    /// Sets which mappings fail from now on.
    pub fn refuse(&self, refuse: Refuse) {
        self.unit.refusals.set(refuse);
        self.unit.refuses.store(refuse != Refuse::Never, Ordering::Relaxed);
    }

    /// Sets which flushes of windows fail from now on. Their translations stay in the IOTLB.
    pub fn refuse_flushes(&self, refuse: Refuse) {
        self.unit.flush_refusals.set(refuse);
    }

    /// The device records its last accesses to buffers from now on, for
    /// [`late`](ModelDma::late). With `at_invalidation` it also repeats them each time before an
    /// invalidation is executed, as far as the buffers are unmapped: the last moment that an IOMMU
    /// leaves it.
    pub fn remember_late(&self, at_invalidation: Option<LateWrite>) {
        self.unit.engine().remember_late(at_invalidation);
    }

    /// The device repeats its accesses to buffers that the driver has unmapped: now, through the
    /// translations that are still in the IOTLB. Returns what it reached in this call.
    pub fn late(&self, what: LateWrite) -> LateCounts {
        let mut engine = self.unit.engine();
        let (before, after) = (engine.late_counts(), engine.repeat_late(&self.unit, what));
        LateCounts {
            reads: after.reads - before.reads,
            writes: after.writes - before.writes,
            blocked: after.blocked - before.blocked,
        }
    }

    /// What late accesses have reached, at invalidations and by [`late`](ModelDma::late).
    pub fn late_counts(&self) -> LateCounts {
        self.unit.engine().late_counts()
    }

    /// The violations that a strict model found.
    pub fn violations(&self) -> &Arc<Violations> {
        &self.unit.violations
    }

    /// The device's side: begins a burst of accesses. Pending invalidations are processed first.
    pub(crate) fn transfer(&self) -> Transfer<'_> {
        Transfer::new(&self.unit)
    }

    /// Sets whether a thread calls [`transfer`](ModelDma::transfer) continuously.
    pub(crate) fn set_threaded(&self, threaded: bool) {
        self.unit.set_threaded(threaded);
    }

    /// DMA that belongs to no device: reads what an IOVA translates to. For tests of what a device
    /// could reach.
    ///
    /// # Errors
    /// The fault, which is recorded as well.
    pub fn probe_read(&self, iova: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.transfer().read(iova, into)
    }

    /// As [`probe_read`](ModelDma::probe_read), for writes.
    ///
    /// # Errors
    /// The fault, which is recorded as well.
    pub fn probe_write(&self, iova: u64, from: &[u8]) -> Result<(), Fault> {
        self.transfer().write(iova, from)
    }

    unsafe fn map_region(&self, at: NonNull<u8>, len: usize, access: Access) -> Result<u64, MapError> {
        let unit = &*self.unit;
        let (buffer, len) = (HostAddr::expose(at), len as u64);
        let granule = unit.limits.granule;
        if len == 0 || (buffer | len) % granule as u64 != 0 {
            return Err(MapError::Granule { address: buffer, len: len as usize, granule });
        }
        unit.check_refusal()?;
        let bounce_buffer = match unit.bounce && !unit.is_coherent(buffer, len) {
            true => Some(Region::new(len as usize, Backing::Anonymous)?),
            false => None,
        };
        let memory = bounce_buffer.as_ref().map_or(buffer, |s| HostAddr::expose(s.base()));
        if let Some(limit) = unit.limits.locked
            && unit.locked.load(Ordering::Relaxed) + len > limit
        {
            return Err(MapError::Locked { len: len as usize, limit });
        }
        let mut mappings = unit.mappings.lock().unwrap_or_else(PoisonError::into_inner);
        unit.count_mapping()?;
        let iova = if unit.on {
            let mut iovas = unit.iovas.lock().unwrap_or_else(PoisonError::into_inner);
            // Congruent to the memory, so that large pages fit.
            let align = if len >= 1 << 21 { 1 << 21 } else { 1 << 12 };
            let taken = iovas.alloc(len, align, memory).filter(|&iova| {
                let mapped = unit.tables.map(iova, memory, len, permissions(access));
                if !mapped {
                    iovas.free(iova);
                }
                mapped
            });
            taken.ok_or_else(|| {
                unit.uncount_mapping();
                MapError::Range { len: len as usize }
            })?
        } else {
            unit.engine().add_range(memory, len);
            memory
        };
        if bounce_buffer.is_some() {
            // SAFETY: the caller keeps the buffer in place until it is unmapped; `mappings` holds
            // the bounce buffer as long.
            unsafe { unit.bounces.add(iova, len, buffer, memory) };
        }
        unit.locked.fetch_add(len, Ordering::Relaxed);
        mappings.insert(iova, Mapping { len, buffer, bounce_buffer });
        Ok(iova)
    }

    #[cold]
    fn bounce(&self, iova: Iova, len: usize, to_device: bool) {
        self.unit.bounced.fetch_add(1, Ordering::Relaxed);
        let iova = iova.get();
        if !self.unit.bounces.sync(iova, len, to_device) && !self.is_coherent_iova(iova, len) {
            self.unit.violations.report(Violation::SyncOfUnmapped { iova, len });
        }
    }

    fn is_coherent_iova(&self, iova: u64, len: usize) -> bool {
        let mappings = self.unit.mappings.lock().unwrap_or_else(PoisonError::into_inner);
        mappings
            .range(..=iova)
            .next_back()
            .is_some_and(|(at, l)| l.bounce_buffer.is_none() && iova - at + len as u64 <= l.len)
    }
}

// SAFETY: `alloc` makes a new private mapping; for the rest, as for `ModelWindow`.
unsafe impl Dma for ModelDma {
    type Window = ModelWindow;

    fn limits(&self) -> &Limits {
        &self.unit.limits
    }

    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        let region = Region::new(len, Backing::Anonymous)?;
        let mut coherent = self.unit.coherent.lock().unwrap_or_else(PoisonError::into_inner);
        coherent.push((HostAddr::expose(region.base()), region.len() as u64));
        Ok(region)
    }

    unsafe fn map(&self, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        // SAFETY: the same contract.
        let mapped = unsafe { self.map_region(at, len, access) };
        let count = if mapped.is_ok() { &self.unit.maps } else { &self.unit.refused };
        count.fetch_add(1, Ordering::Relaxed);
        Iova::new(mapped?).ok_or(MapError::Range { len })
    }

    fn unmap(&self, iova: Iova, len: usize) -> Result<(), MapError> {
        let (unit, iova) = (&*self.unit, iova.get());
        let mut mappings = unit.mappings.lock().unwrap_or_else(PoisonError::into_inner);
        if mappings.get(&iova).is_none_or(|l| l.len != len as u64) {
            return Err(MapError::Refused("nothing of this length is mapped at this address"));
        }
        let Some(mapping) = mappings.remove(&iova) else { return Ok(()) };
        drop(mappings);
        if let Some(page) = unit.engine().owned(iova, mapping.len) {
            unit.violations.report(Violation::UnmappedWhileOwned { iova: page });
        }
        if unit.on {
            unit.tables.unmap(iova, mapping.len);
            unit.invalidate([Invalidate::All].into_iter());
            unit.iovas.lock().unwrap_or_else(PoisonError::into_inner).free(iova);
        } else {
            unit.engine().remove_range(iova);
        }
        unit.bounces.remove(iova);
        unit.coherent.lock().unwrap_or_else(PoisonError::into_inner).retain(|(base, _)| *base != mapping.buffer);
        unit.locked.fetch_sub(mapping.len, Ordering::Relaxed);
        unit.uncount_mapping();
        unit.unmaps.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn window(&self, slots: u32, bytes: usize) -> Result<ModelWindow, MapError> {
        ModelWindow::new(self.unit.clone(), slots, bytes)
    }

    #[inline]
    fn sync_for_cpu(&self, iova: Iova, len: usize) {
        fence(Ordering::Acquire);
        if self.bounce {
            self.bounce(iova, len, false);
        }
    }

    #[inline]
    fn sync_for_device(&self, iova: Iova, len: usize) {
        if self.bounce {
            self.bounce(iova, len, true);
        }
        fence(Ordering::Release);
    }
}

impl std::fmt::Debug for ModelDma {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelDma").field("on", &self.unit.on).field("counts", &self.counts()).finish()
    }
}
