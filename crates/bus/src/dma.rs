//! Memory as a device sees it: addresses, limits, and what may be done with them.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use towpath_packet::{Region, RegionError};

/// An address as the device uses it (I/O virtual address; the physical one where nothing translates). Never zero: a descriptor
/// with address zero is an error, and is to be told from a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iova(NonZeroU64);

impl Iova {
    /// The address, unless it is zero.
    #[inline]
    pub const fn new(address: u64) -> Option<Iova> {
        match NonZeroU64::new(address) {
            Some(address) => Some(Iova(address)),
            None => None,
        }
    }

    /// As a number, to be written into a descriptor.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The address `bytes` further on.
    #[inline]
    pub const fn add(self, bytes: usize) -> Iova {
        Iova(self.0.saturating_add(bytes as u64))
    }
}

/// What the device does with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It does both: descriptor rings, memory that is mapped once and for all.
    Both,
}

/// When a buffer that was unmapped is out of the device's reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// Before anyone reads it.
    Strict,
    /// Some time later, see [`DmaPolicy`].
    Deferred,
}

/// How the memory of packets is protected from the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DmaPolicy {
    /// All memory that packets may lie in is mapped once, with the largest pages there are. No cost per packet. The device can
    /// reach every packet at any time, but nothing else of the process.
    #[default]
    Persistent,
    /// A buffer is mapped while the device owns it.
    ///
    /// Protection is by whole pages (4 KiB): what shares a page with a buffer is exposed together with it. With
    /// [`Flush::Strict`] a buffer is unmapped, and the device's translation of it invalidated, before anybody reads it; a burst
    /// shares one invalidation. With [`Flush::Deferred`] up to [`DEFERRED`](crate::DmaMapper::DEFERRED) buffers remain within the
    /// device's reach after they were handed on, until that many have gathered or the queue finds nothing to do.
    PerBuffer {
        /// When an unmapped buffer is out of reach.
        flush: Flush,
    },
}

