//! The machine's memory, shared with QEMU.
//!
//! ```text
//!   memfd   0 ──── 1 MiB ──────────────────────────── len       offset = guest-physical address, up to 2 GiB
//!           │ holes │ Region │ free │ Region │ free ...          each Region a mapping of its own in this process
//! ```
//!
//! Which pieces are in use is written down nowhere but in the kernel: a piece is in use while some mapping of this process shows
//! it (`/proc/self/maps`). So a [`Region`] that is dropped is free again, one that was leaked (because a device may still
//! reach it) never is, and an address that is given to a device is looked up, not believed. None of this happens per packet.

use crate::dma::MapError;
use crate::vtd::{Memory, Stretch};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_packet::Region;

/// Below lie the legacy holes of a PC (video memory, ROMs): not all of it is memory for a device.
pub(super) const LOWEST: u64 = 1 << 20;

/// Up to here q35 puts memory in one piece from address zero on (`hw/i386/pc_q35.c`: at least 2 GiB below 4 GiB).
const HIGHEST: u64 = 2 << 30;

const PAGE: u64 = 4096;

/// Pieces of at least that size begin at multiples of it, so that they can be mapped with large pages.
const LARGE: u64 = 2 << 20;

/// Memory that a machine's devices can reach; a clone is another handle of the same.
#[derive(Debug, Clone)]
pub struct Ram(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    memfd: OwnedFd,
    len: u64,
    /// Device and inode, as `/proc/self/maps` prints them.
    identity: (u32, u32, u64),
    /// Held from looking for a free piece until it is mapped.
    allocating: Mutex<()>,
}

/// A mapping of the memory in this process.
struct View {
    at: usize,
    len: usize,
    offset: u64,
}

