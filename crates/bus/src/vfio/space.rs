//! A device's address space: the container of its group, or an I/O address space of iommufd.
//!
//! ```text
//!   group      /dev/vfio/vfio ◄── /dev/vfio/N ◄── device          one container for a group, type 1 v2
//!   iommufd    /dev/iommu ── I/O address space ◄── /dev/vfio/devices/vfioX
//!   neither    /dev/vfio/vfio ◄── /dev/vfio/noiommu-N ◄── device     nothing translates; only when asked for
//! ```
//!
//! Devices of one group share an address space, as the hardware can't tell them apart: the second one that this process opens
//! joins the first.

use super::abi::{self, Caps, u32_at, u64_at};
use super::bdf::Bdf;
use super::host::Host;
use super::iova::Addresses;
use super::sys;
use crate::bus::BusError;
use crate::dma::{Access, Limits, MapError};
use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How the kernel is asked. Descriptors are closed in the order in which they stand here.
#[derive(Debug)]
enum Kind {
    Type1 { group: OwnedFd, container: OwnedFd },
    Ioas { iommufd: OwnedFd, id: u32 },
    Unprotected { group: OwnedFd, _container: OwnedFd },
}

/// An address space, as the kernel keeps it.
#[derive(Debug)]
pub(super) struct Space {
    kind: Kind,
    limits: Limits,
    addresses: Mutex<Addresses>,
    /// What is mapped for good, by its address: where it lies, and its length.
    lasting: Mutex<BTreeMap<u64, (NonNull<u8>, usize)>>,
}

// SAFETY: the addresses in the table are compared and named to the kernel, nothing is read or written through them.
unsafe impl Send for Space {}
// SAFETY: as for Send.
unsafe impl Sync for Space {}

/// Address spaces of this process, by their group.
static OPEN: Mutex<Vec<(u32, Weak<Space>)>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address space of a group that this process has open, or a new one that `make` makes.
fn shared(group: u32, make: impl FnOnce() -> Result<Space, BusError>) -> Result<Arc<Space>, BusError> {
    let mut open = locked(&OPEN);
    open.retain(|(_, space)| space.strong_count() > 0);
    if let Some(space) = open.iter().find(|(g, _)| *g == group).and_then(|(_, space)| space.upgrade()) {
        return Ok(space);
    }
    let space = Arc::new(make()?);
    open.push((group, Arc::downgrade(&space)));
    Ok(space)
}

pub(super) fn os(bdf: Bdf, step: impl Into<String>) -> impl FnOnce(io::Error) -> BusError {
    move |source| BusError::Os { device: bdf.to_string(), step: step.into(), source, hint: None }
}

fn hinted(bdf: Bdf, step: impl Into<String>, code: i32, hint: &'static str) -> impl FnOnce(io::Error) -> BusError {
    move |source| {
        let hint = (source.raw_os_error() == Some(code)).then(|| hint.to_owned());
        BusError::Os { device: bdf.to_string(), step: step.into(), source, hint }
    }
}

const NO_REMAPPING: &str = "the platform does not keep interrupts of devices apart: turn on interrupt remapping in the firmware, or \
                            accept the risk: echo 1 > /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";
const IN_USE: &str = "another process uses a device of this group: fuser -v /dev/vfio/*";

