//! Core sharing: a busy worker offers its core to the receivers of what it delivers.
//!
//! ```text
//!   worker     ████████▌yield        ████████▌yield          ████████████████████████▌yield
//!   receiver            ██ recv() until its socket is empty
//!   another                                   ██████████████ keeps the core: no offer for a while
//! ```
//!
//! The scheduler lets a busy thread run for milliseconds. A receiver on the same core has a socket
//! buffer for less than that, so that what the worker delivers meanwhile is lost there, with all
//! the work that was done for it. A receiver is done soon, and sleeps again: the worker therefore
//! offers its core every [`INTERVAL`], and keeps it for at least as long as it was away. A thread
//! that computes would take its whole time slice: one that keeps the core for longer than [`SOON`]
//! is offered it again only after [`PENALTY`] times as long, at most [`LONGEST`].
//!
//! An offer that no thread takes is a system call of some hundred nanoseconds. A worker that
//! [spins](crate::idle::Idle::SPIN) has a core for itself, and offers nothing.

use std::time::{Duration, Instant};

/// Busy time between two offers: what a receiver's socket can hold, with room to spare.
const INTERVAL: Duration = Duration::from_micros(100);
/// Busy turns between two looks at the clock.
const TURNS: u32 = 8;
/// The time in which a receiver is done. A time slice is longer.
const SOON: Duration = Duration::from_millis(1);
/// The time without an offer, by the time that the core was kept.
const PENALTY: u32 = 64;
/// The longest time without an offer: a process that was stopped meanwhile was not kept waiting by
/// another thread.
const LONGEST: Duration = Duration::from_secs(1);

/// When the worker offers its core.
#[derive(Debug)]
pub(crate) struct CoreSharing {
    turns: u32,
    next: Instant,
}

impl CoreSharing {
    pub(crate) fn new(now: Instant) -> CoreSharing {
        CoreSharing { turns: 0, next: now + INTERVAL }
    }

    /// A turn moved packets.
    #[inline]
    pub(crate) fn busy(&mut self) {
        self.turns += 1;
        if self.turns >= TURNS {
            self.turns = 0;
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        let now = Instant::now();
        if now >= self.next {
            std::thread::yield_now();
            self.offered(now, Instant::now());
        }
    }

    /// The core was offered at a time, and was the worker's again at another.
    fn offered(&mut self, at: Instant, back: Instant) {
        let kept = back.saturating_duration_since(at);
        self.next = back + penalty(kept).unwrap_or(kept.max(INTERVAL));
    }
}

/// For how long a core is not offered again after a thread has kept it for a time; none if that was
/// a receiver, which is done soon.
pub(crate) fn penalty(kept: Duration) -> Option<Duration> {
    (kept > SOON).then(|| kept.saturating_mul(PENALTY).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_is_offered_again_soon_unless_somebody_kept_it() {
        let start = Instant::now();
        let mut sharing = CoreSharing::new(start);
        assert_eq!(sharing.next, start + INTERVAL);
        let after = |us| start + Duration::from_micros(us);
        for (kept, next) in [(0, 100), (99, 100), (300, 300), (1000, 1000)] {
            sharing.offered(after(100), after(100 + kept));
            assert_eq!(sharing.next, after(100 + kept + next), "a receiver");
        }
        sharing.offered(after(100), after(4100));
        assert_eq!(sharing.next, after(4100 + 64 * 4000), "a thread that computes");
        sharing.offered(after(100), after(3_600_000_100));
        assert_eq!(sharing.next, after(3_601_000_100), "the process was stopped for an hour");
    }

    #[test]
    fn a_busy_worker_offers_its_core_when_it_is_time_and_not_before() {
        let long_ago = Instant::now();
        let mut sharing = CoreSharing::new(long_ago);
        sharing.next = long_ago + Duration::from_secs(3600);
        (0..TURNS).for_each(|_| sharing.busy());
        assert_eq!(sharing.next, long_ago + Duration::from_secs(3600));
        sharing.next = long_ago;
        (1..TURNS).for_each(|_| sharing.busy());
        assert_eq!(sharing.next, long_ago, "it does not look at the clock at each turn");
        sharing.busy();
        assert!(sharing.next > long_ago);
    }
}
