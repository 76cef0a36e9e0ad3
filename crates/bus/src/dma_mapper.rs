//! Maps and unmaps the buffers of one queue by the policy of its domain.

use crate::bounce::BounceMemory;
use crate::dma::{Access, Dma, DmaPolicy, Flush, Iova, MapError, Window};
use crate::domain::{Domain, RegisteredRegion};
use std::ptr::NonNull;
use towpath_packet::{Chunk, FromDevice, InFlight, Packet, RegionHandle, WeakRegionHandle};

/// The counters of a mapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DmaCounts {
    /// Buffers mapped one by one.
    pub maps: u64,
    /// Buffers unmapped.
    pub unmaps: u64,
    /// IOTLB invalidations that were waited for.
    pub flushes: u64,
    /// Buffers that could not be mapped.
    pub failures: u64,
    /// Slots that could not be unmapped. Neither they nor their buffers are ever used again.
    pub lost: u64,
    /// Syncs for the CPU.
    pub syncs_for_cpu: u64,
    /// Syncs for the device.
    pub syncs_for_device: u64,
    /// Frames that were copied to bounce memory.
    pub copies: u64,
}

/// A mapped buffer. [`DmaMapper::unmap`] consumes it; it is not `Copy`, so the IOVA cannot be used
/// afterwards.
#[derive(Debug)]
#[must_use = "a mapping that is dropped stays in place until the queue ends"]
pub struct Mapped {
    iova: Iova,
    /// The slot in the window; `None` if the buffer lies in persistently mapped memory.
    slot: Option<u32>,
}

impl Mapped {
    /// The IOVA of the buffer.
    #[inline]
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// Whether [`DmaMapper::unmap`] has something to do: the buffer does not lie in memory that
    /// stays mapped.
    #[inline]
    pub fn is_temporary(&self) -> bool {
        self.slot.is_some()
    }
}

/// Memory that stays mapped.
#[derive(Debug, Clone, Copy)]
struct MappedMemory {
    base: usize,
    len: usize,
    /// The IOVA of its first byte.
    iova: Iova,
}

impl MappedMemory {
    /// No buffer lies in it.
    const NONE: MappedMemory = MappedMemory { base: usize::MAX, len: 0, iova: Iova::LOWEST };

    /// The IOVA of the `len` bytes at `at`, if they lie inside.
    #[inline]
    fn iova(&self, at: usize, len: usize) -> Option<Iova> {
        // An address in front of it is too far behind it.
        let offset = at.wrapping_sub(self.base);
        (offset <= self.len && len <= self.len - offset).then(|| self.iova.add(offset))
    }
}

/// Pieces of a packet that are mapped as one.
#[derive(Debug)]
pub struct MappedRun {
    /// The mapping.
    pub mapped: Mapped,
    /// Number of the pieces, at least one.
    pub pieces: usize,
    /// The lowest address, which has the mapping's IOVA.
    lowest: usize,
}

impl MappedRun {
    /// The IOVA of one of the pieces.
    #[inline]
    pub fn iova(&self, piece: &Chunk<'_>) -> Iova {
        self.mapped.iova().add(piece.as_ptr().addr().saturating_sub(self.lowest))
    }
}

/// Maps and unmaps the buffers of one queue: what `dma_map_single` and `dma_unmap_single` are in
/// Linux.
///
/// Under [`DmaPolicy::Persistent`], and for memory that stays mapped, mapping only looks up the
/// IOVA, and unmapping does nothing.
///
/// Two calls invalidate the IOTLB. [`sync_iotlb`](DmaMapper::sync_iotlb) does what the policy asks
/// for (Linux: `iommu_iotlb_sync`, or its flush queue); it is the one for bursts.
/// [`flush_iotlb`](DmaMapper::flush_iotlb) invalidates at once under any policy (Linux:
/// `iommu_flush_iotlb_all`).
///
/// A buffer that was unmapped may be read or freed **only after
/// [`sync_iotlb`](DmaMapper::sync_iotlb) has returned**. With strict protection the mapper waits
/// there, once for a whole burst.
pub struct DmaMapper<D: Dma> {
    // Dropped in this order: the window must not outlive the memory that its slots may map.
    buffers: Option<PerBuffer<D::Window>>,
    /// The one of `recent` that the last buffer lay in, if it stays mapped: the first that is
    /// looked at.
    last: MappedMemory,
    /// The regions of the last buffers: searched before the domain, without a lock.
    recent: Vec<RegisteredRegion>,
    /// Regions that could not be mapped; they are not tried for each packet.
    unmappable: Vec<WeakRegionHandle>,
    /// External memory may be mapped.
    external: bool,
    bounce: Option<BounceMemory>,
    domain: Domain<D>,
    counts: DmaCounts,
}

