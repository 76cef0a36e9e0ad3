//! Buffers that are mapped one by one.
//!
//! A window is a range of IOVAs whose level 1 tables are allocated in advance. Slot `i` always has
//! the same `2^n` pages, so mapping a buffer stores one or two entries and unmapping it clears
//! them. One invalidation descriptor covers a slot.

use super::queue::Invalidate;
use super::tables::{PAGE, cleared, permissions};
use super::unit::{Unit, WindowCounts};
use crate::memory::HostAddr;
use crate::violation::Violation;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use towpath_bus::{Access, Iova, MapError, Window};
use towpath_packet::{Backing, Region};

/// The maximum of page-selective invalidations; more slots are covered by one full invalidation.
const MAX_PAGE_INVALIDATIONS: usize = 64;

/// Increments a counter that only one thread writes.
#[inline]
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// The number of mapped pages; 0 if the slot is not mapped.
    pages: u32,
    /// The address of the buffer in memory.
    buffer: u64,
}

/// The IOVAs of buffers that are mapped one by one.
pub struct ModelWindow {
    unit: Arc<Unit>,
    counts: Arc<WindowCounts>,
    base: u64,
    /// Pages per slot: `1 << order`.
    order: u32,
    bytes: usize,
    /// The level 1 tables, with 512 entries each.
    leaves: Box<[u64]>,
    slots: Box<[Slot]>,
    /// Unmapped since the last flush.
    pending: Vec<u32>,
    bounce_buffer: Option<Region>,
}

impl ModelWindow {
    pub(super) fn new(unit: Arc<Unit>, slots: u32, bytes: usize) -> Result<ModelWindow, MapError> {
        if !unit.on {
            return Err(MapError::NoIommu);
        }
        // A buffer may begin on the last byte of its first page.
        let order = ((bytes as u64 + PAGE - 2) / PAGE + 1).next_power_of_two().trailing_zeros();
        let len = (u64::from(slots.max(1)) << order) * PAGE;
        let range = || MapError::Range { len: len as usize };
        let mut iovas = unit.iovas.lock().unwrap_or_else(PoisonError::into_inner);
        // The tables belong to this window alone.
        let base = iovas.alloc(len.next_multiple_of(1 << 21), 1 << 21, 0).ok_or_else(range)?;
        let leaves: Option<Box<[u64]>> = (base..base + len).step_by(1 << 21).map(|at| unit.tables.leaf(at)).collect();
        let Some(leaves) = leaves else {
            iovas.free(base);
            return Err(range());
        };
        drop(iovas);
        let bounce_buffer = if unit.bounce { Some(Region::new(len as usize, Backing::Anonymous)?) } else { None };
        let counts = Arc::new(WindowCounts::default());
        unit.windows.lock().unwrap_or_else(PoisonError::into_inner).push(counts.clone());
        let slots = vec![Slot::default(); slots as usize].into();
        Ok(ModelWindow { unit, counts, base, order, bytes, leaves, slots, pending: Vec::new(), bounce_buffer })
    }

    #[inline]
    fn entry(&self, slot: u32, page: u32) -> Option<&AtomicU64> {
        let number = (slot << self.order) + page;
        self.unit.tables.entry(*self.leaves.get((number >> 9) as usize)?, u64::from(number & 511))
    }

    fn iova(&self, slot: u32) -> u64 {
        self.base + (u64::from(slot) << self.order) * PAGE
    }

    #[inline]
    fn try_map(&mut self, slot: u32, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        let buffer = HostAddr::expose(at);
        let offset = buffer & (PAGE - 1);
        self.unit.check_refusal()?;
        if len == 0 || len > self.bytes || self.slots.get(slot as usize).is_none_or(|s| s.pages != 0) {
            return Err(MapError::Refused("the buffer is longer than the window's, or the slot is mapped"));
        }
        self.unit.count_mapping()?;
        let memory = match &self.bounce_buffer {
            None => buffer,
            Some(bounce_buffer) => {
                HostAddr::expose(bounce_buffer.base()) + (u64::from(slot) << self.order) * PAGE + offset
            }
        };
        let pages = ((offset + len as u64 - 1) / PAGE + 1) as u32;
        let first = memory & !(PAGE - 1);
        for page in 0..pages {
            let Some(entry) = self.entry(slot, page) else { continue };
            // Release: the driver's earlier writes to the buffer are visible to a walk that finds
            // the entry.
            entry.store((first + u64::from(page) * PAGE) | permissions(access), Ordering::Release);
        }
        if let Some(state) = self.slots.get_mut(slot as usize) {
            *state = Slot { pages, buffer };
        }
        let iova = self.iova(slot) + offset;
        if self.bounce_buffer.is_some() || self.unit.violations.strict() {
            self.record_mapping(iova, buffer, memory, len, access);
        }
        Iova::new(iova).ok_or(MapError::Range { len })
    }