/// What a device's reach is bounded by.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Whether anything translates and protects: without it the device reaches all of memory, or all that was shared with it.
    pub iommu: bool,
    /// Smallest page that can be mapped, in bytes.
    pub granule: usize,
    /// Mappings that can exist, where that is bounded.
    pub mappings: Option<u64>,
    /// Bytes that the process may lock in memory, where that is bounded.
    pub locked: Option<u64>,
    /// Addresses that can be mapped.
    pub ranges: Vec<RangeInclusive<u64>>,
}

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// There is nothing that could protect buffers one by one.
    #[error("protection of single buffers needs an IOMMU, and there is none: use policy=persistent")]
    NoIommu,
    /// The memory is not of a kind that the device can reach.
    #[error("the device cannot reach this memory: it was not allocated for it")]
    Foreign,
    /// The memory was never registered with the domain.
    #[error("the buffer lies in no memory that was registered for this device")]
    Unregistered,
    /// As many mappings as there can be exist already.
    #[error("all {limit} mappings are in use")]
    Mappings {
        /// How many there can be.
        limit: u64,
    },
    /// The process may not lock as much memory.
    #[error("mapping {len} bytes: only {limit} bytes may be locked in memory (raise it: ulimit -l unlimited)")]
    Locked {
        /// Bytes that were to be mapped.
        len: usize,
        /// Bytes that may be locked.
        limit: u64,
    },
    /// Address or length does not fit the page size.
    #[error("address {address:#x} or length {len} is not a multiple of the page size {granule}")]
    Granule {
        /// The address.
        address: u64,
        /// The length.
        len: usize,
        /// The page size.
        granule: usize,
    },
    /// There is no room for the mapping between the addresses that the bus reserves.
    #[error("no free range of {len} bytes among the addresses that the device can use")]
    Range {
        /// Bytes that were to be mapped.
        len: usize,
    },
    /// The pages do not follow each other physically, and nothing translates.
    #[error("physical pages are not contiguous at offset {offset:#x}: use huge pages, or an IOMMU")]
    NonContiguous {
        /// Offset of the first page that does not follow.
        offset: usize,
    },
    /// Memory could not be had.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A mapping failed because a fault was asked for, or the device's side broke.
    #[error("mapping refused: {0}")]
    Refused(&'static str),
    /// The operating system refused.
    #[error("{step}: {source}")]
    Os {
        /// What was being done.
        step: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A device's reach into memory: one protection domain. A clone is another handle of the same.
///
/// This is what a bus implements; drivers use [`Domain`](crate::Domain) and [`DmaMapper`](crate::DmaMapper), which keep its
/// promises for them.
pub trait Dma: Clone + Send + Sync + 'static {
    /// Addresses for single buffers.
    type Window: Window;

    /// What it is bounded by.
    fn limits(&self) -> &Limits;

    /// Memory that the device can reach once it is mapped: `len` bytes at least, zeroed, in whole pages.
    ///
    /// # Errors
    /// [`MapError`] when there is none left.
    fn alloc(&self, len: usize) -> Result<Region, MapError>;

    /// Whether the `len` bytes at `at` are memory of a kind that can be mapped at all; if not, mapping them is
    /// [`MapError::Foreign`]. Not for hot paths.
    fn reaches(&self, at: NonNull<u8>, len: usize) -> bool {
        let _ = (at, len);
        true
    }

    /// Makes the `len` bytes at `at` (whole pages) reachable, and says where. For memory that stays mapped: it may take long.
    ///
    /// # Safety
    /// The memory stays where it is until [`unmap`](Dma::unmap) has returned, and nobody in this process relies on bytes that
    /// the device may write in the meantime.
    ///
    /// # Errors
    /// [`MapError`] names the limit that was hit; nothing is mapped then.
    unsafe fn map(&self, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError>;

    /// Takes away what [`map`](Dma::map) made: when it returns, the device can't reach the memory any more.
    ///
    /// # Errors
    /// [`MapError`] when that can't be shown: the memory must then never be used for anything else.
    fn unmap(&self, iova: Iova, len: usize) -> Result<(), MapError>;

    /// Addresses for `slots` buffers of up to `bytes` bytes (at any offset in their pages) that are mapped one by one, so that
    /// mapping one is no more than filling in its pages.
    ///
    /// # Errors
    /// [`MapError::NoIommu`] where nothing protects, otherwise the limit that was hit.
    fn window(&self, slots: u32, bytes: usize) -> Result<Self::Window, MapError>;

    /// Makes what the device wrote to `len` bytes at `iova` visible to the processor. Nothing but a promise to the compiler where
    /// memory is coherent and nothing bounces.
    #[inline]
    fn sync_for_cpu(&self, iova: Iova, len: usize) {
        let _ = (iova, len);
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
    }

    /// Makes what the processor wrote, or left, in `len` bytes at `iova` visible to the device.
    #[inline]
    fn sync_for_device(&self, iova: Iova, len: usize) {
        let _ = (iova, len);
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    }
}

/// Addresses for buffers that are mapped one by one: `slots` of them, each mapped to one buffer or to none. Owned by one queue.
pub trait Window: Send + 'static {
    /// Maps slot `slot` to the `len` bytes at `at`.
    ///
    /// # Safety
    /// The slot is not mapped, and was [flushed](Window::flush) since it last was. The memory stays where it is until the slot
    /// has been unmapped and flushed.
    ///
    /// # Errors
    /// [`MapError`]; the slot is not mapped then.
    unsafe fn map(&mut self, slot: u32, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError>;

    /// Unmaps a slot. The device may go on using the address until [`flush`](Window::flush) has returned.
    ///
    /// # Errors
    /// [`MapError`] when it is not known to be unmapped: slot and memory must then never be used again.
    fn unmap(&mut self, slot: u32) -> Result<(), MapError>;

    /// Returns when the device can reach nothing any more that was unmapped before.
    ///
    /// # Errors
    /// [`MapError`] when that can't be shown.
    fn flush(&mut self) -> Result<(), MapError>;
}
