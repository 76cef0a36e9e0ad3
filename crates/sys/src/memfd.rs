//! A memfd's seals, identity and the size of its pages.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The seals of a memfd (`F_GET_SEALS`). No file system is asked: any other file is an error at once,
/// where `fstat(2)` waits for a file system that does not answer.
///
/// # Errors
/// `EINVAL` for a file that is not in memory, `EBADF` for a descriptor of `O_PATH`.
pub fn seals(fd: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use towpath_testing::sealed_memory;

    #[test]
    fn only_files_in_memory_have_seals() {
        assert_eq!(seals(sealed_memory(4096).as_fd()).unwrap(), libc::F_SEAL_SHRINK);
        let other = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(seals(other.as_fd()).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
