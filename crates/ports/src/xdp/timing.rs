//! When did it leave? Timestamps that the kernel, or the device, writes into the metadata of a sent frame (`XDP_TXMD_FLAGS_TIMESTAMP`,
//! since Linux 6.8).
//!
//! ```text
//!   submit, clock read ──► TX ring ──► driver ──► timestamp written ──► COMPLETION ring ──► delay = timestamp − submit
//! ```
//!
//! One frame at a time is asked about, so that it costs a look at the clock per sample and nothing per packet. Where frames are
//! copied, the kernel writes the time (`CLOCK_TAI`) at which the driver was through with the frame. Where they are not, it is
//! the device's clock, which gives delays only if that is set by the same (`phc2sys`); samples that make no sense are left out.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use towpath_sys::host::clock_tai;

/// Steps to a doubling: delays are told apart to an eighth.
const STEPS: u32 = 8;
const BUCKETS: usize = 36 * STEPS as usize;

/// How long frames took to leave, from all queues.
#[derive(Debug)]
pub(super) struct Delays([AtomicU64; BUCKETS]);

impl Default for Delays {
    fn default() -> Delays {
        Delays(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// The share of delays that are no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Percentile {
    P50 = 50,
    P99 = 99,
}

/// Number of the bucket for a delay, or `None` for one above some minutes.
fn bucket(nanos: u64) -> Option<usize> {
    let steps = u64::from(STEPS);
    let number = match nanos.checked_ilog2() {
        Some(log) if log >= STEPS.ilog2() => {
            let shift = log - STEPS.ilog2();
            (u64::from(shift) + 1) * steps + ((nanos >> shift) - steps)
        }
        _ => nanos,
    };
    Some(number as usize).filter(|&n| n < BUCKETS)
}

/// The shortest delay of a bucket.
fn floor(bucket: usize) -> u64 {
    let (doubling, step) = (bucket as u32 / STEPS, bucket as u64 % u64::from(STEPS));
    if doubling == 0 { step } else { (u64::from(STEPS) + step) << (doubling - 1) }
}

impl Delays {
    fn add(&self, nanos: u64) {
        if let Some(count) = bucket(nanos).and_then(|n| self.0.get(n)) {
            count.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|n| n.load(Relaxed)).sum()
    }

    /// In nanoseconds; 0 without samples.
    pub(super) fn percentile(&self, percentile: Percentile) -> u64 {
        let wanted = (self.count() * percentile as u64).div_ceil(100);
        let mut seen = 0;
        let found = self.0.iter().position(|n| {
            seen += n.load(Relaxed);
            seen > 0 && seen >= wanted
        });
        found.map_or(0, floor)
    }
}

/// One queue's sample.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// The chunk that was asked about, and when it was submitted.
    asked: Option<(usize, u64)>,
}

impl Sample {
    /// Whether the next frame is to be asked about.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.asked.is_none()
    }

    /// The frame in this chunk is about to be submitted, and asks for a timestamp.
    pub(super) fn begin(&mut self, chunk: usize) {
        self.asked = Some((chunk, clock_tai()));
    }

    /// Whether the answer is in the frame of this chunk.
    #[inline]
    pub(super) fn is_in(&self, chunk: usize) -> bool {
        self.asked.is_some_and(|(asked, _)| asked == chunk)
    }

    /// The answer has come, or never will.
    pub(super) fn end(&mut self, timestamp: Option<u64>, delays: &Delays) {
        if let (Some((_, asked)), Some(timestamp)) = (self.asked.take(), timestamp)
            && let Some(delay) = timestamp.checked_sub(asked)
        {
            delays.add(delay);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_delay_is_told_to_an_eighth(nanos in 0u64..1 << 35) {
            let told = floor(bucket(nanos).unwrap());
            prop_assert!(told <= nanos && nanos - told <= nanos / 8, "{} for {}", told, nanos);
        }
    }

    #[test]
    fn percentiles_are_those_of_the_samples_and_nonsense_is_left_out() {
        let delays = Delays::default();
        assert_eq!(delays.percentile(Percentile::P99), 0);
        (1..=100).for_each(|n| delays.add(n * 1024));
        delays.add(u64::MAX);
        assert_eq!(delays.count(), 100);
        assert_eq!(delays.percentile(Percentile::P50), 48 * 1024);
        assert_eq!(delays.percentile(Percentile::P99), 96 * 1024);
    }

    #[test]
    fn a_timestamp_before_its_question_is_of_another_clock() {
        let (mut sample, delays) = (Sample::default(), Delays::default());
        sample.begin(7);
        assert!(sample.is_in(7) && !sample.is_in(8) && !sample.is_due());
        sample.end(Some(1), &delays);
        assert!(sample.is_due());
        assert_eq!(delays.count(), 0);
    }
}
