//! The machine's memory, shared with QEMU.
//!
//! ```text
//!   memfd   0 ──── 1 MiB ──────────────────────────── len
//!           │ holes │ Region │ free │ Region │ free ...
//! ```
//!
//! An offset in the file is a guest-physical address, up to 2 GiB. Each [`Region`] is a mapping in
//! this process.
//!
//! The kernel is the only record of allocations: a range is in use while a mapping of this process
//! covers it (`/proc/self/maps`). A [`Region`] that is dropped is therefore free again. One that
//! was leaked, because a device may still reach it, never is. An address that is passed to a device
//! is looked up, not trusted. None of this happens per packet.

use crate::dma::MapError;
use crate::vtd::{PhysMemory, PhysRange};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_packet::Region;

/// The legacy holes of a PC (video memory, ROMs) are below: not all of that range is memory for a
/// device.
pub(super) const LOWEST: u64 = 1 << 20;

/// q35 has contiguous memory from address zero up to here (`hw/i386/pc_q35.c`: at least 2 GiB below
/// 4 GiB).
const HIGHEST: u64 = 2 << 30;

const PAGE: u64 = 4096;

/// Allocations of at least this size are aligned to it, so that they can be mapped with large
/// pages.
const LARGE: u64 = 2 << 20;

/// The memory of a machine; a clone is another handle of the same.
#[derive(Debug, Clone)]
pub struct Ram(Arc<RamInner>);

#[derive(Debug)]
struct RamInner {
    memfd: File,
    /// `/proc/self/maps`, kept open: a sandbox may allow no file to be opened.
    maps: Mutex<File>,
    len: u64,
    /// Device and inode, as `/proc/self/maps` prints them.
    identity: (u32, u32, u64),
    /// Held from the search for a free range until it is mapped.
    allocating: Mutex<()>,
}

/// A mapping of the memory in this process.
struct Mapping {
    at: usize,
    len: usize,
    offset: u64,
}

impl Ram {
    /// The memory of a sealed memfd.
    pub(super) fn new(memfd: OwnedFd) -> io::Result<Ram> {
        let memfd = File::from(memfd);
        let metadata = memfd.metadata()?;
        let identity = (libc::major(metadata.dev()), libc::minor(metadata.dev()), metadata.ino());
        let len = metadata.len().min(HIGHEST);
        let maps = Mutex::new(File::open("/proc/self/maps")?);
        Ok(Ram(Arc::new(RamInner { memfd, maps, len, identity, allocating: Mutex::new(()) })))
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether there is no memory that a device could use.
    pub fn is_empty(&self) -> bool {
        self.len() <= LOWEST
    }

    fn mappings(&self) -> io::Result<Vec<Mapping>> {
        let mut text = String::new();
        let mut maps = self.0.maps.lock().unwrap_or_else(PoisonError::into_inner);
        maps.rewind()?;
        maps.read_to_string(&mut text)?;
        Ok(text.lines().filter_map(|line| parse_mapping(line, self.0.identity)).collect())
    }

    /// The first free range; `mappings` in any order.
    fn find_free(&self, mut mappings: Vec<Mapping>, len: u64) -> Option<u64> {
        mappings.sort_by_key(|mapping| mapping.offset);
        let align = if len >= LARGE { LARGE } else { PAGE };
        let mut at = LOWEST.next_multiple_of(align);
        for mapping in mappings {
            if mapping.offset >= at.checked_add(len)? {
                break;
            }
            at = at.max((mapping.offset + mapping.len as u64).next_multiple_of(align));
        }
        (at.checked_add(len)? <= self.0.len).then_some(at)
    }
}

// SAFETY: a range of the file that no mapping of this process covers is free, and the lock is held
// until it is mapped. The offset in the file is the machine's physical address.
unsafe impl PhysMemory for Ram {
    fn alloc(&self, len: usize) -> Result<Region, MapError> {
        let os = |step| move |source| MapError::Os { step, source };
        let wanted = (len as u64).checked_next_multiple_of(PAGE).filter(|&l| l > 0).ok_or(MapError::Range { len })?;
        let region = {
            let _allocating = self.0.allocating.lock().unwrap_or_else(PoisonError::into_inner);
            let mappings = self.mappings().map_err(os("/proc/self/maps"))?;
            let at = self.find_free(mappings, wanted).ok_or(MapError::Range { len })?;
            let memfd = self.0.memfd.as_fd().try_clone_to_owned().map_err(os("dup"))?;
            // SAFETY: the range is free, and the machine's devices reach only what is mapped for
            // them.
            unsafe { Region::from_memfd_at(memfd, at as usize, wanted as usize) }?
        };
        // SAFETY: the region was mapped just now, so it has `len` bytes without another user: no
        // other mapping of this process covers them, and devices only reach memory that was mapped
        // for them.
        unsafe { region.base().write_bytes(0, region.len()) };
        Ok(region)
    }

