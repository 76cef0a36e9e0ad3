//! Memory for the DMA engine: pages of this process that the kernel module pins.

use super::abi;
use super::cdev::{Shim, size};
use crate::dma::{Access, Dma, Iova, Limits, MapError, NoWindow};
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_packet::{Backing, Region};
use towpath_sys::mmap::page_size;

/// The DMA of a platform device. A clone is another handle.
///
/// No IOMMU translates on AM62x and AM64x: addresses are physical, and every mapping must be
/// contiguous. Memory of more than a page is of reserved huge pages (`vm.nr_hugepages`). The module
/// pins what it maps, so that it is never moved.
#[derive(Debug, Clone)]
pub struct PlatformDma {
    device: Arc<dyn Shim>,
    limits: Arc<Limits>,
    /// Mappings: DMA address and length.
    mapped: Arc<Mutex<Vec<(u64, usize)>>>,
}

impl PlatformDma {
    pub(super) fn new(device: Arc<dyn Shim>) -> PlatformDma {
        let granule = page_size();
        // PKTDMA has addresses of 36 bits; on J7 memory beyond them is not used by this bus.
        let limits = Limits::new(false, granule, vec![granule as u64..=(1 << 36) - 1]);
        PlatformDma { device, limits: Arc::new(limits), mapped: Arc::default() }
    }
}

// SAFETY: `alloc` makes a new private mapping. The kernel module maps exactly the pages of a range,
// pins them until they are unmapped, and stops the channels of the device before it unpins them
// when the process ends.
unsafe impl Dma for PlatformDma {
    type Window = NoWindow;

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        let backing = if len <= self.limits.granule { Backing::Anonymous } else { Backing::Huge };
        Ok(Region::new(len.next_multiple_of(self.limits.granule), backing)?)
    }

    unsafe fn map(&self, at: NonNull<u8>, len: usize, _: Access) -> Result<Iova, MapError> {
        let (granule, address) = (self.limits.granule, at.as_ptr().expose_provenance());
        if len == 0 || !len.is_multiple_of(granule) || !address.is_multiple_of(granule) {
            return Err(MapError::Granule { address: address as u64, len, granule });
        }
        let wanted =
            abi::Map { size: size::<abi::Map>(), address: address as u64, len: len as u64, ..Default::default() };
        // SAFETY: the caller keeps the memory in place until it is unmapped.
        let mapped = unsafe { self.device.map(wanted) }.map_err(|source| match source.raw_os_error() {
            Some(libc::ENXIO) => MapError::NonContiguous { offset: 0 },
            _ => MapError::Os { step: "MAP of the kernel module", source },
        })?;
        let end = mapped.dma.checked_add(len as u64 - 1);
        let usable =
            end.is_some_and(|end| self.limits.ranges.iter().any(|r| r.contains(&mapped.dma) && r.contains(&end)));
        let iova = Iova::new(mapped.dma).filter(|_| usable);
        let Some(iova) = iova else {
            let _ = self.device.unmap(abi::Map { size: size::<abi::Map>(), ..mapped });
            return Err(MapError::Range { len });
        };
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).push((iova.get(), len));
        Ok(iova)
    }

    fn unmap(&self, iova: Iova, len: usize) -> Result<(), MapError> {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let at = mapped.iter().position(|&known| known == (iova.get(), len));
        let at = at.ok_or(MapError::Refused("nothing of this length is mapped there"))?;
        let map = abi::Map { size: size::<abi::Map>(), len: len as u64, dma: iova.get(), ..Default::default() };
        let refused = |source: io::Error| MapError::Os { step: "UNMAP of the kernel module", source };
        self.device.unmap(map).map_err(refused)?;
        mapped.swap_remove(at);
        Ok(())
    }

    fn window(&self, _: u32, _: usize) -> Result<NoWindow, MapError> {
        Err(MapError::NoIommu)
    }
}
