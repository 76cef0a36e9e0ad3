//! Memory that the unit accesses concurrently: only atomic 64-bit entries, never references to
//! plain data.

use super::phys_memory::{PAGE, PhysMemory};
use crate::dma::MapError;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use towpath_packet::Region;

/// Entries per page.
pub(super) const PER_PAGE: usize = 512;

/// Whole pages of a region, as 64-bit entries.
#[derive(Debug, Clone)]
pub(super) struct TablePages {
    region: Arc<Region>,
    first: usize,
    count: usize,
    physical: u64,
}

impl TablePages {
    /// Allocates zeroed pages.
    pub(super) fn alloc<P: PhysMemory>(memory: &P, pages: usize) -> Result<TablePages, MapError> {
        let bytes = pages * PAGE as usize;
        let region = memory.alloc(bytes)?;
        let physical =
            memory.locate(region.base(), bytes)?.physical_of(region.base(), bytes).ok_or(MapError::Foreign)?;
        Ok(TablePages { region: Arc::new(region), first: 0, count: pages * PER_PAGE, physical })
    }

    /// The `n`-th page alone.
    pub(super) fn page(&self, n: usize) -> Option<TablePages> {
        let first = n * PER_PAGE;
        (first + PER_PAGE <= self.count).then(|| TablePages {
            region: self.region.clone(),
            first: self.first + first,
            count: PER_PAGE,
            physical: self.physical + n as u64 * PAGE,
        })
    }

    /// The `n`-th entry.
    #[inline]
    pub(super) fn at(&self, n: usize) -> Option<&AtomicU64> {
        let in_bounds = n < self.count;
        let word = self.region.at((self.first + n) * 8, 8).filter(|_| in_bounds)?;
        // The region was allocated for this type and is private to it. Any bit pattern is a u64.
        // SAFETY: eight bytes inside the region, at a multiple of eight from its page-aligned base.
        // They live as long as the region, which `self` holds, and this process accesses them only
        // as atomics.
        Some(unsafe { word.cast::<AtomicU64>().as_ref() })
    }

    /// The number of entries.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The physical address of the first entry, a multiple of the page size.
    pub(super) fn physical(&self) -> u64 {
        self.physical
    }

    /// Leaks the pages: the unit may access them for ever.
    pub(super) fn leak(&self) {
        std::mem::forget(self.region.clone());
    }
}
