//! The memory that a device may use, and under which policy.

use crate::dma::{Access, Dma, DmaPolicy, Iova, MapError};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_packet::RegionHandle;

/// Memory that was registered.
#[derive(Debug, Clone)]
pub(crate) struct RegisteredRegion {
    pub(crate) region: RegionHandle,
    /// The IOVA, if it is mapped persistently.
    pub(crate) iova: Option<Iova>,
    /// Memory of an application: unmapped when no other handle of it is left.
    pub(crate) external: bool,
}

impl RegisteredRegion {
    /// The offset of the `len` bytes at `at`, if they lie inside.
    #[inline]
    pub(crate) fn offset(&self, at: NonNull<u8>, len: usize) -> Option<usize> {
        let offset = at.addr().get().checked_sub(self.region.base().addr().get())?;
        (offset <= self.region.len() && len <= self.region.len() - offset).then_some(offset)
    }
}

#[derive(Debug)]
struct Inner<D: Dma> {
    dma: D,
    policy: DmaPolicy,
    memory: Mutex<Vec<RegisteredRegion>>,
}

/// A device's IOMMU domain: all memory that the device may use. The memory stays in place as long
/// as the domain or a [`DmaMapper`](crate::DmaMapper) of it exists.
///
/// The last handle unmaps everything, so **a driver drops it only after the device has been
/// stopped**. Memory that could not be unmapped is leaked, not freed.
#[derive(Debug)]
pub struct Domain<D: Dma>(Arc<Inner<D>>);

impl<D: Dma> Clone for Domain<D> {
    fn clone(&self) -> Self {
        Domain(self.0.clone())
    }
}

impl<D: Dma> Domain<D> {
    /// A domain without memory.
    ///
    /// # Errors
    /// [`MapError::NoIommu`] for [`DmaPolicy::PerBuffer`] without an IOMMU.
    pub fn new(dma: D, policy: DmaPolicy) -> Result<Domain<D>, MapError> {
        if policy != DmaPolicy::Persistent && !dma.limits().iommu {
            return Err(MapError::NoIommu);
        }
        Ok(Domain(Arc::new(Inner { dma, policy, memory: Mutex::default() })))
    }

    /// The device's DMA interface.
    pub fn dma(&self) -> &D {
        &self.0.dma
    }

    /// The policy.
    pub fn policy(&self) -> DmaPolicy {
        self.0.policy
    }

    /// Registers packet memory. [`DmaPolicy::Persistent`] maps the whole region. Registering a
    /// region twice does nothing.
    ///
    /// # Safety
    /// The caller drives the device: until the domain is dropped, the device writes only to buffers
    /// that are [in flight](towpath_packet::InFlight) to it, and such a buffer is completed only
    /// when the device is done with it.
    ///
    /// ```compile_fail,E0133
    /// use towpath_bus::{Dma, Domain};
    /// use towpath_packet::Pool;
    /// fn reach<D: Dma>(domain: &Domain<D>, pool: &Pool) {
    ///     domain.register(pool.region().unwrap()).unwrap();
    /// }
    /// ```
    ///
    /// # Errors
    /// [`MapError`]: the device cannot reach the region, or a limit was hit. Its packets must be
    /// copied then.
    pub unsafe fn register(&self, region: &RegionHandle) -> Result<(), MapError> {
        self.add(region, false)
    }

    /// Registers an application's memory, which comes and goes.
    /// [`unmap_unused`](Domain::unmap_unused) unmaps it when no other handle of it is left. Not for
    /// hot paths: mapping may be slow.
    ///
    /// # Errors
    /// As [`register`](Domain::register). There are no references to its bytes, whatever the
    /// device writes.
    pub(crate) fn map_external(&self, region: &RegionHandle) -> Result<(), MapError> {
        self.add(region, true)
    }

    /// Unmaps external memory without another handle. Returns whether any external memory is left.
    pub fn unmap_unused(&self) -> bool {
        let mut memory = self.memory();
        memory.retain_mut(|memory| {
            // This handle is the last and is behind the lock, so no other can be cloned from it.
            if !memory.external || !memory.region.is_last() {
                return true;
            }
            // Memory that cannot be unmapped stays.
            memory.iova.is_some_and(|iova| self.0.dma.unmap(iova, memory.region.len()).is_err())
        });
        memory.iter().any(|memory| memory.external)
    }

    fn add(&self, region: &RegionHandle, external: bool) -> Result<(), MapError> {
        let mut memory = self.memory();
        if memory.iter().any(|m| m.region.is_same(region)) {
            return Ok(());
        }
        // Under every policy: unreachable memory is refused before the first packet.
        if !self.0.dma.reaches_region(region) {
            return Err(MapError::Foreign);
        }
        let iova = match self.0.policy {
            DmaPolicy::PerBuffer { .. } => None,
            // SAFETY: the region stays mapped in this process while `memory` holds it, which is
            // until it was unmapped for the device. Its bytes are untrusted, or packets, which the
            // device writes only while it owns them, as the caller of `register` promised.
            DmaPolicy::Persistent => Some(unsafe { self.0.dma.map_region(region, Access::Both) }?),
        };
        memory.push(RegisteredRegion { region: region.clone(), iova, external });
        Ok(())
    }

    /// Allocates memory for descriptors or copies: mapped persistently under any policy. Returns
    /// the region and its IOVA.
    ///
    /// # Errors
    /// [`MapError`] if there is no memory, or it cannot be mapped.
    pub fn alloc(&self, len: usize, access: Access) -> Result<(RegionHandle, Iova), MapError> {
        let region = RegionHandle::from(self.0.dma.alloc(len)?);
        // SAFETY: as in `add`; the region is new, and its handle gives addresses only.
        let iova = unsafe { self.0.dma.map_region(&region, access) }?;
        self.memory().push(RegisteredRegion { region: region.clone(), iova: Some(iova), external: false });
        Ok((region, iova))
    }

    pub(crate) fn find(&self, at: NonNull<u8>, len: usize) -> Option<RegisteredRegion> {
        self.memory().iter().find(|m| m.offset(at, len).is_some()).cloned()
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Vec<RegisteredRegion>> {
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Dma> Drop for Inner<D> {
    fn drop(&mut self) {
        let memory = self.memory.get_mut().unwrap_or_else(PoisonError::into_inner);
        for RegisteredRegion { region, iova, .. } in memory.drain(..) {
            if let Some(iova) = iova
                && self.dma.unmap(iova, region.len()).is_err()
            {
                std::mem::forget(region);
            }
        }
    }
}
