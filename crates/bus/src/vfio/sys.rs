//! The system calls that VFIO takes, each once.
//!
//! Everything `unsafe` of this folder except the accesses to registers lies here.

use super::abi;
use libc::{Ioctl, c_int};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

/// A structure that an ioctl reads, and perhaps writes: plain data whose first field is its own length.
///
/// # Safety
/// All bit patterns are valid, and the first four bytes hold the length that the kernel may touch, at most the value's size.
pub(super) unsafe trait Sized32: Copy {
    /// The structure with its first field set.
    fn sized(self) -> Self;
}

macro_rules! sized {
    ($field:ident: $($name:ident),*) => {$(
        // SAFETY: the structure is `repr(C)`, made of integers, and begins with its length, which is set here to its size.
        unsafe impl Sized32 for abi::$name {
            fn sized(mut self) -> Self {
                self.$field = abi::size::<Self>();
                self
            }
        }
    )*};
}

sized!(argsz: GroupStatus, DeviceInfo, RegionInfo, IrqInfo, DmaMap, DmaUnmap, BindIommufd, AttachPt);
sized!(size: IoasAlloc, IoasMap, IoasUnmap);

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    OpenOptions::new().read(true).write(true).open(path).map(OwnedFd::from)
}

/// A call whose argument is a number, or nothing.
pub(super) fn plain(fd: impl AsFd, request: Ioctl, value: c_int) -> io::Result<c_int> {
    // SAFETY: the requests that are made this way take their argument by value, or none.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, value as libc::c_ulong) })
}

/// A call that takes a structure, and may answer in it.
pub(super) fn call<T: Sized32>(fd: impl AsFd, request: Ioctl, argument: T) -> io::Result<T> {
    let mut argument = argument.sized();
    // SAFETY: the kernel touches no more than the length in the first field, which is the structure's, and it outlives the call.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw mut argument) })?;
    Ok(argument)
}

/// Puts a group into a container.
pub(super) fn set_container(group: impl AsFd, container: impl AsFd) -> io::Result<()> {
    let container: c_int = container.as_fd().as_raw_fd();
    // SAFETY: the call reads one integer through the pointer.
    check(unsafe { libc::ioctl(group.as_fd().as_raw_fd(), abi::GROUP_SET_CONTAINER, &raw const container) }).map(drop)
}

/// The device of a group by its name.
pub(super) fn device_of(group: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: the call reads a string that ends with NUL and lives across the call.
    let fd = check(unsafe { libc::ioctl(group.as_fd().as_raw_fd(), abi::GROUP_GET_DEVICE_FD, name.as_ptr()) })?;
    // SAFETY: the kernel just returned this descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A call whose answer grows with what there is to say: the structure, then capabilities. `start` is the structure as bytes, its
/// first field anything.
fn growing(fd: impl AsFd, request: Ioctl, start: &[u8]) -> io::Result<Vec<u8>> {
    let mut answer = start.to_vec();
    // The kernel says how much it would have written: asked again with as much room, unless that has grown as well.
    for _ in 0..4 {
        let len = answer.len();
        answer[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        // SAFETY: the kernel touches no more than the length in the first field, which is the buffer's, and it outlives the call.
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

/// What a container can map, and the answer's bytes.
pub(super) fn iommu_info(container: impl AsFd) -> io::Result<(abi::IommuInfo, Vec<u8>)> {
    let answer = growing(container, abi::IOMMU_GET_INFO, &[0; size_of::<abi::IommuInfo>()])?;
    let word = |at| abi::u32_at(&answer, at).unwrap_or(0);
    let page_sizes = abi::u64_at(&answer, 8).unwrap_or(0);
    let info = abi::IommuInfo { argsz: word(0), flags: word(4), page_sizes, cap_offset: word(16), pad: 0 };
    Ok((info, answer))
}

/// Where a region of a device lies in its file, and the answer's bytes.
pub(super) fn region_info(device: impl AsFd, index: u32) -> io::Result<(abi::RegionInfo, Vec<u8>)> {
    let mut start = [0; size_of::<abi::RegionInfo>()];
    start[8..12].copy_from_slice(&index.to_ne_bytes());
    let answer = growing(device, abi::DEVICE_GET_REGION_INFO, &start)?;
    let word = |at| abi::u32_at(&answer, at).unwrap_or(0);
    let long = |at| abi::u64_at(&answer, at).unwrap_or(0);
    let (size, offset) = (long(16), long(24));
    let info = abi::RegionInfo { argsz: word(0), flags: word(4), index, cap_offset: word(12), size, offset };
    Ok((info, answer))
}

/// Wires `fds` to the first interrupts of a kind; with none, takes the interrupts away.
pub(super) fn set_irqs(device: impl AsFd, index: u32, fds: &[c_int]) -> io::Result<()> {
    let data = if fds.is_empty() { abi::IRQ_NONE } else { abi::IRQ_EVENTFD };
    let len = abi::size::<abi::IrqSet>() + 4 * fds.len() as u32;
    let header = [len, data | abi::IRQ_TRIGGER, index, 0, fds.len() as u32];
    let words = header.into_iter().chain(fds.iter().map(|&fd| fd.cast_unsigned()));
    let message: Vec<u32> = words.collect();
    // SAFETY: the kernel reads as many bytes as the first field says, which is what was gathered one line above.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), abi::DEVICE_SET_IRQS, message.as_ptr()) }).map(drop)
}

/// The addresses that an I/O address space offers.
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
        // SAFETY: the kernel touches the structure, and at most `num_iovas` entries of the array, both alive across the call.
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

/// Memory of a device in our address space, taken away on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned until drop; what it is used for are volatile accesses to registers, which need no exclusivity.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a device's file.
    pub(super) fn new(device: impl AsFd, offset: u64, len: usize) -> io::Result<Mapping> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, device.as_fd().as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, offset) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(at.cast()).map(|at| Mapping { at, len }).ok_or_else(|| io::Error::other("mapped at address zero"))
    }

    pub(super) fn at(&self) -> NonNull<u8> {
        self.at
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: address and length are those that mmap returned, and every user of the mapping holds it alive.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// An eventfd that does not block.
pub(super) fn eventfd() -> io::Result<File> {
    // SAFETY: eventfd takes no pointer.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: the kernel just returned this descriptor and nobody else has it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Keeps memory from children of this process, for good. They would share its pages until one side writes, and then the device
/// might be left with the other copy.
pub(super) fn keep_from_children(at: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: this advice changes neither the contents of the memory nor where it is, for this process.
    check(unsafe { libc::madvise(at.as_ptr().cast(), len, libc::MADV_DONTFORK) }).map(drop)
}

/// Keeps memory from being swapped out, and makes it present.
pub(super) fn lock(at: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: locking changes neither the contents of the memory nor where it is, for this process.
    check(unsafe { libc::mlock(at.as_ptr().cast(), len) }).map(drop)
}

/// Undoes [`lock`].
pub(super) fn unlock(at: NonNull<u8>, len: usize) {
    // SAFETY: as for mlock.
    unsafe { libc::munlock(at.as_ptr().cast(), len) };
}

pub(super) fn page_size() -> usize {
    // SAFETY: sysconf takes no pointer.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Bytes that this process may lock in memory; `None` where it is not bounded.
pub(super) fn memlock() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure, which lives across it.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    (got && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
