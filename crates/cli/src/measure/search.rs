//! The search: which load to try next, for how long, and what is known.
//!
//! ```text
//!   goal 0   short trials, wide bounds ─► … ─► its own trials and width        steps of each goal
//!   goal 1   short trials, wide bounds ─► …                                    all goals share all trials
//!
//!   a step:  no bound yet ── the bounds of the step before, then further away, each time twice as far
//!            both bounds ─── between them, until they are near enough
//!   a load is tried again until it is decided
//! ```
//!
//! As MLRsearch does it: an upper bound is the lowest load that is one, and a lower bound counts
//! below it only. A device whose loss falls with the load has more of them; the first one counts.
//! The search ends: a load is decided after finitely many trials, and each decided load narrows the
//! bounds or moves one of them by twice the distance of the last move.

use super::goal::{Class, Goal, Outcome, classify, conditional_throughput};
use std::collections::BTreeMap;
use std::time::Duration;

/// Steps before the last one of a goal.
const STEPS: u32 = 2;

/// A search of loads, in packets a second.
#[derive(Debug)]
pub(crate) struct Search {
    goals: Vec<GoalSearch>,
    min: u64,
    max: u64,
    outcomes: BTreeMap<u64, Vec<Outcome>>,
}

#[derive(Debug)]
struct GoalSearch {
    steps: Vec<Goal>,
    /// The step that is not complete.
    step: usize,
    /// The bounds that the step before found.
    hints: Bounds,
}

/// The next trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Next {
    /// Packets per second.
    pub(crate) load: u64,
    pub(crate) duration: Duration,
}

/// The bounds of a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Bounds {
    /// The highest load below `upper` that is a lower bound.
    pub(crate) lower: Option<u64>,
    /// The lowest load that is an upper bound.
    pub(crate) upper: Option<u64>,
}

/// What is known of a goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Found {
    pub(crate) goal: Goal,
    pub(crate) bounds: Bounds,
    /// The rate that is forwarded at the lower bound.
    pub(crate) throughput: Option<f64>,
    /// The bounds are as near as the goal asks, or at the ends of the range.
    pub(crate) complete: bool,
}

impl Search {
    /// A search between `min` and `max`, both included.
    pub(crate) fn new(goals: &[Goal], min: u64, max: u64) -> Search {
        let (min, max) = (min.max(1).min(max.max(1)), max.max(1));
        let goals = goals.iter().map(|goal| GoalSearch { steps: steps(goal), step: 0, hints: Bounds::default() });
        Search { goals: goals.collect(), min, max, outcomes: BTreeMap::new() }
    }

    /// Records a trial.
    pub(crate) fn record(&mut self, load: u64, duration: Duration, loss: f64) {
        self.outcomes.entry(load).or_default().push(Outcome { duration, loss });
    }

    /// The next trial; `None` when all goals are reached.
    pub(crate) fn next(&mut self) -> Option<Next> {
        // All goals take the first step, then all the second one: their trials help each other.
        for step in 0..=STEPS as usize {
            for at in 0..self.goals.len() {
                let goal = &self.goals[at];
                // The trials of another goal may decide a load of this one anew: the last step is
                // complete when it is for all.
                if goal.step > step && step < STEPS as usize {
                    continue;
                }
                let (target, hints) = (goal.steps[step], goal.hints);
                if let Some(load) = self.candidate(&target, hints) {
                    return Some(Next { load, duration: target.duration });
                }
                if step < STEPS as usize {
                    let bounds = self.bounds(&target);
                    let goal = &mut self.goals[at];
                    (goal.step, goal.hints) = (step + 1, bounds);
                }
            }
        }
        None
    }

    /// What is known now, by goal.
    pub(crate) fn found(&self) -> Vec<Found> {
        let found = |search: &GoalSearch| {
            let goal = search.steps[STEPS as usize];
            let bounds = self.bounds(&goal);
            let outcomes = |load: u64| self.outcomes.get(&load).map(Vec::as_slice).unwrap_or_default();
            let throughput = bounds.lower.map(|load| conditional_throughput(&goal, load, outcomes(load)));
            Found { goal, bounds, throughput, complete: self.is_narrow(&goal, bounds) }
        };
        self.goals.iter().map(found).collect()
    }

