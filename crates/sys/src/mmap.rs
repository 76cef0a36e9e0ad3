//! Mappings (`mmap(2)`): made at an address that the kernel chooses, unmapped on drop.

use super::check;
use crate::sigbus::Guard;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};

/// Memory that is mapped readable and writable, until drop.
///
/// It gives out addresses, never references: its users decide which code reads and writes which
/// bytes.
#[derive(Debug)]
pub struct Mmap {
    base: NonNull<u8>,
    len: usize,
    guard: Option<Guard>,
}

// SAFETY: an address range that is owned until drop; all access goes through raw pointers whose
// users establish their own exclusivity.
unsafe impl Send for Mmap {}
// SAFETY: as for Send; `&Mmap` gives out nothing but addresses and lengths.
unsafe impl Sync for Mmap {}

impl Mmap {
    /// Maps `len` bytes of private zeroed memory, of reserved huge pages if `huge`.
    ///
    /// # Errors
    /// The error of `mmap(2)`.
    pub fn anonymous(len: usize, huge: bool) -> io::Result<Mmap> {
        let huge = if huge { libc::MAP_HUGETLB } else { 0 };
        Mmap::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | huge, -1, 0)
    }

    /// Maps `len` bytes of a file, a device or a socket from `offset` on, shared.
    ///
    /// # Errors
    /// The error of `mmap(2)`; an offset beyond its range.
    pub fn shared(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Mmap> {
        Mmap::map(len, libc::MAP_SHARED, fd.as_raw_fd(), offset)
    }

    /// As [`shared`](Mmap::shared), with all pages present before it returns.
    ///
    /// # Errors
    /// As [`shared`](Mmap::shared).
    pub fn populated(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Mmap> {
        Mmap::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    /// Maps the first `len` bytes of a file in memory that another process can truncate: bytes that
    /// are gone read as zeroes, and [`is_lost`](Mmap::is_lost) is true then. No object of this
    /// program may lie in the mapping.
    ///
    /// # Errors
    /// The error of `mmap(2)` or `sigaction(2)`; `OutOfMemory` if there are 4096 such mappings.
    pub fn guarded(fd: BorrowedFd<'_>, len: usize) -> io::Result<Mmap> {
        let mut mapping = Mmap::shared(fd, 0, len)?;
        mapping.guard = Some(Guard::new(mapping.base.addr().get(), len)?);
        Ok(mapping)
    }

    /// Whether bytes of a [guarded](Mmap::guarded) mapping were accessed that are gone. It no
    /// longer shows the file.
    pub fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int, offset: u64) -> io::Result<Mmap> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset) };
        match NonNull::new(at.cast()) {
            Some(base) if at != libc::MAP_FAILED => Ok(Mmap { base, len, guard: None }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The first byte; page-aligned.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)] // the kernel refuses an empty mapping
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of `offset`, if `offset + len` lies inside.
    #[inline]
    pub fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: offset <= end <= self.len, so the address stays inside the mapping (or one past
        // its end).
        (end <= self.len).then(|| unsafe { self.base.add(offset) })
    }

    /// Makes all pages exist, as a write to each of them would. They count against the memory of
    /// this process.
    ///
    /// # Errors
    /// The error of `madvise(2)`: `ENOMEM` or `EFAULT` if there is not enough memory.
    pub fn populate(&self) -> io::Result<()> {
        // SAFETY: the whole mapping, and its bytes stay as they are.
        check(unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_POPULATE_WRITE) }).map(drop)
    }

    /// Asks for transparent huge pages. A kernel without them refuses, and nothing changes.
    pub fn advise_huge(&self) {
        // SAFETY: the range is exactly this mapping; the advice never changes its contents.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
    }
}

impl Drop for Mmap {
    fn drop(&mut self) {
        // Before another mapping can get the addresses.
        self.guard = None;
        // SAFETY: base and len are those that mmap returned; every user of the memory keeps this
        // value alive.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Bytes of a page.
pub fn page_size() -> usize {
    // SAFETY: sysconf takes no pointer.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
