//! A device's address space: the container of its group, or an IOAS of iommufd.
//!
//! ```text
//!   group        /dev/vfio/vfio ◄── /dev/vfio/N ◄── device      one container per group, type 1 v2
//!   iommufd      /dev/iommu ── IOAS ◄── /dev/vfio/devices/vfioX
//!   unprotected  /dev/vfio/vfio ◄── /dev/vfio/noiommu-N ◄── device  no IOMMU; only on request
//! ```
//!
//! Devices of one group share an address space, because the IOMMU cannot tell them apart: the
//! second one that this process opens is attached to the address space of the first.

use super::abi::{self, Caps, u32_at, u64_at};
use super::bdf::Bdf;
use super::host::Host;
use super::ioctl::{self, ioctl, ioctl_value};
use crate::bus::BusError;
use crate::dma::{Access, Limits, MapError};
use crate::iova::IovaAllocator;
use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};
use towpath_sys::lock;
use towpath_sys::mmap::page_size;

/// Huge pages of this size are mapped as one: IOVA and memory are congruent modulo it.
const HUGE: u64 = 2 << 20;

/// The kernel interface. Descriptors are closed in the order of the fields.
#[derive(Debug)]
enum IommuApi {
    Type1 { group: OwnedFd, container: OwnedFd },
    Ioas { iommufd: OwnedFd, id: u32 },
    Unprotected { group: OwnedFd, _container: OwnedFd },
}

/// An address space, managed by the kernel.
#[derive(Debug)]
pub(super) struct AddressSpace {
    api: IommuApi,
    limits: Limits,
    iovas: Mutex<IovaAllocator>,
    /// The persistent mappings by IOVA: address and length.
    mappings: Mutex<BTreeMap<u64, (NonNull<u8>, usize)>>,
}

// SAFETY: the addresses in the table are compared and passed to the kernel, never dereferenced.
unsafe impl Send for AddressSpace {}
// SAFETY: as for Send.
unsafe impl Sync for AddressSpace {}

/// The address spaces of this process, by group.
static OPEN: Mutex<Vec<(u32, Weak<AddressSpace>)>> = Mutex::new(Vec::new());

/// The open address space of a group, or a new one.
fn open_shared(
    group: u32,
    make: impl FnOnce() -> Result<AddressSpace, BusError>,
) -> Result<Arc<AddressSpace>, BusError> {
    let mut open = lock(&OPEN);
    open.retain(|(_, space)| space.strong_count() > 0);
    if let Some(space) = open.iter().find(|(g, _)| *g == group).and_then(|(_, space)| space.upgrade()) {
        return Ok(space);
    }
    let space = Arc::new(make()?);
    open.push((group, Arc::downgrade(&space)));
    Ok(space)
}

/// [`BusError::os`], with a hint for one error code.
fn os_hint(bdf: Bdf, step: impl Into<String>, code: i32, hint: &str) -> impl FnOnce(io::Error) -> BusError {
    move |source| match source.raw_os_error() {
        Some(errno) if errno == code => BusError::os(bdf, step)(source).with_hint(hint),
        _ => BusError::os(bdf, step)(source),
    }
}

const NO_REMAPPING: &str = "the platform does not keep interrupts of devices apart: turn on interrupt remapping in the firmware, or \
                            accept the risk: echo 1 > /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";
const IN_USE: &str = "another process uses a device of this group: fuser -v /dev/vfio/*";

/// A container with a group in it.
fn container(host: &Host, bdf: Bdf, node: &str, kind: i32) -> Result<(OwnedFd, OwnedFd), BusError> {
    let refuse = |what: String| BusError::device(bdf, what);
    let container = ioctl::open(&host.path("dev/vfio/vfio")).map_err(BusError::os(bdf, "opening /dev/vfio/vfio"))?;
    let version =
        ioctl_value(&container, abi::GET_API_VERSION, 0).map_err(BusError::os(bdf, "VFIO_GET_API_VERSION"))?;
    if version != abi::API_VERSION {
        return Err(refuse(format!("the kernel's VFIO has version {version}, known is {}", abi::API_VERSION)));
    }
    if ioctl_value(&container, abi::CHECK_EXTENSION, kind).map_err(BusError::os(bdf, "VFIO_CHECK_EXTENSION"))? <= 0 {
        return Err(refuse(match kind {
            abi::NOIOMMU => "the kernel's VFIO has no mode without an IOMMU".to_owned(),
            _ => "the kernel's VFIO has no type 1 IOMMU, version 2: modprobe vfio_iommu_type1".to_owned(),
        }));
    }
    let group = ioctl::open(&host.path(node)).map_err(os_hint(bdf, format!("opening /{node}"), libc::EBUSY, IN_USE))?;
    let status = ioctl(&group, abi::GROUP_GET_STATUS, abi::GroupStatus::default());
    if status.map_err(BusError::os(bdf, "VFIO_GROUP_GET_STATUS"))?.flags & abi::GROUP_VIABLE == 0 {
        return Err(refuse("other devices of its IOMMU group are in the hands of the kernel's drivers".to_owned()));
    }
    ioctl::set_container(&group, &container).map_err(BusError::os(bdf, "VFIO_GROUP_SET_CONTAINER"))?;
    ioctl_value(&container, abi::SET_IOMMU, kind).map_err(os_hint(bdf, "VFIO_SET_IOMMU", libc::EPERM, NO_REMAPPING))?;
    Ok((group, container))
}

