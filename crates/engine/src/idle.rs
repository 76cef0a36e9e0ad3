//! Idling: what a worker does while no packet moves.
//!
//! ```text
//!   turns without a packet:   0 ......... spins ........ + yields ........ window ..........►
//!                             pause        yield          yield           sleep on the descriptors
//!                             │                           └ measured: see `halt_poll`
//!                             └ after a burst, the first ones are longer: see `gap`
//! ```
//!
//! Spinning reacts in nanoseconds and occupies a core; sleeping reacts in microseconds and costs
//! nothing. The default is in between: it sleeps after some ten microseconds, but stays awake where
//! packets come within half a millisecond of one another. So a busy path never sleeps, a request
//! and its response wait for no wake-up, and a quiet path costs less than one percent of a core.
//! Queues without a descriptor are polled: every 50 µs at first, every millisecond later.

use crate::gap::Gap;
use crate::halt_poll::HaltPoll;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};
use towpath_packet::port::Wake;
use towpath_sys::poll::PollSet;

/// When a worker pauses, yields and sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    /// Turns that only pause the processor.
    pub spins: u32,
    /// Further turns that yield to other threads.
    pub yields: u32,
    /// Whether to sleep after that; otherwise it keeps yielding.
    pub sleep: bool,
    /// The longest time for which it yields before it sleeps, where packets come that soon one after
    /// the other. Zero: it sleeps at once.
    pub longest_window: Duration,
}

impl Idle {
    /// Never yields the core: the lowest latency, for a dedicated core.
    pub const SPIN: Idle = Idle { spins: u32::MAX, yields: 0, sleep: false, longest_window: Duration::ZERO };
    /// Yields, but never sleeps.
    pub const YIELD: Idle = Idle { spins: 64, yields: u32::MAX, ..Idle::SPIN };
    /// Sleeps after some ten microseconds: the least processor time.
    pub const SLEEP: Idle = Idle { spins: 64, yields: 8, sleep: true, ..Idle::SPIN };
    /// Sleeps, but not where packets come within half a millisecond of one another.
    pub const ADAPTIVE: Idle = Idle { longest_window: Duration::from_micros(500), ..Idle::SLEEP };
}

impl Default for Idle {
    fn default() -> Idle {
        Idle::ADAPTIVE
    }
}

/// Longest sleep: bounds the time until a worker notices a finished port or a lost link.
const LONGEST: Duration = Duration::from_millis(100);
const POLL_FIRST: Duration = Duration::from_micros(50);
const POLL_LAST: Duration = Duration::from_millis(1);

/// The idle state of one worker.
pub(crate) struct Idler {
    idle: Idle,
    turns: u32,
    poll: Duration,
    waits: PollSet,
    until: Option<Instant>,
    polling: bool,
    gap: Gap,
    halt_poll: HaltPoll,
}

/// The action after a turn that moved nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Turn again.
    Again,
    /// Register the wake-up conditions, turn once more, then [`sleep`](Idler::sleep).
    Sleep,
}

impl Idler {
    pub(crate) fn new(idle: Idle, routes: usize) -> Idler {
        let waits = PollSet::with_capacity(2 * routes + 1);
        let (gap, halt_poll) = (Gap::default(), HaltPoll::new(idle.longest_window));
        Idler { idle, turns: 0, poll: POLL_FIRST, waits, until: None, polling: false, gap, halt_poll }
    }

    /// A turn moved packets.
    #[inline]
    pub(crate) fn busy(&mut self, packets: usize) {
        self.turns = 0;
        self.gap.moved(packets);
        self.halt_poll.moved(Instant::now);
        self.poll = POLL_FIRST;
    }

    /// A turn moved nothing.
    pub(crate) fn step(&mut self) -> Next {
        self.turns = self.turns.saturating_add(1);
        if self.turns <= self.idle.spins {
            match self.gap.after_nothing(Instant::now) {
                None => std::hint::spin_loop(),
                Some(time) => spin(time),
            }
            return Next::Again;
        }
        if !self.idle.sleep || self.turns - self.idle.spins <= self.idle.yields {
            std::thread::yield_now();
            return Next::Again;
        }
        if self.halt_poll.stays_awake(std::thread::yield_now, Instant::now) {
            return Next::Again;
        }
        self.waits.clear();
        self.until = None;
        self.polling = false;
        Next::Sleep
    }

    /// Adds a wake-up condition of the receiving or the sending side.
    pub(crate) fn wait_for(&mut self, wake: Wake, sending: bool) {
        match wake {
            Wake::Fd(fd) if sending => self.waits.writable(fd),
            Wake::Fd(fd) | Wake::Readable(fd) => self.waits.readable(fd),
            Wake::At(at) => self.until = Some(self.until.map_or(at, |until| until.min(at))),
            Wake::Poll => self.polling = true,
            Wake::Never => {}
        }
    }

    /// Sleeps until a condition holds or `stop` becomes readable.
    pub(crate) fn sleep(&mut self, stop: RawFd) {
        self.waits.readable(stop);
        let mut time = LONGEST;
        if self.polling {
            time = self.poll;
            self.poll = (self.poll * 2).min(POLL_LAST);
        }
        if let Some(until) = self.until {
            time = time.min(until.saturating_duration_since(Instant::now()));
        }
        if !time.is_zero() {
            self.waits.wait(time);
        }
    }
}

/// Pauses the processor for a time.
fn spin(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_spins_then_yields_then_sleeps_and_starts_again_when_busy() {
        let mut idler = Idler::new(Idle { spins: 2, yields: 1, ..Idle::SLEEP }, 1);
        let steps: Vec<_> = (0..4).map(|_| idler.step()).collect();
        assert_eq!(steps, [Next::Again, Next::Again, Next::Again, Next::Sleep]);
        idler.busy(1);
        assert_eq!(idler.step(), Next::Again);
    }

    #[test]
    fn a_spinning_worker_never_sleeps() {
        let mut idler = Idler::new(Idle::SPIN, 1);
        assert!((0..10_000).all(|_| idler.step() == Next::Again));
    }
}
