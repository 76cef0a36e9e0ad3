//! The DMA of a device, through the kernel's IOMMU drivers.

use super::address_space::AddressSpace;
use super::device::VfioDevice;
use super::window::VfioWindow;
use super::{ioctl, pagemap};
use crate::dma::{Access, Dma, Iova, Limits, MapError};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use towpath_packet::{Backing, Region};

/// Allocations of at least this size prefer huge pages.
const HUGE: usize = 2 << 20;

/// The DMA of a device opened by VFIO. A clone is another handle.
///
/// [`map`](Dma::map) pins the pages, which takes microseconds for each. IOVA and memory have the
/// same offset in a 2 MiB page, so the IOMMU needs one entry per huge page. Child processes do not
/// inherit memory that was mapped.
#[derive(Debug, Clone)]
pub struct VfioDma {
    space: Arc<AddressSpace>,
    /// Without an IOMMU only the device shows whether it can still reach the memory.
    device: Weak<VfioDevice>,
}

impl VfioDma {
    pub(super) fn new(device: &Arc<VfioDevice>) -> VfioDma {
        VfioDma { space: device.space().clone(), device: Arc::downgrade(device) }
    }

    /// Checks that the range is whole pages, and at least one.
    fn check_pages(&self, at: NonNull<u8>, len: usize) -> Result<(), MapError> {
        let (granule, address) = (self.limits().granule, at.addr().get());
        if len == 0 || !len.is_multiple_of(granule) || !address.is_multiple_of(granule) {
            return Err(MapError::Granule { address: address as u64, len, granule });
        }
        Ok(())
    }

    fn map_physical(&self, at: NonNull<u8>, len: usize) -> Result<Iova, MapError> {
        ioctl::mlock(at, len).map_err(|source| match (source.raw_os_error(), self.limits().locked) {
            (Some(libc::ENOMEM | libc::EPERM), Some(limit)) => MapError::Locked { len, limit },
            _ => MapError::Os { step: "mlock", source },
        })?;
        let physical = pagemap::contiguous(at, len).and_then(|a| Iova::new(a).ok_or(MapError::Foreign));
        match physical {
            Ok(iova) => self.space.insert_mapping(iova.get(), at, len),
            Err(_) => ioctl::munlock(at, len),
        }
        physical
    }

    fn unmap_physical(&self, iova: Iova, at: NonNull<u8>, len: usize) -> Result<(), MapError> {
        if self.device.upgrade().is_some_and(|device| device.is_master()) {
            return Err(MapError::Refused("nothing translates, and the device may still use its bus: stop it first"));
        }
        self.space.remove_mapping(iova.get());
        ioctl::munlock(at, len);
        Ok(())
    }
}

// SAFETY: `alloc` makes a new private mapping. The kernel's IOMMU driver maps and unmaps; without
// an IOMMU memory is given back only when the device is no bus master.
unsafe impl Dma for VfioDma {
    type Window = VfioWindow;

    fn limits(&self) -> &Limits {
        self.space.limits()
    }

    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        let backing = match self.limits().iommu {
            // Only reserved huge pages are never moved.
            false => Backing::Huge,
            true if len >= HUGE => Backing::HugePreferred,
            true => Backing::Anonymous,
        };
        Ok(Region::new(len.next_multiple_of(self.limits().granule), backing)?)
    }

    unsafe fn map(&self, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        self.check_pages(at, len)?;
        if !self.limits().iommu {
            return self.map_physical(at, len);
        }
        let iova = self.space.alloc_iova(len as u64, at.addr().get() as u64)?;
        let mapped = ioctl::exclude_from_children(at, len)
            .map_err(|source| MapError::Os { step: "madvise(MADV_DONTFORK)", source })
            .and_then(|()| self.space.map(iova, at, len, access));
        match mapped {
            Ok(()) => self.space.insert_mapping(iova, at, len),
            Err(error) => {
                self.space.free_iova(iova, len as u64);
                return Err(error);
            }
        }
        Iova::new(iova).ok_or(MapError::Range { len })
    }

    fn unmap(&self, iova: Iova, len: usize) -> Result<(), MapError> {
        let at = self
            .space
            .find_mapping(iova.get(), len)
            .ok_or(MapError::Refused("nothing of this length is mapped there"))?;
        if !self.limits().iommu {
            return self.unmap_physical(iova, at, len);
        }
        if self.space.unmap(iova.get(), len as u64)? != len as u64 {
            return Err(MapError::Refused("the kernel unmapped another length than was mapped"));
        }
        self.space.remove_mapping(iova.get());
        self.space.free_iova(iova.get(), len as u64);
        Ok(())
    }

    fn window(&self, slots: u32, bytes: usize) -> Result<VfioWindow, MapError> {
        VfioWindow::new(self.space.clone(), slots, bytes)
    }
}
