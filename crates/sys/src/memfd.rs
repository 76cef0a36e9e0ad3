//! A memfd's identity and the size of its pages.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Device and inode of a file: equal if two descriptors refer to the same file.
///
/// # Errors
/// The error of `fstat(2)`.
pub fn identity(fd: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    // SAFETY: stat is plain data; all zeroes are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives across the call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) })?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Whether a memfd consists of huge pages. A touch of a huge page raises `SIGBUS` if the system has
/// none left.
///
/// # Errors
/// The error of `fstatfs(2)`.
pub fn is_huge(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: statfs is plain data; all zeroes are a value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives across the call.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), &mut stat) })?;
    Ok(stat.f_type == libc::HUGETLBFS_MAGIC)
}