    /// The bounds by the trials up to now.
    fn bounds(&self, goal: &Goal) -> Bounds {
        let mut bounds = Bounds::default();
        for (&load, outcomes) in &self.outcomes {
            match classify(goal, outcomes) {
                Class::Lower => bounds.lower = Some(load),
                Class::Upper => {
                    bounds.upper = Some(load);
                    break;
                }
                Class::Undecided => {}
            }
        }
        bounds
    }

    fn is_narrow(&self, goal: &Goal, bounds: Bounds) -> bool {
        match (bounds.lower, bounds.upper) {
            (Some(lower), None) => lower == self.max,
            (None, Some(upper)) => upper == self.min,
            (Some(lower), Some(upper)) => upper - lower <= distance(goal, upper),
            (None, None) => false,
        }
    }

    /// The load that is to be tried next for a step; `None` if the step is complete.
    fn candidate(&self, goal: &Goal, hints: Bounds) -> Option<u64> {
        let bounds = self.bounds(goal);
        if self.is_narrow(goal, bounds) {
            return None;
        }
        let load = match (bounds.lower, bounds.upper) {
            (None, None) => hints.lower.or(hints.upper).unwrap_or(self.max),
            (Some(lower), None) => {
                let hint = hints.upper.filter(|hint| *hint > lower);
                hint.unwrap_or_else(|| lower.saturating_add(self.leap(goal, lower, Class::Lower)))
            }
            (None, Some(upper)) => {
                let hint = hints.lower.filter(|hint| *hint < upper).or_else(|| self.forwarded(goal, upper));
                hint.unwrap_or_else(|| upper.saturating_sub(self.leap(goal, upper, Class::Upper)))
            }
            (Some(lower), Some(upper)) => {
                let inside = |hint: &u64| (lower + 1..upper).contains(hint);
                let middle = ((lower as f64 * upper as f64).sqrt() as u64).clamp(lower + 1, upper - 1);
                hints.upper.filter(inside).or(hints.lower.filter(inside)).unwrap_or(middle)
            }
        };
        Some(load.clamp(self.min, self.max))
    }

    /// What passed at the maximum, less a little, as the first guess below it.
    fn forwarded(&self, goal: &Goal, upper: u64) -> Option<u64> {
        let outcomes = self.outcomes.get(&self.max).filter(|_| upper == self.max)?;
        let least = outcomes.iter().map(|outcome| outcome.loss).min_by(f64::total_cmp)?;
        let passed = (self.max as f64 * (1.0 - least)) as u64;
        Some(passed.min(upper.saturating_sub(distance(goal, upper)))).filter(|load| *load >= self.min && *load < upper)
    }

    /// How far the next load is from the bound: twice as far as the last one was from that before.
    fn leap(&self, goal: &Goal, from: u64, class: Class) -> u64 {
        let others =
            self.outcomes.iter().filter(|(load, outcomes)| **load != from && classify(goal, outcomes) == class);
        let last = others.map(|(load, _)| load.abs_diff(from)).min().unwrap_or(0);
        last.saturating_mul(2).max(distance(goal, from))
    }
}

/// The greatest distance of the bounds, at least one packet a second.
fn distance(goal: &Goal, upper: u64) -> u64 {
    ((upper as f64 * goal.width) as u64).max(1)
}

/// The steps of a goal: trials grow from the initial length to its own, in equal ratios, and the
/// width halves; only the last step needs more than one trial of a load.
fn steps(goal: &Goal) -> Vec<Goal> {
    let first = goal.initial.min(goal.duration).as_secs_f64();
    let ratio = goal.duration.as_secs_f64() / first.max(1e-9);
    let early = |step: u32| {
        let duration = Duration::from_secs_f64(first * ratio.powf(f64::from(step) / f64::from(STEPS)));
        let width = (goal.width * f64::from(1 << (STEPS - step))).min(0.5);
        Goal { duration, sum: duration, width, ..*goal }
    };
    (0..STEPS).map(early).chain([*goal]).collect()
}

#[cfg(test)]
mod tests;