/// A container with a group in it.
fn container(host: &Host, bdf: Bdf, node: &str, kind: i32) -> Result<(OwnedFd, OwnedFd), BusError> {
    let wrong = |what: String| BusError::Device { device: bdf.to_string(), what };
    let container = sys::open(&host.path("dev/vfio/vfio")).map_err(os(bdf, "opening /dev/vfio/vfio"))?;
    let version = sys::plain(&container, abi::GET_API_VERSION, 0).map_err(os(bdf, "VFIO_GET_API_VERSION"))?;
    if version != abi::API_VERSION {
        return Err(wrong(format!("the kernel's VFIO has version {version}, known is {}", abi::API_VERSION)));
    }
    if sys::plain(&container, abi::CHECK_EXTENSION, kind).map_err(os(bdf, "VFIO_CHECK_EXTENSION"))? <= 0 {
        return Err(wrong(match kind {
            abi::NOIOMMU => "the kernel's VFIO has no mode without an IOMMU".to_owned(),
            _ => "the kernel's VFIO has no type 1 IOMMU, version 2: modprobe vfio_iommu_type1".to_owned(),
        }));
    }
    let group = sys::open(&host.path(node)).map_err(hinted(bdf, format!("opening /{node}"), libc::EBUSY, IN_USE))?;
    let status = sys::call(&group, abi::GROUP_GET_STATUS, abi::GroupStatus::default());
    if status.map_err(os(bdf, "VFIO_GROUP_GET_STATUS"))?.flags & abi::GROUP_VIABLE == 0 {
        return Err(wrong("other devices of its IOMMU group are in the hands of the kernel's drivers".to_owned()));
    }
    sys::set_container(&group, &container).map_err(os(bdf, "VFIO_GROUP_SET_CONTAINER"))?;
    sys::plain(&container, abi::SET_IOMMU, kind).map_err(hinted(bdf, "VFIO_SET_IOMMU", libc::EPERM, NO_REMAPPING))?;
    Ok((group, container))
}

impl Space {
    fn new(kind: Kind, limits: Limits) -> Space {
        let addresses = Mutex::new(Addresses::new(&limits.ranges));
        Space { kind, limits, addresses, lasting: Mutex::default() }
    }

    /// Opens a device by its group.
    pub(super) fn of_group(host: &Host, bdf: Bdf, group: u32) -> Result<(Arc<Space>, OwnedFd), BusError> {
        let space = shared(group, || {
            let (group, container) = container(host, bdf, &format!("dev/vfio/{group}"), abi::TYPE1V2)?;
            let limits = type1_limits(host, &container).map_err(os(bdf, "VFIO_IOMMU_GET_INFO"))?;
            Ok(Space::new(Kind::Type1 { group, container }, limits))
        })?;
        let device = space.device(bdf)?;
        Ok((space, device))
    }

    /// Opens a device that nothing keeps from memory.
    pub(super) fn unprotected(host: &Host, bdf: Bdf, group: u32) -> Result<(Arc<Space>, OwnedFd), BusError> {
        let space = shared(group, || {
            let (group, container) = container(host, bdf, &format!("dev/vfio/noiommu-{group}"), abi::NOIOMMU)?;
            let granule = sys::page_size();
            let ranges = vec![granule as u64..=(1 << 52) - 1];
            let limits = Limits { iommu: false, granule, mappings: None, locked: lockable(host), ranges };
            Ok(Space::new(Kind::Unprotected { group, _container: container }, limits))
        })?;
        let device = space.device(bdf)?;
        Ok((space, device))
    }

    fn device(&self, bdf: Bdf) -> Result<OwnedFd, BusError> {
        match &self.kind {
            Kind::Type1 { group, .. } | Kind::Unprotected { group, .. } => {
                sys::device_of(group, &bdf.to_string()).map_err(os(bdf, "VFIO_GROUP_GET_DEVICE_FD"))
            }
            Kind::Ioas { .. } => Err(BusError::Device {
                device: bdf.to_string(),
                what: "a device of its group is open by iommufd: open both the same way".to_owned(),
            }),
        }
    }

