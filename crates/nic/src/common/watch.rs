//! The watchdog of a queue: when to check what is never checked per packet, and whether frames
//! hang.

use std::time::{Duration, Instant};

/// The longest time between two checks of a queue that is called.
const PERIOD: Duration = Duration::from_millis(200);
/// Calls between two reads of the clock.
const CALLS: u32 = 1024;
/// An idle call counts as this many, because a worker that sleeps makes few calls.
const IDLE: u32 = 64;

/// Tells a queue when to check link, statistics and hangs.
#[derive(Debug)]
pub(crate) struct Watchdog {
    calls: u32,
    period: Duration,
    last: Instant,
}

impl Watchdog {
    /// Checks at least twice within `stall`, the time after which frames hang.
    pub(crate) fn new(stall: Duration, now: Instant) -> Watchdog {
        Watchdog { calls: 0, period: PERIOD.min(stall / 2), last: now }
    }

    /// Whether it is time to check; to be called once per call of the queue. `idle`: the call moved
    /// nothing. `clock` is rarely read.
    #[inline]
    pub(crate) fn is_due(&mut self, idle: bool, clock: impl FnOnce() -> Instant) -> bool {
        self.calls += if idle { IDLE } else { 1 };
        self.calls >= CALLS && self.check(clock)
    }

    #[cold]
    fn check(&mut self, clock: impl FnOnce() -> Instant) -> bool {
        self.calls = 0;
        let now = clock();
        let due = now.duration_since(self.last) >= self.period;
        if due {
            self.last = now;
        }
        due
    }
}

/// Finds frames that the device does not send.
#[derive(Debug)]
pub(crate) struct HangWatch {
    since: Instant,
    completed: u64,
    suspected: bool,
    pauses: u32,
}

/// How often pause frames of the link partner excuse frames that wait: a pause that never ends is a
/// hang as well.
const PAUSES: u32 = 8;

/// The state of frames that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HangState {
    /// Frames have moved since the last check, or none waits.
    Moving,
    /// Frames wait, but not for too long.
    Waiting,
    /// Frames wait for too long: the driver prods the device, and checks again.
    Suspect,
    /// They still wait.
    Hung,
}

impl HangWatch {
    pub(crate) fn new(now: Instant) -> HangWatch {
        HangWatch { since: now, completed: 0, suspected: false, pauses: 0 }
    }

    /// Checks: `completed` frames have been sent since the start, and `pending` wait. They may wait
    /// as long as `limit`.
    pub(crate) fn check(&mut self, completed: u64, pending: usize, limit: Duration, now: Instant) -> HangState {
        if pending == 0 || completed != self.completed {
            *self = HangWatch { since: now, completed, suspected: false, pauses: 0 };
            return HangState::Moving;
        }
        if now.duration_since(self.since) < limit {
            return HangState::Waiting;
        }
        if std::mem::replace(&mut self.suspected, true) { HangState::Hung } else { HangState::Suspect }
    }

    /// The link partner requested a pause; returns whether that excuses the frames.
    pub(crate) fn excuse_pause(&mut self, now: Instant) -> bool {
        self.pauses += 1;
        if self.pauses <= PAUSES {
            self.since = now;
            self.suspected = false;
        }
        self.pauses <= PAUSES
    }

    /// The device is reset: the time of frames that wait begins anew.
    pub(crate) fn restart(&mut self, now: Instant) {
        *self = HangWatch { completed: self.completed, ..HangWatch::new(now) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_wait_are_suspected_first_and_then_hang_and_progress_clears_both() {
        let mut watch = HangWatch::new(Instant::now());
        assert_eq!(watch.check(0, 3, Duration::ZERO, Instant::now()), HangState::Suspect);
        assert_eq!(watch.check(0, 3, Duration::ZERO, Instant::now()), HangState::Hung);
        assert_eq!(watch.check(1, 2, Duration::ZERO, Instant::now()), HangState::Moving);
        assert_eq!(watch.check(1, 2, Duration::ZERO, Instant::now()), HangState::Suspect);
        assert_eq!(watch.check(1, 0, Duration::ZERO, Instant::now()), HangState::Moving);
        assert_eq!(watch.check(1, 1, Duration::from_secs(3600), Instant::now()), HangState::Waiting);
    }

    #[test]
    fn a_pause_excuses_waiting_but_not_for_ever() {
        let mut watch = HangWatch::new(Instant::now());
        assert_eq!(watch.check(0, 1, Duration::ZERO, Instant::now()), HangState::Suspect);
        assert_eq!((0..20).filter(|_| watch.excuse_pause(Instant::now())).count(), PAUSES as usize);
        assert_eq!(watch.check(1, 1, Duration::ZERO, Instant::now()), HangState::Moving);
        assert!(watch.excuse_pause(Instant::now()), "a frame was sent in between");
    }

    #[test]
    fn the_clock_is_read_once_in_many_calls() {
        let mut watchdog = Watchdog { calls: 0, period: Duration::ZERO, last: Instant::now() };
        assert_eq!((0..1024).filter(|_| watchdog.is_due(false, Instant::now)).count(), 1);
        assert_eq!((0..1024).filter(|_| watchdog.is_due(true, Instant::now)).count(), 64);
    }
}
