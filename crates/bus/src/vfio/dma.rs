//! A device's reach into memory, by the kernel's page tables.

use super::device::Device;
use super::phys;
use super::space::Space;
use super::sys;
use super::window::VfioWindow;
use crate::dma::{Access, Dma, Iova, Limits, MapError};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use towpath_packet::{Backing, Region};

/// Bytes from which on huge pages are asked for.
const HUGE: usize = 2 << 20;

/// The reach of a device that was opened by VFIO. A clone is another handle of the same.
///
/// [`map`](Dma::map) pins the pages, and costs microseconds for each; where huge pages lie at the same offset in 2 MiB as their
/// addresses, which is always so here, the IOMMU needs one entry for each. Child processes don't inherit memory that
/// was mapped.
#[derive(Debug, Clone)]
pub struct VfioDma {
    space: Arc<Space>,
    /// Where nothing translates it is known only from the device whether memory is out of its reach.
    device: Weak<Device>,
}

impl VfioDma {
    pub(super) fn new(device: &Arc<Device>) -> VfioDma {
        VfioDma { space: device.space().clone(), device: Arc::downgrade(device) }
    }

    /// Whole pages, and at least one.
    fn whole(&self, at: NonNull<u8>, len: usize) -> Result<(), MapError> {
        let (granule, address) = (self.limits().granule, at.addr().get());
        if len == 0 || !len.is_multiple_of(granule) || !address.is_multiple_of(granule) {
            return Err(MapError::Granule { address: address as u64, len, granule });
        }
        Ok(())
    }

    fn map_physical(&self, at: NonNull<u8>, len: usize) -> Result<Iova, MapError> {
        sys::lock(at, len).map_err(|source| match (source.raw_os_error(), self.limits().locked) {
            (Some(libc::ENOMEM | libc::EPERM), Some(limit)) => MapError::Locked { len, limit },
            _ => MapError::Os { step: "mlock", source },
        })?;
        let physical = phys::contiguous(at, len).and_then(|a| Iova::new(a).ok_or(MapError::Foreign));
        match physical {
            Ok(iova) => self.space.keep(iova.get(), at, len),
            Err(_) => sys::unlock(at, len),
        }
        physical
    }

    fn unmap_physical(&self, iova: Iova, at: NonNull<u8>, len: usize) -> Result<(), MapError> {
        if self.device.upgrade().is_some_and(|device| device.is_master()) {
            return Err(MapError::Refused("nothing translates, and the device may still use its bus: stop it first"));
        }
        self.space.forget(iova.get());
        sys::unlock(at, len);
        Ok(())
    }
}

impl Dma for VfioDma {
    type Window = VfioWindow;

    fn limits(&self) -> &Limits {
        self.space.limits()
    }

    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        let backing = match self.limits().iommu {
            // Only reserved huge pages stay where they are.
            false => Backing::Huge,
            true if len >= HUGE => Backing::HugePreferred,
            true => Backing::Anonymous,
        };
        Ok(Region::new(len.next_multiple_of(self.limits().granule), backing)?)
    }

    unsafe fn map(&self, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        self.whole(at, len)?;
        if !self.limits().iommu {
            return self.map_physical(at, len);
        }
        let iova = self.space.take(len as u64, at.addr().get() as u64)?;
        let mapped = sys::keep_from_children(at, len)
            .map_err(|source| MapError::Os { step: "madvise(MADV_DONTFORK)", source })
            .and_then(|()| self.space.map(iova, at, len, access));
        match mapped {
            Ok(()) => self.space.keep(iova, at, len),
            Err(error) => {
                self.space.give(iova, len as u64);
                return Err(error);
            }
        }
        Iova::new(iova).ok_or(MapError::Range { len })
    }

    fn unmap(&self, iova: Iova, len: usize) -> Result<(), MapError> {
        let at = self.space.kept(iova.get(), len).ok_or(MapError::Refused("nothing of this length is mapped there"))?;
        if !self.limits().iommu {
            return self.unmap_physical(iova, at, len);
        }
        if self.space.unmap(iova.get(), len as u64)? != len as u64 {
            return Err(MapError::Refused("the kernel unmapped another length than was mapped"));
        }
        self.space.forget(iova.get());
        self.space.give(iova.get(), len as u64);
        Ok(())
    }

    fn window(&self, slots: u32, bytes: usize) -> Result<VfioWindow, MapError> {
        VfioWindow::new(self.space.clone(), slots, bytes)
    }
}
