//! The IOVA allocator of one address space: first fit over the free ranges.

use std::ops::RangeInclusive;

/// Smallest unit of allocation.
const PAGE: u64 = 4096;

/// The free ranges, ascending and never adjacent.
#[derive(Debug)]
pub(crate) struct IovaAllocator(Vec<RangeInclusive<u64>>);

impl IovaAllocator {
    /// The addresses of `ranges`, except those below `lowest`: zero, or an address close to it, is
    /// an error in a descriptor.
    pub(crate) fn new(ranges: &[RangeInclusive<u64>], lowest: u64) -> IovaAllocator {
        let usable = ranges.iter().map(|range| (*range.start()).max(lowest)..=*range.end());
        let mut free: Vec<_> = usable.filter(|range| !range.is_empty()).collect();
        free.sort_by_key(|range| *range.start());
        IovaAllocator(free)
    }

    /// The free ranges.
    pub(crate) fn free_ranges(&self) -> &[RangeInclusive<u64>] {
        &self.0
    }

    /// Allocates the lowest range of `len` bytes, at least one, that begins `offset` bytes after a
    /// multiple of `align`, a power of two.
    pub(crate) fn alloc_low(&mut self, len: u64, align: u64, offset: u64) -> Option<u64> {
        let (index, start) = self.0.iter().enumerate().find_map(|(i, free)| {
            let start = free.start().checked_add(offset.wrapping_sub(*free.start()) % align)?;
            (start.checked_add(len - 1)? <= *free.end()).then_some((i, start))
        })?;
        self.split(index, start, len);
        Some(start)
    }

    /// Allocates the highest range of `len` bytes, at least one, that begins at a multiple of
    /// `align`.
    pub(crate) fn alloc_high(&mut self, len: u64, align: u64) -> Option<u64> {
        let (index, start) = self.0.iter().enumerate().rev().find_map(|(i, free)| {
            let start = free.end().checked_sub(len - 1)? / align * align;
            (start >= *free.start()).then_some((i, start))
        })?;
        self.split(index, start, len);
        Some(start)
    }

    fn split(&mut self, index: usize, start: u64, len: u64) {
        let (first, end) = self.0.remove(index).into_inner();
        let last = start + (len - 1);
        let rest = [(start > first).then(|| first..=start - 1), (last < end).then(|| last + 1..=end)];
        self.0.splice(index..index, rest.into_iter().flatten());
    }