impl Ram {
    /// The memory behind a sealed memfd.
    pub(super) fn new(memfd: OwnedFd) -> io::Result<Ram> {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the pointer is to a stat-sized buffer that lives across the call.
        if unsafe { libc::fstat(memfd.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fstat returned 0, so the kernel filled the whole structure.
        let stat = unsafe { stat.assume_init() };
        let identity = (libc::major(stat.st_dev), libc::minor(stat.st_dev), stat.st_ino);
        let len = (stat.st_size as u64).min(HIGHEST);
        Ok(Ram(Arc::new(Shared { memfd, len, identity, allocating: Mutex::new(()) })))
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether there is none that a device could use.
    pub fn is_empty(&self) -> bool {
        self.len() <= LOWEST
    }

    fn views(&self) -> io::Result<Vec<View>> {
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        Ok(maps.lines().filter_map(|line| view(line, self.0.identity)).collect())
    }

    /// First free piece; `views` in any order.
    fn free(&self, mut views: Vec<View>, len: u64) -> Option<u64> {
        views.sort_by_key(|view| view.offset);
        let align = if len >= LARGE { LARGE } else { PAGE };
        let mut at = LOWEST.next_multiple_of(align);
        for view in views {
            if view.offset >= at.checked_add(len)? {
                break;
            }
            at = at.max((view.offset + view.len as u64).next_multiple_of(align));
        }
        (at.checked_add(len)? <= self.0.len).then_some(at)
    }
}

impl Memory for Ram {
    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        let os = |step| move |source| MapError::Os { step, source };
        let wanted = (len as u64).checked_next_multiple_of(PAGE).filter(|&l| l > 0).ok_or(MapError::Range { len })?;
        let region = {
            let _allocating = self.0.allocating.lock().unwrap_or_else(PoisonError::into_inner);
            let views = self.views().map_err(os("/proc/self/maps"))?;
            let at = self.free(views, wanted).ok_or(MapError::Range { len })?;
            let memfd = self.0.memfd.as_fd().try_clone_to_owned().map_err(os("dup"))?;
            Region::from_memfd_at(memfd, at as usize, wanted as usize)?
        };
        // SAFETY: the region was mapped just now, so it has `len` bytes and nobody else uses them: no other mapping of this
        // process shows them, and devices only reach memory that was mapped for them.
        unsafe { region.base().write_bytes(0, region.len()) };
        Ok(region)
    }

    fn locate(&self, at: NonNull<u8>, len: usize) -> Result<Stretch, MapError> {
        let at = at.addr().get();
        let views = self.views().map_err(|source| MapError::Os { step: "/proc/self/maps", source })?;
        let view = views
            .iter()
            .find(|view| at.checked_sub(view.at).is_some_and(|into| into <= view.len && len <= view.len - into));
        let view = view.filter(|view| view.offset + view.len as u64 <= self.0.len).ok_or(MapError::Foreign)?;
        Ok(Stretch { at: view.at, len: view.len, physical: view.offset })
    }
}

/// A line of `/proc/self/maps` (`proc_pid_maps(5)`): `7f00-7f10 rw-s 00100000 00:01 1234  /memfd:…`, if it is of that file.
fn view(line: &str, identity: (u32, u32, u64)) -> Option<View> {
    let mut fields = line.split_ascii_whitespace();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (from, to) = fields.next()?.split_once('-')?;
    let (from, to) = (hex(from)? as usize, hex(to)? as usize);
    let offset = hex(fields.nth(1)?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = fields.next()?.parse().ok()?;
    ((device.0, device.1, inode) == identity).then_some(View { at: from, len: to.checked_sub(from)?, offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::Backing;

    fn ram(len: usize) -> Ram {
        let whole = Region::new(len, Backing::Memfd).unwrap();
        Ram::new(whole.fd().unwrap().try_clone_to_owned().unwrap()).unwrap()
    }

    fn place(ram: &Ram, region: &Region) -> u64 {
        let stretch = ram.locate(region.base(), region.len()).unwrap();
        stretch.physical + (region.base().addr().get() - stretch.at) as u64
    }

    #[test]
    fn pieces_are_zeroed_do_not_overlap_and_lie_above_the_holes() {
        let ram = ram(4 << 20);
        let pieces: Vec<Region> = (0..20).map(|i| ram.alloc(1 + i * 1000).unwrap()).collect();
        let mut places: Vec<(u64, usize)> = pieces.iter().map(|p| (place(&ram, p), p.len())).collect();
        places.sort_unstable();
        assert!(places[0].0 >= LOWEST);
        assert!(places.windows(2).all(|w| w[0].0 + w[0].1 as u64 <= w[1].0), "{places:?}");
        // SAFETY: the piece is the test's own.
        assert_eq!(unsafe { pieces[0].base().read() }, 0);
    }

    #[test]
    fn a_piece_is_free_again_when_its_region_is_gone_and_never_when_it_was_leaked() {
        let ram = ram(2 << 20);
        let half = || ram.alloc(512 << 10);
        let (first, second) = (half().unwrap(), half().unwrap());
        assert!(matches!(half(), Err(MapError::Range { len: 524288 })));
        // SAFETY: the piece is the test's own.
        unsafe { first.base().write(7) };
        drop(first);
        let again = half().unwrap();
        // SAFETY: the piece is the test's own.
        assert_eq!(unsafe { again.base().read() }, 0, "what is used again is zeroed");
        std::mem::forget(again);
        drop(second);
        drop(half().unwrap());
        assert!(ram.alloc(1 << 20).is_err(), "half of it is leaked");
    }

    #[test]
    fn large_pieces_are_aligned_to_large_pages() {
        let ram = ram(16 << 20);
        let _small = ram.alloc(4096).unwrap();
        let large = ram.alloc(3 << 20).unwrap();
        assert_eq!(place(&ram, &large) % LARGE, 0);
    }

    #[test]
    fn other_memory_and_more_than_a_piece_are_foreign() {
        let ram = ram(2 << 20);
        let ours = ram.alloc(8192).unwrap();
        let other = Region::new(4096, Backing::Memfd).unwrap();
        assert!(matches!(ram.locate(other.base(), 4096), Err(MapError::Foreign)));
        assert!(matches!(ram.locate(ours.base(), 64 << 20), Err(MapError::Foreign)));
        let base = ours.base();
        drop(ours);
        assert!(matches!(ram.locate(base, 4096), Err(MapError::Foreign)), "an address that was ours once");
        assert!(ram.alloc(0).is_err() && ram.alloc(usize::MAX).is_err());
    }
}
