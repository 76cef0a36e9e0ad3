//! The DMA of a device in the machine.

use super::qemu::Qemu;
use super::ram::{LOWEST, Ram};
use super::registers::Registers;
use crate::dma::{Access, Dma, Iova, Limits, MapError};
use crate::vtd::{AddressSpace, PhysMemory, SlotWindow};
use std::ptr::NonNull;
use std::sync::Arc;
use towpath_packet::Region;

/// Guest memory, with or without a remapping unit.
///
/// Only memory from [`alloc`](Dma::alloc) can be mapped: all other is [`MapError::Foreign`].
/// Without a remapping unit the IOVA is the physical address, and the device reaches all of the
/// machine's memory, mapped or not.
#[derive(Clone)]
pub struct QtestDma {
    // Dropped before the machine: the device is detached first.
    space: Option<AddressSpace<Registers, Ram>>,
    limits: Arc<Limits>,
    qemu: Qemu,
}

impl QtestDma {
    pub(super) fn new(qemu: Qemu, space: Option<AddressSpace<Registers, Ram>>) -> QtestDma {
        let ranges = match &space {
            Some(space) => space.ranges(),
            None => vec![LOWEST..=qemu.ram().len().saturating_sub(1)],
        };
        let limits = Limits::new(space.is_some(), 4096, ranges);
        QtestDma { space, limits: Arc::new(limits), qemu }
    }
}

// SAFETY: `Ram` allocates and locates; the remapping unit maps and unmaps. Without a unit the
// device reaches all of the machine's memory, and only the driver of the machine controls it.
unsafe impl Dma for QtestDma {
    type Window = SlotWindow<Registers, Ram>;

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        self.qemu.ram().alloc(len)
    }

    fn reaches(&self, at: NonNull<u8>, len: usize) -> bool {
        self.qemu.ram().locate(at, len).is_ok()
    }

    unsafe fn map(&self, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        match &self.space {
            // SAFETY: the caller's promise is passed on unchanged.
            Some(space) => unsafe { space.map(at, len, access) },
            None => {
                let physical = self.qemu.ram().locate(at, len)?.physical_of(at, len);
                physical.and_then(Iova::new).ok_or(MapError::Foreign)
            }
        }
    }

    fn unmap(&self, iova: Iova, len: usize) -> Result<(), MapError> {
        // Without a remapping unit the device reaches the memory before and after.
        self.space.as_ref().map_or(Ok(()), |space| space.unmap(iova, len))
    }

    fn window(&self, slots: u32, bytes: usize) -> Result<Self::Window, MapError> {
        SlotWindow::new(self.space.as_ref().ok_or(MapError::NoIommu)?, slots, bytes)
    }
}

impl std::fmt::Debug for QtestDma {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QtestDma").field("limits", &self.limits).finish()
    }
}
