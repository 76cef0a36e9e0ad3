//! The rate: the packets that are due, the time of the next one, and how well it is kept.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};
use towpath_packet::port::Pacing;

/// Packet `k` is due `k / rate` seconds after the first.
#[derive(Debug)]
pub(super) struct Pace {
    rate: u64,
    origin: Option<Instant>,
    /// Packets sent or skipped since the origin.
    done: u64,
    shared: Arc<PaceShared>,
}

/// The progress of a [`Pace`]: one writer, any number of readers.
#[derive(Debug)]
pub(super) struct PaceShared {
    rate: u64,
    epoch: Instant,
    /// Nanoseconds from the epoch to the first packet; [`NEVER`] before it.
    origin: AtomicU64,
    done: AtomicU64,
    skipped: AtomicU64,
    /// Nanoseconds from the epoch to the end of the source; [`NEVER`] before it.
    end: AtomicU64,
    /// All packets are made: nothing is due any more.
    complete: AtomicBool,
}

/// Nanoseconds in a second.
const SECOND: u128 = 1_000_000_000;
/// No time yet.
const NEVER: u64 = u64::MAX;

/// Packets that are due after `passed`, the first one included.
fn due_after(passed: Duration, rate: u64) -> u64 {
    u64::try_from(passed.as_nanos() * u128::from(rate) / SECOND).unwrap_or(u64::MAX - 1) + 1
}

/// Packets that a delayed source catches up with: those of ten milliseconds, and at least 64.
fn longest_burst(rate: u64) -> u64 {
    (rate / 100).max(64)
}

impl Pace {
    /// `rate` packets a second, at least 1.
    pub(super) fn new(rate: u64) -> Pace {
        let (rate, epoch) = (rate.max(1), Instant::now());
        let [origin, end, done, skipped] = [NEVER, NEVER, 0, 0].map(AtomicU64::new);
        let complete = AtomicBool::new(false);
        let shared = Arc::new(PaceShared { rate, epoch, origin, done, skipped, end, complete });
        Pace { rate, origin: None, done: 0, shared }
    }

    pub(super) fn shared(&self) -> &Arc<PaceShared> {
        &self.shared
    }

    /// The number of packets that are due. Those that were due more than ten milliseconds (or 64
    /// packets) ago are skipped: after a delay there is a short burst only.
    pub(super) fn due(&mut self, now: Instant) -> u64 {
        let origin = *self.origin.get_or_insert_with(|| self.shared.begin(now));
        let due = due_after(now.saturating_duration_since(origin), self.rate);
        let reachable = due.saturating_sub(longest_burst(self.rate));
        if reachable > self.done {
            self.shared.skipped.fetch_add(reachable - self.done, Relaxed);
            self.done = reachable;
            self.shared.done.store(self.done, Relaxed);
        }
        due.saturating_sub(self.done)
    }

    /// Packets that were sent or given up.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Counts `n` sent packets.
    pub(super) fn sent(&mut self, n: u64) {
        self.done += n;
        self.shared.done.store(self.done, Relaxed);
    }

    /// Nothing is due any more: all packets are made.
    pub(super) fn finish(&mut self) {
        self.shared.complete.store(true, Relaxed);
    }

    /// The time of the next packet; `None` for now, before the first one.
    pub(super) fn next(&self) -> Option<Instant> {
        let after = (u128::from(self.done) * SECOND).div_ceil(u128::from(self.rate));
        self.origin?.checked_add(Duration::from_nanos(u64::try_from(after).ok()?))
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.shared.end.store(self.shared.nanos(Instant::now()), Relaxed);
    }
}

