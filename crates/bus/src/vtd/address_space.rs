//! The address space of one device.

use super::phys_memory::{PAGE, PhysMemory, PhysRange};
use super::queue::Invalidation;
use super::registers::SourceId;
use super::table_pages::{PER_PAGE, TablePages};
use super::tables::PageTables;
use super::unit::{Unit, UnitInner};
use crate::bus::BusError;
use crate::dma::{Access, Iova, MapError};
use crate::iova::IovaAllocator;
use crate::mmio::Mmio;
use std::ops::{Range, RangeInclusive};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use towpath_sys::lock;

/// A device's address space: the device reaches only the memory that is mapped here. A clone is
/// another handle. When the last handle and the last window are dropped, the device reaches
/// nothing.
pub struct AddressSpace<M: Mmio, P: PhysMemory>(Arc<SpaceInner<M, P>>);

impl<M: Mmio, P: PhysMemory> Clone for AddressSpace<M, P> {
    fn clone(&self) -> Self {
        AddressSpace(self.0.clone())
    }
}

struct SpaceInner<M: Mmio, P: PhysMemory> {
    unit: Arc<UnitInner<M, P>>,
    source: SourceId,
    did: u16,
    state: Mutex<SpaceState<P>>,
}

struct SpaceState<P> {
    tables: PageTables<P>,
    iovas: IovaAllocator,
}

/// The MSI range: writes to it are interrupts, not memory accesses (VT-d §3.15).
const INTERRUPTS: Range<u64> = 0xfee0_0000..0xfef0_0000;

/// The first MiB, which legacy software treats specially, is never allocated.
const LOWEST: u64 = 1 << 20;

/// All usable addresses of `bits` bits.
fn iovas(bits: u8) -> IovaAllocator {
    IovaAllocator::new(&[0..=INTERRUPTS.start - 1, INTERRUPTS.end..=(1 << bits) - 1], LOWEST)
}

/// The bytes that one entry of a level 2 or level 3 table covers.
const LARGE: u64 = 2 << 20;
const HUGE: u64 = 1 << 30;

impl<M: Mmio, P: PhysMemory> AddressSpace<M, P> {
    /// Attaches a device to an empty address space. A device has at most one.
    ///
    /// # Errors
    /// [`BusError`] if the device has one already, or the memory or the unit fails.
    pub fn attach(unit: &Unit<M, P>, source: SourceId) -> Result<AddressSpace<M, P>, BusError> {
        let unit = unit.0.clone();
        let tables = PageTables::new(unit.memory.clone(), &unit.capabilities);
        let tables = tables.map_err(BusError::map(source))?;
        // The unit may have seen tables that it did not confirm.
        let did = unit.attach(source, tables.root()).inspect_err(|_| tables.leak())?;
        let iovas = iovas(unit.capabilities.address_bits);
        Ok(AddressSpace(Arc::new(SpaceInner { unit, source, did, state: Mutex::new(SpaceState { tables, iovas }) })))
    }

