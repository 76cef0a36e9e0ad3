//! Which addresses of a device are free.
//!
//! Mappings that last are few, and begin at the same offset in a 2 MiB page as the memory does: then the kernel can map huge
//! pages as huge pages, and the device needs one translation for 2 MiB. Address zero is never given out.

use std::ops::RangeInclusive;

/// Bytes within which address and memory keep the same offset.
const HUGE: u64 = 2 << 20;

/// Free addresses, lowest first.
#[derive(Debug)]
pub(super) struct Addresses {
    /// Disjoint, in order, not touching each other.
    free: Vec<RangeInclusive<u64>>,
}

impl Addresses {
    /// All that the ranges hold, except the first 2 MiB of the address space: a descriptor with address zero, or one close to
    /// it, is an error.
    pub(super) fn new(ranges: &[RangeInclusive<u64>]) -> Addresses {
        let mut free: Vec<_> =
            ranges.iter().map(|r| (*r.start()).max(HUGE)..=*r.end()).filter(|r| !r.is_empty()).collect();
        free.sort_by_key(|r| *r.start());
        Addresses { free }
    }

    /// Takes `len` bytes, at the lowest address that is `like` modulo 2 MiB. `len` is above zero.
    pub(super) fn take(&mut self, len: u64, like: u64) -> Option<u64> {
        let (i, start, last) = self.free.iter().enumerate().find_map(|(i, free)| {
            let start = free.start().checked_add((like % HUGE).wrapping_sub(*free.start()) % HUGE)?;
            let last = start.checked_add(len - 1)?;
            (last <= *free.end()).then_some((i, start, last))
        })?;
        let (first, end) = self.free[i].clone().into_inner();
        let rest = [(start > first).then(|| first..=start - 1), (last < end).then(|| last + 1..=end)];
        self.free.splice(i..=i, rest.into_iter().flatten());
        Some(start)
    }

    /// Gives back what [`take`](Addresses::take) gave.
    pub(super) fn give(&mut self, start: u64, len: u64) {
        let (mut first, mut last) = (start, start + (len - 1));
        let mut i = self.free.partition_point(|r| *r.start() < start);
        if i > 0 && *self.free[i - 1].end() + 1 == first {
            i -= 1;
            first = *self.free.remove(i).start();
        }
        if self.free.get(i).is_some_and(|next| last.checked_add(1) == Some(*next.start())) {
            last = *self.free.remove(i).end();
        }
        self.free.insert(i, first..=last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &[RangeInclusive<u64>] = &[0..=0xfedf_ffff, 0xfef0_0000..=u64::MAX];

    #[test]
    fn an_address_has_the_offset_of_its_memory_and_is_never_near_zero() {
        let mut free = Addresses::new(WHOLE);
        assert_eq!(free.take(4096, 0x7f00_0000_0000), Some(HUGE));
        assert_eq!(free.take(4096, 0x7f00_0000_3000), Some(HUGE + 0x3000));
        assert_eq!(free.take(0x2000, 0x7f00_0000_1000), Some(HUGE + 0x1000), "what lies between stays usable");
    }

    #[test]
    fn nothing_is_given_out_across_a_hole() {
        let mut free = Addresses::new(WHOLE);
        assert_eq!(free.take(0xfee0_0000, 0), Some(0xff00_0000), "4 GiB less 18 MiB do not fit below the hole");
        assert_eq!(free.take(0xfec0_0000, 0), Some(HUGE));
        assert_eq!(free.take(4096, 0), Some(0x1_fde0_0000), "the lower range is used up");
    }

    #[test]
    fn the_end_of_the_address_space_is_an_end() {
        let mut free = Addresses::new(&[u64::MAX - 0xfff..=u64::MAX]);
        assert_eq!(free.take(4096, 0), None);
        assert_eq!(free.take(8192, 0xf_f000), None);
        assert_eq!(free.take(4096, 0x1f_f000), Some(u64::MAX - 0xfff));
        free.give(u64::MAX - 0xfff, 4096);
        assert_eq!(free.free, [u64::MAX - 0xfff..=u64::MAX]);
    }

    proptest::proptest! {
        #[test]
        fn what_was_given_out_never_overlaps_and_all_of_it_comes_home(
            steps in proptest::collection::vec((1u64..0x60, 0u64..0x400, proptest::bool::ANY), 1..60)
        ) {
            let ranges = [0..=HUGE * 2 + 0x4fff, HUGE * 3..=HUGE * 5 - 1];
            let (mut free, all) = (Addresses::new(&ranges), Addresses::new(&ranges));
            let mut out: Vec<(u64, u64)> = Vec::new();
            for (pages, offset, give) in steps {
                if give && !out.is_empty() {
                    let (start, len) = out.swap_remove(offset as usize % out.len());
                    free.give(start, len);
                } else if let Some(start) = free.take(pages * 4096, offset * 4096) {
                    let len = pages * 4096;
                    proptest::prop_assert_eq!(start % HUGE, offset * 4096 % HUGE);
                    proptest::prop_assert!(ranges.iter().any(|r| r.contains(&start) && r.contains(&(start + len - 1))));
                    proptest::prop_assert!(start >= HUGE && out.iter().all(|&(s, l)| start + len <= s || s + l <= start));
                    out.push((start, len));
                }
            }
            for (start, len) in out {
                free.give(start, len);
            }
            proptest::prop_assert_eq!(free.free, all.free);
        }
    }
}
