//! Addresses for buffers that are mapped one by one.

use super::queue::{BATCH, Invalidation};
use super::space::Space;
use super::tables::rights;
use super::words::Words;
use super::{Memory, PAGE, Stretch};
use crate::dma::{Access, Iova, MapError, Window};
use crate::mmio::Mmio;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// Slots of one size, whose upper tables are there from the beginning and whose bottom tables nobody else uses:
///
/// ```text
///   slot n:  pages n·stride … n·stride + stride-1      stride: a power of two, so that one invalidation covers a slot
/// ```
///
/// Mapping stores a word per page. Unmapping stores zeros and remembers the slot; [`flush`](Window::flush) tells the unit of up to
/// 64 slots one by one, of more by their whole domain.
pub struct SlotWindow<M: Mmio, P: Memory> {
    space: Space<M, P>,
    start: u64,
    bottom: Words,
    /// Pages of a slot, as a power of two.
    stride: u32,
    /// Pages in use, by slot.
    used: Vec<u16>,
    /// What the next flush tells the unit.
    pending: Vec<Invalidation>,
    /// Memory that buffers were found in.
    known: Vec<Stretch>,
    buffer: Stretch,
}

/// Pieces of memory that a window remembers: pools, as a rule one.
const KNOWN: usize = 8;

impl<M: Mmio, P: Memory> SlotWindow<M, P> {
    pub(super) fn new(space: &Space<M, P>, slots: u32, bytes: usize) -> Result<SlotWindow<M, P>, MapError> {
        let range = MapError::Range { len: bytes };
        // A buffer may begin on the last byte of a page.
        let most =
            bytes.checked_add(PAGE as usize - 2).map(|b| b / PAGE as usize + 1).filter(|&pages| pages <= 1 << 15);
        let Some(stride) = most.map(|pages| pages.next_power_of_two().ilog2()) else { return Err(range) };
        let pages = (slots as usize).max(1).checked_shl(stride).ok_or(range)?;
        let (start, bottom) = space.carve(pages)?;
        Ok(SlotWindow {
            space: space.clone(),
            start,
            bottom,
            stride,
            used: vec![0; slots as usize],
            pending: Vec::with_capacity(slots as usize),
            known: Vec::with_capacity(KNOWN),
            buffer: Stretch { at: 0, len: 0, physical: 0 },
        })
    }

    /// Where a buffer is physically.
    #[inline]
    fn physical(&mut self, at: NonNull<u8>, len: usize) -> Result<u64, MapError> {
        match self.buffer.physical_of(at, len) {
            Some(physical) => Ok(physical),
            None => self.look_up(at, len),
        }
    }

    #[cold]
    fn look_up(&mut self, at: NonNull<u8>, len: usize) -> Result<u64, MapError> {
        let stretch = match self.known.iter().copied().find(|s| s.physical_of(at, len).is_some()) {
            Some(stretch) => stretch,
            None => {
                let stretch = self.space.locate(at, len)?;
                if self.known.len() == KNOWN {
                    self.known.remove(0);
                }
                self.known.push(stretch);
                stretch
            }
        };
        self.buffer = stretch;
        stretch.physical_of(at, len).ok_or(MapError::Foreign)
    }

    /// Address of a slot's first page.
    #[inline]
    fn page_of(&self, slot: u32) -> u64 {
        self.start + (u64::from(slot) << self.stride) * PAGE
    }

    /// Stores the words of a slot: `word` for the first page, then one page further each; or zeros.
    #[inline]
    fn store(&self, slot: u32, pages: u16, first: u64, step: u64) {
        let at = (slot as usize) << self.stride;
        for page in 0..usize::from(pages) {
            if let Some(word) = self.bottom.at(at + page) {
                // Release: what the processor did to the buffer is done before the device can reach it; and everything that
                // was stored is seen by the unit before the doorbell that follows a zero.
                word.store(first + page as u64 * step, Ordering::Release);
            }
        }
    }
}

impl<M: Mmio, P: Memory> Window for SlotWindow<M, P> {
    #[inline]
    unsafe fn map(&mut self, slot: u32, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        let physical = self.physical(at, len)?;
        let offset = physical % PAGE;
        let pages = (offset + len as u64).div_ceil(PAGE).max(1);
        let limit = self.used.len() as u64;
        if pages > 1 << self.stride {
            return Err(MapError::Range { len });
        }
        let used = self.used.get_mut(slot as usize).ok_or(MapError::Mappings { limit })?;
        *used = pages as u16;
        let start = self.page_of(slot);
        self.store(slot, pages as u16, (physical - offset) | rights(access), PAGE);
        if self.space.unit().capabilities.caching_mode {
            self.space.unit().invalidate(&self.space.unit().covering(self.space.did(), start, pages * PAGE))?;
        }
        Iova::new(start + offset).ok_or(MapError::Range { len })
    }

    #[inline]
    fn unmap(&mut self, slot: u32) -> Result<(), MapError> {
        let used = self.used.get_mut(slot as usize).ok_or(MapError::Unregistered)?;
        let pages = std::mem::take(used);
        if pages == 0 {
            return Err(MapError::Unregistered);
        }
        self.store(slot, pages, 0, 0);
        let mask = u32::from(pages).next_power_of_two().ilog2() as u8;
        self.pending.push(Invalidation::Pages { did: self.space.did(), iova: self.page_of(slot), mask });
        Ok(())
    }

    fn flush(&mut self) -> Result<(), MapError> {
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

impl<M: Mmio, P: Memory> Drop for SlotWindow<M, P> {
    fn drop(&mut self) {
        self.space.fill_in(self.start, &self.bottom);
    }
}
