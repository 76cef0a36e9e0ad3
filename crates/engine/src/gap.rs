//! How long an idle worker leaves the rings alone after a burst.
//!
//! ```text
//!   turns   burst │ nothing │ gap │ burst │ nothing │ gap │ nothing │ gap │ …
//!                                           at most 4 in a row, then none until the next burst
//!
//!   gaps    64 bursts: short │ 64: long │ 4096: whichever moved more packets a second │ 64: …
//! ```
//!
//! After a burst the other side of a ring is mostly writing the next one. Each look at an empty ring
//! takes the line that it writes, and it has to fetch that line again. So a turn that finds nothing
//! is followed by a gap.
//!
//! The longer the gap, the fewer such looks. But what waits for an answer before it goes on waits
//! longer too. Which of both matters is measured.
//!
//! Only bursts are followed by gaps: a request and its response are none.

use std::time::{Duration, Instant};

/// Packets of a turn that are a burst.
const BURST: usize = 32;
/// Turns in a row that find nothing and leave a gap. A side that sends nothing for so long is not
/// writing a burst.
const MAX_GAPS: u32 = 4;
/// A third of the time that DPDK takes to send a burst, and a little more than the whole of it.
const SHORT: Duration = Duration::from_nanos(400);
const LONG: Duration = Duration::from_nanos(1500);
/// Bursts of a trial, and those for which its result is kept.
const TRIAL: u32 = 64;
const KEPT: u32 = 4096;

/// What the present bursts are for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    TrialOfShort,
    /// With the packets a second of the trial before.
    TrialOfLong(f64),
    Kept,
}

/// The gaps of one worker.
#[derive(Debug)]
pub(crate) struct Gap {
    /// Packets of the last turn that moved some, and gaps since.
    last: usize,
    gaps: u32,
    phase: Phase,
    long: bool,
    /// Bursts until the phase ends, packets since it began, and that time.
    left: u32,
    packets: u64,
    began: Option<Instant>,
}

impl Default for Gap {
    fn default() -> Gap {
        let phase = Phase::TrialOfShort;
        Gap { last: 0, gaps: 0, phase, long: false, left: TRIAL, packets: 0, began: None }
    }
}

impl Gap {
    /// A turn moved packets.
    #[inline]
    pub(crate) fn moved(&mut self, packets: usize) {
        self.packets += packets as u64;
        (self.last, self.gaps) = (packets, 0);
    }

    /// A turn moved nothing: the time for which to leave the rings alone. `now` is the time.
    #[inline]
    pub(crate) fn after_nothing(&mut self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        if self.last < BURST {
            return None;
        }
        if self.gaps >= MAX_GAPS {
            // The bursts have ended. A trial that ends with them begins again with the next ones.
            if self.phase != Phase::Kept {
                *self = Gap::default();
            }
            return None;
        }
        if self.gaps == 0 {
            if self.left == 0 || self.began.is_none() {
                self.next_phase(now());
            }
            self.left -= 1;
        }
        self.gaps += 1;
        Some(if self.long { LONG } else { SHORT })
    }

    /// A phase ends, or the first one begins.
    fn next_phase(&mut self, now: Instant) {
        if let Some(began) = self.began {
            let rate = self.packets as f64 / now.duration_since(began).as_secs_f64().max(1e-9);
            (self.phase, self.long, self.left) = match self.phase {
                Phase::TrialOfShort => (Phase::TrialOfLong(rate), true, TRIAL),
                Phase::TrialOfLong(of_short) => (Phase::Kept, rate > of_short, KEPT),
                Phase::Kept => (Phase::TrialOfShort, false, TRIAL),
            };
        }
        (self.packets, self.began) = (0, Some(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Duration = Duration::from_nanos(25);

    /// The part of long gaps in so many bursts of another side, which has `ready` packets after a
    /// gap. Each of them costs [`WORK`].
    fn long_gaps(gap: &mut Gap, time: &mut Instant, bursts: u32, ready: impl Fn(Duration) -> usize) -> f64 {
        let mut long = 0;
        gap.moved(BURST);
        for _ in 0..bursts {
            let wait = gap.after_nothing(|| *time).unwrap();
            long += u32::from(wait == LONG);
            let packets = ready(wait);
            *time += wait + WORK * packets as u32;
            gap.moved(packets);
        }
        f64::from(long) / f64::from(bursts)
    }

    /// A side that goes on by itself, and one that waits for an answer.
    fn goes_on(gap: Duration) -> usize {
        if gap == LONG { 5 * BURST } else { BURST }
    }
    fn waits(_: Duration) -> usize {
        BURST
    }

    #[test]
    fn gaps_are_long_where_they_move_more_and_short_where_they_do_not() {
        let (mut gap, mut time) = (Gap::default(), Instant::now());
        for _ in 0..3 {
            // A result of before is kept for a while.
            long_gaps(&mut gap, &mut time, KEPT + 2 * TRIAL, goes_on);
            let part = long_gaps(&mut gap, &mut time, 10 * KEPT, goes_on);
            assert!(part > 0.95, "{part}");
            long_gaps(&mut gap, &mut time, KEPT + 2 * TRIAL, waits);
            let part = long_gaps(&mut gap, &mut time, 10 * KEPT, waits);
            assert!((0.005..0.05).contains(&part), "{part}");
        }
    }

    #[test]
    fn a_trial_begins_again_when_bursts_end_and_a_result_is_kept() {
        let (mut gap, mut time) = (Gap::default(), Instant::now());
        let end = |gap: &mut Gap, now| while gap.after_nothing(|| now).is_some() {};
        long_gaps(&mut gap, &mut time, TRIAL / 2, waits);
        end(&mut gap, time);
        assert_eq!((gap.phase, gap.left, gap.began), (Phase::TrialOfShort, TRIAL, None));
        long_gaps(&mut gap, &mut time, 3 * TRIAL, goes_on);
        assert_eq!((gap.phase, gap.long), (Phase::Kept, true));
        end(&mut gap, time);
        assert_eq!((gap.phase, gap.long), (Phase::Kept, true));
    }

    #[test]
    fn only_bursts_are_followed_by_gaps_and_only_by_a_few() {
        let (mut gap, now) = (Gap::default(), Instant::now());
        let mut gaps_after = |packets| {
            gap.moved(packets);
            (0..100).filter(|_| gap.after_nothing(|| now).is_some()).count()
        };
        assert_eq!([BURST, BURST - 1, 1, 0, 2 * BURST].map(&mut gaps_after), [4, 0, 0, 0, 4]);
        let mut gap = Gap::default();
        gap.moved(BURST);
        assert_eq!([(); 3].map(|()| gap.after_nothing(|| now)), [Some(SHORT); 3]);
        assert_eq!(gap.left, TRIAL - 1, "gaps behind one burst count once");
    }
}
