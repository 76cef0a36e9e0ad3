//! The result of a measurement, for people and machines.

use super::rig::DirectionTrial;
use super::search::Found;
use crate::bench::machine::Machine;
use crate::bench::provenance::Provenance;
use crate::measured::LatencyUs;
use crate::output::{OutputError, outln};
use crate::units::{grouped, si};
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;
use towpath::ports::generator::{IMIX, Size};

/// All that was found.
#[derive(Serialize)]
pub(super) struct Report {
    machine: Machine,
    #[serde(flatten)]
    run: Provenance,
    a: String,
    b: String,
    bidirectional: bool,
    /// A signal ended it: it has what was found so far.
    pub(super) interrupted: bool,
    pub(super) failures: Vec<String>,
    pub(super) results: Vec<SizeResult>,
}

/// The search of a size.
#[derive(Serialize)]
pub(super) struct SizeResult {
    size: String,
    /// Bytes of a packet, on average.
    bytes: f64,
    min_rate: u64,
    max_rate: u64,
    /// The highest rate is what the generator makes.
    max_rate_by_generator: bool,
    goals: Vec<Reached>,
    pub(super) latencies: Vec<AtRate>,
    pub(super) trials: Vec<Tried>,
}

/// What a goal is limited by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Limit {
    /// What lies between the ports.
    Device,
    /// The generator, or the port into which it sends.
    Generator,
    /// The range of the search.
    MaxRate,
    /// The lowest rate has more loss.
    MinRate,
    /// The search is not complete.
    Unknown,
}

/// The bounds of a goal.
#[derive(Serialize)]
struct Reached {
    loss: f64,
    lower: Option<u64>,
    upper: Option<u64>,
    /// Packets per second that are forwarded at the lower bound.
    throughput: Option<f64>,
    /// Bits per second, from the first header on.
    bits: Option<f64>,
    complete: bool,
    limited_by: Limit,
}

/// A trial.
#[derive(Serialize)]
pub(super) struct Tried {
    pub(super) rate: u64,
    pub(super) seconds: f64,
    /// Packets of it were not made or not sent.
    pub(super) generator_limited: bool,
    ways: Vec<DirectionCounts>,
}

/// The packets of one direction.
#[derive(Serialize)]
struct DirectionCounts {
    /// Packets that were to be sent.
    count: u64,
    made: u64,
    given_up: u64,
    unsent: u64,
    arrived: u64,
    missed: u64,
    late: u64,
    late_extent: u64,
    twice: u64,
    other_trial: u64,
    loss: f64,
}

/// Latencies of one direction at a rate.
#[derive(Serialize)]
pub(super) struct AtRate {
    goal_loss: f64,
    percent: u32,
    rate: u64,
    way: &'static str,
    loss: f64,
    latency_us: Option<LatencyUs>,
}

impl Tried {
    pub(super) fn new(rate: u64, duration: Duration, directions: &[DirectionTrial]) -> Tried {
        let counts = |direction: &DirectionTrial| DirectionCounts {
            count: direction.count,
            made: direction.progress.made,
            given_up: direction.count.saturating_sub(direction.progress.made),
            unsent: direction.unsent,
            arrived: direction.found.arrived,
            missed: direction.missed,
            late: direction.found.late,
            late_extent: direction.found.late_extent,
            twice: direction.found.twice,
            other_trial: direction.found.other_trial,
            loss: direction.loss(),
        };
        let generator_limited = directions.iter().any(|direction| direction.not_offered() > 0);
        Tried {
            rate,
            seconds: duration.as_secs_f64(),
            generator_limited,
            ways: directions.iter().map(counts).collect(),
        }
    }

    /// The same of the packets that were sent.
    fn loss_of_sent(&self) -> f64 {
        let of = |direction: &DirectionCounts| {
            let sent = direction.made.saturating_sub(direction.unsent);
            sent.saturating_sub(direction.arrived) as f64 / sent.max(1) as f64
        };
        self.ways.iter().map(of).fold(0.0, f64::max)
    }

    /// The loss of the direction with more of it.
    pub(super) fn loss(&self) -> f64 {
        self.ways.iter().map(|direction| direction.loss).fold(0.0, f64::max)
    }
}

impl AtRate {
    /// Those of all directions.
    pub(super) fn all(goal_loss: f64, percent: u32, rate: u64, directions: &[DirectionTrial]) -> Vec<AtRate> {
        let one = |(direction, name): (&DirectionTrial, &'static str)| {
            let latency_us = direction.found.latency.as_ref().map(LatencyUs::new);
            AtRate { goal_loss, percent, rate, way: name, loss: direction.loss(), latency_us }
        };
        directions.iter().zip(["a-to-b", "b-to-a"]).map(one).collect()
    }
}

