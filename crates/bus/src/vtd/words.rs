//! Memory that the unit reads and writes while we do: seen as atomic 64-bit words, never as references to plain data.

use super::{Memory, PAGE};
use crate::dma::MapError;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use towpath_packet::Region;

/// Words in a page.
pub(super) const PER_PAGE: usize = 512;

/// Whole pages of a region as words.
#[derive(Debug, Clone)]
pub(super) struct Words {
    region: Arc<Region>,
    first: usize,
    count: usize,
    physical: u64,
}

impl Words {
    /// New pages, zeroed.
    pub(super) fn alloc<P: Memory>(memory: &P, pages: usize) -> Result<Words, MapError> {
        let bytes = pages * PAGE as usize;
        let region = memory.alloc(bytes)?;
        let physical =
            memory.locate(region.base(), bytes)?.physical_of(region.base(), bytes).ok_or(MapError::Foreign)?;
        Ok(Words { region: Arc::new(region), first: 0, count: pages * PER_PAGE, physical })
    }

    /// The `n`-th page alone.
    pub(super) fn page(&self, n: usize) -> Option<Words> {
        let first = n * PER_PAGE;
        (first + PER_PAGE <= self.count).then(|| Words {
            region: self.region.clone(),
            first: self.first + first,
            count: PER_PAGE,
            physical: self.physical + n as u64 * PAGE,
        })
    }

    /// The `n`-th word.
    #[inline]
    pub(super) fn at(&self, n: usize) -> Option<&AtomicU64> {
        let in_bounds = n < self.count;
        let word = self.region.at((self.first + n) * 8, 8).filter(|_| in_bounds)?;
        // SAFETY: eight bytes inside the region, at a multiple of eight from its page-aligned base. They live as long as the
        // region, which `self` holds. Any bit pattern is a u64, and all of this process access them as atomics only: the region
        // was allocated for this and is private to the module.
        Some(unsafe { word.cast::<AtomicU64>().as_ref() })
    }

    /// Words that there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Physical address of the first, a multiple of the page size.
    pub(super) fn physical(&self) -> u64 {
        self.physical
    }

    /// The unit may use these pages for ever: they are never given back.
    pub(super) fn leak(&self) {
        std::mem::forget(self.region.clone());
    }
}