    /// Opens a device by its own file.
    pub(super) fn of_cdev(host: &Host, bdf: Bdf, group: u32, cdev: &str) -> Result<(Arc<Space>, OwnedFd), BusError> {
        let node = format!("dev/vfio/devices/{cdev}");
        let device =
            sys::open(&host.path(&node)).map_err(hinted(bdf, format!("opening /{node}"), libc::EBUSY, IN_USE))?;
        let join = |iommufd: &OwnedFd, id: Option<u32>| {
            use std::os::fd::AsRawFd;
            let bind = abi::BindIommufd { iommufd: iommufd.as_raw_fd(), ..Default::default() };
            sys::call(&device, abi::DEVICE_BIND_IOMMUFD, bind).map_err(os(bdf, "VFIO_DEVICE_BIND_IOMMUFD"))?;
            let id = match id {
                Some(id) => id,
                None => {
                    let made = sys::call(iommufd, abi::IOAS_ALLOC, abi::IoasAlloc::default());
                    made.map_err(os(bdf, "IOMMU_IOAS_ALLOC"))?.out_ioas_id
                }
            };
            let attach = abi::AttachPt { pt_id: id, ..Default::default() };
            sys::call(&device, abi::DEVICE_ATTACH_IOMMUFD_PT, attach).map_err(hinted(
                bdf,
                "VFIO_DEVICE_ATTACH_IOMMUFD_PT",
                libc::EPERM,
                NO_REMAPPING,
            ))?;
            Ok(id)
        };
        let mut joined = false;
        let space = shared(group, || {
            let iommufd = sys::open(&host.path("dev/iommu")).map_err(os(bdf, "opening /dev/iommu"))?;
            let id = join(&iommufd, None)?;
            joined = true;
            let (ranges, alignment) = sys::ioas_ranges(&iommufd, id).map_err(os(bdf, "IOMMU_IOAS_IOVA_RANGES"))?;
            let granule = (alignment as usize).max(sys::page_size());
            let ranges = ranges.iter().map(|r| r.start..=r.last).collect();
            let limits = Limits { iommu: true, granule, mappings: None, locked: lockable(host), ranges };
            Ok(Space::new(Kind::Ioas { iommufd, id }, limits))
        })?;
        match &space.kind {
            Kind::Ioas { .. } if joined => {}
            Kind::Ioas { iommufd, id } => drop(join(iommufd, Some(*id))?),
            _ => {
                let what = "a device of its group is open by the group: open both the same way".to_owned();
                return Err(BusError::Device { device: bdf.to_string(), what });
            }
        }
        Ok((space, device))
    }

    /// In a few words, for people.
    pub(super) fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Type1 { .. } => "VFIO group, type 1 v2",
            Kind::Ioas { .. } => "iommufd",
            Kind::Unprotected { .. } => "VFIO without an IOMMU",
        }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Takes addresses for `len` bytes, with the offset in 2 MiB that `like` has.
    pub(super) fn take(&self, len: u64, like: u64) -> Result<u64, MapError> {
        locked(&self.addresses)
            .take(len, like)
            .ok_or(MapError::Range { len: usize::try_from(len).unwrap_or(usize::MAX) })
    }

    /// Gives addresses back to which nothing is mapped any more.
    pub(super) fn give(&self, iova: u64, len: u64) {
        locked(&self.addresses).give(iova, len);
    }

    /// Enters pages at addresses that were taken.
    pub(super) fn map(&self, iova: u64, at: NonNull<u8>, len: usize, access: Access) -> Result<(), MapError> {
        let vaddr = at.as_ptr().expose_provenance() as u64;
        let (reads, writes) = (access != Access::Write, access != Access::Read);
        let flags = |read, write| if reads { read } else { 0 } | if writes { write } else { 0 };
        let (step, result) = match &self.kind {
            Kind::Type1 { container, .. } => {
                let flags = flags(abi::DMA_READ, abi::DMA_WRITE);
                let map = abi::DmaMap { argsz: 0, flags, vaddr, iova, size: len as u64 };
                ("VFIO_IOMMU_MAP_DMA", sys::call(container, abi::IOMMU_MAP_DMA, map).map(drop))
            }
            Kind::Ioas { iommufd, id } => {
                let flags = abi::IOAS_FIXED | flags(abi::IOAS_READ, abi::IOAS_WRITE);
                let length = len as u64;
                let map = abi::IoasMap { size: 0, flags, ioas_id: *id, reserved: 0, user_va: vaddr, length, iova };
                ("IOMMU_IOAS_MAP", sys::call(iommufd, abi::IOAS_MAP, map).map(drop))
            }
            Kind::Unprotected { .. } => return Err(MapError::NoIommu),
        };
        result.map_err(|e| named(&self.limits, step, len, e))
    }

    /// Takes out all pages in a range of addresses that cuts no mapping; returns when the device can't reach them any more,
    /// and how many bytes that were.
    pub(super) fn unmap(&self, iova: u64, len: u64) -> Result<u64, MapError> {
        let (step, result) = match &self.kind {
            Kind::Type1 { container, .. } => {
                let unmap = abi::DmaUnmap { argsz: 0, flags: 0, iova, size: len };
                ("VFIO_IOMMU_UNMAP_DMA", sys::call(container, abi::IOMMU_UNMAP_DMA, unmap).map(|u| u.size))
            }
            Kind::Ioas { iommufd, id } => {
                let unmap = abi::IoasUnmap { size: 0, ioas_id: *id, iova, length: len };
                ("IOMMU_IOAS_UNMAP", sys::call(iommufd, abi::IOAS_UNMAP, unmap).map(|u| u.length))
            }
            Kind::Unprotected { .. } => return Err(MapError::NoIommu),
        };
        result.map_err(|source| MapError::Os { step, source })
    }

    /// Remembers what is mapped for good.
    pub(super) fn keep(&self, iova: u64, at: NonNull<u8>, len: usize) {
        locked(&self.lasting).insert(iova, (at, len));
    }

    /// Where the memory at an address that is mapped for good lies, if it is as long as that.
    pub(super) fn kept(&self, iova: u64, len: usize) -> Option<NonNull<u8>> {
        locked(&self.lasting).get(&iova).filter(|kept| kept.1 == len).map(|kept| kept.0)
    }

    /// Forgets it.
    pub(super) fn forget(&self, iova: u64) {
        locked(&self.lasting).remove(&iova);
    }
}

