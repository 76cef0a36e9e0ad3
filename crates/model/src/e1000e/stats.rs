//! Statistics registers: the device counts, reading clears (82574 datasheet §10.2.10).

use super::register_file::RegisterFile;
use super::regs::{STATS, STATS_END};
use std::sync::atomic::Ordering;

pub(crate) const CRCERRS: usize = 0x4000;
/// Symbol errors and sequence errors, which grow without a link.
pub(crate) const SYMERRS: usize = 0x4008;
pub(crate) const SEC: usize = 0x4038;
pub(crate) const RXERRC: usize = 0x400c;
pub(crate) const MPC: usize = 0x4010;
pub(crate) const PRC64: usize = 0x405c;
pub(crate) const GPRC: usize = 0x4074;
pub(crate) const BPRC: usize = 0x4078;
pub(crate) const MPRC: usize = 0x407c;
pub(crate) const GPTC: usize = 0x4080;
pub(crate) const GORC: usize = 0x4088;
pub(crate) const GOTC: usize = 0x4090;
pub(crate) const RNBC: usize = 0x40a0;
pub(crate) const ROC: usize = 0x40ac;
pub(crate) const TOR: usize = 0x40c0;
pub(crate) const TOT: usize = 0x40c8;
pub(crate) const TPR: usize = 0x40d0;
pub(crate) const TPT: usize = 0x40d4;
pub(crate) const PTC64: usize = 0x40d8;
pub(crate) const MPTC: usize = 0x40f0;
pub(crate) const BPTC: usize = 0x40f4;
pub(crate) const TSCTC: usize = 0x40f8;

/// The lower halves of 64-bit counters; the upper halves follow.
const WIDE: [usize; 4] = [GORC, GOTC, TOR, TOT];
const WORDS: usize = (STATS_END - STATS) / 4;

/// Counts since the last publication, which happens once per burst instead of once per frame.
#[derive(Debug)]
pub(crate) struct Stats {
    counts: [u64; WORDS],
    any: bool,
}

impl Default for Stats {
    fn default() -> Stats {
        Stats { counts: [0; WORDS], any: false }
    }
}

impl Stats {
    #[inline]
    pub(crate) fn add(&mut self, at: usize, n: u64) {
        if let Some(count) = self.counts.get_mut((at - STATS) / 4) {
            *count += n;
            self.any = true;
        }
    }

    /// Counts a frame of `len` bytes, FCS included, in its size class; `at` is the register of the
    /// first class.
    #[inline]
    pub(crate) fn size(&mut self, at: usize, len: usize) {
        let class = match len {
            0..=64 => 0,
            65..=127 => 1,
            128..=255 => 2,
            256..=511 => 3,
            512..=1023 => 4,
            _ => 5,
        };
        self.add(at + 4 * class, 1);
    }

    /// Adds the counts to the registers.
    #[inline]
    pub(crate) fn publish(&mut self, registers: &RegisterFile) {
        if !self.any {
            return;
        }
        self.any = false;
        for (i, count) in self.counts.iter_mut().enumerate().filter(|(_, n)| **n != 0) {
            let (at, count) = (STATS + 4 * i, std::mem::take(count));
            let Some(low) = registers.word(at) else { continue };
            if !WIDE.contains(&at) {
                // Statistics saturate.
                let _ = low.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                    Some(u32::try_from(u64::from(old) + count).unwrap_or(u32::MAX))
                });
            } else if let Some(high) = registers.word(at + 4) {
                let before = low.fetch_add(count as u32, Ordering::Relaxed);
                let carry = (u64::from(before) + (count & 0xffff_ffff)) >> 32;
                high.fetch_add((count >> 32) as u32 + carry as u32, Ordering::Relaxed);
            }
        }
    }
}

/// Reads a statistics register and clears it. Of a pair, reading the upper half clears both.
pub(crate) fn read(registers: &RegisterFile, at: usize) -> u32 {
    let swap = |at| registers.word(at).map_or(u32::MAX, |w| w.swap(0, Ordering::Relaxed));
    if WIDE.contains(&at) {
        registers.get(at)
    } else if WIDE.contains(&(at - 4)) {
        swap(at - 4);
        swap(at)
    } else {
        swap(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_clears() {
        let (registers, mut stats) = (RegisterFile::new([0; 6]), Stats::default());
        stats.add(GPRC, 3);
        stats.publish(&registers);
        stats.add(GPRC, 2);
        stats.publish(&registers);
        assert_eq!((read(&registers, GPRC), read(&registers, GPRC)), (5, 0));
    }

    #[test]
    fn a_pair_carries_and_is_cleared_by_its_upper_half() {
        let (registers, mut stats) = (RegisterFile::new([0; 6]), Stats::default());
        for _ in 0..3 {
            stats.add(GORC, 0x8000_0001);
            stats.publish(&registers);
        }
        assert_eq!(read(&registers, GORC), 0x8000_0003);
        assert_eq!(read(&registers, GORC), 0x8000_0003, "the lower half stays");
        assert_eq!(read(&registers, GORC + 4), 1);
        assert_eq!((read(&registers, GORC), read(&registers, GORC + 4)), (0, 0));
    }

    #[test]
    fn a_narrow_counter_saturates() {
        let (registers, mut stats) = (RegisterFile::new([0; 6]), Stats::default());
        for _ in 0..2 {
            stats.add(MPC, 0xffff_fff0);
            stats.publish(&registers);
        }
        assert_eq!(read(&registers, MPC), u32::MAX);
    }

    #[test]
    fn frame_sizes_are_counted_in_their_classes() {
        let (registers, mut stats) = (RegisterFile::new([0; 6]), Stats::default());
        for len in [64, 65, 127, 128, 255, 256, 511, 512, 1023, 1024, 9000] {
            stats.size(PRC64, len);
        }
        stats.publish(&registers);
        let classes: Vec<_> = (0..6).map(|i| read(&registers, PRC64 + 4 * i)).collect();
        assert_eq!(classes, [1, 2, 2, 2, 2, 2]);
    }
}