    fn locate(&self, at: NonNull<u8>, len: usize) -> Result<PhysRange, MapError> {
        let at = at.addr().get();
        let mappings = self.mappings().map_err(|source| MapError::Os { step: "/proc/self/maps", source })?;
        let mapping = mappings.iter().find(|mapping| {
            at.checked_sub(mapping.at).is_some_and(|into| into <= mapping.len && len <= mapping.len - into)
        });
        let mapping =
            mapping.filter(|mapping| mapping.offset + mapping.len as u64 <= self.0.len).ok_or(MapError::Foreign)?;
        Ok(PhysRange { at: mapping.at, len: mapping.len, physical: mapping.offset })
    }
}

/// Parses a line of `/proc/self/maps` (`proc_pid_maps(5)`):
/// `7f00-7f10 rw-s 00100000 00:01 1234  /memfd:…`. Returns `None` for another file.
fn parse_mapping(line: &str, identity: (u32, u32, u64)) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (from, to) = fields.next()?.split_once('-')?;
    let (from, to) = (hex(from)? as usize, hex(to)? as usize);
    let offset = hex(fields.nth(1)?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = fields.next()?.parse().ok()?;
    ((device.0, device.1, inode) == identity).then_some(Mapping { at: from, len: to.checked_sub(from)?, offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::Backing;

    fn ram(len: usize) -> Ram {
        let whole = Region::new(len, Backing::Memfd).unwrap();
        Ram::new(whole.fd().unwrap().try_clone_to_owned().unwrap()).unwrap()
    }

    fn physical(ram: &Ram, region: &Region) -> u64 {
        let range = ram.locate(region.base(), region.len()).unwrap();
        range.physical + (region.base().addr().get() - range.at) as u64
    }

    #[test]
    fn allocations_are_zeroed_disjoint_and_above_the_holes() {
        let ram = ram(4 << 20);
        let regions: Vec<Region> = (0..20).map(|i| ram.alloc(1 + i * 1000).unwrap()).collect();
        let mut offsets: Vec<(u64, usize)> = regions.iter().map(|p| (physical(&ram, p), p.len())).collect();
        offsets.sort_unstable();
        assert!(offsets[0].0 >= LOWEST);
        assert!(offsets.windows(2).all(|w| w[0].0 + w[0].1 as u64 <= w[1].0), "{offsets:?}");
        // SAFETY: only this test uses the region.
        assert_eq!(unsafe { regions[0].base().read() }, 0);
    }

    #[test]
    fn memory_is_free_again_when_its_region_is_dropped_and_never_when_it_is_leaked() {
        let ram = ram(2 << 20);
        let half = || ram.alloc(512 << 10);
        let (first, second) = (half().unwrap(), half().unwrap());
        assert!(matches!(half(), Err(MapError::Range { len: 524288 })));
        // SAFETY: only this test uses the region.
        unsafe { first.base().write(7) };
        drop(first);
        let again = half().unwrap();
        // SAFETY: only this test uses the region.
        assert_eq!(unsafe { again.base().read() }, 0, "what is used again is zeroed");
        std::mem::forget(again);
        drop(second);
        drop(half().unwrap());
        assert!(ram.alloc(1 << 20).is_err(), "half of it is leaked");
    }

    #[test]
    fn large_allocations_are_aligned_to_large_pages() {
        let ram = ram(16 << 20);
        let _small = ram.alloc(4096).unwrap();
        let large = ram.alloc(3 << 20).unwrap();
        assert_eq!(physical(&ram, &large) % LARGE, 0);
    }

    #[test]
    fn other_memory_and_more_than_one_region_are_foreign() {
        let ram = ram(2 << 20);
        let region = ram.alloc(8192).unwrap();
        let other = Region::new(4096, Backing::Memfd).unwrap();
        assert!(matches!(ram.locate(other.base(), 4096), Err(MapError::Foreign)));
        assert!(matches!(ram.locate(region.base(), 64 << 20), Err(MapError::Foreign)));
        let base = region.base();
        drop(region);
        assert!(matches!(ram.locate(base, 4096), Err(MapError::Foreign)), "an address of a freed region");
        assert!(ram.alloc(0).is_err() && ram.alloc(usize::MAX).is_err());
    }
}
