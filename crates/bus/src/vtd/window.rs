//! The IOVAs of buffers that are mapped one by one.

use super::address_space::AddressSpace;
use super::phys_memory::{PAGE, PhysMemory, PhysRange};
use super::queue::{BATCH, Invalidation};
use super::table_pages::TablePages;
use super::tables::rights;
use crate::dma::{Access, Iova, MapError, Window};
use crate::mmio::Mmio;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// Slots of one size. Their upper tables exist from the beginning, and their leaf tables belong to
/// the window alone:
///
/// ```text
///   slot n:  pages n·stride … n·stride + stride-1
/// ```
///
/// `stride` is a power of two, so that one invalidation covers a slot. Mapping stores one entry per
/// page. Unmapping stores zeros and queues the slot. [`flush_iotlb`](Window::flush_iotlb)
/// invalidates up to 64 slots one by one, and more by their whole domain.
pub struct SlotWindow<M: Mmio, P: PhysMemory> {
    space: AddressSpace<M, P>,
    start: u64,
    leaves: TablePages,
    /// Pages per slot, as a power of two.
    stride: u32,
    /// Mapped pages, by slot.
    mapped_pages: Vec<u16>,
    /// The invalidations of the next flush.
    pending: Vec<Invalidation>,
    /// The physical ranges of earlier buffers.
    ranges: Vec<PhysRange>,
    last: PhysRange,
}

/// The physical ranges that a window caches: pools, usually one.
const MAX_RANGES: usize = 8;

impl<M: Mmio, P: PhysMemory> SlotWindow<M, P> {
    /// Reserves IOVAs for `slots` buffers of up to `bytes` bytes each, at any offset in their
    /// pages.
    ///
    /// # Errors
    /// [`MapError`] if there are no IOVAs left, or no memory for tables.
    pub fn new(space: &AddressSpace<M, P>, slots: u32, bytes: usize) -> Result<SlotWindow<M, P>, MapError> {
        let range = MapError::Range { len: bytes };
        // A buffer may begin on the last byte of a page.
        let most =
            bytes.checked_add(PAGE as usize - 2).map(|b| b / PAGE as usize + 1).filter(|&pages| pages <= 1 << 15);
        let Some(stride) = most.map(|pages| pages.next_power_of_two().ilog2()) else { return Err(range) };
        let pages = (slots as usize).max(1).checked_shl(stride).ok_or(range)?;
        let (start, leaves) = space.alloc_window(pages)?;
        Ok(SlotWindow {
            space: space.clone(),
            start,
            leaves,
            stride,
            mapped_pages: vec![0; slots as usize],
            pending: Vec::with_capacity(slots as usize),
            ranges: Vec::with_capacity(MAX_RANGES),
            last: PhysRange { at: 0, len: 0, physical: 0 },
        })
    }

    /// The physical address of a buffer.
    #[inline]
    fn physical(&mut self, at: NonNull<u8>, len: usize) -> Result<u64, MapError> {
        match self.last.physical_of(at, len) {
            Some(physical) => Ok(physical),
            None => self.find_range(at, len),
        }
    }

    #[cold]
    fn find_range(&mut self, at: NonNull<u8>, len: usize) -> Result<u64, MapError> {
        let range = match self.ranges.iter().copied().find(|s| s.physical_of(at, len).is_some()) {
            Some(range) => range,
            None => {
                let range = self.space.locate(at, len)?;
                if self.ranges.len() == MAX_RANGES {
                    self.ranges.remove(0);
                }
                self.ranges.push(range);
                range
            }
        };
        self.last = range;
        range.physical_of(at, len).ok_or(MapError::Foreign)
    }

    /// The IOVA of a slot's first page.
    #[inline]
    fn page_of(&self, slot: u32) -> u64 {
        self.start + (u64::from(slot) << self.stride) * PAGE
    }

    /// Stores the entries of a slot: `first`, then `step` more per page; or zeros.
    #[inline]
    fn store(&self, slot: u32, pages: u16, first: u64, step: u64) {
        let at = (slot as usize) << self.stride;
        for page in 0..usize::from(pages) {
            if let Some(word) = self.leaves.at(at + page) {
                // Release: the CPU's accesses to the buffer are done before the device can reach
                // it. The unit sees all entries before the doorbell that follows a zero.
                word.store(first + page as u64 * step, Ordering::Release);
            }
        }
    }
}

// SAFETY: the entries of a slot are those of the buffer's pages, by `P`; clearing them and a flush
// that the unit confirms end the device's reach.
unsafe impl<M: Mmio, P: PhysMemory> Window for SlotWindow<M, P> {
    #[inline]
    unsafe fn map(&mut self, slot: u32, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        let physical = self.physical(at, len)?;
        let offset = physical % PAGE;
        let pages = (offset + len as u64).div_ceil(PAGE).max(1);
        let limit = self.mapped_pages.len() as u64;
        if pages > 1 << self.stride {
            return Err(MapError::Range { len });
        }
        let mapped_pages = self.mapped_pages.get_mut(slot as usize).ok_or(MapError::Mappings { limit })?;
        *mapped_pages = pages as u16;
        let start = self.page_of(slot);
        self.store(slot, pages as u16, (physical - offset) | rights(access), PAGE);
        if self.space.unit().capabilities.caching_mode {
            let stale = self.space.unit().invalidations_for(self.space.did(), start, pages * PAGE);
            if let Err(error) = self.space.unit().invalidate(&stale) {
                self.store(slot, pages as u16, 0, 0);
                if let Some(mapped_pages) = self.mapped_pages.get_mut(slot as usize) {
                    *mapped_pages = 0;
                }
                return Err(error);
            }
        }
        Iova::new(start + offset).ok_or(MapError::Range { len })
    }

    #[inline]
    fn unmap(&mut self, slot: u32) -> Result<(), MapError> {
        let mapped_pages = self.mapped_pages.get_mut(slot as usize).ok_or(MapError::Unregistered)?;
        let pages = std::mem::take(mapped_pages);
        if pages == 0 {
            return Err(MapError::Unregistered);
        }
        self.store(slot, pages, 0, 0);
        let mask = u32::from(pages).next_power_of_two().ilog2() as u8;
        self.pending.push(Invalidation::Pages { did: self.space.did(), iova: self.page_of(slot), mask });
        Ok(())
    }

    fn flush_iotlb(&mut self) -> Result<(), MapError> {
        let unit = self.space.unit();
        let capable = unit.capabilities.page_selective && unit.capabilities.max_mask >= self.stride as u8;
        if self.pending.len() <= BATCH && capable {
            unit.invalidate(&self.pending)?;
        } else {
            unit.invalidate(&[Invalidation::Domain { did: self.space.did() }])?;
        }
        self.pending.clear();
        Ok(())
    }
}

impl<M: Mmio, P: PhysMemory> Drop for SlotWindow<M, P> {
    fn drop(&mut self) {
        self.space.free_window(self.start, &self.leaves);
    }
}
