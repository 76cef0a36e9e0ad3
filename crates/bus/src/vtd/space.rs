//! The addresses of one device.

use super::iovas::Iovas;
use super::queue::Invalidation;
use super::tables::Tree;
use super::unit::{Inner as UnitInner, SourceId, Unit, lock};
use super::window::SlotWindow;
use super::words::{PER_PAGE, Words};
use super::{Memory, PAGE, Stretch};
use crate::bus::BusError;
use crate::dma::{Access, Iova, MapError};
use crate::mmio::Mmio;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// A device's address space: what is mapped here is all that it reaches. A clone is another handle of the same; when the last
/// one and the last window are gone, the device reaches nothing.
pub struct Space<M: Mmio, P: Memory>(Arc<Inner<M, P>>);

impl<M: Mmio, P: Memory> Clone for Space<M, P> {
    fn clone(&self) -> Self {
        Space(self.0.clone())
    }
}

struct Inner<M: Mmio, P: Memory> {
    unit: Arc<UnitInner<M, P>>,
    source: SourceId,
    did: u16,
    state: Mutex<State<P>>,
}

struct State<P> {
    tables: Tree<P>,
    iovas: Iovas,
}

/// What one word of a table of level 2, or 3, covers.
const LARGE: u64 = 2 << 20;
const HUGE: u64 = 1 << 30;

impl<M: Mmio, P: Memory> Space<M, P> {
    pub(super) fn new(unit: &Unit<M, P>, source: SourceId) -> Result<Space<M, P>, BusError> {
        let unit = unit.0.clone();
        let tables = Tree::new(unit.memory.clone(), &unit.capabilities);
        let tables = tables.map_err(|e| BusError::Map { device: source.to_string(), source: e })?;
        let did = unit.enter(source, tables.root())?;
        let iovas = Iovas::new(unit.capabilities.address_bits);
        Ok(Space(Arc::new(Inner { unit, source, did, state: Mutex::new(State { tables, iovas }) })))
    }

    /// The addresses that can be mapped.
    pub fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        Iovas::new(self.0.unit.capabilities.address_bits).free().iter().map(|r| r.start..=r.end - 1).collect()
    }

    /// Maps the `len` bytes at `at`, whole pages, with the largest pages that fit.
    ///
    /// # Safety
    /// As [`Dma::map`](crate::Dma::map).
    ///
    /// # Errors
    /// [`MapError`]; nothing is mapped then.
    pub unsafe fn map(&self, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        let physical = self.locate(at, len)?.physical_of(at, len).ok_or(MapError::Foreign)?;
        let size = len as u64;
        if size == 0 || !(physical | size).is_multiple_of(PAGE) {
            return Err(MapError::Granule { address: physical, len, granule: PAGE as usize });
        }
        let mut state = lock(&self.0.state);
        // Large pages need an address that lies in its large page as the memory does in its own.
        let align = [HUGE, LARGE].into_iter().find(|&page| size >= page).unwrap_or(PAGE);
        let start = state.iovas.low(size, align, physical % align).ok_or(MapError::Range { len })?;
        let mapped = state.tables.map(start, physical, size, access);
        let mapped =
            mapped.and_then(|()| if self.0.unit.capabilities.caching_mode { self.forget(start, size) } else { Ok(()) });
        if let Err(error) = mapped {
            self.undo(&mut state, start, size)?;
            return Err(error);
        }
        Iova::new(start).ok_or(MapError::Range { len })
    }

    /// Takes away what [`map`](Space::map) made: when it returns, the device cannot reach the memory.
    ///
    /// # Errors
    /// [`MapError`] when the unit does not confirm that; the memory must then never be used for anything else.
    /// [`MapError::Unregistered`] for a range that is not mapped.
    pub fn unmap(&self, iova: Iova, len: usize) -> Result<(), MapError> {
        self.undo(&mut lock(&self.0.state), iova.get(), len as u64)
    }

    fn undo(&self, state: &mut State<P>, start: u64, len: u64) -> Result<(), MapError> {
        if state.iovas.free().iter().any(|free| free.start < start.saturating_add(len) && start < free.end) {
            return Err(MapError::Unregistered);
        }
        state.tables.unmap(start, len);
        self.forget(start, len)?;
        state.iovas.give_back(start, len);
        Ok(())
    }

    fn forget(&self, start: u64, len: u64) -> Result<(), MapError> {
        self.0.unit.invalidate(&self.0.unit.covering(self.0.did, start, len))
    }

    /// Addresses for `slots` buffers of up to `bytes` bytes, at any offset in their pages.
    ///
    /// # Errors
    /// [`MapError`] when there is no room, or no memory for tables.
    pub fn window(&self, slots: u32, bytes: usize) -> Result<SlotWindow<M, P>, MapError> {
        SlotWindow::new(self, slots, bytes)
    }

    pub(super) fn locate(&self, at: NonNull<u8>, len: usize) -> Result<Stretch, MapError> {
        self.0.unit.memory.locate(at, len)
    }

    pub(super) fn unit(&self) -> &UnitInner<M, P> {
        &self.0.unit
    }

    pub(super) fn did(&self) -> u16 {
        self.0.did
    }

    /// Room for `pages` pages, with bottom tables that the unit walks through from now on: where it begins, and the tables.
    pub(super) fn carve(&self, pages: usize) -> Result<(u64, Words), MapError> {
        let tables = pages.div_ceil(PER_PAGE);
        let bottom = Words::alloc(&self.0.unit.memory, tables)?;
        let len = tables as u64 * LARGE;
        let mut state = lock(&self.0.state);
        // From the top: what lasts is mapped from the bottom, so the two seldom want the same tables.
        let start = state.iovas.high(len, LARGE).ok_or(MapError::Range { len: len as usize })?;
        let grafted = state.tables.graft(start, &bottom);
        let forget = if self.0.unit.capabilities.caching_mode { self.forget(start, len) } else { Ok(()) };
        if let Err(error) = grafted.and(forget) {
            drop(state);
            self.fill_in(start, &bottom);
            return Err(error);
        }
        Ok((start, bottom))
    }

    /// Undoes [`carve`](Space::carve). If the unit does not confirm it, addresses and tables are never used again.
    pub(super) fn fill_in(&self, start: u64, bottom: &Words) {
        let mut state = lock(&self.0.state);
        state.tables.prune(start, bottom);
        match self.0.unit.invalidate(&[Invalidation::Domain { did: self.0.did }]) {
            Ok(()) => drop(state.iovas.give_back(start, (bottom.count() / PER_PAGE) as u64 * LARGE)),
            Err(_) => bottom.leak(),
        }
    }
}

impl<M: Mmio, P: Memory> Drop for Inner<M, P> {
    fn drop(&mut self) {
        if self.unit.leave(self.source, self.did).is_err() {
            lock(&self.state).tables.leak();
        }
    }
}
