//! Memory as a device sees it: IOVAs, limits, mapping.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use towpath_packet::{Region, RegionError, RegionHandle};

/// An address as the device uses it: the I/O virtual address, or the physical one without an IOMMU.
/// Never zero, so that an empty descriptor is distinct from a mapped one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iova(NonZeroU64);

impl Iova {
    /// The lowest address.
    pub(crate) const LOWEST: Iova = Iova(NonZeroU64::MIN);

    /// The address; `None` for zero.
    #[inline]
    pub const fn new(address: u64) -> Option<Iova> {
        match NonZeroU64::new(address) {
            Some(address) => Some(Iova(address)),
            None => None,
        }
    }

    /// The number, to be written into a descriptor.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The address `bytes` higher.
    #[inline]
    pub const fn add(self, bytes: usize) -> Iova {
        Iova(self.0.saturating_add(bytes as u64))
    }
}

/// The DMA direction, from the device's view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The device reads (`DMA_TO_DEVICE`).
    Read,
    /// The device writes (`DMA_FROM_DEVICE`).
    Write,
    /// The device reads and writes (`DMA_BIDIRECTIONAL`): descriptor rings, persistent mappings.
    Both,
}

/// When the IOTLB is invalidated after a buffer is unmapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// Before the CPU reads the buffer (Linux: `iommu.strict=1`).
    Strict,
    /// Later, by batches (Linux: the flush queue of `iommu.strict=0`); see [`DmaPolicy`].
    Deferred,
}

/// How packet memory is protected from the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DmaPolicy {
    /// All packet memory is mapped once, with the largest pages that fit. A packet costs nothing.
    /// The device can reach every packet at any time, but no other memory of the process.
    #[default]
    Persistent,
    /// A buffer is mapped only while the device owns it (Linux: `dma_map_single`).
    ///
    /// Protection is by whole pages (4 KiB): bytes that share a page with a buffer are exposed
    /// together with it. With [`Flush::Strict`] a buffer is unmapped and its IOTLB entry
    /// invalidated before the CPU reads it; a burst shares one invalidation. With
    /// [`Flush::Deferred`] the device can still reach up to
    /// [`FLUSH_QUEUE_LEN`](crate::DmaMapper::FLUSH_QUEUE_LEN) buffers after they were handed on.
    /// The IOTLB is invalidated when the flush queue is full or the queue is idle.
    PerBuffer {
        /// When the IOTLB is invalidated.
        flush: Flush,
    },
}

/// The limits of a device's DMA.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// Whether an IOMMU translates and protects. Without one the device reaches all of memory, or
    /// all shared memory.
    pub iommu: bool,
    /// Smallest page that can be mapped, in bytes.
    pub granule: usize,
    /// Mappings that can exist, if that is limited.
    pub mappings: Option<u64>,
    /// Bytes that the process may lock in memory, if that is limited.
    pub locked: Option<u64>,
    /// Addresses that can be mapped.
    pub ranges: Vec<RangeInclusive<u64>>,
}

impl Limits {
    /// Limits without a maximum of mappings or of locked memory.
    pub fn new(iommu: bool, granule: usize, ranges: Vec<RangeInclusive<u64>>) -> Limits {
        Limits { iommu, granule, mappings: None, locked: None, ranges }
    }
}

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The policy needs an IOMMU, and there is none.
    #[error("protection of single buffers needs an IOMMU, and there is none: use policy=persistent")]
    NoIommu,
    /// The device cannot reach this kind of memory.
    #[error("the device cannot reach this memory: it was not allocated for it")]
    Foreign,
    /// The memory was never registered with the domain.
    #[error("the buffer lies in no memory that was registered for this device")]
    Unregistered,
    /// The maximum number of mappings exists already.
    #[error("all {limit} mappings are in use")]
    Mappings {
        /// The maximum.
        limit: u64,
    },
    /// The process may not lock this much memory.
    #[error("mapping {len} bytes: only {limit} bytes may be locked in memory (raise it: ulimit -l unlimited)")]
    Locked {
        /// Bytes to be mapped.
        len: usize,
        /// Bytes that may be locked.
        limit: u64,
    },
    /// Address or length is not a multiple of the page size.
    #[error("address {address:#x} or length {len} is not a multiple of the page size {granule}")]
    Granule {
        /// The address.
        address: u64,
        /// The length.
        len: usize,
        /// The page size.
        granule: usize,
    },
    /// No range of usable IOVAs is large enough.
    #[error("no free range of {len} bytes among the addresses that the device can use")]
    Range {
        /// Bytes to be mapped.
        len: usize,
    },
    /// The pages are not physically contiguous, and there is no IOMMU.
    #[error("physical pages are not contiguous at offset {offset:#x}: use huge pages, or an IOMMU")]
    NonContiguous {
        /// Offset of the first page that does not follow.
        offset: usize,
    },
    /// The device does not have the memory yet: it may have it at the next attempt.
    #[error("the device does not have the memory yet")]
    Pending,
    /// The memory could not be allocated.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The device or the IOMMU failed, or a test injected a failure.
    #[error("mapping refused: {0}")]
    Refused(&'static str),
    /// The operating system refused.
    #[error("{step}: {source}")]
    Os {
        /// The step.
        step: &'static str,
        /// The error of the system call.
        source: std::io::Error,
    },
}

