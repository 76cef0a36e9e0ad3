//! The pace of what other processes make a control thread do. Opening a connection takes it some
//! hundred microseconds, and a request may take as long. A process that asks without end would keep
//! a core busy with it, perhaps that of a worker. So what exceeds the pace waits in its socket.

use std::time::{Duration, Instant};

/// When the next turn is taken.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Duration,
    burst: u32,
    /// The end of the time for the turns that were taken.
    paid: Instant,
}

impl Pace {
    /// 500 connections a second, and 128 that need not wait after a quiet time.
    pub(crate) fn of_connections(now: Instant) -> Pace {
        Pace { interval: Duration::from_millis(2), burst: 128, paid: now }
    }

    /// 1000 requests a second, and 2048 that need not wait after a quiet time: a virtual machine
    /// with eight pairs of queues sends some 200 when it starts them.
    pub(crate) fn of_requests(now: Instant) -> Pace {
        Pace { interval: Duration::from_millis(1), burst: 2048, paid: now }
    }

    /// No pace, for what one user alone can ask for.
    pub(crate) fn unlimited(now: Instant) -> Pace {
        Pace { interval: Duration::ZERO, burst: 1, paid: now }
    }

    /// The time until the next turn.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        (self.paid + self.interval).saturating_duration_since(now + self.interval * self.burst)
    }

    /// Counts a turn.
    pub(crate) fn taken(&mut self, now: Instant) {
        self.paid = self.paid.max(now) + self.interval;
    }

    /// No turn is taken for a time.
    pub(crate) fn hold(&mut self, now: Instant, time: Duration) {
        self.paid = self.paid.max(now + time + self.interval * (self.burst - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns that are taken at a time.
    fn takes(pace: &mut Pace, now: Instant) -> u32 {
        let mut n = 0;
        while pace.wait(now).is_zero() {
            pace.taken(now);
            n += 1;
        }
        n
    }

    #[test]
    fn a_burst_is_taken_at_once_and_then_one_turn_an_interval() {
        let begin = Instant::now();
        for mut pace in [Pace::of_connections(begin), Pace::of_requests(begin)] {
            let (interval, burst) = (pace.interval, pace.burst);
            assert_eq!(takes(&mut pace, begin), burst);
            assert_eq!(pace.wait(begin), interval);
            for n in 1..10 {
                assert_eq!(takes(&mut pace, begin + interval * n), 1);
            }
            // A quiet time earns a burst, and no more.
            assert_eq!(takes(&mut pace, begin + interval * (9 + 5)), 5);
            assert_eq!(takes(&mut pace, begin + Duration::from_secs(3600)), burst);
        }
    }

    #[test]
    fn no_turn_is_taken_while_it_is_held() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut pace = Pace::of_connections(begin);
        pace.hold(begin, second);
        assert_eq!(pace.wait(begin), second);
        assert_eq!(takes(&mut pace, begin + second), 1);
    }
}
