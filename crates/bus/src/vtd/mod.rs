//! A driver of Intel's IOMMU ([VT-d]): legacy mode, second-level tables, queued invalidation.
//!
//! ```text
//!   root table ── bus ──► context table ── device, function ──► second-level tables, 3 or 4 levels
//!                                          domain id              │
//!      device's IOVA ────────────────────────────────────────────►│──► 4 KiB, 2 MiB or 1 GiB page
//!
//!   Unit          the remapping unit: `new` enables it, the last handle disables it
//!    └ AddressSpace      the address space of one device (one domain id), for persistent mappings
//!       └ SlotWindow   IOVAs for buffers. The upper table levels exist beforehand: mapping stores one
//!                      entry per page, unmapping stores zeros; `flush` submits one batch of
//!                      invalidations, with one doorbell and one wait
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `registers` | register offsets, [`Capabilities`] |
//! | `unit` | [`Unit`]: root and context tables, enable and disable, attach and detach |
//! | `queue` | the invalidation queue |
//! | `tables` | second-level page tables |
//! | `table_pages` | the memory of tables and queue, as atomic words |
//! | `address_space` | [`AddressSpace`]: map, unmap |
//! | `window` | [`SlotWindow`]: the [`Window`](crate::Window) of one queue |
//! | `fault` | fault records |
//!
//! The IOTLB holds translations until it is invalidated: **the device can reach unmapped memory
//! until the invalidation has completed**. Every function here that unmaps waits for that.
//!
//! Registers are an [`Mmio`](crate::Mmio), memory is a [`PhysMemory`]. QEMU's unit and a machine's
//! memory ([`qtest`](crate::qtest)) implement them. Tables are written with ordinary stores. A unit
//! that does not snoop the CPU's caches (ECAP.C = 0) would need cache flushes as well; QEMU's
//! reports C = 0 but reads memory coherently.
//!
//! Sources: [VT-d] specification rev. 4.1 §3.4, §3.7 (legacy mode), §6.5 (invalidation), §7
//! (faults), §9 (structures), §11 (registers); QEMU [`hw/i386/intel_iommu.c`].
//!
//! [VT-d]: https://cdrdv2.intel.com/v1/dl/getContent/671081
//! [`hw/i386/intel_iommu.c`]: https://gitlab.com/qemu-project/qemu/-/blob/master/hw/i386/intel_iommu.c

mod fault;
#[cfg(test)]
mod identity_memory;

mod address_space;
mod queue;
mod registers;
mod table_pages;
mod tables;
mod unit;
mod window;

pub use address_space::AddressSpace;
pub use fault::{Fault, FaultReason, Faults};
pub use registers::{Capabilities, SourceId};
pub use unit::{Invalidations, Unit};
pub use window::SlotWindow;

use crate::dma::MapError;
use std::ptr::NonNull;
use towpath_packet::Region;

/// Memory with physical addresses, which the remapping unit and the devices use.
pub trait PhysMemory: Clone + Send + Sync + 'static {
    /// Allocates at least `len` bytes, zeroed, in physically contiguous whole pages.
    ///
    /// # Errors
    /// [`MapError`] if there is no memory left.
    fn alloc(&self, len: usize) -> Result<Region, MapError>;

    /// The physically contiguous range that contains the `len` bytes at `at`.
    ///
    /// # Errors
    /// [`MapError::Foreign`] for memory of another kind, [`MapError::NonContiguous`] if the bytes
    /// are not contiguous.
    fn locate(&self, at: NonNull<u8>, len: usize) -> Result<PhysRange, MapError>;
}

/// Memory that is contiguous both virtually and physically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhysRange {
    /// The address of its first byte in this process.
    pub at: usize,
    /// Its length in bytes.
    pub len: usize,
    /// Its physical address.
    pub physical: u64,
}

impl PhysRange {
    /// The physical address of the `len` bytes at `at`, if they lie inside.
    #[inline]
    pub fn physical_of(&self, at: NonNull<u8>, len: usize) -> Option<u64> {
        let into = at.addr().get().checked_sub(self.at)?;
        (into <= self.len && len <= self.len - into).then_some(self.physical + into as u64)
    }
}

const PAGE: u64 = 4096;
