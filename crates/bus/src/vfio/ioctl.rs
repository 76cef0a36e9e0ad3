//! The system calls of VFIO and iommufd.
//!
//! All `unsafe` of this folder is in this file, except register accesses and `host`.

use super::abi;
use libc::{Ioctl, c_int};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

/// A structure that an ioctl reads and may write: plain data that begins with its length.
///
/// # Safety
/// All bit patterns are valid. The first four bytes hold the length that the kernel may access, at
/// most the size of the value.
pub(super) unsafe trait IoctlArg: Copy {
    /// Sets the length field.
    fn with_size(self) -> Self;
}

macro_rules! ioctl_args {
    ($field:ident: $($name:ident),*) => {$(
        // SAFETY: the structure is `repr(C)`, made of integers, and begins with its length, which
        // is set to its size here.
        unsafe impl IoctlArg for abi::$name {
            fn with_size(mut self) -> Self {
                self.$field = abi::size::<Self>();
                self
            }
        }
    )*};
}

ioctl_args!(argsz: GroupStatus, DeviceInfo, RegionInfo, IrqInfo, DmaMap, DmaUnmap, BindIommufd, AttachPt);
ioctl_args!(size: IoasAlloc, IoasMap, IoasUnmap);

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    OpenOptions::new().read(true).write(true).open(path).map(OwnedFd::from)
}

/// An ioctl whose argument is a number, or absent.
pub(super) fn ioctl_value(fd: impl AsFd, request: Ioctl, value: c_int) -> io::Result<c_int> {
    // SAFETY: the requests of this function take their argument by value, or none.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, value as libc::c_ulong) })
}

/// An ioctl with a structure, which the kernel may modify.
pub(super) fn ioctl<T: IoctlArg>(fd: impl AsFd, request: Ioctl, argument: T) -> io::Result<T> {
    let mut argument = argument.with_size();
    // SAFETY: the kernel accesses at most the length in the first field, which is that of the
    // structure, which outlives the call.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw mut argument) })?;
    Ok(argument)
}

/// Puts a group into a container.
pub(super) fn set_container(group: impl AsFd, container: impl AsFd) -> io::Result<()> {
    let container: c_int = container.as_fd().as_raw_fd();
    // SAFETY: the call reads one integer through the pointer.
    check(unsafe { libc::ioctl(group.as_fd().as_raw_fd(), abi::GROUP_SET_CONTAINER, &raw const container) }).map(drop)
}

/// Opens a device of a group by name.
pub(super) fn group_device(group: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: the call reads a string that ends with NUL and outlives it.
    let fd = check(unsafe { libc::ioctl(group.as_fd().as_raw_fd(), abi::GROUP_GET_DEVICE_FD, name.as_ptr()) })?;
    // SAFETY: the kernel just returned this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An ioctl with a result of variable length: a structure, then capabilities. `start` is the
/// structure as bytes; its first field is overwritten.
fn ioctl_growing(fd: impl AsFd, request: Ioctl, start: &[u8]) -> io::Result<Vec<u8>> {
    let mut answer = start.to_vec();
    // The kernel returns the length that it needs. The call is repeated with that length, several
    // times if it grows meanwhile.
    for _ in 0..4 {
        let len = answer.len();
        answer[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        // SAFETY: the kernel accesses at most the length in the first field, which is that of the
        // buffer, which outlives the call.
        check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, answer.as_mut_ptr()) })?;
        let wanted = abi::u32_at(&answer, 0).unwrap_or(0) as usize;
        if wanted <= len {
            return Ok(answer);
        }
        if wanted > 1 << 20 {
            break;
        }
        answer = start.to_vec();
        answer.resize(wanted, 0);
    }
    Err(io::Error::other("the kernel's answer keeps growing"))
}

/// The properties of a container, and the bytes of the result.
pub(super) fn iommu_info(container: impl AsFd) -> io::Result<(abi::IommuInfo, Vec<u8>)> {
    let answer = ioctl_growing(container, abi::IOMMU_GET_INFO, &[0; size_of::<abi::IommuInfo>()])?;
    let word = |at| abi::u32_at(&answer, at).unwrap_or(0);
    let page_sizes = abi::u64_at(&answer, 8).unwrap_or(0);
    let info = abi::IommuInfo { argsz: word(0), flags: word(4), page_sizes, cap_offset: word(16), pad: 0 };
    Ok((info, answer))
}