impl AddressSpace {
    fn new(api: IommuApi, limits: Limits) -> AddressSpace {
        let iovas = Mutex::new(IovaAllocator::new(&limits.ranges, HUGE));
        AddressSpace { api, limits, iovas, mappings: Mutex::default() }
    }

    /// Opens a device through its group.
    pub(super) fn of_group(host: &Host, bdf: Bdf, group: u32) -> Result<(Arc<AddressSpace>, OwnedFd), BusError> {
        let space = open_shared(group, || {
            let (group, container) = container(host, bdf, &format!("dev/vfio/{group}"), abi::TYPE1V2)?;
            let limits = type1_limits(host, &container).map_err(BusError::os(bdf, "VFIO_IOMMU_GET_INFO"))?;
            Ok(AddressSpace::new(IommuApi::Type1 { group, container }, limits))
        })?;
        let device = space.device(bdf)?;
        Ok((space, device))
    }

    /// Opens a device without an IOMMU.
    pub(super) fn unprotected(host: &Host, bdf: Bdf, group: u32) -> Result<(Arc<AddressSpace>, OwnedFd), BusError> {
        let space = open_shared(group, || {
            let (group, container) = container(host, bdf, &format!("dev/vfio/noiommu-{group}"), abi::NOIOMMU)?;
            let granule = page_size();
            let ranges = vec![granule as u64..=(1 << 52) - 1];
            let limits = Limits { iommu: false, granule, mappings: None, locked: memlock_limit(host), ranges };
            Ok(AddressSpace::new(IommuApi::Unprotected { group, _container: container }, limits))
        })?;
        let device = space.device(bdf)?;
        Ok((space, device))
    }

    fn device(&self, bdf: Bdf) -> Result<OwnedFd, BusError> {
        match &self.api {
            IommuApi::Type1 { group, .. } | IommuApi::Unprotected { group, .. } => {
                ioctl::group_device(group, &bdf.to_string()).map_err(BusError::os(bdf, "VFIO_GROUP_GET_DEVICE_FD"))
            }
            IommuApi::Ioas { .. } => {
                Err(BusError::device(bdf, "a device of its group is open by iommufd: open both the same way"))
            }
        }
    }

    /// Opens a device through its own file.
    pub(super) fn of_cdev(
        host: &Host,
        bdf: Bdf,
        group: u32,
        cdev: &str,
    ) -> Result<(Arc<AddressSpace>, OwnedFd), BusError> {
        let node = format!("dev/vfio/devices/{cdev}");
        let device =
            ioctl::open(&host.path(&node)).map_err(os_hint(bdf, format!("opening /{node}"), libc::EBUSY, IN_USE))?;
        let attach_device = |iommufd: &OwnedFd, id: Option<u32>| {
            use std::os::fd::AsRawFd;
            let bind = abi::BindIommufd { iommufd: iommufd.as_raw_fd(), ..Default::default() };
            ioctl(&device, abi::DEVICE_BIND_IOMMUFD, bind).map_err(BusError::os(bdf, "VFIO_DEVICE_BIND_IOMMUFD"))?;
            let id = match id {
                Some(id) => id,
                None => {
                    let made = ioctl(iommufd, abi::IOAS_ALLOC, abi::IoasAlloc::default());
                    made.map_err(BusError::os(bdf, "IOMMU_IOAS_ALLOC"))?.out_ioas_id
                }
            };
            let attach = abi::AttachPt { pt_id: id, ..Default::default() };
            ioctl(&device, abi::DEVICE_ATTACH_IOMMUFD_PT, attach).map_err(os_hint(
                bdf,
                "VFIO_DEVICE_ATTACH_IOMMUFD_PT",
                libc::EPERM,
                NO_REMAPPING,
            ))?;
            Ok(id)
        };
        let mut attached = false;
        let space = open_shared(group, || {
            let iommufd = ioctl::open(&host.path("dev/iommu")).map_err(BusError::os(bdf, "opening /dev/iommu"))?;
            let id = attach_device(&iommufd, None)?;
            attached = true;
            let (ranges, alignment) =
                ioctl::ioas_ranges(&iommufd, id).map_err(BusError::os(bdf, "IOMMU_IOAS_IOVA_RANGES"))?;
            let granule = (alignment as usize).max(page_size());
            let ranges = ranges.iter().map(|r| r.start..=r.last).collect();
            let limits = Limits { iommu: true, granule, mappings: None, locked: memlock_limit(host), ranges };
            Ok(AddressSpace::new(IommuApi::Ioas { iommufd, id }, limits))
        })?;
        match &space.api {
            IommuApi::Ioas { .. } if attached => {}
            IommuApi::Ioas { iommufd, id } => drop(attach_device(iommufd, Some(*id))?),
            _ => {
                let what = "a device of its group is open by the group: open both the same way".to_owned();
                return Err(BusError::device(bdf, what));
            }
        }
        Ok((space, device))
    }

