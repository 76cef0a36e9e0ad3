//! Ioctl numbers and structures of the kernel's VFIO and iommufd, as in `include/uapi/linux/vfio.h`
//! and `include/uapi/linux/iommufd.h`. Sizes are asserted here.

use libc::Ioctl;

const fn vfio(n: Ioctl) -> Ioctl {
    0x3b64 + n
}

const fn iommufd(n: Ioctl) -> Ioctl {
    0x3b80 + n
}

pub(super) const API_VERSION: libc::c_int = 0;

pub(super) const GET_API_VERSION: Ioctl = vfio(0);
pub(super) const CHECK_EXTENSION: Ioctl = vfio(1);
pub(super) const SET_IOMMU: Ioctl = vfio(2);
pub(super) const GROUP_GET_STATUS: Ioctl = vfio(3);
pub(super) const GROUP_SET_CONTAINER: Ioctl = vfio(4);
pub(super) const GROUP_GET_DEVICE_FD: Ioctl = vfio(6);
pub(super) const DEVICE_GET_INFO: Ioctl = vfio(7);
pub(super) const DEVICE_GET_REGION_INFO: Ioctl = vfio(8);
pub(super) const DEVICE_GET_IRQ_INFO: Ioctl = vfio(9);
pub(super) const DEVICE_SET_IRQS: Ioctl = vfio(10);
pub(super) const DEVICE_RESET: Ioctl = vfio(11);
pub(super) const IOMMU_GET_INFO: Ioctl = vfio(12);
pub(super) const IOMMU_MAP_DMA: Ioctl = vfio(13);
pub(super) const IOMMU_UNMAP_DMA: Ioctl = vfio(14);
pub(super) const DEVICE_BIND_IOMMUFD: Ioctl = vfio(18);
pub(super) const DEVICE_ATTACH_IOMMUFD_PT: Ioctl = vfio(19);

pub(super) const IOAS_ALLOC: Ioctl = iommufd(1);
pub(super) const IOAS_IOVA_RANGES: Ioctl = iommufd(4);
pub(super) const IOAS_MAP: Ioctl = iommufd(5);
pub(super) const IOAS_UNMAP: Ioctl = iommufd(6);

/// IOMMU types of a container: page tables, or no protection.
pub(super) const TYPE1V2: libc::c_int = 3;
pub(super) const NOIOMMU: libc::c_int = 8;

pub(super) const GROUP_VIABLE: u32 = 1;
pub(super) const DEVICE_CAN_RESET: u32 = 1;
pub(super) const REGION_READ: u32 = 1;
pub(super) const REGION_MMAP: u32 = 4;
pub(super) const HAS_CAPS: u32 = 8;
pub(super) const IOMMU_PAGE_SIZES: u32 = 1;
pub(super) const IOMMU_HAS_CAPS: u32 = 2;
pub(super) const DMA_READ: u32 = 1;
pub(super) const DMA_WRITE: u32 = 2;
pub(super) const IRQ_NONE: u32 = 1;
pub(super) const IRQ_EVENTFD: u32 = 4;
pub(super) const IRQ_UNMASK: u32 = 0x10;
pub(super) const IRQ_TRIGGER: u32 = 0x20;
pub(super) const IOAS_FIXED: u32 = 1;
pub(super) const IOAS_WRITE: u32 = 2;
pub(super) const IOAS_READ: u32 = 4;

/// Regions of a PCI device: BARs 0 to 5, the ROM, and this.
pub(super) const REGION_CONFIG: u32 = 7;
pub(super) const IRQ_INTX: u32 = 0;
pub(super) const IRQ_MSI: u32 = 1;
pub(super) const IRQ_MSIX: u32 = 2;
/// An error of the bus, and the request to give the device back.
pub(super) const IRQ_ERR: u32 = 3;
pub(super) const IRQ_REQ: u32 = 4;

/// Capabilities: `{id u16, version u16, next u32}`, then the content.
pub(super) const CAP_REGION_SPARSE: u16 = 1;
pub(super) const CAP_IOVA_RANGES: u16 = 1;
pub(super) const CAP_DMA_AVAIL: u16 = 3;

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct GroupStatus {
    pub(super) argsz: u32,
    pub(super) flags: u32,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct DeviceInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) regions: u32,
    pub(super) irqs: u32,
    pub(super) cap_offset: u32,
    pub(super) pad: u32,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct RegionInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    pub(super) cap_offset: u32,
    pub(super) size: u64,
    pub(super) offset: u64,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct IrqInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    pub(super) count: u32,
}