/// The offset of a region in the device's file, and the bytes of the result.
pub(super) fn region_info(device: impl AsFd, index: u32) -> io::Result<(abi::RegionInfo, Vec<u8>)> {
    let mut start = [0; size_of::<abi::RegionInfo>()];
    start[8..12].copy_from_slice(&index.to_ne_bytes());
    let answer = ioctl_growing(device, abi::DEVICE_GET_REGION_INFO, &start)?;
    let word = |at| abi::u32_at(&answer, at).unwrap_or(0);
    let long = |at| abi::u64_at(&answer, at).unwrap_or(0);
    let (size, offset) = (long(16), long(24));
    let info = abi::RegionInfo { argsz: word(0), flags: word(4), index, cap_offset: word(12), size, offset };
    Ok((info, answer))
}

/// Connects `fds` to the first interrupts of a kind; an empty list disables them.
pub(super) fn set_irqs(device: impl AsFd, index: u32, fds: &[c_int]) -> io::Result<()> {
    let data = if fds.is_empty() { abi::IRQ_NONE } else { abi::IRQ_EVENTFD };
    let words: Vec<u32> = fds.iter().map(|&fd| fd.cast_unsigned()).collect();
    irq_set(device, data | abi::IRQ_TRIGGER, index, fds.len() as u32, &words)
}

/// Lets the first interrupt of a kind through again, after the kernel has masked it.
pub(super) fn unmask_irq(device: impl AsFd, index: u32) -> io::Result<()> {
    irq_set(device, abi::IRQ_NONE | abi::IRQ_UNMASK, index, 1, &[])
}

fn irq_set(device: impl AsFd, flags: u32, index: u32, count: u32, data: &[u32]) -> io::Result<()> {
    let len = abi::size::<abi::IrqSet>() + size_of_val(data) as u32;
    let message = [&[len, flags, index, 0, count], data].concat();
    // SAFETY: the kernel reads as many bytes as the first field says, which is the length of the
    // message.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), abi::DEVICE_SET_IRQS, message.as_ptr()) }).map(drop)
}

/// The usable IOVA ranges of an IOAS, and their alignment.
pub(super) fn ioas_ranges(iommufd: impl AsFd, ioas_id: u32) -> io::Result<(Vec<abi::IovaRange>, u64)> {
    let mut ranges = vec![abi::IovaRange::default(); 64];
    loop {
        let mut query = abi::IoasIovaRanges {
            size: abi::size::<abi::IoasIovaRanges>(),
            ioas_id,
            num_iovas: ranges.len() as u32,
            allowed_iovas: ranges.as_mut_ptr().addr() as u64,
            ..Default::default()
        };
        ranges.as_mut_ptr().expose_provenance();
        // SAFETY: the kernel accesses the structure and at most `num_iovas` entries of the array;
        // both outlive the call.
        let result = check(unsafe { libc::ioctl(iommufd.as_fd().as_raw_fd(), abi::IOAS_IOVA_RANGES, &raw mut query) });
        match result {
            Ok(_) => {
                ranges.truncate(query.num_iovas as usize);
                return Ok((ranges, query.out_iova_alignment));
            }
            Err(e) if e.raw_os_error() == Some(libc::EMSGSIZE) && query.num_iovas as usize > ranges.len() => {
                ranges.resize((query.num_iovas as usize).min(1 << 16), abi::IovaRange::default());
                if (query.num_iovas as usize) > ranges.len() {
                    return Err(e);
                }
            }
            Err(e) => return Err(e),
        }
    }
}

/// Excludes memory from child processes. Otherwise they share its pages until one side writes, and
/// the device may keep the other copy.
pub(super) fn exclude_from_children(at: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: this advice changes neither the contents nor the location of the memory in this
    // process.
    check(unsafe { libc::madvise(at.as_ptr().cast(), len, libc::MADV_DONTFORK) }).map(drop)
}

/// Pins memory and makes it present.
pub(super) fn mlock(at: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: locking changes neither the contents nor the location of the memory in this process.
    check(unsafe { libc::mlock(at.as_ptr().cast(), len) }).map(drop)
}

/// Undoes [`mlock`].
pub(super) fn munlock(at: NonNull<u8>, len: usize) {
    // SAFETY: as for mlock.
    unsafe { libc::munlock(at.as_ptr().cast(), len) };
}

/// Bytes that this process may lock in memory; `None` if that is unlimited.
pub(super) fn rlimit_memlock() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure, which outlives it.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    (got && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
