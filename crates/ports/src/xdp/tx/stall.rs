//! Whether a queue is stalled: nothing was completed for too long, though packets are in flight.

use std::time::{Duration, Instant};

/// The looks at a queue that completes nothing. It begins anew with each completion.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// The first look.
    since: Option<Instant>,
    /// At the last look, that was longer ago than the limit.
    was_over: bool,
}

impl Stall {
    /// A look without a completion; returns whether the queue is stalled. That takes two looks
    /// behind the limit: a processor that did not run makes one late, and what the kernel completes
    /// then is there at the next one.
    pub(super) fn look(&mut self, now: Instant, limit: Duration) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_over = now.saturating_duration_since(since) > limit;
        std::mem::replace(&mut self.was_over, is_over) && is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    fn looks<const N: usize>(stall: &mut Stall, at: [u64; N]) -> [bool; N] {
        let begin = Instant::now();
        at.map(|ms| stall.look(begin + Duration::from_millis(ms), LIMIT))
    }

    #[test]
    fn a_queue_is_stalled_at_the_second_look_behind_the_limit() {
        assert_eq!(looks(&mut Stall::default(), [0, 100, 1000, 1100, 1200]), [false, false, false, false, true]);
    }

    #[test]
    fn one_late_look_is_no_stall() {
        assert_eq!(looks(&mut Stall::default(), [0, 30_000]), [false, false]);
    }

    #[test]
    fn a_completion_begins_anew() {
        let mut stall = Stall::default();
        assert_eq!(looks(&mut stall, [0, 1100]), [false, false]);
        stall = Stall::default();
        assert_eq!(looks(&mut stall, [1200, 2100, 2300, 2400]), [false, false, false, true]);
    }
}