impl SizeResult {
    pub(super) fn new(
        text: &str,
        size: &Size,
        min_rate: u64,
        max_rate: u64,
        max_rate_by_generator: bool,
    ) -> SizeResult {
        let mean = |sizes: &mut dyn ExactSizeIterator<Item = f64>| {
            let n = sizes.len().max(1) as f64;
            sizes.sum::<f64>() / n
        };
        let bytes = match size {
            Size::Fixed(bytes) => f64::from(*bytes),
            Size::Each(sizes) => mean(&mut sizes.iter().map(|bytes| f64::from(*bytes))),
            Size::Imix => mean(&mut IMIX.iter().map(|bytes| f64::from(*bytes))),
        };
        let (goals, latencies, trials) = (Vec::new(), Vec::new(), Vec::new());
        SizeResult { size: text.to_owned(), bytes, min_rate, max_rate, max_rate_by_generator, goals, latencies, trials }
    }

    /// Takes what the search found.
    pub(super) fn found(&mut self, found: &[Found]) {
        let reached = |found: &Found| Reached {
            loss: found.goal.loss,
            lower: found.bounds.lower,
            upper: found.bounds.upper,
            throughput: found.throughput,
            bits: found.throughput.map(|pps| pps * self.bytes * 8.0),
            complete: found.complete,
            limited_by: self.limit(found),
        };
        self.goals = found.iter().map(reached).collect();
    }

    fn limit(&self, found: &Found) -> Limit {
        // Trials that made the upper bound, and those of them in which what was sent met the goal.
        let lossy = self.trials.iter().filter(|trial| Some(trial.rate) == found.bounds.upper);
        let lossy: Vec<_> = lossy.filter(|trial| trial.loss() > found.goal.loss).collect();
        let unsent = lossy.iter().filter(|trial| trial.loss_of_sent() <= found.goal.loss).count();
        match (found.complete, found.bounds.lower, found.bounds.upper) {
            (false, ..) => Limit::Unknown,
            (_, Some(_), None) if self.max_rate_by_generator => Limit::Generator,
            (_, Some(_), None) => Limit::MaxRate,
            _ if 2 * unsent >= lossy.len().max(1) => Limit::Generator,
            (_, None, _) => Limit::MinRate,
            _ => Limit::Device,
        }
    }

    /// The loss and the lower bound of each goal that has one.
    pub(super) fn lower_bounds(&self) -> Vec<(f64, u64)> {
        self.goals.iter().filter_map(|goal| Some((goal.loss, goal.lower?))).collect()
    }
}

impl Report {
    pub(super) fn new(machine: Machine, names: &[String; 2], bidirectional: bool) -> Report {
        let [a, b] = names.clone();
        Report {
            machine,
            run: Provenance::this(),
            a,
            b,
            bidirectional,
            interrupted: false,
            failures: Vec::new(),
            results: Vec::new(),
        }
    }

    pub(super) fn show(&self, json: bool) -> Result<(), Box<dyn std::error::Error>> {
        if json {
            outln!("{}", serde_json::to_string(self)?)?;
        } else {
            self.text()?;
        }
        Ok(())
    }

    fn text(&self) -> Result<(), OutputError> {
        let mut out = format!("machine: {}\n", self.machine);
        let way = if self.bidirectional { "and back, each at the rate" } else { "one way" };
        let _ = writeln!(out, "measured: from {} to {}, {way}\n", self.a, self.b);
        if !self.results.is_empty() {
            let _ = writeln!(out, "size   loss     throughput   lower bound   upper bound          bits  limited by");
        }
        for result in &self.results {
            for goal in &result.goals {
                out += &row(&result.size, goal);
            }
        }
        for result in self.results.iter().filter(|result| result.max_rate_by_generator) {
            let _ = writeln!(out, "\nsize {}: the generator makes {} pps here", result.size, grouped(result.max_rate));
        }
        let latencies = || self.results.iter().flat_map(|result| result.latencies.iter().map(move |at| (result, at)));
        if latencies().next().is_some() {
            let _ = writeln!(
                out,
                "\nsize   loss     part    way      lost       min       p50       p99     p99.9       max  µs"
            );
        }
        for (result, at) in latencies() {
            let _ = write!(
                out,
                "{:<6} {:<8} {:>3} %  {}  {:>7}",
                result.size,
                percent(at.goal_loss),
                at.percent,
                at.way,
                percent(at.loss)
            );
            let figures = at.latency_us.as_ref().map(LatencyUs::figures);
            figures.iter().flatten().for_each(|us| {
                let _ = write!(out, " {us:>9.1}");
            });
            out.push('\n');
        }
        if self.interrupted {
            out += "\ninterrupted: this is what was found so far\n";
        }
        for failure in &self.failures {
            let _ = writeln!(out, "FAILED   {failure}");
        }
        crate::output::show(out)
    }
}

