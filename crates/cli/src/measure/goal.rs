//! Goals: by the trials at it, a load is a lower bound of the throughput, an upper bound, or not
//! decided yet.
//!
//! As in [MLRsearch](https://datatracker.ietf.org/doc/draft-ietf-bmwg-mlrsearch/): a goal asks for
//! trials of `sum` in all, each of `duration`. A load is a lower bound if at most `exceed` of that
//! time has more loss than `loss`, whatever trials that are still to come bring, and an upper bound
//! if more has, whatever they bring. Shorter trials never make a lower bound. Their loss counts for
//! an upper bound, as far as short trials without loss do not outweigh it.

use std::time::Duration;

/// What is searched for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Goal {
    /// The greatest ratio of lost packets that is no loss.
    pub(crate) loss: f64,
    /// Length of the first trials.
    pub(crate) initial: Duration,
    /// Length of the trials that decide.
    pub(crate) duration: Duration,
    /// Trials that decide take so long in all.
    pub(crate) sum: Duration,
    /// The part of that time that may have more loss; from 0 to less than 1.
    pub(crate) exceed: f64,
    /// The greatest distance of the bounds, relative to the upper one.
    pub(crate) width: f64,
}

/// A trial at a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) duration: Duration,
    /// Lost packets of those that were to be sent.
    pub(crate) loss: f64,
}

/// What a load is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Lower,
    Upper,
    /// More trials are needed.
    Undecided,
}

/// Seconds of trials, by length and loss.
#[derive(Debug, Default)]
struct Sums {
    full_low: f64,
    full_high: f64,
    short_low: f64,
    short_high: f64,
}

impl Sums {
    fn new(goal: &Goal, outcomes: &[Outcome]) -> Sums {
        let mut sums = Sums::default();
        for outcome in outcomes {
            let sum = match (outcome.duration >= goal.duration, outcome.loss > goal.loss) {
                (true, false) => &mut sums.full_low,
                (true, true) => &mut sums.full_high,
                (false, false) => &mut sums.short_low,
                (false, true) => &mut sums.short_high,
            };
            *sum += outcome.duration.as_secs_f64();
        }
        sums
    }

    /// Seconds with loss, with those of short trials that nothing outweighs.
    fn high(&self, goal: &Goal) -> f64 {
        let outweighed = self.short_low * goal.exceed / (1.0 - goal.exceed);
        self.full_high + (self.short_high - outweighed).max(0.0)
    }

    /// Seconds of trials that decide, with those to come.
    fn whole(&self, goal: &Goal) -> f64 {
        (self.full_low + self.high(goal)).max(goal.sum.as_secs_f64())
    }
}

/// Sums of seconds are rounded: those that are equal may differ by less than this.
const EPSILON: f64 = 1e-9;

/// What a load is by its trials.
pub(crate) fn classify(goal: &Goal, outcomes: &[Outcome]) -> Class {
    let sums = Sums::new(goal, outcomes);
    let (whole, high) = (sums.whole(goal), sums.high(goal));
    let allowed = whole * goal.exceed + EPSILON;
    // All of the time to come has loss, or none.
    let (worst, best) = (whole - sums.full_low, high);
    match (worst <= allowed, best <= allowed) {
        (true, true) => Class::Lower,
        (false, false) => Class::Upper,
        _ => Class::Undecided,
    }
}

/// The rate that is forwarded at a lower bound: the load without the part that is lost in the
/// trial that is the worst of those that the goal counts.
pub(crate) fn conditional_throughput(goal: &Goal, load: u64, outcomes: &[Outcome]) -> f64 {
    let sums = Sums::new(goal, outcomes);
    let mut full: Vec<_> = outcomes.iter().filter(|outcome| outcome.duration >= goal.duration).collect();
    full.sort_by(|a, b| a.loss.total_cmp(&b.loss));
    let mut needed = sums.whole(goal) * (1.0 - goal.exceed) - EPSILON;
    let mut loss = full.first().map_or(1.0, |outcome| outcome.loss);
    for outcome in full {
        if needed <= 0.0 {
            break;
        }
        loss = outcome.loss;
        needed -= outcome.duration.as_secs_f64();
    }
    load as f64 * (1.0 - loss)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOAL: Goal = Goal {
        loss: 0.01,
        initial: Duration::from_millis(100),
        duration: Duration::from_secs(1),
        sum: Duration::from_secs(5),
        exceed: 0.5,
        width: 0.01,
    };

    fn full(losses: &[f64]) -> Vec<Outcome> {
        losses.iter().map(|&loss| Outcome { duration: GOAL.duration, loss }).collect()
    }

    #[test]
    fn a_load_is_decided_as_soon_as_the_trials_to_come_cannot_change_it() {
        assert_eq!(classify(&GOAL, &[]), Class::Undecided);
        assert_eq!(classify(&GOAL, &full(&[0.0, 0.0])), Class::Undecided);
        assert_eq!(classify(&GOAL, &full(&[0.0, 0.01, 0.0])), Class::Lower);
        assert_eq!(classify(&GOAL, &full(&[0.5, 0.0, 0.5, 0.0])), Class::Undecided);
        assert_eq!(classify(&GOAL, &full(&[0.5, 0.0, 0.5, 0.0, 0.02])), Class::Upper);
        assert_eq!(classify(&GOAL, &full(&[0.5, 0.0, 0.5, 0.0, 0.0])), Class::Lower);
    }

    #[test]
    fn short_trials_make_no_lower_bound_and_their_loss_is_outweighed_by_others() {
        let short = |losses: &[f64]| -> Vec<_> {
            losses.iter().map(|&loss| Outcome { duration: Duration::from_millis(500), loss }).collect()
        };
        assert_eq!(classify(&GOAL, &short(&[0.0; 100])), Class::Undecided);
        assert_eq!(classify(&GOAL, &short(&[0.5; 6])), Class::Upper);
        assert_eq!(
            classify(&GOAL, &short(&[0.5, 0.0, 0.5, 0.0, 0.5, 0.0, 0.5, 0.0, 0.5, 0.0, 0.5, 0.0])),
            Class::Undecided
        );
    }

    #[test]
    fn the_conditional_throughput_leaves_out_the_loss_that_the_goal_allows() {
        assert_eq!(conditional_throughput(&GOAL, 1000, &full(&[0.0, 0.0, 0.005, 0.5, 0.5])), 995.0);
        assert_eq!(conditional_throughput(&GOAL, 1000, &full(&[0.0, 0.0, 0.0])), 1000.0);
    }
}
