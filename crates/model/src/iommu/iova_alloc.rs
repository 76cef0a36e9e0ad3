//! The IOVA allocator.

use super::tables::PAGE;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Allocates IOVAs by next fit: a freed one is reused as late as possible, so that a stale use is
/// detected.
#[derive(Debug)]
pub(super) struct IovaAllocator {
    ranges: Vec<RangeInclusive<u64>>,
    allocated: BTreeMap<u64, u64>,
    cursor: u64,
}

impl IovaAllocator {
    /// Page 0 is never allocated: address 0 means "no address" in descriptors.
    pub(super) fn new(ranges: &[RangeInclusive<u64>], begin: u64) -> IovaAllocator {
        let ranges = ranges.iter().map(|r| *r.start().max(&PAGE)..=*r.end()).collect();
        IovaAllocator { ranges, allocated: BTreeMap::new(), cursor: begin }
    }

    /// Allocates `len` bytes (whole pages) at an address that is congruent to `like` modulo
    /// `align`.
    pub(super) fn alloc(&mut self, len: u64, align: u64, like: u64) -> Option<u64> {
        let found = self.find(self.cursor, len, align, like).or_else(|| self.find(0, len, align, like))?;
        self.allocated.insert(found, len);
        self.cursor = found + len;
        Some(found)
    }

    pub(super) fn free(&mut self, at: u64) {
        self.allocated.remove(&at);
    }

    fn find(&self, from: u64, len: u64, align: u64, like: u64) -> Option<u64> {
        for range in &self.ranges {
            let mut at = from.max(*range.start());
            loop {
                at = at.checked_add(like.wrapping_sub(at) & (align - 1))?;
                if at.checked_add(len - 1).is_none_or(|last| last > *range.end()) {
                    break;
                }
                match self.allocated.range(..at + len).next_back() {
                    Some((start, length)) if start + length > at => at = start + length,
                    _ => return Some(at),
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_freed_address_is_reused_after_all_others() {
        let mut iovas = IovaAllocator::new(&[0x1000..=0x4fff], 0);
        let first = iovas.alloc(PAGE, PAGE, 0).unwrap();
        iovas.free(first);
        let rest: Vec<_> = (0..4).map(|_| iovas.alloc(PAGE, PAGE, 0).unwrap()).collect();
        assert_eq!(rest, [0x2000, 0x3000, 0x4000, 0x1000]);
        assert_eq!(iovas.alloc(PAGE, PAGE, 0), None);
    }

    #[test]
    fn page_zero_is_never_allocated() {
        let mut iovas = IovaAllocator::new(&[0..=0x1fff], 0);
        assert_eq!((iovas.alloc(PAGE, PAGE, 0), iovas.alloc(PAGE, PAGE, 0)), (Some(0x1000), None));
    }

    proptest! {
        #[test]
        fn what_is_allocated_lies_in_a_range_aligned_and_apart_from_the_rest(ops in prop::collection::vec((1u64..9, 0u32..4, 0u64..16, any::<bool>()), 1..200)) {
            let ranges = [0x5000..=0x1_ffff, 0x4_0000..=0x7_ffff];
            let mut iovas = IovaAllocator::new(&ranges, 0x3_0000);
            let mut mappings: Vec<(u64, u64)> = Vec::new();
            for (pages, order, like, free) in ops {
                if free && !mappings.is_empty() {
                    iovas.free(mappings.swap_remove(mappings.len() / 2).0);
                }
                let (len, align, like) = (pages * PAGE, PAGE << order, like * PAGE);
                if let Some(at) = iovas.alloc(len, align, like) {
                    prop_assert_eq!(at % align, like % align);
                    prop_assert!(ranges.iter().any(|r| *r.start() <= at && at + len - 1 <= *r.end()));
                    prop_assert!(mappings.iter().all(|(a, l)| at + len <= *a || a + l <= at));
                    mappings.push((at, len));
                }
            }
        }
    }
}
