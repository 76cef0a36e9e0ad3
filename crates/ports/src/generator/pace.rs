//! The rate: the packets that are due, and the time of the next one.

use std::time::{Duration, Instant};

/// Packet `k` is due `k / rate` seconds after the first.
#[derive(Debug)]
pub(super) struct Pace {
    rate: u64,
    origin: Option<Instant>,
    /// Packets sent or skipped since the origin.
    done: u64,
}

/// Nanoseconds in a second.
const SECOND: u128 = 1_000_000_000;

impl Pace {
    /// `rate` packets a second, at least 1.
    pub(super) fn new(rate: u64) -> Pace {
        Pace { rate: rate.max(1), origin: None, done: 0 }
    }

    /// The number of packets that are due. Those that were due more than ten milliseconds (or 64
    /// packets) ago are skipped: after a delay there is a short burst only.
    pub(super) fn due(&mut self, now: Instant) -> u64 {
        let origin = *self.origin.get_or_insert(now);
        let passed = now.saturating_duration_since(origin).as_nanos() * u128::from(self.rate) / SECOND;
        let due = u64::try_from(passed).unwrap_or(u64::MAX - 1) + 1;
        let max = (self.rate / 100).max(64);
        self.done = self.done.max(due.saturating_sub(max));
        due.saturating_sub(self.done)
    }

    /// Counts `n` sent packets.
    pub(super) fn sent(&mut self, n: u64) {
        self.done += n;
    }

    /// The time of the next packet; `None` for now, before the first one.
    pub(super) fn next(&self) -> Option<Instant> {
        let after = (u128::from(self.done) * SECOND).div_ceil(u128::from(self.rate));
        self.origin?.checked_add(Duration::from_nanos(u64::try_from(after).ok()?))
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
}
