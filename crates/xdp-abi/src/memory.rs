//! A program's own memory, made one that can be shared, where it stands.
//!
//! ```text
//!   before    [ private, anonymous pages ]        what posix_memalign, malloc or mmap gave
//!   share     copied into a memfd, which is then mapped over them: same addresses, same bytes
//!   after     [ pages of a sealed memfd ] ◄────── the datapath maps it too
//!   give back copied into private pages, which are moved over the memfd's: same addresses, same bytes
//! ```
//!
//! So pointers into the memory stay good, and `free` gets back what `malloc` gave. Only private anonymous memory can be replaced without
//! anybody noticing: what is shared with another process, or shows a file, would silently part from it. Who knows that nobody looks
//! from the other side (DPDK's `--no-huge` maps a memfd that only it has) says so with `TOWPATH_XDP_UMEM=replace`.
//!
//! While memory is shared, other addresses of the same pages (`io_uring`'s registered buffers, pinned pages) show what was before.

use crate::failure::{Failure, failure, system};
use crate::maps::{self, Mapping};
use crate::place::setting;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use towpath_packet::{Backing, Region};

/// Memory that is shared until it is given back.
#[derive(Debug)]
pub(crate) struct Memory {
    range: Range<usize>,
    file: OwnedFd,
    inode: u64,
}

/// Why the memory can't be replaced, if it can't.
fn refuse(mapping: &Mapping, replace: bool) -> Option<Failure> {
    let Mapping { mode, name, inode, .. } = mapping;
    if !mode.starts_with("rw") {
        return Some(failure(libc::EFAULT, format!("the memory can't be read and written: {mode} {name}")));
    }
    // Huge pages of nobody's file have a name and a number.
    let anonymous = (*inode == 0 && !name.starts_with("[stack")) || name.starts_with("/anon_hugepage");
    let unnamed = name.starts_with("/memfd:") || name.starts_with("/dev/zero");
    if mode.contains('x') || !(mode.ends_with('p') && anonymous || replace && unnamed) {
        let hint = if unnamed { "; if nobody else looks at it, say TOWPATH_XDP_UMEM=replace" } else { "" };
        let why = format!("only private anonymous memory can be shared, not {mode} {name}{hint}");
        return Some(failure(libc::EOPNOTSUPP, why));
    }
    None
}

impl Memory {
    /// Makes the pages of the memory ones that can be shared: as with the kernel, the last one wholly.
    ///
    /// # Errors
    /// `EINVAL` for memory that does not begin with a page, `EFAULT` for what is not mapped, readable and writable, `EOPNOTSUPP` for what is not
    /// private and anonymous, and what the system says.
    ///
    /// # Safety
    /// The pages are the caller's, nobody else touches them during the call, and no reference into it exists in Rust.
    pub(crate) unsafe fn share(at: *mut u8, len: usize) -> Result<Memory, Failure> {
        // SAFETY: no pointers.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let start = at as usize;
        let whole = len.checked_next_multiple_of(page).filter(|_| len > 0 && start.is_multiple_of(page));
        let Some(len) = whole else {
            return Err(failure(libc::EINVAL, format!("{len} bytes at {at:p}: the memory must begin with a page")));
        };
        let range = start..start.checked_add(len).ok_or_else(|| failure(libc::EFAULT, "more memory than there is"))?;
        let now = maps::over(&range).map_err(|error| failure(libc::ENOSYS, format!("/proc/self/maps: {error}")))?;
        if !maps::cover(&now, &range) {
            return Err(failure(libc::EFAULT, format!("{len} bytes at {at:p} are not all mapped")));
        }
        let replace = setting("TOWPATH_XDP_UMEM").is_some_and(|how| how == "replace");
        if let Some(why) = now.iter().find_map(|mapping| refuse(mapping, replace)) {
            return Err(why);
        }
        let memory = |error: &dyn std::fmt::Display| failure(libc::ENOMEM, error.to_string());
        let region = Region::new(len, Backing::Memfd).map_err(|error| memory(&error))?;
        let file = region.fd().ok_or_else(|| memory(&"memory without a descriptor"))?;
        let file = file.try_clone_to_owned().map_err(|error| memory(&error))?;
        let inode = inode(file.as_fd())?;
        // SAFETY: the source is mapped and readable, as was just seen, and the caller promises that nobody touches it; the region is
        // as long, fresh, and elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(at, region.base().as_ptr(), len) };
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the range is wholly the caller's memory, and its bytes stay the same: they were just copied.
        let mapped = unsafe { libc::mmap(at.cast(), len, protection, flags, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            return Err(system("mapping shared pages over the memory"));
        }
        Ok(Memory { range, file, inode })
    }

    /// What to hand to the datapath.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Makes the memory private again, if the program has not unmapped it.
    fn give_back(&self) -> Result<(), Failure> {
        let now = maps::over(&self.range).map_err(|error| failure(libc::ENOSYS, error.to_string()))?;
        let ours = |m: &Mapping| {
            m.inode == self.inode
                && m.name.starts_with("/memfd:")
                // The same place of the file: nobody has mapped it there on his own.
                && m.range.start as u64 == self.range.start as u64 + m.offset
        };
        if !maps::cover(&now, &self.range) || !now.iter().all(ours) {
            return Ok(());
        }
        let (at, len) = (self.range.start as *mut u8, self.range.len());
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let fresh = unsafe { libc::mmap(null_mut(), len, protection, flags, -1, 0) };
        if fresh == libc::MAP_FAILED {
            return Err(system("private pages for the memory"));
        }
        // SAFETY: the source is still our mapping, as was just seen; the fresh pages are as many, and elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(at, fresh.cast(), len) };
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both ranges are whole mappings of ours, and the bytes at the target stay the same.
        if unsafe { libc::mremap(fresh, len, len, flags, at) } == libc::MAP_FAILED {
            let why = system("moving private pages over the memory");
            // SAFETY: the pages were mapped above and are known to nobody.
            unsafe { libc::munmap(fresh, len) };
            return Err(why);
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // What can't be made private again stays as it is, which harms nobody: the datapath has lost its sessions.
        let _ = self.give_back();
    }
}

fn inode(file: BorrowedFd<'_>) -> Result<u64, Failure> {
    // SAFETY: stat is plain data; all zeroes are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives across the call.
    match unsafe { libc::fstat(file.as_raw_fd(), &mut stat) } {
        0 => Ok(stat.st_ino),
        _ => Err(system("fstat")),
    }
}

#[cfg(test)]
mod tests;
