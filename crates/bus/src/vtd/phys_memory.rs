//! Memory with physical addresses, for the unit's tables and for DMA.

use crate::dma::MapError;
use std::ptr::NonNull;
use towpath_packet::Region;

/// Memory with physical addresses, which the remapping unit and the devices use.
///
/// # Safety
/// The region that [`alloc`](PhysMemory::alloc) returns is new and nothing else accesses it.
/// [`locate`](PhysMemory::locate) returns the physical address at which a device finds those bytes.
pub unsafe trait PhysMemory: Clone + Send + Sync + 'static {
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

/// The size of a page.
pub(super) const PAGE: u64 = 4096;

/// Memory whose physical addresses are its addresses in this process.
#[cfg(test)]
#[derive(Clone)]
pub(super) struct IdentityMemory;

// SAFETY: memory of the test; no device is there.
#[cfg(test)]
unsafe impl PhysMemory for IdentityMemory {
    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        Ok(Region::new(len, towpath_packet::Backing::Anonymous)?)
    }

    fn locate(&self, at: NonNull<u8>, len: usize) -> Result<PhysRange, MapError> {
        Ok(PhysRange { at: at.addr().get(), len, physical: at.addr().get() as u64 })
    }
}
