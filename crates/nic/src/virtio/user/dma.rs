//! The memory that is shared with a back end.

use super::TransportShared;
use super::connection::Connection;
use super::memory::SharedRegion;
use std::ptr::NonNull;
use std::sync::Arc;
use towpath_bus::{Access, Dma, Iova, Limits, MapError, NoWindow};
use towpath_packet::{Backing, Region, RegionHandle};

/// Memory in files: a region that has none, like memory of huge pages, can't be shared. There is no
/// IOMMU: what is shared, the back end reaches until the end.
#[derive(Clone)]
pub struct UserDma {
    shared: Arc<TransportShared>,
    limits: Arc<Limits>,
}

impl UserDma {
    pub(super) fn new(shared: Arc<TransportShared>) -> UserDma {
        let limits = Limits::new(false, towpath_sys::mmap::page_size(), vec![1..=u64::MAX]);
        UserDma { shared, limits: Arc::new(limits) }
    }
}

// The back end is the device. By the protocol, it unmaps what its next table does not have, and
// everything with the end of the connection.
// SAFETY: `alloc` makes a new file, which this process maps once and gives to the back end alone.
// The back end is given the file of a region when that is mapped, and reaches no other memory.
unsafe impl Dma for UserDma {
    type Window = NoWindow;

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        Ok(Region::new(len, Backing::Memfd)?)
    }

    fn reaches(&self, _: NonNull<u8>, _: usize) -> bool {
        false
    }

    fn reaches_region(&self, region: &RegionHandle) -> bool {
        // SAFETY: the descriptor is not used.
        unsafe { region.memfd() }.is_some()
    }

    unsafe fn map_region(&self, region: &RegionHandle, _: Access) -> Result<Iova, MapError> {
        // SAFETY: it goes to the back end alone, which is the device.
        let (file, offset) = unsafe { region.memfd() }.ok_or(MapError::Foreign)?;
        let file = file.try_clone_to_owned().map_err(|source| MapError::Os { step: "dup", source })?;
        let address = region.base().addr().get() as u64;
        let iova = Iova::new(address).ok_or(MapError::Foreign)?;
        let mut state = self.shared.state();
        state.regions.remove_gone();
        state.regions.add(region, SharedRegion { address, len: region.len(), file, offset })?;
        state.sync();
        let acked = state.connection.as_ref().and_then(Connection::acked);
        state.regions.map(iova, acked)
    }

    unsafe fn map(&self, _: NonNull<u8>, _: usize, _: Access) -> Result<Iova, MapError> {
        Err(MapError::Foreign)
    }

    fn unmap(&self, iova: Iova, _: usize) -> Result<(), MapError> {
        let mut state = self.shared.state();
        state.regions.remove(iova);
        // What the back end maps until it has the new table is its own mapping of the file.
        state.sync();
        Ok(())
    }

    fn window(&self, _: u32, _: usize) -> Result<NoWindow, MapError> {
        Err(MapError::NoIommu)
    }
}

impl std::fmt::Debug for UserDma {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserDma").finish_non_exhaustive()
    }
}
