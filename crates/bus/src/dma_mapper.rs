//! One queue's buffers, under its domain's policy.

use crate::dma::{Access, Dma, DmaPolicy, Flush, Iova, MapError, Window};
use crate::domain::{Domain, Registered};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use towpath_packet::{Chunk, FromDevice, InFlight, Packet, Region};

/// What a mapper did, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DmaCounts {
    /// Buffers mapped one by one.
    pub maps: u64,
    /// Buffers unmapped.
    pub unmaps: u64,
    /// Times that the device's translations were invalidated, and that was waited for.
    pub flushes: u64,
    /// Buffers that could not be mapped.
    pub failures: u64,
    /// Slots whose unmapping failed: they, and the buffers that were in them, are never used again.
    pub lost: u64,
    /// Syncs for the processor.
    pub syncs_for_cpu: u64,
    /// Syncs for the device.
    pub syncs_for_device: u64,
}

/// A buffer as the device sees it. Given back with [`DmaMapper::unmap`]; not `Copy`, so that it can't be used afterwards.
#[derive(Debug)]
#[must_use = "a mapping that is dropped stays in place until the queue ends"]
pub struct Mapped {
    iova: Iova,
    /// Slot of the window; none where the buffer lies in memory that is mapped for good.
    slot: Option<u32>,
}

impl Mapped {
    /// Where the device finds the buffer.
    #[inline]
    pub fn iova(&self) -> Iova {
        self.iova
    }
}

/// Maps and unmaps the buffers of one queue.
///
/// Buffers that were unmapped may be read, or go home, **only after [`sync_iotlb`](DmaMapper::sync_iotlb)** returned: that is where strict
/// protection waits, once for a whole burst.
pub struct DmaMapper<D: Dma> {
    // Dropped in this order: the window must not outlive the memory that its slots may still be mapped to.
    buffers: Option<PerBuffer<D::Window>>,
    /// The memory that the last buffers lay in: looked at first, without a lock.
    recent: Vec<Registered>,
    /// Memory that could not be adopted, so that it is not tried for each packet.
    refused: Vec<Weak<Region>>,
    /// There may be memory that was adopted.
    adopted: bool,
    domain: Domain<D>,
    counts: DmaCounts,
}

struct PerBuffer<W> {
    window: W,
    flush: Flush,
    free: Vec<u32>,
    /// Unmapped, but perhaps still within the device's reach.
    pending: Vec<u32>,
}

impl<D: Dma> DmaMapper<D> {
    /// Buffers that [`Flush::Deferred`] gathers before it invalidates.
    pub const DEFERRED: u32 = 256;

    /// A mapper for up to `buffers` buffers of `bytes` bytes at a time.
    ///
    /// # Errors
    /// [`MapError`]: a limit of the bus was hit.
    pub fn new(domain: &Domain<D>, buffers: u32, bytes: usize) -> Result<DmaMapper<D>, MapError> {
        let per_buffer = match domain.policy() {
            DmaPolicy::Persistent => None,
            DmaPolicy::PerBuffer { flush } => {
                let slots = buffers + if flush == Flush::Deferred { Self::DEFERRED } else { 0 };
                let window = domain.dma().window(slots, bytes)?;
                let pending = Vec::with_capacity(slots as usize);
                // The lowest addresses are used first, and again soonest: the device's translations of them are still cached.
                Some(PerBuffer { window, flush, free: (0..slots).rev().collect(), pending })
            }
        };
        Ok(DmaMapper {
            domain: domain.clone(),
            recent: Vec::with_capacity(4),
            refused: Vec::new(),
            adopted: false,
            buffers: per_buffer,
            counts: DmaCounts::default(),
        })
    }

    /// Makes a piece of a packet readable for the device.
    ///
    /// # Errors
    /// [`MapError`]; nothing is mapped then. [`MapError::Unregistered`] for memory that the domain does not know.
    #[inline]
    pub fn map_to_device(&mut self, chunk: Chunk<'_>) -> Result<Mapped, MapError> {
        let at = NonNull::new(chunk.as_ptr().cast_mut()).ok_or(MapError::Unregistered)?;
        self.map(at, chunk.len(), Access::Read)
    }

    /// Makes a lent buffer writable for the device.
    ///
    /// # Errors
    /// As [`map_to_device`](DmaMapper::map_to_device).
    #[inline]
    pub fn map_from_device(&mut self, buffer: &InFlight<FromDevice>) -> Result<Mapped, MapError> {
        self.map(buffer.at(), buffer.room(), Access::Write)
    }

    #[inline]
    fn map(&mut self, at: NonNull<u8>, len: usize, access: Access) -> Result<Mapped, MapError> {
        let mapped = self.try_map(at, len, access);
        self.counts.failures += u64::from(mapped.is_err());
        mapped
    }

    #[inline]
    fn try_map(&mut self, at: NonNull<u8>, len: usize, access: Access) -> Result<Mapped, MapError> {
        let (iova, offset) = self.locate(at, len)?;
        if let Some(iova) = iova {
            return Ok(Mapped { iova: iova.add(offset), slot: None });
        }
        if self.buffers.as_ref().is_some_and(|b| b.free.is_empty()) {
            self.flush()?;
        }
        let buffers = self.buffers.as_mut().ok_or(MapError::Unregistered)?;
        let slot = buffers.free.pop().ok_or(MapError::Mappings { limit: buffers.pending.capacity() as u64 })?;
        // SAFETY: a slot that is free is neither mapped nor pending; the buffer lies in memory that the domain keeps in place
        // as long as this mapper has a handle of it.
        match unsafe { buffers.window.map(slot, at, len, access) } {
            Ok(iova) => {
                self.counts.maps += 1;
                Ok(Mapped { iova, slot: Some(slot) })
            }
            Err(error) => {
                buffers.free.push(slot);
                Err(error)
            }
        }
    }

