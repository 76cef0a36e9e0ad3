//! Which addresses of a space are free.

use super::PAGE;
use std::ops::Range;

/// Writes to these addresses are interrupts, not memory (VT-d §3.15).
const INTERRUPTS: Range<u64> = 0xfee0_0000..0xfef0_0000;

/// Address zero, and what software of old takes for special, is never given out.
const LOWEST: u64 = 1 << 20;

/// Free ranges, ascending, none touching the next.
#[derive(Debug)]
pub(super) struct Iovas(Vec<Range<u64>>);

impl Iovas {
    /// All addresses of `bits` bits that memory can be mapped at.
    pub(super) fn new(bits: u8) -> Iovas {
        Iovas(vec![LOWEST..INTERRUPTS.start, INTERRUPTS.end..1 << bits])
    }

    /// The free ranges.
    pub(super) fn free(&self) -> &[Range<u64>] {
        &self.0
    }

    /// The lowest free range of `len` bytes that begins `offset` bytes behind a multiple of `align`; all of them multiples of the
    /// page size.
    pub(super) fn low(&mut self, len: u64, align: u64, offset: u64) -> Option<u64> {
        let fit = |free: &Range<u64>| {
            let start = free.start.saturating_sub(offset).checked_next_multiple_of(align)? + offset;
            (start.checked_add(len)? <= free.end).then_some(start)
        };
        let (index, start) = self.0.iter().enumerate().find_map(|(i, free)| Some((i, fit(free)?)))?;
        self.carve(index, start, len);
        Some(start)
    }

    /// The highest free range of `len` bytes that begins at a multiple of `align`.
    pub(super) fn high(&mut self, len: u64, align: u64) -> Option<u64> {
        let fit = |free: &Range<u64>| {
            let start = free.end.checked_sub(len)? / align * align;
            (start >= free.start).then_some(start)
        };
        let (index, start) = self.0.iter().enumerate().rev().find_map(|(i, free)| Some((i, fit(free)?)))?;
        self.carve(index, start, len);
        Some(start)
    }

    fn carve(&mut self, index: usize, start: u64, len: u64) {
        let free = self.0.remove(index);
        let rest = [free.start..start, start + len..free.end];
        self.0.splice(index..index, rest.into_iter().filter(|range| !range.is_empty()));
    }

    /// Gives back what was taken. What is free already, whole or in part, is left as it is: `false`.
    pub(super) fn give_back(&mut self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        let next = self.0.partition_point(|free| free.end < start);
        let touching = self.0.get(next..).unwrap_or_default().iter().take_while(|free| free.start <= end).count();
        let neighbours = self.0.get(next..next + touching).unwrap_or_default();
        if len == 0 || !start.is_multiple_of(PAGE) || neighbours.iter().any(|free| free.start < end && start < free.end)
        {
            return false;
        }
        let from = neighbours.iter().map(|free| free.start).chain([start]).min().unwrap_or(start);
        let to = neighbours.iter().map(|free| free.end).chain([end]).max().unwrap_or(end);
        self.0.splice(next..next + touching, std::iter::once(from..to));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zero_and_the_interrupt_addresses_are_never_given_out() {
        let mut iovas = Iovas::new(39);
        assert_eq!(iovas.low(PAGE, PAGE, 0), Some(LOWEST));
        let gib = 1 << 30;
        let taken: Vec<u64> = std::iter::from_fn(|| iovas.low(gib, gib, 0)).collect();
        assert!(taken.iter().all(|&at| at + gib <= INTERRUPTS.start || at >= INTERRUPTS.end));
        assert_eq!(taken.len(), 512 - 2, "the first GiB is begun, the fourth has the hole");
    }

    proptest! {
        #[test]
        fn ranges_are_disjoint_aligned_and_all_free_again_when_given_back(
            wanted in prop::collection::vec((1u64..40, 0u32..6, any::<bool>(), any::<bool>()), 1..80)
        ) {
            let mut iovas = Iovas::new(39);
            let whole = iovas.free().to_vec();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (pages, align, low, free_one) in wanted {
                let (len, align) = (pages * PAGE, PAGE << align);
                let at = if low { iovas.low(len, align, align - PAGE) } else { iovas.high(len, align) }.unwrap();
                prop_assert_eq!(at % align, if low { align - PAGE } else { 0 });
                prop_assert!(taken.iter().all(|&(start, l)| at + len <= start || start + l <= at));
                taken.push((at, len));
                if free_one {
                    let (at, len) = taken.swap_remove(taken.len() / 2);
                    prop_assert!(iovas.give_back(at, len));
                    prop_assert!(!iovas.give_back(at, len), "twice");
                }
            }
            for (at, len) in taken {
                prop_assert!(iovas.give_back(at, len));
            }
            prop_assert_eq!(iovas.free(), &whole[..]);
        }
    }
}
