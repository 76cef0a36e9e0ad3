//! A memfd's seals, identity, the size of its pages, and which of them exist.

use super::check;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

/// Most waits of [`settle`], and most attempts to see a fine clock: a tick of the coarse clock is
/// over after the first one.
const MAX_TICKS: usize = 4;

/// The seals of a memfd (`F_GET_SEALS`). No file system is asked: any other file is an error at
/// once, where `fstat(2)` waits for a file system that does not answer.
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
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Length of a file in bytes, and the unit in which it is mapped: more than a page for huge pages.
///
/// # Errors
/// The error of `fstat(2)` or `fstatfs(2)`.
pub fn size(fd: BorrowedFd<'_>) -> io::Result<(u64, usize)> {
    let (stat, huge) = (fstat(fd)?, is_huge(fd)?);
    let unit = if huge { usize::try_from(stat.st_blksize).unwrap_or(0) } else { 0 };
    Ok((u64::try_from(stat.st_size).unwrap_or(0), unit.max(crate::mmap::page_size())))
}

fn fstat(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    // SAFETY: stat is plain data; all zeroes are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives across the call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) })?;
    Ok(stat)
}

/// The time of a file's last change, as the kernel keeps it: no system call sets it. A memfd
/// changes when pages are freed (`fallocate`, `madvise`), by `write`, and when its length changes.
/// A write to a mapping changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeTime {
    seconds: i64,
    nanoseconds: i64,
}

/// When a memfd last changed.
///
/// # Errors
/// The error of `fstat(2)`.
pub fn changed(fd: BorrowedFd<'_>) -> io::Result<ChangeTime> {
    let stat = fstat(fd)?;
    Ok(ChangeTime { seconds: stat.st_ctime, nanoseconds: stat.st_ctime_nsec })
}

/// Waits until a later change has a later [`ChangeTime`] than `last`: not at all since Linux 6.13,
/// which takes the time of a change from a fine clock if the time before it was read. Earlier
/// kernels take it from a coarse one; the wait is at most a few of its ticks.
pub fn settle(last: ChangeTime) {
    static FINE: OnceLock<bool> = OnceLock::new();
    if !*FINE.get_or_init(|| (0..MAX_TICKS).any(|_| has_fine_times().unwrap_or(false))) {
        wait_for_tick(last);
    }
}

/// Whether the time of a change that was made just now is ahead of the coarse clock: false too if a
/// tick came in between.
fn has_fine_times() -> io::Result<bool> {
    // SAFETY: the name is a string with a terminating zero; the descriptor is new.
    let file =
        unsafe { OwnedFd::from_raw_fd(check(libc::memfd_create(c"towpath-times".as_ptr(), libc::MFD_CLOEXEC))?) };
    let resize = |len| {
        // SAFETY: no pointers.
        check(unsafe { libc::ftruncate(file.as_raw_fd(), len) })?;
        changed(file.as_fd())
    };
    resize(1)?;
    let time = resize(2)?;
    Ok(coarse_now().is_some_and(|now| time > now))
}

fn coarse_now() -> Option<ChangeTime> {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the structure lives across the call, which fills it if it succeeds.
    let now = unsafe {
        (libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, now.as_mut_ptr()) == 0).then(|| now.assume_init())
    }?;
    Some(ChangeTime { seconds: now.tv_sec, nanoseconds: now.tv_nsec })
}

fn wait_for_tick(last: ChangeTime) {
    for _ in 0..MAX_TICKS {
        if coarse_now().is_none_or(|now| now > last) {
            return;
        }
        std::thread::sleep(Duration::from_millis(4));
    }
}

/// The first byte without a page; the length of the file if all pages exist. A page that was
/// reserved (`fallocate`) and not written to counts as missing.
///
/// # Errors
/// The error of `lseek(2)`.
pub fn first_hole(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: no pointers.
    let hole = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_HOLE) };
    u64::try_from(hole).map_err(|_| io::Error::last_os_error())
}

/// Frees the pages of the first `len` bytes, which read as zeroes then.
///
/// # Errors
/// The error of `fallocate(2)`: `EPERM` if the file is sealed against writes.
pub fn free_pages(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no pointers.
    check(unsafe { libc::fallocate(fd.as_raw_fd(), how, 0, len as libc::off_t) }).map(drop)
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
    use towpath_testing::sealed_memory;

    fn memfd(len: i64) -> OwnedFd {
        // SAFETY: the name ends with a zero; the descriptor is new.
        unsafe {
            let fd = OwnedFd::from_raw_fd(libc::memfd_create(c"t".as_ptr(), libc::MFD_CLOEXEC));
            assert_eq!(libc::ftruncate(fd.as_raw_fd(), len), 0);
            fd
        }
    }

    #[test]
    fn only_files_in_memory_have_seals() {
        assert_eq!(seals(sealed_memory(4096).as_fd()).unwrap(), libc::F_SEAL_SHRINK);
        let other = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(seals(other.as_fd()).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn pages_that_were_freed_are_missing_and_the_file_has_changed() {
        let (file, len) = (memfd(1 << 16), 1 << 16);
        assert_eq!(first_hole(file.as_fd()).unwrap(), 0, "no page was written to");
        let memory = crate::Mmap::shared(file.as_fd(), 0, len).unwrap();
        memory.populate().unwrap();
        assert_eq!(first_hole(file.as_fd()).unwrap(), len as u64);
        let before = changed(file.as_fd()).unwrap();
        settle(before);
        // SAFETY: the byte lies inside, and nothing else refers to it.
        unsafe { memory.base().write(1) };
        assert_eq!(changed(file.as_fd()).unwrap(), before, "a write to a mapping is no change");
        free_pages(file.as_fd(), 1 << 12).unwrap();
        assert_eq!(first_hole(file.as_fd()).unwrap(), 0);
        assert!(changed(file.as_fd()).unwrap() > before);
        memory.populate().unwrap();
        assert!(changed(file.as_fd()).unwrap() > before, "whole again, and still changed");
    }

    #[test]
    fn a_change_behind_the_wait_has_a_later_time_and_so_has_the_coarse_clock_of_earlier_kernels() {
        let file = memfd(1 << 12);
        for _ in 0..50 {
            let before = changed(file.as_fd()).unwrap();
            settle(before);
            free_pages(file.as_fd(), 1 << 12).unwrap();
            let last = changed(file.as_fd()).unwrap();
            assert!(last > before);
            wait_for_tick(last);
            assert!(coarse_now().unwrap() > last);
        }
    }
}
