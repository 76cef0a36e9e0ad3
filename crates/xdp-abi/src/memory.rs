//! A program's own memory, which becomes shareable at its own addresses.
//!
//! ```text
//!   before    [ private, anonymous pages ]        what posix_memalign, malloc or mmap gave
//!   share     copied into a memfd, which is then mapped over them: same addresses and bytes
//!   after     [ pages of a sealed memfd ] ◄────── the datapath maps it too
//!   drop      copied into private pages, which move over the memfd's: same addresses and bytes
//! ```
//!
//! Pointers into the memory stay valid, and `free` gets what `malloc` returned. Only private
//! anonymous memory can be replaced without harm: memory that is shared with another process, or
//! that shows a file, would silently differ from what the other side sees. A user who knows that
//! there is no other side (DPDK's `--no-huge` maps a memfd that only DPDK has) sets
//! `TOWPATH_XDP_UMEM=replace`.
//!
//! While memory is shared, other references to the same pages (`io_uring`'s registered buffers,
//! pinned pages) show the old pages.

use crate::endpoint::setting;
use crate::failure::{Failure, failure, os, system};
use crate::maps::{self, Mapping};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use towpath_packet::{Backing, Region};
use towpath_sys::memfd;
use towpath_sys::mmap::{Mmap, page_size};

/// ProgramMemory that is shared until it is dropped.
#[derive(Debug)]
pub(crate) struct ProgramMemory {
    range: Range<usize>,
    file: OwnedFd,
    inode: u64,
}

/// The name of a mapping of anonymous huge pages.
const HUGE: &str = "/anon_hugepage";

/// Why the memory can't be replaced; `None` if it can.
fn refuse(mapping: &Mapping, replace: bool) -> Option<Failure> {
    let Mapping { mode, name, inode, .. } = mapping;
    if !mode.starts_with("rw") {
        return Some(failure(libc::EFAULT, format!("the memory can't be read and written: {mode} {name}")));
    }
    // Anonymous huge pages have a name and an inode.
    let anonymous = (*inode == 0 && !name.starts_with("[stack")) || name.starts_with(HUGE);
    let unnamed = name.starts_with("/memfd:") || name.starts_with("/dev/zero");
    if mode.contains('x') || !(mode.ends_with('p') && anonymous || replace && unnamed) {
        let hint = if unnamed { "; if no other process uses it, set TOWPATH_XDP_UMEM=replace" } else { "" };
        let why = format!("only private anonymous memory can be shared, not {mode} {name}{hint}");
        return Some(failure(libc::EOPNOTSUPP, why));
    }
    None
}

/// Bytes of a usual huge page.
const HUGE_PAGE: usize = 2 << 20;

/// The end of the page in which memory ends: a mapping can't begin inside of a huge page.
fn whole_end(mappings: &[Mapping], end: usize) -> usize {
    match mappings.last() {
        Some(last) if last.name.starts_with(HUGE) && last.range.contains(&end) => {
            end.next_multiple_of(HUGE_PAGE).min(last.range.end)
        }
        _ => end,
    }
}

impl ProgramMemory {
    /// Makes the pages of the memory shareable; as with the kernel, the whole last page, which may
    /// be a huge one.
    ///
    /// # Errors
    /// `EINVAL` for memory that does not begin at a page; `EFAULT` for memory that is not mapped,
    /// readable and writable; `EOPNOTSUPP` for memory that is not private and anonymous; the errors
    /// of the system calls.
    ///
    /// # Safety
    /// The pages are the caller's, no other thread accesses them during the call, and no Rust
    /// reference into them exists.
    pub(crate) unsafe fn share(at: *mut u8, len: usize) -> Result<ProgramMemory, Failure> {
        let page = page_size();
        let start = at as usize;
        let whole = len.checked_next_multiple_of(page).filter(|_| len > 0 && start.is_multiple_of(page));
        let Some(len) = whole else {
            return Err(failure(libc::EINVAL, format!("{len} bytes at {at:p}: the memory must begin with a page")));
        };
        let range = start..start.checked_add(len).ok_or_else(|| failure(libc::EFAULT, "more memory than there is"))?;
        let now = maps::over(&range).map_err(|error| failure(libc::ENOSYS, format!("/proc/self/maps: {error}")))?;
        let range = range.start..whole_end(&now, range.end);
        let len = range.len();
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
        let (_, inode) = memfd::identity(file.as_fd()).map_err(|error| os("fstat", &error))?;
        // SAFETY: the checks above show that the source is mapped and readable, and the caller
        // promises that no other thread accesses it; the region is new, of the same length, and
        // elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(at, region.base().as_ptr(), len) };
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the whole range is the caller's memory, and its bytes stay the same: they were
        // copied.
        let mapped = unsafe { libc::mmap(at.cast(), len, protection, flags, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            return Err(system("mapping shared pages over the memory"));
        }
        Ok(ProgramMemory { range, file, inode })
    }

    /// The memfd for the datapath.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Makes the memory private again, unless the program has unmapped it.
    fn give_back(&self) -> Result<(), Failure> {
        let now = maps::over(&self.range).map_err(|error| failure(libc::ENOSYS, error.to_string()))?;
        let ours = |m: &Mapping| {
            m.inode == self.inode
                && m.name.starts_with("/memfd:")
                // The same offset in the file: the program did not map the file there itself.
                && m.range.start as u64 == self.range.start as u64 + m.offset
        };
        if !maps::cover(&now, &self.range) || !now.iter().all(ours) {
            return Ok(());
        }
        let (at, len) = (self.range.start as *mut u8, self.range.len());
        let fresh = Mmap::anonymous(len, false).map_err(|error| os("private pages for the memory", &error))?;
        let from = fresh.base().as_ptr();
        // SAFETY: the check above shows that the source is still this mapping; the new pages have
        // the same length, and are elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(at, from, len) };
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both ranges are whole mappings that this function or this value owns, and the
        // bytes at the target stay the same.
        if unsafe { libc::mremap(from.cast(), len, len, flags, at) } == libc::MAP_FAILED {
            return Err(system("moving private pages over the memory"));
        }
        // The pages are at the target now.
        std::mem::forget(fresh);
        Ok(())
    }
}

impl Drop for ProgramMemory {
    fn drop(&mut self) {
        // ProgramMemory that can't become private again stays shared, with a datapath that has no
        // session over it.
        let _ = self.give_back();
    }
}

#[cfg(test)]
mod tests;