/// Followed by `count` descriptors if the flags demand it.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct IrqSet {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) index: u32,
    pub(super) start: u32,
    pub(super) count: u32,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct IommuInfo {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) page_sizes: u64,
    pub(super) cap_offset: u32,
    pub(super) pad: u32,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct DmaMap {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) vaddr: u64,
    pub(super) iova: u64,
    pub(super) size: u64,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct DmaUnmap {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) iova: u64,
    pub(super) size: u64,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct BindIommufd {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) iommufd: i32,
    pub(super) out_devid: u32,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct AttachPt {
    pub(super) argsz: u32,
    pub(super) flags: u32,
    pub(super) pt_id: u32,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct IoasAlloc {
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) out_ioas_id: u32,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct IovaRange {
    pub(super) start: u64,
    pub(super) last: u64,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct IoasIovaRanges {
    pub(super) size: u32,
    pub(super) ioas_id: u32,
    pub(super) num_iovas: u32,
    pub(super) reserved: u32,
    pub(super) allowed_iovas: u64,
    pub(super) out_iova_alignment: u64,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct IoasMap {
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) ioas_id: u32,
    pub(super) reserved: u32,
    pub(super) user_va: u64,
    pub(super) length: u64,
    pub(super) iova: u64,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct IoasUnmap {
    pub(super) size: u32,
    pub(super) ioas_id: u32,
    pub(super) iova: u64,
    pub(super) length: u64,
}

/// The length of a structure, for its first field.
pub(super) const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

const _: () = {
    assert!(size::<GroupStatus>() == 8);
    assert!(size::<DeviceInfo>() == 24);
    assert!(size::<RegionInfo>() == 32);
    assert!(size::<IrqInfo>() == 16);
    assert!(size::<IrqSet>() == 20);
    assert!(size::<IommuInfo>() == 24);
    assert!(size::<DmaMap>() == 32);
    assert!(size::<DmaUnmap>() == 24);
    assert!(size::<BindIommufd>() == 16);
    assert!(size::<AttachPt>() == 12);
    assert!(size::<IoasAlloc>() == 12);
    assert!(size::<IovaRange>() == 16);
    assert!(size::<IoasIovaRanges>() == 32);
    assert!(size::<IoasMap>() == 40);
    assert!(size::<IoasUnmap>() == 24);
};

/// The capability chain after a structure: `{id, version, next}` with offsets from the start of the
/// structure.
pub(super) struct Caps<'a> {
    answer: &'a [u8],
    at: usize,
    /// The maximum of links left, so that a cyclic chain ends.
    left: usize,
}

impl<'a> Caps<'a> {
    pub(super) fn new(answer: &'a [u8], first: u32) -> Caps<'a> {
        Caps { answer, at: first as usize, left: 64 }
    }
}

impl<'a> Iterator for Caps<'a> {
    /// The id, and the bytes from the end of the header to the end of the structure.
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.at == 0 || self.left == 0 {
            return None;
        }
        let header = self.answer.get(self.at..)?;
        let id = u16::from_ne_bytes(*header.first_chunk()?);
        let next = u32_at(header, 4)?;
        (self.at, self.left) = (next as usize, self.left - 1);
        Some((id, header.get(8..)?))
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cap(id: u16, next: u32, rest: &[u8]) -> Vec<u8> {
        [&id.to_ne_bytes()[..], &1u16.to_ne_bytes(), &next.to_ne_bytes(), rest].concat()
    }

    #[test]
    fn a_chain_is_followed_to_its_end() {
        let answer = [vec![0; 24], cap(1, 40, &[7; 8]), cap(3, 0, &9u32.to_ne_bytes())].concat();
        let caps: Vec<_> = Caps::new(&answer, 24).collect();
        assert_eq!(caps.iter().map(|c| c.0).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(u32_at(caps[1].1, 0), Some(9));
    }

    #[test]
    fn a_chain_that_bites_its_tail_or_leaves_the_answer_ends() {
        let ring = [vec![0; 24], cap(1, 24, &[])].concat();
        assert!(Caps::new(&ring, 24).count() <= 64);
        let out = [vec![0; 24], cap(1, 1 << 30, &[])].concat();
        assert_eq!(Caps::new(&out, 24).count(), 1);
        assert_eq!(Caps::new(&[0; 24], 23).count(), 0);
    }
}