    /// Frees a range. Returns `false`, and changes nothing, if any part of it is free already.
    pub(crate) fn free(&mut self, start: u64, len: u64) -> bool {
        let Some(last) = len.checked_sub(1).and_then(|most| start.checked_add(most)) else { return false };
        let next = self.0.partition_point(|free| *free.end() < start);
        let touches = |free: &&RangeInclusive<u64>| last.checked_add(1).is_none_or(|end| *free.start() <= end);
        let above = self.0.get(next).filter(touches).map(|free| (*free.start(), *free.end()));
        if !start.is_multiple_of(PAGE) || above.is_some_and(|(first, _)| first <= last) {
            return false;
        }
        let below = next.checked_sub(1).and_then(|i| self.0.get(i)).filter(|free| *free.end() + 1 == start);
        let (first, from) = below.map_or((start, next), |free| (*free.start(), next - 1));
        let (end, to) = above.map_or((last, next), |(_, end)| (end, next + 1));
        self.0.splice(from..to, std::iter::once(first..=end));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HUGE: u64 = 2 << 20;
    /// Address spaces of 39 and of 64 bits, with the hole of the interrupts.
    const NARROW: &[RangeInclusive<u64>] = &[0..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1];
    const WHOLE: &[RangeInclusive<u64>] = &[0..=0xfedf_ffff, 0xfef0_0000..=u64::MAX];

    #[test]
    fn low_addresses_and_the_interrupt_addresses_are_never_allocated() {
        let mut iovas = IovaAllocator::new(NARROW, 1 << 20);
        assert_eq!(iovas.alloc_low(PAGE, PAGE, 0), Some(1 << 20));
        let gib = 1 << 30;
        let taken: Vec<u64> = std::iter::from_fn(|| iovas.alloc_low(gib, gib, 0)).collect();
        assert!(taken.iter().all(|&at| at + gib <= 0xfee0_0000 || at >= 0xfef0_0000));
        assert_eq!(taken.len(), 512 - 2, "the first GiB is begun, the fourth has the hole");
    }

    #[test]
    fn an_address_has_the_offset_of_its_memory_and_is_never_near_zero() {
        let mut iovas = IovaAllocator::new(WHOLE, HUGE);
        assert_eq!(iovas.alloc_low(4096, HUGE, 0), Some(HUGE));
        assert_eq!(iovas.alloc_low(4096, HUGE, 0x3000), Some(HUGE + 0x3000));
        assert_eq!(iovas.alloc_low(0x2000, HUGE, 0x1000), Some(HUGE + 0x1000), "the gap stays usable");
    }

    #[test]
    fn no_range_crosses_a_hole() {
        let mut iovas = IovaAllocator::new(WHOLE, HUGE);
        let start = iovas.alloc_low(0xfee0_0000, HUGE, 0);
        assert_eq!(start, Some(0xff00_0000), "4 GiB less 18 MiB do not fit below the hole");
        assert_eq!(iovas.alloc_low(0xfec0_0000, HUGE, 0), Some(HUGE));
        assert_eq!(iovas.alloc_low(4096, HUGE, 0), Some(0x1_fde0_0000), "the lower range is used up");
    }

    #[test]
    fn the_end_of_the_address_space_is_an_end() {
        let mut iovas = IovaAllocator::new(&[u64::MAX - 0xfff..=u64::MAX], HUGE);
        assert_eq!(iovas.alloc_low(4096, HUGE, 0), None);
        assert_eq!(iovas.alloc_low(8192, HUGE, 0xf_f000), None);
        assert_eq!(iovas.alloc_low(4096, HUGE, 0x1f_f000), Some(u64::MAX - 0xfff));
        assert!(iovas.free(u64::MAX - 0xfff, 4096) && !iovas.free(u64::MAX - 0xfff, 4096));
        assert_eq!(iovas.free_ranges(), [u64::MAX - 0xfff..=u64::MAX]);
    }

    proptest! {
        #[test]
        fn ranges_are_disjoint_aligned_and_all_free_again_when_freed(
            wanted in prop::collection::vec((1u64..0x60, 0u32..10, 0u64..0x400, any::<bool>(), any::<bool>()), 1..80)
        ) {
            let ranges = [0..=HUGE * 2 + 0x4fff, HUGE * 3..=HUGE * 5 - 1];
            let mut iovas = IovaAllocator::new(&ranges, HUGE);
            let whole = iovas.free_ranges().to_vec();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (pages, align, offset, low, free_one) in wanted {
                let (len, align) = (pages * PAGE, PAGE << align);
                let offset = if low { offset * PAGE % align } else { 0 };
                let start = if low { iovas.alloc_low(len, align, offset) } else { iovas.alloc_high(len, align) };
                if let Some(start) = start {
                    prop_assert_eq!(start % align, offset);
                    prop_assert!(ranges.iter().any(|r| r.contains(&start) && r.contains(&(start + len - 1))));
                    prop_assert!(start >= HUGE && taken.iter().all(|&(s, l)| start + len <= s || s + l <= start));
                    taken.push((start, len));
                }
                if free_one && !taken.is_empty() {
                    let (start, len) = taken.swap_remove(taken.len() / 2);
                    prop_assert!(iovas.free(start, len));
                    prop_assert!(!iovas.free(start, len), "twice");
                }
            }
            for (start, len) in taken {
                prop_assert!(iovas.free(start, len));
            }
            prop_assert_eq!(iovas.free_ranges(), &whole[..]);
        }
    }
}
