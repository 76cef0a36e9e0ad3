//! The IOTLB: a cache of translations that are kept until they are invalidated.
//!
//! 256 sets of 4 ways for 4 KiB pages, and as many for 2 MiB pages (a 1 GiB page takes an entry for
//! each 2 MiB that is used). Replacement is round robin. Entries carry the epoch of their
//! insertion: a new epoch invalidates all of them.

use super::tables::{READ, WRITE};

const SETS: usize = 256;
const WAYS: usize = 4;

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    page: u64,
    /// The address of the page in memory, with READ and WRITE in the low bits.
    leaf: u64,
    epoch: u64,
}

#[derive(Debug)]
struct Array {
    shift: u32,
    entries: Box<[[Entry; WAYS]; SETS]>,
    next: usize,
    /// Whether an entry was inserted since the last [`clear`](Iotlb::clear); otherwise the lookup
    /// is skipped.
    used: bool,
}

impl Array {
    fn new(shift: u32) -> Array {
        Array { shift, entries: Box::new([[Entry::default(); WAYS]; SETS]), next: 0, used: false }
    }

    #[inline]
    fn set(&mut self, page: u64) -> &mut [Entry; WAYS] {
        &mut self.entries[(page ^ page >> 8) as usize % SETS]
    }
}

#[derive(Debug)]
pub(super) struct Iotlb {
    small: Array,
    large: Array,
    epoch: u64,
}

impl Iotlb {
    pub(super) fn new() -> Iotlb {
        // Entries that were never filled have epoch 0.
        Iotlb { small: Array::new(12), large: Array::new(21), epoch: 1 }
    }

    /// Looks up an IOVA: the address in memory, and the permissions.
    #[inline]
    pub(super) fn lookup(&mut self, iova: u64) -> Option<(u64, u64)> {
        let epoch = self.epoch;
        for array in [&mut self.small, &mut self.large] {
            if !array.used {
                continue;
            }
            let (shift, page) = (array.shift, iova >> array.shift);
            if let Some(entry) = array.set(page).iter().find(|e| e.page == page && e.epoch == epoch) {
                let offset = iova & ((1 << shift) - 1);
                return Some(((entry.leaf & !(READ | WRITE)) + offset, entry.leaf & (READ | WRITE)));
            }
        }
        None
    }

    /// Inserts the translation of a page of `shift` bits that begins at `page` in memory.
    pub(super) fn insert(&mut self, iova: u64, page: u64, shift: u32, access: u64) {
        let array = if shift == 12 { &mut self.small } else { &mut self.large };
        let inside = iova & ((1 << shift) - 1) & !((1 << array.shift) - 1);
        let (number, epoch, way) = (iova >> array.shift, self.epoch, array.next % WAYS);
        array.next += 1;
        array.used = true;
        let set = array.set(number);
        // An existing entry, whose permissions did not suffice, is replaced and not duplicated.
        let way = set.iter().position(|e| e.page == number && e.epoch == epoch).unwrap_or(way);
        set[way] = Entry { page: number, leaf: (page + inside) | access, epoch };
    }

    /// Invalidates the translations of a range.
    pub(super) fn invalidate(&mut self, iova: u64, len: u64) {
        for array in [&mut self.small, &mut self.large] {
            if !array.used || len == 0 {
                continue;
            }
            let (first, last) = (iova >> array.shift, (iova + (len - 1)) >> array.shift);
            if last - first < SETS as u64 {
                for page in first..=last {
                    array.set(page).iter_mut().filter(|e| e.page == page).for_each(|e| e.epoch = 0);
                }
            } else {
                let inside = |e: &&mut Entry| (first..=last).contains(&e.page);
                array.entries.iter_mut().flatten().filter(inside).for_each(|e| e.epoch = 0);
            }
        }
    }

    /// Invalidates all translations.
    pub(super) fn clear(&mut self) {
        self.epoch += 1;
        self.small.used = false;
        self.large.used = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_entry_is_found_until_it_is_invalidated() {
        let mut tlb = Iotlb::new();
        tlb.insert(0x5123, 0x9000, 12, READ);
        assert_eq!(tlb.lookup(0x5fff), Some((0x9fff, READ)));
        tlb.invalidate(0x6000, 4096);
        assert!(tlb.lookup(0x5000).is_some());
        tlb.invalidate(0x4000, 0x2000);
        assert_eq!(tlb.lookup(0x5000), None);
    }

    #[test]
    fn a_large_page_is_found_by_any_address_in_it_and_invalidated_by_any_range_that_touches_it() {
        let mut tlb = Iotlb::new();
        tlb.insert((1 << 30) + (5 << 21) + 77, 3 << 30, 30, WRITE);
        assert_eq!(tlb.lookup((1 << 30) + (5 << 21) + 4096), Some(((3 << 30) + (5 << 21) + 4096, WRITE)));
        tlb.invalidate((1 << 30) + (5 << 21) + 8192, 4096);
        assert_eq!(tlb.lookup((1 << 30) + (5 << 21)), None);
    }

    #[test]
    fn clearing_invalidates_everything() {
        let mut tlb = Iotlb::new();
        tlb.insert(0x5000, 0x9000, 12, READ);
        tlb.insert(1 << 21, 1 << 22, 21, READ);
        tlb.clear();
        assert_eq!((tlb.lookup(0x5000), tlb.lookup(1 << 21)), (None, None));
    }

    #[test]
    fn a_range_larger_than_the_cache_is_invalidated_too() {
        let mut tlb = Iotlb::new();
        tlb.insert(0x5000, 0x9000, 12, READ);
        tlb.invalidate(0, 1 << 38);
        assert_eq!(tlb.lookup(0x5000), None);
    }

    proptest! {
        /// It may lose entries, but never return one that was not inserted.
        #[test]
        fn it_agrees_with_a_map_in_all_entries_that_it_returns(ops in prop::collection::vec((0u64..3000, 0u64..4), 1..4000)) {
            let mut tlb = Iotlb::new();
            let mut oracle = std::collections::HashMap::new();
            for (n, (page, op)) in ops.into_iter().enumerate() {
                match op {
                    0 => { tlb.invalidate(page << 12, 4096); oracle.remove(&page); }
                    1 => { let to = (n as u64 + 1) << 12; tlb.insert(page << 12, to, 12, READ); oracle.insert(page, to); }
                    _ => if let Some((at, _)) = tlb.lookup(page << 12) { prop_assert_eq!(Some(&at), oracle.get(&page)); }
                }
            }
        }
    }
}