struct PerBuffer<W> {
    window: W,
    /// Bytes that a slot maps, at most.
    bytes: usize,
    flush: Flush,
    free: Vec<u32>,
    /// Unmapped, but perhaps still in the IOTLB.
    pending: Vec<u32>,
}

impl<D: Dma> DmaMapper<D> {
    /// The buffers that [`Flush::Deferred`] gathers before it invalidates the IOTLB (Linux:
    /// `IOVA_FQ_SIZE`).
    pub const FLUSH_QUEUE_LEN: u32 = 256;

    /// A mapper for up to `buffers` buffers of `bytes` bytes each at a time.
    ///
    /// # Errors
    /// [`MapError`]: a limit of the bus.
    pub fn new(domain: &Domain<D>, buffers: u32, bytes: usize) -> Result<DmaMapper<D>, MapError> {
        let per_buffer = match domain.policy() {
            DmaPolicy::Persistent => None,
            DmaPolicy::PerBuffer { flush } => {
                let slots = buffers + if flush == Flush::Deferred { Self::FLUSH_QUEUE_LEN } else { 0 };
                let window = domain.dma().window(slots, bytes)?;
                let pending = Vec::with_capacity(slots as usize);
                // Low IOVAs are used first and reused soonest: the IOTLB still holds their table
                // entries.
                Some(PerBuffer { window, bytes, flush, free: (0..slots).rev().collect(), pending })
            }
        };
        Ok(DmaMapper {
            domain: domain.clone(),
            last: MappedMemory::NONE,
            recent: Vec::with_capacity(4),
            unmappable: Vec::new(),
            external: false,
            bounce: None,
            buffers: per_buffer,
            counts: DmaCounts::default(),
        })
    }

    /// Allocates bounce memory for the frames of a ring of `descriptors` descriptors, each of up to
    /// `bytes` bytes (rounded up to a power of two), mapped once under any policy, for the device
    /// to read. It is unmapped with the domain. It has almost twice as many bytes as those frames:
    /// slots of all sizes.
    ///
    /// # Errors
    /// [`MapError`] if there is no memory, or it cannot be mapped.
    pub fn reserve_bounce(&mut self, descriptors: u32, bytes: usize) -> Result<(), MapError> {
        self.bounce = Some(BounceMemory::new(&self.domain, descriptors, bytes)?);
        Ok(())
    }

    /// Copies a packet into the [bounce memory](DmaMapper::reserve_bounce) of a descriptor, by its
    /// index, with zeros behind it up to `shortest` bytes, and syncs it for the device, which is
    /// done with the last frame of the descriptor. Returns the IOVA and the length; `None` if the
    /// packet is longer than the longest frame, or there is no such descriptor.
    #[inline(always)]
    pub fn bounce(&mut self, descriptor: u32, packet: &Packet, shortest: usize) -> Option<(Iova, usize)> {
        let (iova, len) = self.bounce.as_mut()?.fill(descriptor, packet, shortest)?;
        self.counts.copies += 1;
        self.counts.syncs_for_device += 1;
        self.domain.dma().sync_for_device(iova, len);
        Some((iova, len))
    }

    /// Maps a chunk of a packet for the device to read (Linux: `DMA_TO_DEVICE`).
    ///
    /// # Errors
    /// [`MapError`]. Nothing is mapped then. [`MapError::Unregistered`] for memory that the domain
    /// does not know.
    #[inline]
    pub fn map_to_device(&mut self, chunk: Chunk<'_>) -> Result<Mapped, MapError> {
        let at = NonNull::new(chunk.as_ptr().cast_mut()).ok_or(MapError::Unregistered)?;
        self.map(at, chunk.len(), Access::Read)
    }