/// What a refusal of the kernel to map means.
fn named(limits: &Limits, step: &'static str, len: usize, source: io::Error) -> MapError {
    match (source.raw_os_error(), limits.locked, limits.mappings) {
        (Some(libc::ENOSPC), _, Some(limit)) => MapError::Mappings { limit },
        (Some(libc::ENOMEM), Some(limit), _) => MapError::Locked { len, limit },
        (Some(libc::EFAULT), ..) => MapError::Foreign,
        (Some(libc::EEXIST | libc::EINVAL | libc::EADDRINUSE | libc::ENOSPC), ..) => MapError::Range { len },
        _ => MapError::Os { step, source },
    }
}

/// Bytes that this process may lock in memory; not bounded with CAP_IPC_LOCK.
pub(super) fn lockable(host: &Host) -> Option<u64> {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let status = host.read("proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    if effective & CAP_IPC_LOCK != 0 { None } else { sys::memlock() }
}

/// The bounds of a container: what it says itself, and what the module was loaded with where it does not.
fn type1_limits(host: &Host, container: &OwnedFd) -> io::Result<Limits> {
    let (info, answer) = sys::iommu_info(container)?;
    let has = |flag| info.flags & flag != 0;
    let smallest = if has(abi::IOMMU_PAGE_SIZES) { 1 << info.page_sizes.trailing_zeros().min(40) } else { 0 };
    let caps = || Caps::new(&answer, if has(abi::IOMMU_HAS_CAPS) { info.cap_offset } else { 0 });
    let limit = host.read("sys/module/vfio_iommu_type1/parameters/dma_entry_limit").and_then(|n| n.parse().ok());
    let mappings = caps().find(|c| c.0 == abi::CAP_DMA_AVAIL).and_then(|c| u32_at(c.1, 0)).map(u64::from).or(limit);
    let ranges = caps().find(|c| c.0 == abi::CAP_IOVA_RANGES).map(|c| ranges(c.1));
    Ok(Limits {
        iommu: true,
        granule: sys::page_size().max(smallest),
        mappings,
        locked: lockable(host),
        // Kernels that don't say have at least this: 39 bits is the smallest width there is, and the hole is that of interrupts.
        ranges: ranges.unwrap_or_else(|| vec![0..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1]),
    })
}

/// The list of `{start, last}` of a capability.
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
        named(&limits, "map", 4096, io::Error::from_raw_os_error(code))
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
