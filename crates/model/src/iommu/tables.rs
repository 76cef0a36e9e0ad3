//! Page tables: VT-d's second level (VT-d specification §9.8) with three levels, 39 bits of
//! address.
//!
//! ```text
//!   iova  │ 38 … 30 │ 29 … 21 │ 20 … 12 │ 11 … 0 │
//!            level 3   level 2   level 1   offset    PS in level 3: 1 GiB, in level 2: 2 MiB
//!
//!   entry │ address 51:12 │ … PS 7 … │ W 1 │ R 0 │      R = W = 0: absent, the other bits are free
//! ```
//!
//! The tables lie in one region. As on silicon, an entry holds an address in memory; a walk that
//! would leave the region fails. The driver's side writes entries and the device's side reads them:
//! 64-bit words that are stored atomically. A cleared entry keeps a mark, so that unmapped pages
//! are distinct from those that were never mapped.

use crate::memory::HostAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use towpath_bus::Access;
use towpath_packet::{Backing, Region, RegionError};

pub(super) const PAGE: u64 = 4096;
/// The address width of three levels.
pub(super) const WIDTH: u32 = 39;
pub(super) const READ: u64 = 1;
pub(super) const WRITE: u64 = 2;
const LEAF: u64 = 1 << 7;
/// In an absent entry: the page was mapped before.
const FREED: u64 = 1 << 2;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// The maximum of tables: 16 MiB of address space for 8 GiB in 4 KiB pages. Only used tables occupy
/// memory.
const TABLES: u64 = 4096;

/// The permission bits of a page table entry.
pub(super) fn permissions(access: Access) -> u64 {
    match access {
        Access::Read => READ,
        Access::Write => WRITE,
        Access::Both => READ | WRITE,
    }
}

/// Address bits that an entry of a level covers.
const fn shift(level: u32) -> u32 {
    12 + 9 * (level - 1)
}

/// The result of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// A leaf entry: the address of its page, the address bits that it covers, READ and WRITE along
    /// the path.
    Leaf { page: u64, shift: u32, access: u64 },
    /// Unmapped.
    Freed,
    /// Never mapped.
    Absent,
    /// The IOVA has too many bits.
    Width,
    /// An entry points outside the tables.
    Entry,
}

pub(super) struct Tables {
    region: Region,
    used: Mutex<u64>,
}

impl Tables {
    pub(super) fn new() -> Result<Tables, RegionError> {
        let region = Region::new((TABLES * PAGE) as usize, Backing::Anonymous)?;
        Ok(Tables { region, used: Mutex::new(1) })
    }

    fn root(&self) -> u64 {
        HostAddr::expose(self.region.base())
    }

    /// Entry `index` of the table at `table`; `None` if the table is outside the region.
    #[inline]
    pub(super) fn entry(&self, table: u64, index: u64) -> Option<&AtomicU64> {
        let offset = usize::try_from(table.checked_sub(self.root())? + (index & 511) * 8).ok()?;
        let at = self.region.at(offset, 8)?;
        // SAFETY: eight bytes inside the region, aligned because pages and entries are. They live
        // as long as `self`, and are only accessed as atomic words.
        Some(unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) })
    }

    /// Walks the tables for an address, as the device does.
    pub(super) fn walk(&self, iova: u64) -> Walk {
        if iova >> WIDTH != 0 {
            return Walk::Width;
        }
        let (mut table, mut access) = (self.root(), READ | WRITE);
        for level in [3, 2, 1] {
            let Some(entry) = self.entry(table, iova >> shift(level)) else { return Walk::Entry };
            // Acquire: the table behind the entry was filled before.
            let entry = entry.load(Ordering::Acquire);
            access &= entry;
            if entry & (READ | WRITE) == 0 {
                return if entry & FREED != 0 { Walk::Freed } else { Walk::Absent };
            }
            if level == 1 || entry & LEAF != 0 {
                return Walk::Leaf { page: entry & ADDRESS, shift: shift(level), access: access & (READ | WRITE) };
            }
            table = entry & ADDRESS;
        }
        Walk::Entry
    }

    /// The entry of `level` for an address; missing tables above it are allocated. `None` if all
    /// tables are in use, or a larger page is mapped there.
    fn reach(&self, iova: u64, level: u32) -> Option<&AtomicU64> {
        let mut table = self.root();
        for above in (level + 1..=3).rev() {
            let entry = self.entry(table, iova >> shift(above))?;
            let value = entry.load(Ordering::Relaxed);
            table = if value & (READ | WRITE) == 0 {
                let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
                let fresh = self.root() + *used * PAGE;
                if *used == TABLES {
                    return None;
                }
                *used += 1;
                entry.store(fresh | READ | WRITE, Ordering::Release);
                fresh
            } else if value & LEAF != 0 {
                return None;
            } else {
                value & ADDRESS
            };
        }
        self.entry(table, iova >> shift(level))
    }

    /// The level 1 table for an address, allocated if missing. A window fills in its entries
    /// itself.
    pub(super) fn leaf(&self, iova: u64) -> Option<u64> {
        self.reach(iova, 1)?;
        let mut table = self.root();
        for level in [3, 2] {
            table = self.entry(table, iova >> shift(level))?.load(Ordering::Relaxed) & ADDRESS;
        }
        Some(table)
    }

    /// Maps whole pages, with the largest pages that fit. Callers exclude each other and own the
    /// addresses. Returns false, and maps nothing, if there are no tables left.
    pub(super) fn map(&self, iova: u64, memory: u64, len: u64, access: u64) -> bool {
        let mut done = 0;
        while done < len {
            let (at, page, left) = (iova + done, memory + done, len - done);
            let level = (1..=3).rev().find(|&l| {
                let size = 1u64 << shift(l);
                let free =
                    || self.reach(at, l).is_some_and(|e| l == 1 || e.load(Ordering::Relaxed) & (READ | WRITE) == 0);
                (at | page) % size == 0 && left >= size && free()
            });
            let Some((entry, level)) = level.and_then(|l| Some((self.reach(at, l)?, l))) else {
                self.unmap(iova, done);
                return false;
            };
            entry.store(page | access | if level > 1 { LEAF } else { 0 }, Ordering::Release);
            done += 1 << shift(level);
        }
        true
    }

    /// Clears the entries that [`map`](Tables::map) made for the same range.
    pub(super) fn unmap(&self, iova: u64, len: u64) {
        let mut done = 0;
        while done < len {
            let at = iova + done;
            let mut table = self.root();
            let mut step = PAGE;
            for level in [3, 2, 1] {
                let Some(entry) = self.entry(table, at >> shift(level)) else { break };
                let value = entry.load(Ordering::Relaxed);
                if level == 1 || value & LEAF != 0 {
                    entry.store(cleared(), Ordering::Release);
                    step = 1 << shift(level);
                    break;
                }
                table = value & ADDRESS;
            }
            done += step;
        }
    }
}