    /// The IOVAs that can be mapped.
    pub fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        iovas(self.0.unit.capabilities.address_bits).free_ranges().to_vec()
    }

    /// Maps the `len` bytes at `at`, whole pages, with the largest pages that fit.
    ///
    /// # Safety
    /// As [`Dma::map`](crate::Dma::map).
    ///
    /// # Errors
    /// [`MapError`]. Nothing is mapped then.
    pub unsafe fn map(&self, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        let physical = self.locate(at, len)?.physical_of(at, len).ok_or(MapError::Foreign)?;
        let size = len as u64;
        if size == 0 || !(physical | size).is_multiple_of(PAGE) {
            return Err(MapError::Granule { address: physical, len, granule: PAGE as usize });
        }
        let mut state = lock(&self.0.state);
        // A large page needs an IOVA that is congruent to the physical address modulo its size.
        let align = [HUGE, LARGE].into_iter().find(|&page| size >= page).unwrap_or(PAGE);
        let start = state.iovas.alloc_low(size, align, physical % align).ok_or(MapError::Range { len })?;
        let mapped = state.tables.map(start, physical, size, access);
        let mapped = mapped
            .and_then(|()| if self.0.unit.capabilities.caching_mode { self.invalidate(start, size) } else { Ok(()) });
        if let Err(error) = mapped {
            self.unmap_locked(&mut state, start, size)?;
            return Err(error);
        }
        Iova::new(start).ok_or(MapError::Range { len })
    }

    /// Undoes [`map`](AddressSpace::map). When it returns, the device cannot reach the memory.
    ///
    /// # Errors
    /// [`MapError`] if the unit does not confirm the invalidation: the memory must never be used
    /// again. [`MapError::Unregistered`] for a range that is not mapped.
    pub fn unmap(&self, iova: Iova, len: usize) -> Result<(), MapError> {
        self.unmap_locked(&mut lock(&self.0.state), iova.get(), len as u64)
    }

    fn unmap_locked(&self, state: &mut SpaceState<P>, start: u64, len: u64) -> Result<(), MapError> {
        if state
            .iovas
            .free_ranges()
            .iter()
            .any(|free| *free.start() < start.saturating_add(len) && start <= *free.end())
        {
            return Err(MapError::Unregistered);
        }
        state.tables.unmap(start, len);
        self.invalidate(start, len)?;
        state.iovas.free(start, len);
        Ok(())
    }

    fn invalidate(&self, start: u64, len: u64) -> Result<(), MapError> {
        self.0.unit.invalidate(&self.0.unit.invalidations_for(self.0.did, start, len))
    }

    pub(super) fn locate(&self, at: NonNull<u8>, len: usize) -> Result<PhysRange, MapError> {
        self.0.unit.memory.locate(at, len)
    }

    pub(super) fn unit(&self) -> &UnitInner<M, P> {
        &self.0.unit
    }

    pub(super) fn did(&self) -> u16 {
        self.0.did
    }

    /// Allocates IOVAs for `pages` pages and installs their leaf tables. Returns the first IOVA and
    /// the tables.
    pub(super) fn alloc_window(&self, pages: usize) -> Result<(u64, TablePages), MapError> {
        let tables = pages.div_ceil(PER_PAGE);
        let leaves = TablePages::alloc(&self.0.unit.memory, tables)?;
        let len = tables as u64 * LARGE;
        let mut state = lock(&self.0.state);
        // From the top: persistent mappings grow from the bottom, so the two seldom share tables.
        let start = state.iovas.alloc_high(len, LARGE).ok_or(MapError::Range { len: len as usize })?;
        let installed = state.tables.install_leaves(start, &leaves);
        let invalidated = if self.0.unit.capabilities.caching_mode { self.invalidate(start, len) } else { Ok(()) };
        if let Err(error) = installed.and(invalidated) {
            drop(state);
            self.free_window(start, &leaves);
            return Err(error);
        }
        Ok((start, leaves))
    }

    /// Undoes [`alloc_window`](AddressSpace::alloc_window). If the unit does not confirm it, IOVAs
    /// and tables are never used again.
    pub(super) fn free_window(&self, start: u64, leaves: &TablePages) {
        let mut state = lock(&self.0.state);
        state.tables.remove_leaves(start, leaves);
        match self.0.unit.invalidate(&[Invalidation::Domain { did: self.0.did }]) {
            Ok(()) => drop(state.iovas.free(start, (leaves.count() / PER_PAGE) as u64 * LARGE)),
            Err(_) => leaves.leak(),
        }
    }
}

impl<M: Mmio, P: PhysMemory> Drop for SpaceInner<M, P> {
    fn drop(&mut self) {
        if self.unit.detach(self.source, self.did).is_err() {
            lock(&self.state).tables.leak();
        }
    }
}
