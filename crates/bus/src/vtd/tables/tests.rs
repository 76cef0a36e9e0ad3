//! The page tables against a naive walk, as the unit does it.

use super::*;
use crate::vtd::phys_memory::IdentityMemory;
use proptest::prelude::*;

const ALL: Capabilities = Capabilities {
    address_bits: 39,
    domains: 256,
    pages_2m: true,
    pages_1g: true,
    page_selective: true,
    max_mask: 18,
    caching_mode: false,
    fault_records: 0x220,
    fault_record_count: 1,
};

/// Walks the tables for `iova`: the physical address, the rights, and the level of the page.
fn walk(root: u64, levels: u32, iova: u64) -> Option<(u64, u64, u32)> {
    let (mut table, mut level) = (root, levels);
    loop {
        let at = table as usize + (iova >> (12 + 9 * (level - 1)) & 511) as usize * 8;
        // SAFETY: `IdentityMemory`: the address is that of an entry in a table that the tree holds.
        let word = unsafe { *(at as *const u64) };
        if word & 3 == 0 {
            return None;
        }
        let mask = (1u64 << (12 + 9 * (level - 1))) - 1;
        let address = word & 0x000f_ffff_ffff_f000;
        if level == 1 || word & 0x80 != 0 {
            assert_eq!(address & mask, 0, "low bits of a large page are reserved");
            return Some((address | iova & mask, word & 3, level));
        }
        (table, level) = (address, level - 1);
    }
}

#[test]
fn the_largest_pages_that_fit_are_used() {
    let mut tree = PageTables::new(IdentityMemory, &ALL).unwrap();
    let gib = 1 << 30;
    tree.map(gib - 4096, gib - 4096, gib + (2 << 20) + 8192, Access::Both).unwrap();
    let level = |tree: &PageTables<IdentityMemory>, iova| walk(tree.root(), 3, iova).map(|found| found.2);
    assert_eq!(level(&tree, gib - 1), Some(1));
    assert_eq!(level(&tree, gib), Some(3));
    assert_eq!(level(&tree, 2 * gib + 5), Some(2));
    assert_eq!(level(&tree, 2 * gib + (2 << 20)), Some(1));
    assert_eq!(level(&tree, 2 * gib + (2 << 20) + 4096), None);
    tree.unmap(gib - 4096, gib + (2 << 20) + 8192);
    assert!([gib - 1, gib, 2 * gib, 2 * gib + (2 << 20)].into_iter().all(|at| level(&tree, at).is_none()));
}

#[test]
fn a_unit_without_large_pages_gets_none() {
    let mut tree = PageTables::new(IdentityMemory, &Capabilities { pages_2m: false, pages_1g: false, ..ALL }).unwrap();
    tree.map(2 << 20, 2 << 20, 2 << 20, Access::Read).unwrap();
    assert_eq!(walk(tree.root(), 3, 3 << 20), Some((3 << 20, 1, 1)));
}

#[test]
fn installed_leaf_tables_are_walked_and_removed_ones_are_not() {
    let mut tree = PageTables::new(IdentityMemory, &Capabilities { address_bits: 48, ..ALL }).unwrap();
    let leaves = TablePages::alloc(&IdentityMemory, 2).unwrap();
    tree.install_leaves(1 << 40, &leaves).unwrap();
    leaves.at(513).unwrap().store(0x7000 | rights(Access::Write), Ordering::Release);
    assert_eq!(walk(tree.root(), 4, (1 << 40) + (2 << 20) + 0x1234), Some((0x7234, 2, 1)));
    tree.remove_leaves(1 << 40, &leaves);
    assert_eq!(walk(tree.root(), 4, (1 << 40) + (2 << 20) + 0x1234), None);
}

proptest! {
    #[test]
    fn exactly_the_mapped_pages_are_found(
        ranges in prop::collection::vec((0u64..64, 1u64..1200, 0u64..4, any::<bool>()), 1..12)
    ) {
        let mut tree = PageTables::new(IdentityMemory, &ALL).unwrap();
        // A space of 64 × 2 MiB, against a plain array.
        let mut plain = vec![None::<u64>; 65 * 512 + 1200];
        let mut mapped = Vec::new();
        for (start, pages, shift, map) in ranges {
            let first = (start * 512 + shift * 8) as usize;
            let range = first..first + pages as usize;
            if map && plain[range.clone()].iter().all(Option::is_none) {
                // Sometimes congruent modulo a large page, sometimes not.
                let physical = (1 << 40) + (range.start as u64 + shift % 2 * 16) * PAGE;
                tree.map(range.start as u64 * PAGE, physical, pages * PAGE, Access::Write).unwrap();
                plain[range.clone()].iter_mut().zip(0..).for_each(|(page, n)| *page = Some(physical + n * PAGE));
                mapped.push(range);
            } else if let Some(range) = mapped.pop().filter(|_| !map) {
                tree.unmap(range.start as u64 * PAGE, range.len() as u64 * PAGE);
                plain[range].fill(None);
            }
        }
        for (page, expected) in plain.iter().enumerate() {
            let found = walk(tree.root(), 3, page as u64 * PAGE + 7).map(|(at, rights, _)| (at - 7, rights));
            prop_assert_eq!(found, expected.map(|at| (at, 2)), "page {}", page);
        }
    }
}