fn percent(ratio: f64) -> String {
    format!("{:.4}", 100.0 * ratio).trim_end_matches('0').trim_end_matches('.').to_owned() + " %"
}

fn row(size: &str, goal: &Reached) -> String {
    let rate = |rate: Option<u64>| rate.map_or("none".to_owned(), grouped);
    let limit = match goal.limited_by {
        Limit::Device => "the device",
        Limit::Generator => "THE GENERATOR, not the device",
        Limit::MaxRate => "--max-rate",
        Limit::MinRate => "more loss at --min-rate",
        Limit::Unknown => "unknown: not complete",
    };
    let throughput = goal.throughput.map_or("none".to_owned(), |pps| grouped(pps as u64));
    let bits = goal.bits.map_or(String::new(), |bits| format!("{}b/s", si(bits)));
    let (loss, lower, upper) = (percent(goal.loss), rate(goal.lower), rate(goal.upper));
    format!("{size:<6} {loss:<8} {throughput:>10} {lower:>13} {upper:>13} {bits:>13}  {limit}\n")
}

#[cfg(test)]
mod tests {
    use super::super::goal::Goal;
    use super::super::search::Bounds;
    use super::*;

    fn found(lower: Option<u64>, upper: Option<u64>, complete: bool) -> Found {
        let second = Duration::from_secs(1);
        let goal = Goal { loss: 0.0, initial: second, duration: second, sum: second, exceed: 0.5, width: 0.01 };
        Found { goal, bounds: Bounds { lower, upper }, throughput: lower.map(|lower| lower as f64), complete }
    }

    /// A trial of 100 packets.
    fn tried(rate: u64, made: u64, arrived: u64) -> Tried {
        let loss = 1.0 - arrived as f64 / 100.0;
        let (late, late_extent, twice, other_trial, missed, unsent) = (0, 0, 0, 0, 0, 0);
        let given_up = 100 - made;
        let counts = DirectionCounts {
            count: 100,
            made,
            given_up,
            unsent,
            arrived,
            missed,
            late,
            late_extent,
            twice,
            other_trial,
            loss,
        };
        Tried { rate, seconds: 1.0, generator_limited: made < 100, ways: vec![counts] }
    }

    #[test]
    fn a_result_says_what_it_is_limited_by() {
        let mut result = SizeResult::new("64", &Size::Fixed(64), 1000, 9000, false);
        result.trials = vec![tried(5000, 100, 90), tried(6000, 100, 100), tried(6000, 99, 99), tried(7000, 99, 98)];
        let limit = |result: &SizeResult, lower, upper| result.limit(&found(lower, upper, true));
        assert_eq!(limit(&result, Some(5000), Some(6000)), Limit::Generator);
        assert_eq!(limit(&result, Some(5000), Some(7000)), Limit::Device);
        assert_eq!(limit(&result, Some(9000), None), Limit::MaxRate);
        assert_eq!(limit(&result, None, Some(5000)), Limit::MinRate);
        assert_eq!(result.limit(&found(Some(5000), Some(7000), false)), Limit::Unknown);
        result.max_rate_by_generator = true;
        assert_eq!(limit(&result, Some(9000), None), Limit::Generator);
    }

    #[test]
    fn a_row_has_throughput_bounds_bits_and_the_limit() {
        let mut result = SizeResult::new("imix", &Size::Imix, 1000, 9000, false);
        result.found(&[found(Some(9000), None, true), found(None, None, false)]);
        let rows: String = result.goals.iter().map(|goal| row(&result.size, goal)).collect();
        let mut lines = rows.lines();
        let words: Vec<_> = lines.next().unwrap().split_whitespace().collect();
        assert_eq!(words, ["imix", "0", "%", "9", "000", "9", "000", "none", "25.9", "Mb/s", "--max-rate"]);
        assert!(lines.next().unwrap().ends_with("none          none                unknown: not complete"));
    }
}
