//! Intel's I/O memory management unit (VT-d), driven from here: legacy mode, second-level tables, queued invalidation.
//!
//! ```text
//!   root table ── bus ──► context table ── device, function ──► second-level tables, 3 or 4 levels
//!                                          domain id              │
//!      device's address ─────────────────────────────────────────►│──► 4 KiB, 2 MiB or 1 GiB page
//!
//!   Unit      the remapping unit: enabled by `new`, disabled when the last user is gone; invalidation queue, faults
//!    └ Space  the addresses of one device (one domain id): what lasts is mapped with the largest pages that fit
//!       └ Window   addresses for buffers, upper levels filled beforehand: mapping one = storing one word per page,
//!                  unmapping = storing zeros and remembering, `flush` = one batch of invalidations, one doorbell, one wait
//! ```
//!
//! The unit's IOTLB holds translations until it is told to forget them: **what was unmapped is in the device's reach until the
//! invalidation has been waited for**. Everything here that says "unmapped" has waited.
//!
//! Registers are an [`Mmio`](crate::Mmio), memory is a [`Memory`]: today that is QEMU's unit and a machine's memory
//! ([`qtest`](crate::qtest)). Tables are written with ordinary stores. A unit on silicon that does not look into the
//! processor's caches (ECAP.C = 0) would need them flushed as well; QEMU's reports C = 0 but reads memory coherently.
//!
//! Sources: Intel VT-d specification rev. 4.1 §3.4, §3.7 (legacy mode), §6.5 (invalidation), §7 (faults), §9 (structures), §11
//! (registers); QEMU `hw/i386/intel_iommu.c`.

mod fault;
#[cfg(test)]
mod identity;
mod iovas;
mod queue;
mod registers;
mod space;
mod tables;
mod unit;
mod window;
mod words;

pub use fault::{Fault, Faults, Reason};
pub use registers::Capabilities;
pub use space::Space;
pub use unit::{Invalidations, SourceId, Unit};
pub use window::SlotWindow;

use crate::dma::MapError;
use std::ptr::NonNull;
use towpath_packet::Region;

/// Memory that the remapping unit and the devices reach by physical address.
pub trait Memory: Clone + Send + Sync + 'static {
    /// `len` bytes at least, zeroed, in whole pages that follow each other physically.
    ///
    /// # Errors
    /// [`MapError`] when there is none left.
    fn alloc(&self, len: usize) -> Result<Region, MapError>;

    /// The physically contiguous stretch in which the `len` bytes at `at` lie.
    ///
    /// # Errors
    /// [`MapError::Foreign`] for memory that is not of this kind, [`MapError::NonContiguous`] if it is in pieces.
    fn locate(&self, at: NonNull<u8>, len: usize) -> Result<Stretch, MapError>;
}

/// Memory that is in one piece, for us and physically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Address of its first byte in this process.
    pub at: usize,
    /// Its length in bytes.
    pub len: usize,
    /// Its physical address.
    pub physical: u64,
}

impl Stretch {
    /// The physical address of the `len` bytes at `at`, if they lie inside.
    #[inline]
    pub fn physical_of(&self, at: NonNull<u8>, len: usize) -> Option<u64> {
        let into = at.addr().get().checked_sub(self.at)?;
        (into <= self.len && len <= self.len - into).then_some(self.physical + into as u64)
    }
}

const PAGE: u64 = 4096;