    /// The kernel interface, for messages.
    pub(super) fn api_name(&self) -> &'static str {
        match self.api {
            IommuApi::Type1 { .. } => "VFIO group, type 1 v2",
            IommuApi::Ioas { .. } => "iommufd",
            IommuApi::Unprotected { .. } => "VFIO without an IOMMU",
        }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Allocates IOVAs for `len` bytes that are congruent to `address` modulo 2 MiB.
    pub(super) fn alloc_iova(&self, len: u64, address: u64) -> Result<u64, MapError> {
        lock(&self.iovas)
            .alloc_low(len, HUGE, address % HUGE)
            .ok_or(MapError::Range { len: usize::try_from(len).unwrap_or(usize::MAX) })
    }

    /// Frees IOVAs to which nothing is mapped.
    pub(super) fn free_iova(&self, iova: u64, len: u64) {
        lock(&self.iovas).free(iova, len);
    }

    /// Maps pages at allocated IOVAs.
    pub(super) fn map(&self, iova: u64, at: NonNull<u8>, len: usize, access: Access) -> Result<(), MapError> {
        let vaddr = at.as_ptr().expose_provenance() as u64;
        let (reads, writes) = (access != Access::Write, access != Access::Read);
        let flags = |read, write| if reads { read } else { 0 } | if writes { write } else { 0 };
        let (step, result) = match &self.api {
            IommuApi::Type1 { container, .. } => {
                let flags = flags(abi::DMA_READ, abi::DMA_WRITE);
                let map = abi::DmaMap { argsz: 0, flags, vaddr, iova, size: len as u64 };
                ("VFIO_IOMMU_MAP_DMA", ioctl(container, abi::IOMMU_MAP_DMA, map).map(drop))
            }
            IommuApi::Ioas { iommufd, id } => {
                let flags = abi::IOAS_FIXED | flags(abi::IOAS_READ, abi::IOAS_WRITE);
                let length = len as u64;
                let map = abi::IoasMap { size: 0, flags, ioas_id: *id, reserved: 0, user_va: vaddr, length, iova };
                ("IOMMU_IOAS_MAP", ioctl(iommufd, abi::IOAS_MAP, map).map(drop))
            }
            IommuApi::Unprotected { .. } => return Err(MapError::NoIommu),
        };
        result.map_err(|e| map_error(&self.limits, step, len, e))
    }

    /// Unmaps all pages in a range that cuts no mapping. When it returns, the device cannot reach
    /// them. Returns the number of bytes.
    pub(super) fn unmap(&self, iova: u64, len: u64) -> Result<u64, MapError> {
        let (step, result) = match &self.api {
            IommuApi::Type1 { container, .. } => {
                let unmap = abi::DmaUnmap { argsz: 0, flags: 0, iova, size: len };
                ("VFIO_IOMMU_UNMAP_DMA", ioctl(container, abi::IOMMU_UNMAP_DMA, unmap).map(|u| u.size))
            }
            IommuApi::Ioas { iommufd, id } => {
                let unmap = abi::IoasUnmap { size: 0, ioas_id: *id, iova, length: len };
                ("IOMMU_IOAS_UNMAP", ioctl(iommufd, abi::IOAS_UNMAP, unmap).map(|u| u.length))
            }
            IommuApi::Unprotected { .. } => return Err(MapError::NoIommu),
        };
        result.map_err(|source| MapError::Os { step, source })
    }

    /// Records a persistent mapping.
    pub(super) fn insert_mapping(&self, iova: u64, at: NonNull<u8>, len: usize) {
        lock(&self.mappings).insert(iova, (at, len));
    }