    #[cold]
    fn record_mapping(&self, iova: u64, buffer: u64, memory: u64, len: usize, access: Access) {
        if self.bounce_buffer.is_some() {
            // SAFETY: the buffer stays in place until the slot is unmapped, which removes the
            // entry; the bounce buffer lives as long as the window.
            unsafe { self.unit.bounces.add(iova, len as u64, buffer, memory) };
        }
        if self.unit.violations.strict() && access != Access::Read {
            let mut write_mapped = self.unit.write_mapped.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(before) = write_mapped.insert(buffer, iova) {
                self.unit.violations.report(Violation::ReturnedWhileMapped { iova: before, again: iova });
            }
        }
    }

    #[cold]
    fn remove_mapping(&self, first_page: u64, state: Slot) {
        let iova = first_page + (state.buffer & (PAGE - 1));
        self.unit.bounces.remove(iova);
        if self.unit.violations.strict() {
            let mut write_mapped = self.unit.write_mapped.lock().unwrap_or_else(PoisonError::into_inner);
            if write_mapped.get(&state.buffer) == Some(&iova) {
                write_mapped.remove(&state.buffer);
            }
            drop(write_mapped);
            if let Some(page) = self.unit.engine().owned(first_page, u64::from(state.pages) * PAGE) {
                self.unit.violations.report(Violation::UnmappedWhileOwned { iova: page });
            }
        }
    }
}

// SAFETY: the engine translates by the tables and the IOTLB that `unmap` and `flush` clear, and
// checks the bounds of each access.
unsafe impl Window for ModelWindow {
    #[inline]
    unsafe fn map(&mut self, slot: u32, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        let mapped = self.try_map(slot, at, len, access);
        match &mapped {
            Ok(_) => count(&self.counts.maps),
            Err(_) => {
                self.unit.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        mapped
    }

    #[inline]
    fn unmap(&mut self, slot: u32) -> Result<(), MapError> {
        let state = match self.slots.get_mut(slot as usize) {
            Some(state) if state.pages != 0 => std::mem::take(state),
            _ => return Err(MapError::Refused("the slot is not mapped")),
        };
        if self.bounce_buffer.is_some() || self.unit.violations.strict() {
            self.remove_mapping(self.iova(slot), state);
        }
        for page in 0..state.pages {
            if let Some(entry) = self.entry(slot, page) {
                entry.store(cleared(), Ordering::Release);
            }
        }
        self.pending.push(slot);
        self.unit.uncount_mapping();
        count(&self.counts.unmaps);
        Ok(())
    }

    #[inline]
    fn flush_iotlb(&mut self) -> Result<(), MapError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.unit.flush_refusals.next() {
            return Err(MapError::Refused("an injected failure: the invalidation is not confirmed"));
        }
        if self.pending.len() > MAX_PAGE_INVALIDATIONS {
            self.unit.invalidate([Invalidate::All].into_iter());
        } else {
            let (base, order) = (self.base, self.order);
            let pages = |slot: &u32| Invalidate::Pages { iova: base + (u64::from(*slot) << order) * PAGE, order };
            self.unit.invalidate(self.pending.iter().map(pages));
        }
        self.pending.clear();
        Ok(())
    }
}

impl Drop for ModelWindow {
    fn drop(&mut self) {
        let left: Vec<u32> = (0..self.slots.len() as u32).filter(|&s| self.slots[s as usize].pages != 0).collect();
        if !left.is_empty() {
            self.unit.violations.report(Violation::MappingsLeft { count: left.len() as u32 });
        }
        for slot in left {
            let _ = self.unmap(slot);
        }
        let _ = self.flush_iotlb();
        self.unit.iovas.lock().unwrap_or_else(PoisonError::into_inner).free(self.base);
    }
}

impl std::fmt::Debug for ModelWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelWindow").field("slots", &self.slots.len()).field("pages", &(1 << self.order)).finish()
    }
}
