//! What memory a device may use, and under which policy.

use crate::dma::{Access, Dma, DmaPolicy, Iova, MapError};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_packet::Region;

/// Memory that was registered.
#[derive(Debug, Clone)]
pub(crate) struct Registered {
    pub(crate) region: Arc<Region>,
    /// Where the device sees it, if it was mapped for good.
    pub(crate) iova: Option<Iova>,
    /// It was met on the way: it goes when nobody else has it any more.
    pub(crate) adopted: bool,
}

impl Registered {
    /// Offset of the `len` bytes at `at`, if they lie inside.
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
    memory: Mutex<Vec<Registered>>,
}

/// A device's domain: the memory that it may use, alive and in place for as long as the domain or a
/// [`DmaMapper`](crate::DmaMapper) of it is.
///
/// The last handle unmaps everything, so **a driver drops it only after the device has been stopped**. Memory that cannot be
/// shown to be out of the device's reach is leaked, not freed.
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
    /// [`MapError::NoIommu`] for a policy of single buffers where nothing could protect them.
    pub fn new(dma: D, policy: DmaPolicy) -> Result<Domain<D>, MapError> {
        if policy != DmaPolicy::Persistent && !dma.limits().iommu {
            return Err(MapError::NoIommu);
        }
        Ok(Domain(Arc::new(Inner { dma, policy, memory: Mutex::default() })))
    }

    /// The device's reach.
    pub fn dma(&self) -> &D {
        &self.0.dma
    }

    /// How packets are protected.
    pub fn policy(&self) -> DmaPolicy {
        self.0.policy
    }

    /// Lets packets in `region` be used. With [`DmaPolicy::Persistent`] it is mapped, whole; registering it twice does nothing.
    ///
    /// # Errors
    /// [`MapError`]: the device can't reach it, or a limit was hit. Packets that lie there must be copied then.
    pub fn register(&self, region: &Arc<Region>) -> Result<(), MapError> {
        self.add(region, false)
    }

    /// As [`register`](Domain::register), for memory that comes and goes: an application's. It is unmapped by
    /// [`unmap_unused`](Domain::unmap_unused) when nobody else holds it any more. Not for hot paths: mapping may take long.
    ///
    /// # Errors
    /// As there.
    pub fn map_external(&self, region: &Arc<Region>) -> Result<(), MapError> {
        self.add(region, true)
    }

    /// Unmaps adopted memory that nobody else holds; returns whether there is some that others hold.
    pub fn unmap_unused(&self) -> bool {
        let mut memory = self.memory();
        memory.retain_mut(|memory| {
            // Nobody can take another handle: ours is the last, and it is behind the lock.
            if !memory.adopted || Arc::strong_count(&memory.region) > 1 {
                return true;
            }
            // What can't be unmapped stays.
            memory.iova.is_some_and(|iova| self.0.dma.unmap(iova, memory.region.len()).is_err())
        });
        memory.iter().any(|memory| memory.adopted)
    }

    fn add(&self, region: &Arc<Region>, adopted: bool) -> Result<(), MapError> {
        let mut memory = self.memory();
        if memory.iter().any(|m| Arc::ptr_eq(&m.region, region)) {
            return Ok(());
        }
        // Under every policy: what is foreign is known before the first packet.
        if !self.0.dma.reaches(region.base(), region.len()) {
            return Err(MapError::Foreign);
        }
        let iova = match self.0.policy {
            DmaPolicy::PerBuffer { .. } => None,
            // SAFETY: the region stays mapped in this process while `memory` holds it, which is until it was unmapped for the
            // device; its bytes are packets, which the device writes only while they are lent to it.
            DmaPolicy::Persistent => Some(unsafe { self.0.dma.map(region.base(), region.len(), Access::Both) }?),
        };
        memory.push(Registered { region: region.clone(), iova, adopted });
        Ok(())
    }

    /// Memory for descriptors and the like: mapped for good under any policy. Returns where it is for us, and for the device.
    ///
    /// # Errors
    /// [`MapError`] when there is none, or it can't be mapped.
    pub fn alloc(&self, len: usize) -> Result<(Arc<Region>, Iova), MapError> {
        let region = Arc::new(self.0.dma.alloc(len)?);
        // SAFETY: as in `register`; whoever uses the region knows that it is shared with the device.
        let iova = unsafe { self.0.dma.map(region.base(), region.len(), Access::Both) }?;
        self.memory().push(Registered { region: region.clone(), iova: Some(iova), adopted: false });
        Ok((region, iova))
    }

    pub(crate) fn find(&self, at: NonNull<u8>, len: usize) -> Option<Registered> {
        self.memory().iter().find(|m| m.offset(at, len).is_some()).cloned()
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Vec<Registered>> {
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Dma> Drop for Inner<D> {
    fn drop(&mut self) {
        let memory = self.memory.get_mut().unwrap_or_else(PoisonError::into_inner);
        for Registered { region, iova, .. } in memory.drain(..) {
            if let Some(iova) = iova
                && self.dma.unmap(iova, region.len()).is_err()
            {
                std::mem::forget(region);
            }
        }
    }
}
