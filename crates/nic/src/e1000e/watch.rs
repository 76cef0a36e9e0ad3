//! What is looked at from time to time, and never per packet: link, statistics, hangs.

use super::config::Config;
use super::init;
use super::regs::{MPC, RX_ERRORS, TX_ERRORS};
use std::time::{Duration, Instant};
use towpath_bus::Mmio;
use towpath_packet::Counters;

/// The link is looked at as often, at least.
const PERIOD: Duration = Duration::from_millis(200);
/// Calls between two looks at the clock; an idle call counts for many, because a worker that sleeps makes few of them.
const CALLS: u32 = 1024;
const IDLE: u32 = 64;

/// Says when it is time to look.
#[derive(Debug)]
pub(super) struct Watch {
    calls: u32,
    period: Duration,
    last: Instant,
}

impl Watch {
    pub(super) fn new(config: &Config) -> Watch {
        Watch { calls: 0, period: PERIOD.min(config.stall / 2), last: Instant::now() }
    }

    /// Whether it is time, asked once per call of a queue.
    #[inline]
    pub(super) fn is_due(&mut self, idle: bool) -> bool {
        self.calls += if idle { IDLE } else { 1 };
        self.calls >= CALLS && self.ask_clock()
    }

    #[cold]
    fn ask_clock(&mut self) -> bool {
        self.calls = 0;
        let now = Instant::now();
        let due = now.duration_since(self.last) >= self.period;
        if due {
            self.last = now;
        }
        due
    }
}

/// Adds what the device counted since the last time (§10.2.7: reading clears) to the counters of a receive and a transmit queue.
pub(super) fn receive_statistics<M: Mmio>(bar: &M, counters: &Counters) {
    let read = |reg: towpath_bus::Reg| match reg.read(bar) {
        u32::MAX => 0,
        n => u64::from(n),
    };
    counters.missed(read(MPC));
    counters.failed(RX_ERRORS.into_iter().map(read).sum());
}

/// The same for transmission.
pub(super) fn transmit_statistics<M: Mmio>(bar: &M, counters: &Counters) {
    let errors = TX_ERRORS.into_iter().map(|reg| reg.read(bar)).filter(|&n| n != u32::MAX);
    counters.failed(errors.map(u64::from).sum());
}

/// Whether frames wait for longer than they may.
#[derive(Debug)]
pub(super) struct Stall {
    since: Instant,
    done: u64,
    suspected: bool,
    pauses: u32,
}

/// Times that a pause of the partner excuses frames that wait: one that never ends is a hang as well.
const PAUSES: u32 = 8;

/// What to do about frames that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Fine,
    /// They wait for too long: prod the device, and look again.
    Suspect,
    /// They still do.
    Hung,
}

impl Stall {
    pub(super) fn new() -> Stall {
        Stall { since: Instant::now(), done: 0, suspected: false, pauses: 0 }
    }

    /// `done` frames have left since the start, `pending` have not.
    pub(super) fn judge(&mut self, done: u64, pending: usize, limit: Duration) -> Verdict {
        let now = Instant::now();
        if pending == 0 || done != self.done {
            *self = Stall { since: now, done, suspected: false, pauses: 0 };
            return Verdict::Fine;
        }
        if now.duration_since(self.since) < limit {
            return Verdict::Fine;
        }
        if std::mem::replace(&mut self.suspected, true) { Verdict::Hung } else { Verdict::Suspect }
    }

    /// The partner asked for a pause; whether that excuses it.
    pub(super) fn pause(&mut self) -> bool {
        self.pauses += 1;
        if self.pauses <= PAUSES {
            self.since = Instant::now();
            self.suspected = false;
        }
        self.pauses <= PAUSES
    }

    /// The device is reset: what waits from now on waits anew.
    pub(super) fn forget(&mut self) {
        *self = Stall { done: self.done, ..Stall::new() };
    }
}

/// A PHY that counts errors and hears nothing hangs, and a reset cures it: registers 10 (1000BASE-T status) and 21 (receive errors) are
/// full, twice in a row (an erratum of the 82574).
#[derive(Debug, Default)]
pub(super) struct PhyWatch {
    looks: u32,
    suspected: bool,
}

impl PhyWatch {
    /// Looks at every tenth call; whether the PHY hangs.
    pub(super) fn is_stuck<M: Mmio>(&mut self, bar: &M) -> bool {
        self.looks += 1;
        if self.looks < 10 {
            return false;
        }
        self.looks = 0;
        let full = init::phy(bar, 10).is_some_and(|status| status & 0xff == 0xff) && init::phy(bar, 21) == Some(0xffff);
        std::mem::replace(&mut self.suspected, full) && full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_wait_are_suspected_first_and_then_hang_and_progress_clears_both() {
        let mut stall = Stall::new();
        assert_eq!(stall.judge(0, 3, Duration::ZERO), Verdict::Suspect);
        assert_eq!(stall.judge(0, 3, Duration::ZERO), Verdict::Hung);
        assert_eq!(stall.judge(1, 2, Duration::ZERO), Verdict::Fine);
        assert_eq!(stall.judge(1, 2, Duration::ZERO), Verdict::Suspect);
        assert_eq!(stall.judge(1, 0, Duration::ZERO), Verdict::Fine);
        assert_eq!(stall.judge(1, 1, Duration::from_secs(3600)), Verdict::Fine);
    }

    #[test]
    fn a_pause_excuses_waiting_but_not_for_ever() {
        let mut stall = Stall::new();
        assert_eq!(stall.judge(0, 1, Duration::ZERO), Verdict::Suspect);
        assert_eq!((0..20).filter(|_| stall.pause()).count(), PAUSES as usize);
        assert_eq!(stall.judge(1, 1, Duration::ZERO), Verdict::Fine);
        assert!(stall.pause(), "something has left in between");
    }

    #[test]
    fn the_clock_is_asked_once_in_many_calls() {
        let mut watch = Watch { calls: 0, period: Duration::ZERO, last: Instant::now() };
        assert_eq!((0..1024).filter(|_| watch.is_due(false)).count(), 1);
        assert_eq!((0..1024).filter(|_| watch.is_due(true)).count(), 64);
    }
}
