//! The pace of connections. Opening a session, or refusing it, takes the server thread some hundred
//! microseconds and a process. An application that connects without end would keep a core busy with
//! it, perhaps that of a worker. So connections beyond the pace wait in the listener's queue.

use std::time::{Duration, Instant};

/// The time for each connection: 500 a second.
const INTERVAL: Duration = Duration::from_millis(2);
/// Connections that need not wait after a quiet time.
const BURST: u32 = 128;

/// When the next connection is accepted.
#[derive(Debug)]
pub(super) struct Pace {
    /// The end of the time for those that were accepted.
    paid: Instant,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Pace {
        Pace { paid: now }
    }

    /// The time until the next connection is accepted.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        (self.paid + INTERVAL).saturating_duration_since(now + INTERVAL * BURST)
    }

    /// Counts an accepted connection.
    pub(super) fn accepted(&mut self, now: Instant) {
        self.paid = self.paid.max(now) + INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that are accepted at a time.
    fn accepts(pace: &mut Pace, now: Instant) -> u32 {
        let mut n = 0;
        while pace.wait(now).is_zero() {
            pace.accepted(now);
            n += 1;
        }
        n
    }

    #[test]
    fn a_burst_is_accepted_at_once_and_then_one_connection_an_interval() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        assert_eq!(accepts(&mut pace, begin), BURST);
        assert_eq!(pace.wait(begin), INTERVAL);
        for n in 1..10 {
            assert_eq!(accepts(&mut pace, begin + INTERVAL * n), 1);
        }
        // A quiet time earns a burst, and no more.
        assert_eq!(accepts(&mut pace, begin + INTERVAL * (9 + 5)), 5);
        assert_eq!(accepts(&mut pace, begin + Duration::from_secs(3600)), BURST);
    }
}
