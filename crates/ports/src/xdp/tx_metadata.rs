//! Metadata in front of a transmitted frame: requests and results (`struct xsk_tx_metadata`, since
//! Linux 6.8).
//!
//! ```text
//!   0 flags u64 │ 8 request: start u16, offset u16 of a checksum    │ 16 launch time, unused │ frame …
//!               │ 8 completion: timestamp u64, at the same offset   │
//! ```

//!
//! **Timestamps** (`XDP_TXMD_FLAGS_TIMESTAMP`) give the delay of a frame from submission to
//! transmission:
//!
//! ```text
//!   submit, clock read ──► TX ring ──► driver ──► timestamp written ──► COMPLETION ring ──► delay = timestamp − submit
//! ```
//!
//! One frame at a time has a request: the cost is one read of the clock per sample, and none per
//! packet. In copy mode the kernel writes the time (`CLOCK_TAI`) at which the driver freed the
//! frame. In zero-copy mode the device writes its own clock, which gives delays only if `phc2sys`
//! synchronises the two. Negative delays are discarded.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::{Checksum, Packet};
use towpath_sys::host::clock_tai;

/// Bytes of the metadata.
pub(super) const LEN: usize = 24;
/// `XDP_TXMD_FLAGS_TIMESTAMP`.
pub(super) const TIMESTAMP: u64 = 1;
/// `XDP_TXMD_FLAGS_CHECKSUM`.
pub(super) const CHECKSUM: u64 = 2;

/// Writes a request in front of the packet: for `CHECKSUM` with the packet's partial checksum.
/// Returns `None` without headroom.
pub(super) fn request(packet: &mut Packet, flags: u64) -> Option<()> {
    let csum = packet.csum();
    let room = packet.push_front(LEN).ok()?;
    room.fill(0);
    room.get_mut(..8)?.copy_from_slice(&flags.to_ne_bytes());
    if let (true, Checksum::Partial { start, offset }) = (flags & CHECKSUM != 0, csum) {
        room.get_mut(8..10)?.copy_from_slice(&start.to_ne_bytes());
        room.get_mut(10..12)?.copy_from_slice(&u16::from(offset).to_ne_bytes());
    }
    packet.pull_front(LEN).then_some(())
}

/// The timestamp in front of a completed packet; `None` if none was written.
pub(super) fn take_timestamp(packet: &mut Packet) -> Option<u64> {
    let room = packet.push_front(LEN).ok()?;
    let stamp = room.get(8..16)?.first_chunk().copied().map(u64::from_ne_bytes);
    packet.pull_front(LEN);
    stamp.filter(|&stamp| stamp != 0)
}

/// Buckets of each power of two: the resolution is an eighth.
const STEPS: u32 = 8;
const BUCKETS: usize = 36 * STEPS as usize;

/// Histogram of the delays of all queues.
#[derive(Debug)]
pub(super) struct Delays([AtomicU64; BUCKETS]);

impl Default for Delays {
    fn default() -> Delays {
        Delays(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// A percentile of the delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Percentile {
    P50 = 50,
    P99 = 99,
}

/// Index of the bucket of a delay; `None` above some minutes.
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
    let (power, step) = (bucket as u32 / STEPS, bucket as u64 % u64::from(STEPS));
    if power == 0 { step } else { (u64::from(STEPS) + step) << (power - 1) }
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

    /// A percentile in nanoseconds; 0 without samples.
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

/// One queue's current sample.
#[derive(Debug, Default)]
pub(super) struct TxTimestamp {
    /// The chunk of the frame with the request, and the time of its submission.
    requested: Option<(usize, u64)>,
}

impl TxTimestamp {
    /// Whether the next frame gets a request.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.requested.is_none()
    }

    /// Begins a sample: the frame in this chunk has a request and is submitted next.
    pub(super) fn begin(&mut self, chunk: usize) {
        self.requested = Some((chunk, clock_tai()));
    }

    /// Whether the frame of this chunk has the request.
    #[inline]
    pub(super) fn is_in(&self, chunk: usize) -> bool {
        self.requested.is_some_and(|(requested, _)| requested == chunk)
    }

    /// Ends the sample: with a timestamp, or without.
    pub(super) fn end(&mut self, timestamp: Option<u64>, delays: &Delays) {
        if let (Some((_, submitted)), Some(timestamp)) = (self.requested.take(), timestamp)
            && let Some(delay) = timestamp.checked_sub(submitted)
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
        fn a_delay_is_resolved_to_an_eighth(nanos in 0u64..1 << 35) {
            let shown = floor(bucket(nanos).unwrap());
            prop_assert!(shown <= nanos && nanos - shown <= nanos / 8, "{} for {}", shown, nanos);
        }
    }

    #[test]
    fn percentiles_are_those_of_the_samples_and_endless_delays_are_discarded() {
        let delays = Delays::default();
        assert_eq!(delays.percentile(Percentile::P99), 0);
        (1..=100).for_each(|n| delays.add(n * 1024));
        delays.add(u64::MAX);
        assert_eq!(delays.count(), 100);
        assert_eq!(delays.percentile(Percentile::P50), 48 * 1024);
        assert_eq!(delays.percentile(Percentile::P99), 96 * 1024);
    }

    #[test]
    fn a_timestamp_before_its_submission_is_of_another_clock() {
        let (mut sample, delays) = (TxTimestamp::default(), Delays::default());
        sample.begin(7);
        assert!(sample.is_in(7) && !sample.is_in(8) && !sample.is_due());
        sample.end(Some(1), &delays);
        assert!(sample.is_due());
        assert_eq!(delays.count(), 0);
    }
}