/// The DMA interface of a device: one IOMMU domain. A clone is another handle of the same domain.
///
/// A bus implements it. Drivers use [`Domain`](crate::Domain) and [`DmaMapper`](crate::DmaMapper),
/// which fulfil its safety conditions for them.
///
/// # Safety
/// Memory is given to pools and taken from devices on the word of the implementation:
///
/// * The region that [`alloc`](Dma::alloc) returns is new: nothing else in this process, and no
///   other process that is not part of the device, accesses its bytes, and they are not mapped
///   elsewhere.
/// * A mapping reaches the mapped bytes and no others, and none of them once [`unmap`](Dma::unmap)
///   has returned without an error.
pub unsafe trait Dma: Clone + Send + Sync + 'static {
    /// The IOVAs for buffers that are mapped one by one.
    type Window: Window;

    /// The limits.
    fn limits(&self) -> &Limits;

    /// Allocates memory that can be mapped for the device: at least `len` bytes, zeroed, in whole
    /// pages.
    ///
    /// # Errors
    /// [`MapError`] if there is no memory left.
    fn alloc(&self, len: usize) -> Result<Region, MapError>;

    /// Whether the `len` bytes at `at` are of a kind that can be mapped at all. If not, mapping
    /// them fails with [`MapError::Foreign`]. Not for hot paths.
    fn reaches(&self, at: NonNull<u8>, len: usize) -> bool {
        let _ = (at, len);
        true
    }

    /// Whether a region can be mapped at all. A bus whose device is another process needs the file
    /// behind the region, and not only its addresses.
    fn reaches_region(&self, region: &RegionHandle) -> bool {
        self.reaches(region.base(), region.len())
    }

    /// [Maps](Dma::map) a whole region.
    ///
    /// # Safety
    /// As for [`map`](Dma::map).
    ///
    /// # Errors
    /// As for [`map`](Dma::map).
    unsafe fn map_region(&self, region: &RegionHandle, access: Access) -> Result<Iova, MapError> {
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.map(region.base(), region.len(), access) }
    }

    /// Maps the `len` bytes at `at` (whole pages) and returns their IOVA. For persistent mappings:
    /// the call may be slow.
    ///
    /// # Safety
    /// The memory stays in place until [`unmap`](Dma::unmap) has returned, and this process does
    /// not rely on bytes that the device may write meanwhile.
    ///
    /// # Errors
    /// [`MapError`] names the limit. Nothing is mapped then.
    unsafe fn map(&self, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError>;

    /// Undoes [`map`](Dma::map). When it returns, the device cannot reach the memory.
    ///
    /// # Errors
    /// [`MapError`] if the IOMMU does not confirm that: the memory must never be used again.
    fn unmap(&self, iova: Iova, len: usize) -> Result<(), MapError>;

    /// Reserves IOVAs for `slots` buffers of up to `bytes` bytes each, at any offset in their
    /// pages. The page tables exist from then on, so that mapping a buffer only fills in its leaf
    /// entries.
    ///
    /// # Errors
    /// [`MapError::NoIommu`] without an IOMMU, otherwise the limit.
    fn window(&self, slots: u32, bytes: usize) -> Result<Self::Window, MapError>;

    /// Makes the device's writes to `len` bytes at `iova` visible to the CPU
    /// (`dma_sync_single_for_cpu`). Only a fence where memory is coherent and there are no
    /// bounce buffers.
    #[inline]
    fn sync_for_cpu(&self, iova: Iova, len: usize) {
        let _ = (iova, len);
        crate::barrier::dma_rmb();
    }

    /// Makes the CPU's writes to `len` bytes at `iova` visible to the device
    /// (`dma_sync_single_for_device`).
    #[inline]
    fn sync_for_device(&self, iova: Iova, len: usize) {
        let _ = (iova, len);
        crate::barrier::dma_wmb();
    }
}

/// The IOVAs of one queue: `slots` ranges, each mapped to at most one buffer.
///
/// # Safety
/// A slot's mapping reaches the mapped buffer, and bytes that share a page with it. The device
/// reaches none of them once the slot was unmapped and [`flush_iotlb`](Window::flush_iotlb) has
/// returned, both without an error.
pub unsafe trait Window: Send + 'static {
    /// Maps slot `slot` to the `len` bytes at `at`.
    ///
    /// # Safety
    /// The slot is not mapped, and was [flushed](Window::flush_iotlb) since its last mapping. The
    /// memory stays in place until the slot is unmapped and flushed.
    ///
    /// # Errors
    /// [`MapError`]. The slot is not mapped then.
    unsafe fn map(&mut self, slot: u32, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError>;

    /// Clears the slot's page table entries. The device may use the IOVA until
    /// [`flush_iotlb`](Window::flush_iotlb) has returned.
    ///
    /// # Errors
    /// [`MapError`] if the slot may still be mapped: slot and memory must never be used again.
    fn unmap(&mut self, slot: u32) -> Result<(), MapError>;

    /// Invalidates the IOTLB entries of all unmapped slots and waits for it. The device cannot
    /// reach their memory afterwards.
    ///
    /// # Errors
    /// [`MapError`] if the IOMMU does not confirm that.
    fn flush_iotlb(&mut self) -> Result<(), MapError>;
}

/// The window of a device whose buffers are not mapped one by one, because nothing would protect
/// them.
#[derive(Debug)]
pub enum NoWindow {}

// SAFETY: there is no value of this type.
unsafe impl Window for NoWindow {
    unsafe fn map(&mut self, _: u32, _: NonNull<u8>, _: usize, _: Access) -> Result<Iova, MapError> {
        match *self {}
    }

    fn unmap(&mut self, _: u32) -> Result<(), MapError> {
        match *self {}
    }

    fn flush_iotlb(&mut self) -> Result<(), MapError> {
        match *self {}
    }
}