impl PaceShared {
    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(NEVER)
    }

    #[cold]
    fn begin(&self, now: Instant) -> Instant {
        self.origin.store(self.nanos(now), Relaxed);
        now
    }

    /// How the rate is kept until `until`. Packets that are due, but can still be caught up with,
    /// are missing in the rate that is reached, and not given up.
    pub(super) fn read(&self, until: Instant) -> Pacing {
        let asked = self.rate as f64;
        let done = self.done.load(Relaxed);
        let skipped = self.skipped.load(Relaxed).min(done);
        let due = match self.origin.load(Relaxed) {
            NEVER => 0,
            _ if self.complete.load(Relaxed) => done,
            origin => {
                let until = self.nanos(until).min(self.end.load(Relaxed));
                due_after(Duration::from_nanos(until.saturating_sub(origin)), self.rate).max(done)
            }
        };
        let reached = if due == 0 { 0.0 } else { asked * (done - skipped) as f64 / due as f64 };
        let behind = due.saturating_sub(done).saturating_sub(longest_burst(self.rate));
        Pacing::new(asked, reached, skipped + behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_due_at_the_time_of_the_next_one_and_not_before() {
        let start = Instant::now();
        for rate in [1, 3, 7_777, 999_999_937, 10_000_000_000] {
            let mut pace = Pace::new(rate);
            assert_eq!(pace.due(start), 1);
            for _ in 0..100 {
                pace.sent(1);
                let next = pace.next().unwrap();
                if next > start {
                    assert_eq!(pace.due(next - Duration::from_nanos(1)), 0, "rate {rate}");
                }
                assert!(pace.due(next) >= 1, "rate {rate}");
            }
        }
    }

    #[test]
    fn in_any_stretch_of_time_the_rate_is_kept_to_the_packet() {
        let start = Instant::now();
        let mut pace = Pace::new(123_457);
        let mut sent = 0;
        for microsecond in 0..=1_000_000 {
            let due = pace.due(start + Duration::from_micros(microsecond));
            pace.sent(due);
            sent += due;
        }
        assert_eq!(sent, 123_458, "the first packet at the beginning, the last at the end");
    }

    #[test]
    fn after_a_long_pause_only_ten_milliseconds_are_caught_up() {
        let start = Instant::now();
        let mut pace = Pace::new(1_000_000);
        assert_eq!(pace.due(start), 1);
        let late = start + Duration::from_secs(60);
        assert_eq!(pace.due(late), 10_000);
        pace.sent(10_000);
        assert!(pace.next().unwrap() > late);
    }

    #[test]
    fn a_rate_that_is_kept_is_reached_exactly_and_nothing_is_given_up() {
        for rate in [1, 3, 7_777, 1_000_000] {
            let mut pace = Pace::new(rate);
            let start = Instant::now();
            assert_eq!(pace.shared().read(start), Pacing::new(rate as f64, 0.0, 0));
            for millisecond in 0..=3000 {
                let now = start + Duration::from_millis(millisecond);
                let due = pace.due(now);
                pace.sent(due);
                let read = pace.shared().read(now);
                assert_eq!((read.asked, read.reached, read.given_up), (rate as f64, rate as f64, 0));
            }
        }
    }

    #[test]
    fn a_source_that_makes_half_of_what_is_due_gives_the_rest_up() {
        let (mut pace, mut made) = (Pace::new(1_000_000), 0);
        let start = Instant::now();
        for millisecond in 0..=10_000 {
            let now = start + Duration::from_millis(millisecond);
            let due = pace.due(now).min(500);
            pace.sent(due);
            made += due;
        }
        let end = start + Duration::from_secs(10);
        let read = pace.shared().read(end);
        assert!((read.reached - 500_000.0).abs() < 1000.0, "{read:?}");
        let behind = 10_000_001 - made - read.given_up;
        assert!(behind <= 10_000, "{behind} can be caught up with");
    }

    #[test]
    fn a_source_that_is_not_called_any_more_falls_behind_unless_it_is_complete() {
        let mut pace = Pace::new(1000);
        let start = Instant::now();
        let due = pace.due(start);
        pace.sent(due);
        let later = start + Duration::from_secs(2);
        assert_eq!(pace.shared().read(later).given_up, 2000 - 64);
        assert!(pace.shared().read(later).reached < 1.0);
        pace.finish();
        assert_eq!(pace.shared().read(later), Pacing::new(1000.0, 1000.0, 0));
    }
}