/// The entry of an unmapped page.
pub(super) const fn cleared() -> u64 {
    FREED
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leaf(walk: Walk) -> (u64, u32) {
        let Walk::Leaf { page, shift, .. } = walk else { unreachable!("{walk:?}") };
        (page, shift)
    }

    #[test]
    fn a_never_mapped_address_is_absent_and_an_unmapped_one_is_freed() {
        let tables = Tables::new().unwrap();
        assert_eq!(tables.walk(0x5000), Walk::Absent);
        assert!(tables.map(0x5000, 0x7000_0000, PAGE, READ));
        assert_eq!(tables.walk(0x5abc), Walk::Leaf { page: 0x7000_0000, shift: 12, access: READ });
        tables.unmap(0x5000, PAGE);
        assert_eq!(tables.walk(0x5000), Walk::Freed);
        assert_eq!(tables.walk(0x6000), Walk::Absent);
    }

    #[test]
    fn the_largest_pages_that_fit_are_used() {
        let tables = Tables::new().unwrap();
        let (two_mib, one_gib) = (2 << 20, 1 << 30);
        assert!(tables.map(one_gib - 4096, 5 * one_gib - 4096, 4096 + one_gib + two_mib, READ | WRITE));
        assert_eq!(leaf(tables.walk(one_gib - 1)), (5 * one_gib - 4096, 12));
        assert_eq!(leaf(tables.walk(one_gib)), (5 * one_gib, 30));
        assert_eq!(leaf(tables.walk(2 * one_gib + 5)), (6 * one_gib, 21));
        tables.unmap(one_gib - 4096, 4096 + one_gib + two_mib);
        for at in [one_gib - 1, one_gib, 2 * one_gib] {
            assert_eq!(tables.walk(at), Walk::Freed);
        }
    }

    #[test]
    fn addresses_beyond_39_bits_have_no_translation() {
        assert_eq!(Tables::new().unwrap().walk(1 << 39), Walk::Width);
    }

    #[test]
    fn when_tables_run_out_nothing_stays_mapped() {
        let tables = Tables::new().unwrap();
        // Odd pages of memory: no large page fits, so each 2 MiB needs a table.
        assert!(!tables.map(0, PAGE, (TABLES + 1) << 21, READ));
        assert_eq!(tables.walk(0), Walk::Freed);
    }

    proptest! {
        #[test]
        fn every_page_of_a_mapping_leads_to_its_memory(iova in 1u64..3000, memory in 1u64..3000, pages in 1u64..2000, probe in 0u64..2000) {
            let tables = Tables::new().unwrap();
            prop_assert!(tables.map(iova * PAGE, memory * PAGE, pages * PAGE, WRITE));
            let probe = probe % pages;
            let Walk::Leaf { page, shift, access } = tables.walk((iova + probe) * PAGE) else { panic!() };
            let offset = ((iova + probe) * PAGE) & ((1 << shift) - 1);
            prop_assert_eq!((page + offset, access), ((memory + probe) * PAGE, WRITE));
            tables.unmap(iova * PAGE, pages * PAGE);
            prop_assert_eq!(tables.walk((iova + probe) * PAGE), Walk::Freed);
        }
    }
}