    /// Maps the first of some pieces of a packet for the device to read, and with it the pieces
    /// after it that lie side by side in memory, in either direction, and fit into a slot. With
    /// VFIO each mapping is a system call. They are unmapped together. Only pages of the pieces
    /// come into reach.
    ///
    /// # Errors
    /// As [`map_to_device`](DmaMapper::map_to_device), for the first piece.
    pub fn map_run_to_device<'p>(&mut self, pieces: impl Iterator<Item = Chunk<'p>>) -> Result<MappedRun, MapError> {
        let mut pieces = pieces.map(|piece| (piece.as_ptr().addr(), piece.as_ptr().addr() + piece.len(), piece));
        let (mut low, mut high, first) = pieces.next().ok_or(MapError::Unregistered)?;
        let (mut lowest, mut n) = (first.as_ptr(), 1);
        if let Some(limit) = self.buffers.as_ref().map(|buffers| buffers.bytes) {
            // The region of the first piece is among the recent ones from here on.
            let _ = NonNull::new(lowest.cast_mut()).map(|at| self.locate(at, high - low));
            let page = |at: usize| at / self.domain.dma().limits().granule;
            for (from, to, piece) in pieces {
                let beside = (from >= high && page(from) <= page(high - 1) + 1)
                    || (to <= low && page(low) <= page(to.saturating_sub(1)) + 1);
                let (least, most) = (low.min(from), high.max(to));
                let at = NonNull::new((if from < low { piece.as_ptr() } else { lowest }).cast_mut());
                let known = |at| self.recent.iter().any(|memory| memory.offset(at, most - least).is_some());
                if !beside || piece.is_empty() || most - least > limit || !at.is_some_and(known) {
                    break;
                }
                (low, high, n) = (least, most, n + 1);
                lowest = if from == low { piece.as_ptr() } else { lowest };
            }
        }
        if n > 1
            && let Some(at) = NonNull::new(lowest.cast_mut())
            && let Ok(mapped) = self.try_map(at, high - low, Access::Read)
        {
            return Ok(MappedRun { mapped, pieces: n, lowest: low });
        }
        let mapped = self.map_to_device(first)?;
        Ok(MappedRun { mapped, pieces: 1, lowest: first.as_ptr().addr() })
    }

    /// Maps a posted buffer for the device to write (Linux: `DMA_FROM_DEVICE`).
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
        if mapped.is_err() {
            self.counts.failures += 1;
        }
        mapped
    }

    #[inline]
    fn try_map(&mut self, at: NonNull<u8>, len: usize, access: Access) -> Result<Mapped, MapError> {
        match self.last.iova(at.addr().get(), len) {
            Some(iova) => Ok(Mapped { iova, slot: None }),
            None => self.map_elsewhere(at, len, access),
        }
    }

    /// Maps a buffer that does not lie in the same memory as the last one, or not in memory that
    /// stays mapped. Not inline: callers have few registers for the other buffers otherwise.
    #[inline(never)]
    fn map_elsewhere(&mut self, at: NonNull<u8>, len: usize, access: Access) -> Result<Mapped, MapError> {
        match self.locate(at, len)? {
            (Some(iova), offset) => Ok(Mapped { iova: iova.add(offset), slot: None }),
            (None, _) => self.map_slot(at, len, access),
        }
    }

    /// Maps a buffer into a slot of the window.
    #[inline(always)]
    fn map_slot(&mut self, at: NonNull<u8>, len: usize, access: Access) -> Result<Mapped, MapError> {
        if self.buffers.as_ref().is_some_and(|b| b.free.is_empty()) {
            self.flush_iotlb()?;
        }
        let buffers = self.buffers.as_mut().ok_or(MapError::Unregistered)?;
        let slot = buffers.free.pop().ok_or(MapError::Mappings { limit: buffers.pending.capacity() as u64 })?;
        // SAFETY: a free slot is neither mapped nor pending. The buffer lies in memory that the
        // domain keeps in place as long as this mapper holds a handle of it.
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

    /// Finds the region of a buffer: its IOVA if it is mapped persistently, and the buffer's
    /// offset.
    #[inline]
    fn locate(&mut self, at: NonNull<u8>, len: usize) -> Result<(Option<Iova>, usize), MapError> {
        for memory in &self.recent {
            if let Some(offset) = memory.offset(at, len) {
                if let Some(iova) = memory.iova {
                    self.last =
                        MappedMemory { base: memory.region.base().addr().get(), len: memory.region.len(), iova };
                }
                return Ok((memory.iova, offset));
            }
        }
        self.find_region(at, len)
    }

    #[cold]
    fn find_region(&mut self, at: NonNull<u8>, len: usize) -> Result<(Option<Iova>, usize), MapError> {
        let memory = self.domain.find(at, len).ok_or(MapError::Unregistered)?;
        let found = (memory.iova, memory.offset(at, len).unwrap_or(0));
        if self.recent.len() == self.recent.capacity() {
            self.recent.remove(0);
            // It may have been that one.
            self.last = MappedMemory::NONE;
        }
        self.recent.push(memory);
        Ok(found)
    }

    /// Registers the memory of a packet's external buffers.
    /// [`map_to_device`](DmaMapper::map_to_device) finds it from then on, until the last other
    /// handle is dropped. Returns whether the device can read at least one of the regions. Packets
    /// in the other regions must be copied: the device cannot reach them, or a limit was hit.
    #[cold]
    pub fn map_external(&mut self, packet: &Packet) -> bool {
        // All regions are tried: a packet may have pages of several applications.
        packet.extbuf_regions().filter(|memory| self.map_external_region(memory)).count() > 0
    }

    fn map_external_region(&mut self, region: &RegionHandle) -> bool {
        self.unmappable.retain(|known| !known.is_gone());
        if self.unmappable.iter().any(|known| known.is_of(region)) {
            return false;
        }
        self.unmap_unused();
        self.external = true;
        let mapped = self.domain.map_external(region);
        if mapped.as_ref().is_err_and(|error| !matches!(error, MapError::Pending)) {
            self.unmappable.push(region.downgrade());
        }
        mapped.is_ok()
    }

    /// Unmaps external memory without another handle; called when a queue is idle. Its buffers have
    /// been unmapped before.
    #[cold]
    pub fn unmap_unused(&mut self) {
        // The IOTLB must not hold an entry of memory that is freed.
        if self.external && self.flush_iotlb().is_ok() {
            self.recent.retain(|memory| !memory.external);
            self.last = MappedMemory::NONE;
            self.external = self.domain.unmap_unused();
        }
    }

    /// Whether buffers are mapped one by one. Otherwise no mapping
    /// [is temporary](Mapped::is_temporary).
    #[inline]
    pub fn maps_buffers(&self) -> bool {
        self.buffers.is_some()
    }

    /// Unmaps a buffer. The device cannot reach it once [`sync_iotlb`](DmaMapper::sync_iotlb) has
    /// returned.
    ///
    /// # Errors
    /// [`MapError`] if the device may keep the buffer for ever: it must be neither reused nor
    /// freed.
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

    /// Called before unmapped buffers are read or freed. Waits until the device cannot reach them
    /// any more, if the policy is strict.
    ///
    /// # Errors
    /// [`MapError`] if the IOMMU does not confirm that.
    #[inline]
    pub fn sync_iotlb(&mut self) -> Result<(), MapError> {
        let wait = self.buffers.as_ref().is_some_and(|b| match b.flush {
            Flush::Strict => !b.pending.is_empty(),
            Flush::Deferred => b.pending.len() >= Self::FLUSH_QUEUE_LEN as usize,
        });
        if wait { self.flush_iotlb() } else { Ok(()) }
    }

    /// Invalidates the IOTLB entries of all unmapped buffers under any policy; called when a queue
    /// is idle and before it ends.
    ///
    /// # Errors
    /// [`MapError`] if the IOMMU does not confirm that.
    pub fn flush_iotlb(&mut self) -> Result<(), MapError> {
        let Some(buffers) = self.buffers.as_mut().filter(|b| !b.pending.is_empty()) else { return Ok(()) };
        buffers.window.flush_iotlb()?;
        self.counts.flushes += 1;
        buffers.free.append(&mut buffers.pending);
        Ok(())
    }

    /// Makes the first `len` bytes, which the device wrote, visible to the CPU.
    #[inline]
    pub fn sync_for_cpu(&mut self, mapped: &Mapped, len: usize) {
        self.counts.syncs_for_cpu += 1;
        self.domain.dma().sync_for_cpu(mapped.iova, len);
    }

    /// Makes the first `len` bytes visible to the device before it owns the buffer (again).
    #[inline]
    pub fn sync_for_device(&mut self, mapped: &Mapped, len: usize) {
        self.sync_piece_for_device(mapped.iova, len);
    }

    /// The same for a piece of a [`MappedRun`].
    #[inline]
    pub fn sync_piece_for_device(&mut self, iova: Iova, len: usize) {
        self.counts.syncs_for_device += 1;
        self.domain.dma().sync_for_device(iova, len);
    }

    /// The counters.
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

#[cfg(test)]
mod tests;