    /// The address of a persistent mapping of `len` bytes.
    pub(super) fn find_mapping(&self, iova: u64, len: usize) -> Option<NonNull<u8>> {
        lock(&self.mappings).get(&iova).filter(|mapping| mapping.1 == len).map(|mapping| mapping.0)
    }

    /// Removes the record of a persistent mapping.
    pub(super) fn remove_mapping(&self, iova: u64) {
        lock(&self.mappings).remove(&iova);
    }
}

/// Translates the kernel's error.
fn map_error(limits: &Limits, step: &'static str, len: usize, source: io::Error) -> MapError {
    match (source.raw_os_error(), limits.locked, limits.mappings) {
        (Some(libc::ENOSPC), _, Some(limit)) => MapError::Mappings { limit },
        (Some(libc::ENOMEM), Some(limit), _) => MapError::Locked { len, limit },
        (Some(libc::EFAULT), ..) => MapError::Foreign,
        (Some(libc::EEXIST | libc::EINVAL | libc::EADDRINUSE | libc::ENOSPC), ..) => MapError::Range { len },
        _ => MapError::Os { step, source },
    }
}

/// Bytes that this process may lock in memory; unlimited with CAP_IPC_LOCK.
pub(super) fn memlock_limit(host: &Host) -> Option<u64> {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let status = host.read("proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    if effective & CAP_IPC_LOCK != 0 { None } else { ioctl::rlimit_memlock() }
}

/// The limits of a container: reported by it, or the module's parameter.
fn type1_limits(host: &Host, container: &OwnedFd) -> io::Result<Limits> {
    let (info, answer) = ioctl::iommu_info(container)?;
    let has = |flag| info.flags & flag != 0;
    let smallest = if has(abi::IOMMU_PAGE_SIZES) { 1 << info.page_sizes.trailing_zeros().min(40) } else { 0 };
    let caps = || Caps::new(&answer, if has(abi::IOMMU_HAS_CAPS) { info.cap_offset } else { 0 });
    let limit = host.read("sys/module/vfio_iommu_type1/parameters/dma_entry_limit").and_then(|n| n.parse().ok());
    let mappings = caps().find(|c| c.0 == abi::CAP_DMA_AVAIL).and_then(|c| u32_at(c.1, 0)).map(u64::from).or(limit);
    let ranges = caps().find(|c| c.0 == abi::CAP_IOVA_RANGES).map(|c| ranges(c.1));
    Ok(Limits {
        iommu: true,
        granule: page_size().max(smallest),
        mappings,
        locked: memlock_limit(host),
        // Older kernels do not report ranges. 39 bits is the smallest address width, and the hole
        // is the MSI range.
        ranges: ranges.unwrap_or_else(|| vec![0..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1]),
    })
}

/// The `{start, last}` list of a capability.
fn ranges(cap: &[u8]) -> Vec<RangeInclusive<u64>> {
    let count = u32_at(cap, 0).unwrap_or(0) as usize;
    let range = |i: usize| Some(u64_at(cap, 8 + 16 * i)?..=u64_at(cap, 16 + 16 * i)?);
    (0..count).map_while(range).filter(|r| !r.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: i32) -> MapError {
        let limits =
            Limits { iommu: true, granule: 4096, mappings: Some(7), locked: Some(99), ranges: vec![0..=u64::MAX] };
        map_error(&limits, "map", 4096, io::Error::from_raw_os_error(code))
    }

    #[test]
    fn every_limit_that_the_kernel_enforces_is_named() {
        assert!(matches!(refusal(libc::ENOSPC), MapError::Mappings { limit: 7 }));
        assert!(matches!(refusal(libc::ENOMEM), MapError::Locked { len: 4096, limit: 99 }));
        assert!(matches!(refusal(libc::EFAULT), MapError::Foreign));
        assert!(matches!(refusal(libc::EINVAL), MapError::Range { len: 4096 }));
        assert!(matches!(refusal(libc::EEXIST), MapError::Range { len: 4096 }));
        assert!(matches!(refusal(libc::EIO), MapError::Os { step: "map", .. }));
    }

    #[test]
    fn ranges_end_where_the_answer_does() {
        let words = |w: &[u64]| w.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
        let cap = [&2u32.to_ne_bytes()[..], &[0; 4], &words(&[0, 0xfff, 0x2000, 0x1fff_ffff])].concat();
        assert_eq!(ranges(&cap), [0..=0xfff, 0x2000..=0x1fff_ffff]);
        assert_eq!(ranges(&cap[..30]), [0..=0xfff]);
        assert_eq!(ranges(&[]), []);
    }
}
