//! The guest's memory, as the front end shares it: two address spaces over the same bytes.
//!
//! ```text
//!   guest physical ─► descriptors' addresses, the log            ┐
//!                                                                ├─► regions, mapped from descriptors
//!   user           ─► the rings, in the front end's own process  ┘
//! ```
//!
//! A region's file must be in memory: a memfd, or a file of tmpfs or hugetlbfs. It need not be
//! sealed, as that of DPDK's virtio-user and of QEMU's `memory-backend-file` is not. A front end
//! that truncates it gets zeroes, and loses its connection ([`UntrustedMem::from_file`]).

use std::os::fd::OwnedFd;
use towpath_packet::{RegionError, UntrustedMem};
use towpath_virtio::vhost_user::{MemoryRegion, VringAddr};
use towpath_virtio::{AddressSpace, Area, Areas, Format, Regions, RegionsError};

/// Regions that a front end may have: its memory slots.
pub(super) const MAX_SLOTS: usize = 32;
/// Most bytes of all mappings.
const MAX_MAPPED: u64 = 1 << 40;

/// Why memory is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    #[error("a region of {} bytes at offset {} of its file: too large", .0.size, .0.offset)]
    Large(MemoryRegion),
    #[error("more than {MAX_SLOTS} memory regions")]
    Slots,
    #[error("there is no region of {} bytes at {:#x}", .0.size, .0.guest)]
    Missing(MemoryRegion),
    #[error("guest memory: {0}")]
    Map(#[from] RegionError),
    #[error("guest memory: {0}")]
    Table(#[from] RegionsError),
    #[error("the {name} area of {len} bytes at {addr:#x} does not lie in one region")]
    Area { name: &'static str, addr: u64, len: usize },
}

#[derive(Debug, Clone)]
struct Mapped {
    region: MemoryRegion,
    memory: UntrustedMem,
    /// How often it was added, and not removed: QEMU before 8.0 adds and removes each region once
    /// for each pair of queues.
    times: usize,
}

impl Mapped {
    /// Whether it has the addresses and the size of a region. Its file may be named differently.
    fn is(&self, region: &MemoryRegion) -> bool {
        let place = |of: &MemoryRegion| (of.guest, of.user, of.size);
        place(&self.region) == place(region)
    }
}

/// The memory of a guest.
#[derive(Debug, Default, Clone)]
pub(super) struct GuestMemory {
    mapped: Vec<Mapped>,
    guest: Regions,
    user: Regions,
}

impl GuestMemory {
    /// Adds a region, whose bytes are in `file`. One that is there already, from the same place of
    /// its file, is counted.
    pub(super) fn add(&mut self, region: MemoryRegion, file: OwnedFd) -> Result<(), MemoryError> {
        if let Some(mapped) = self.mapped.iter_mut().find(|mapped| mapped.region == region && mapped.times < MAX_SLOTS)
        {
            mapped.times += 1;
            return Ok(());
        }
        let MemoryRegion { guest, size, user, offset } = region;
        let mapped = self.mapped.iter().map(|mapped| mapped.memory.len() as u64).sum::<u64>();
        // From the beginning of the file: huge pages are mapped at offsets of whole ones.
        let len = size.checked_add(offset).filter(|len| mapped.saturating_add(*len) <= MAX_MAPPED);
        let len = len.and_then(|len| usize::try_from(len).ok()).ok_or(MemoryError::Large(region))?;
        if self.mapped.len() >= MAX_SLOTS {
            return Err(MemoryError::Slots);
        }
        let memory = UntrustedMem::from_file(file, len)?;
        // It is below the length.
        let at = offset as usize;
        self.guest.add(guest, size, memory.clone(), at)?;
        if let Err(error) = self.user.add(user, size, memory.clone(), at) {
            self.guest.remove(guest);
            return Err(error.into());
        }
        self.mapped.push(Mapped { region, memory, times: 1 });
        Ok(())
    }

    /// Removes the region that has the same addresses and size, if it was not added more often.
    pub(super) fn remove(&mut self, region: MemoryRegion) -> Result<(), MemoryError> {
        let at = self.mapped.iter().position(|mapped| mapped.is(&region)).ok_or(MemoryError::Missing(region))?;
        if let Some(mapped) = self.mapped.get_mut(at).filter(|mapped| mapped.times > 1) {
            mapped.times -= 1;
            return Ok(());
        }
        self.mapped.remove(at);
        self.guest.remove(region.guest);
        self.user.remove(region.user);
        Ok(())
    }

    /// Whether there is no region.
    pub(super) fn is_empty(&self) -> bool {
        self.mapped.is_empty()
    }

    /// Whether a file was truncated, and its memory is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.mapped.iter().any(|mapped| mapped.memory.is_lost())
    }

    /// A table by guest physical address, for one ring.
    pub(super) fn guest(&self) -> Regions {
        self.guest.clone()
    }

    /// The areas of a ring of `size` descriptors. Each lies in one region.
    pub(super) fn areas(&self, format: Format, size: u16, at: &VringAddr) -> Result<Areas, MemoryError> {
        let [desc, driver, device] = format.lengths(size);
        Ok(Areas {
            desc: self.area("descriptor", at.desc, desc)?,
            driver: self.area("driver", at.avail, driver)?,
            device: self.area("device", at.used, device)?,
        })
    }

    fn area(&self, name: &'static str, addr: u64, len: usize) -> Result<Area, MemoryError> {
        // The areas of 32768 descriptors are shorter than 2^32 bytes.
        let place = self.user.translate(addr, len as u32, true).filter(|(_, contiguous)| *contiguous as usize == len);
        let area = place.and_then(|(place, _)| Area::new(self.user.memory(place.region)?, place.offset, len));
        area.ok_or(MemoryError::Area { name, addr, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use towpath_testing::sealed_memory;

    fn region(guest: u64, size: u64, user: u64, offset: u64) -> MemoryRegion {
        MemoryRegion { guest, size, user, offset }
    }

    #[test]
    fn a_region_that_is_added_twice_is_one_until_it_is_removed_twice() {
        let (mut memory, file) = (GuestMemory::default(), sealed_memory(1 << 16));
        let again = || file.as_fd().try_clone_to_owned().unwrap();
        let once = region(0x1000, 0x8000, 0x7000_0000, 0);
        memory.add(once, again()).unwrap();
        memory.add(once, again()).unwrap();
        assert!(memory.add(region(0x1000, 0x8000, 0x7000_0000, 0x1000), again()).is_err(), "another place of the file");
        memory.remove(once).unwrap();
        assert!(memory.guest().translate(0x1000, 1, true).is_some());
        memory.remove(once).unwrap();
        assert!(memory.is_empty() && memory.guest().translate(0x1000, 1, true).is_none());
        assert!(matches!(memory.remove(once), Err(MemoryError::Missing(_))));
    }

    #[test]
    fn two_regions_may_share_a_file_and_each_has_two_addresses() {
        let (mut memory, file) = (GuestMemory::default(), sealed_memory(1 << 16));
        let twice = || file.as_fd().try_clone_to_owned().unwrap();
        memory.add(region(0, 0x8000, 0x7000_0000, 0), twice()).unwrap();
        memory.add(region(1 << 32, 0x8000, 0x7000_8000, 0x8000), twice()).unwrap();
        let (low, high) = (memory.guest().translate(16, 4, true), memory.guest().translate((1 << 32) + 16, 4, true));
        assert_eq!((low.unwrap().0.offset, high.unwrap().0.offset), (16, 0x8010));
        let at = VringAddr { desc: 0x7000_0000, avail: 0x7000_9000, used: 0x7000_a000, ..VringAddr::default() };
        memory.areas(Format::Split, 256, &at).unwrap();
        // The regions are neighbours, but an area is in one of them.
        let across = VringAddr { desc: 0x7000_7f00, ..at };
        assert!(matches!(memory.areas(Format::Split, 256, &across), Err(MemoryError::Area { .. })));
        memory.remove(region(0, 0x8000, 0x7000_0000, 77)).unwrap();
        assert!(matches!(memory.areas(Format::Split, 256, &at), Err(MemoryError::Area { name: "descriptor", .. })));
        assert!(matches!(memory.remove(region(0, 0x8000, 0x7000_0000, 0)), Err(MemoryError::Missing(_))));
        assert!(!memory.is_empty() && !memory.is_lost());
    }

    #[test]
    fn regions_that_overlap_wrap_or_are_longer_than_their_file_are_refused() {
        let (mut memory, file) = (GuestMemory::default(), sealed_memory(1 << 16));
        let mut add = |region| memory.add(region, file.as_fd().try_clone_to_owned().unwrap());
        add(region(0x1000, 0x1000, 0x1000, 0)).unwrap();
        for refused in [
            region(0x1fff, 0x1000, 0x9000, 0),
            region(0x9000, 0x1000, 0x1fff, 0),
            region(0x9000, 0, 0x9000, 0),
            region(0x9000, 0x1000, 0x9000, u64::MAX),
            region(0x9000, 0x1000, 0x9000, 0xf001),
            region(u64::MAX - 0xfff, 0x1001, 0x9000, 0),
            region(0x9000, 0x1001, u64::MAX - 0xfff, 0),
            region(0x9000, 1 << 41, 0x9000, 0),
        ] {
            assert!(add(refused).is_err(), "{refused:x?}");
        }
        // What was refused by one table is not in the other.
        add(region(0x9000, 0x1000, 0x9000, 0)).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let refused = memory.add(region(0x20000, 0x1000, 0x20000, 0), file.into());
        assert!(matches!(refused, Err(MemoryError::Map(RegionError::NotMemory))));
    }

    #[test]
    fn slots_are_bounded() {
        let (mut memory, file) = (GuestMemory::default(), sealed_memory(4096));
        let mut add =
            |n: u64| memory.add(region(n << 12, 4096, n << 12, 0), file.as_fd().try_clone_to_owned().unwrap());
        for n in 0..MAX_SLOTS as u64 {
            add(n).unwrap();
        }
        assert!(matches!(add(99), Err(MemoryError::Slots)));
    }
}