    /// The registered memory in which a buffer lies: its address if it is mapped for good, and the buffer's offset.
    #[inline]
    fn locate(&mut self, at: NonNull<u8>, len: usize) -> Result<(Option<Iova>, usize), MapError> {
        for memory in &self.recent {
            if let Some(offset) = memory.offset(at, len) {
                return Ok((memory.iova, offset));
            }
        }
        self.learn(at, len)
    }

    #[cold]
    fn learn(&mut self, at: NonNull<u8>, len: usize) -> Result<(Option<Iova>, usize), MapError> {
        let memory = self.domain.find(at, len).ok_or(MapError::Unregistered)?;
        let found = (memory.iova, memory.offset(at, len).unwrap_or(0));
        if self.recent.len() == self.recent.capacity() {
            self.recent.remove(0);
        }
        self.recent.push(memory);
        Ok(found)
    }

    /// Makes the memory that a packet's pages lie in known, an application's: [`map_to_device`](DmaMapper::map_to_device) knows it from then on,
    /// until nobody else holds it any more. Returns whether there is some that the device can read now; what lies in other memory must be
    /// copied, because the device can't reach it, or a limit was hit.
    #[cold]
    pub fn map_external(&mut self, packet: &Packet) -> bool {
        // All are tried: a packet may have pages of several applications.
        packet.extbuf_regions().filter(|memory| self.map_external_region(memory)).count() > 0
    }

    fn map_external_region(&mut self, region: &Arc<Region>) -> bool {
        self.refused.retain(|refused| refused.strong_count() > 0);
        if self.refused.iter().any(|refused| std::ptr::eq(refused.as_ptr(), Arc::as_ptr(region))) {
            return false;
        }
        self.unmap_unused();
        self.adopted = true;
        self.domain.map_external(region).inspect_err(|_| self.refused.push(Arc::downgrade(region))).is_ok()
    }

    /// Lets go of adopted memory that nobody else holds: when a queue has nothing to do. Whatever of it was mapped has been unmapped.
    #[cold]
    pub fn unmap_unused(&mut self) {
        // Nothing that goes may still be within reach.
        if self.adopted && self.flush().is_ok() {
            self.recent.retain(|memory| !memory.adopted);
            self.adopted = self.domain.unmap_unused();
        }
    }

    /// Takes a buffer out of the device's hands: it is so after [`sync_iotlb`](DmaMapper::sync_iotlb).
    ///
    /// # Errors
    /// [`MapError`] when the device may keep it for ever: the buffer must not be used again, nor go home.
    #[inline]
    pub fn unmap(&mut self, mapped: Mapped) -> Result<(), MapError> {
        let (Some(slot), Some(buffers)) = (mapped.slot, &mut self.buffers) else { return Ok(()) };
        if let Err(error) = buffers.window.unmap(slot) {
            self.counts.lost += 1;
            return Err(error);
        }
        buffers.pending.push(slot);
        self.counts.unmaps += 1;
        Ok(())
    }

    /// To be called before buffers that were unmapped are read or go home. Waits until the device can't reach them any more, if
    /// the policy says so.
    ///
    /// # Errors
    /// [`MapError`] when that can't be shown.
    #[inline]
    pub fn sync_iotlb(&mut self) -> Result<(), MapError> {
        let wait = self.buffers.as_ref().is_some_and(|b| match b.flush {
            Flush::Strict => !b.pending.is_empty(),
            Flush::Deferred => b.pending.len() >= Self::DEFERRED as usize,
        });
        if wait { self.flush() } else { Ok(()) }
    }

    /// Waits until the device can reach nothing that was unmapped, under any policy: when a queue has nothing to do, and before it
    /// ends.
    ///
    /// # Errors
    /// [`MapError`] when that can't be shown.
    pub fn flush(&mut self) -> Result<(), MapError> {
        let Some(buffers) = self.buffers.as_mut().filter(|b| !b.pending.is_empty()) else { return Ok(()) };
        buffers.window.flush()?;
        self.counts.flushes += 1;
        buffers.free.append(&mut buffers.pending);
        Ok(())
    }

    /// Makes the first `len` bytes that the device wrote visible to the processor.
    #[inline]
    pub fn sync_for_cpu(&mut self, mapped: &Mapped, len: usize) {
        self.counts.syncs_for_cpu += 1;
        self.domain.dma().sync_for_cpu(mapped.iova, len);
    }

    /// Makes the first `len` bytes visible to the device, which gets the buffer (again).
    #[inline]
    pub fn sync_for_device(&mut self, mapped: &Mapped, len: usize) {
        self.counts.syncs_for_device += 1;
        self.domain.dma().sync_for_device(mapped.iova, len);
    }

    /// What was done until now.
    pub fn counts(&self) -> DmaCounts {
        self.counts
    }

    /// The domain.
    pub fn domain(&self) -> &Domain<D> {
        &self.domain
    }
}

impl<D: Dma> std::fmt::Debug for DmaMapper<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DmaMapper").field("policy", &self.domain.policy()).field("counts", &self.counts).finish()
    }
}
