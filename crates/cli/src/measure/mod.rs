//! `towpath measure`: the throughput of what lies between two ports, and its latency.
//!
//! | file | content |
//! |---|---|
//! | `goal` | what a load is, by its trials |
//! | `search` | which load is tried next |
//! | `rig` | the ports, and a trial |
//! | `report` | the result, for people and machines |
//!
//! A trial whose packets were not all sent says nothing good of the device: they count as lost, and
//! the trial is named as limited by the generator. Such a trial is repeated where it came near.

mod goal;
mod report;
mod rig;
mod search;

use crate::args::{Measure, SandboxArg};
use crate::bench::machine::Machine;
use crate::units::si;
use goal::Goal;
use report::{AtRate, Report, SizeResult, Tried};
use rig::{DirectionTrial, Interrupted, Rig};
use search::Search;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::error::Error;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use towpath::ports::generator::{self, Size};
use towpath::sandbox::{self, Level};

/// Times that a trial is tried which the generator limits, though it made nine tenths.
const ATTEMPTS: usize = 3;
/// A rate that no generator makes.
const ENDLESS: u64 = 1_000_000_000;
/// How long the generator shows what it makes, at least.
const UNPACED: Duration = Duration::from_millis(200);
/// Parts of the throughput at which latencies are measured, in percent.
const PARTS: [u32; 3] = [10, 50, 90];

/// Runs the command.
pub(crate) fn measure(args: &Measure) -> Result<ExitCode, Box<dyn Error>> {
    let sizes = args.size.iter().map(|size| parsed(size)).collect::<Result<Vec<_>, _>>()?;
    let goals = goals(args)?;
    let prepared = rig::prepare(args, &sizes)?;
    let names = prepared.names();
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The first signal ends the search, the second one the process.
        signal_hook::flag::register_conditional_shutdown(signal, 130, interrupted.clone())?;
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    // Read before the files of the machine are out of reach.
    let machine = Machine::this();
    let level = match args.sandbox {
        SandboxArg::Require => Level::Require,
        SandboxArg::Prefer => Level::Prefer,
        SandboxArg::Off => Level::Off,
    };
    let enforced = sandbox::enforce(&prepared.needs(), level).map_err(|error| format!("--{error}"))?;
    for missing in enforced.missing() {
        eprintln!("note: sandbox: {missing}");
    }
    let mut rig = prepared.launch(args, interrupted)?;
    let mut report = Report::new(machine, &names, args.bidirectional);
    let progress = Progress { shown: !args.quiet && stderr().is_terminal() };
    let done = match rig.connect(&names) {
        Ok(connected) => connected.and_then(|()| all(&mut rig, args, &sizes, &goals, &mut report, &progress)),
        Err(text) => {
            report.failures.push(text);
            Ok(())
        }
    };
    progress.end();
    report.interrupted = done.is_err();
    report.failures.extend(rig.stop());
    report.show(args.json)?;
    Ok(if report.interrupted || !report.failures.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The lengths of `--size`, by the rules of the generator.
fn parsed(size: &str) -> Result<Size, Box<dyn Error>> {
    Ok(generator::Config::from_uri(&format!("gen:size={size}").parse()?)?.size)
}

fn goals(args: &Measure) -> Result<Vec<Goal>, String> {
    let initial = args.initial_trial.unwrap_or(args.trial / 5);
    let sum = args.goal_duration.unwrap_or(args.trial * 21);
    if initial > args.trial {
        return Err(format!("--initial-trial {initial:?}: must be at most --trial, {:?}", args.trial));
    }
    if sum < args.trial {
        return Err(format!("--goal-duration {sum:?}: must be at least --trial, {:?}", args.trial));
    }
    if let Some(max) = args.max_rate.filter(|max| *max < args.min_rate) {
        return Err(format!("--max-rate {max}: must be at least --min-rate, {}", args.min_rate));
    }
    let goal = |&loss| Goal { loss, initial, duration: args.trial, sum, exceed: args.exceed, width: args.width };
    Ok(args.goal_loss.iter().map(goal).collect())
}

/// The searches of all sizes; what is found goes into the report as it is found.
fn all(
    rig: &mut Rig,
    args: &Measure,
    sizes: &[Size],
    goals: &[Goal],
    report: &mut Report,
    progress: &Progress,
) -> Result<(), Interrupted> {
    for (at, (size, text)) in sizes.iter().zip(&args.size).enumerate() {
        let given = args.max_rate;
        let max = match given {
            Some(max) => max,
            None => most(rig, goals, at)?.max(args.min_rate),
        };
        let mut search = Search::new(goals, args.min_rate, max);
        report.results.push(SizeResult::new(text, size, args.min_rate, max, given.is_none()));
        let outcome = one(rig, &mut search, at, report, progress);
        if let Some(result) = report.results.last_mut() {
            result.found(&search.found());
        }
        outcome?;
        if args.latency {
            latencies(rig, args.trial, at, report, progress)?;
        }
    }
    Ok(())
}

/// The rate that the generator makes into A: it is not paced.
fn most(rig: &mut Rig, goals: &[Goal], size: usize) -> Result<u64, Interrupted> {
    let duration = goals.iter().map(|goal| goal.initial).fold(UNPACED, Duration::max);
    let directions = rig.trial(ENDLESS, duration, size)?;
    let sent = |direction: &DirectionTrial| direction.progress.made.saturating_sub(direction.unsent) as f64;
    let rate = |direction: &DirectionTrial| sent(direction) / direction.progress.elapsed.as_secs_f64().max(1e-9);
    Ok(directions.iter().map(rate).fold(f64::MAX, f64::min) as u64)
}

fn one(
    rig: &mut Rig,
    search: &mut Search,
    size: usize,
    report: &mut Report,
    progress: &Progress,
) -> Result<(), Interrupted> {
    while let Some(next) = search.next() {
        let mut directions = rig.trial(next.load, next.duration, size)?;
        for _ in 1..ATTEMPTS {
            let near = |direction: &DirectionTrial| direction.not_offered() * 10 <= direction.count;
            if directions.iter().all(|direction| direction.not_offered() == 0) || !directions.iter().all(near) {
                break;
            }
            directions = rig.trial(next.load, next.duration, size)?;
        }
        let tried = Tried::new(next.load, next.duration, &directions);
        progress.show(&tried);
        search.record(next.load, next.duration, tried.loss());
        if let Some(result) = report.results.last_mut() {
            result.trials.push(tried);
        }
    }
    Ok(())
}

/// Latencies at parts of the lower bounds.
fn latencies(
    rig: &mut Rig,
    duration: Duration,
    size: usize,
    report: &mut Report,
    progress: &Progress,
) -> Result<(), Interrupted> {
    let goals = report.results.last().map(|result| result.lower_bounds()).unwrap_or_default();
    for (loss, lower) in goals {
        for percent in PARTS {
            let rate = (lower * u64::from(percent) / 100).max(1);
            let directions = rig.trial(rate, duration, size)?;
            progress.show(&Tried::new(rate, duration, &directions));
            if let Some(result) = report.results.last_mut() {
                result.latencies.extend(AtRate::all(loss, percent, rate, &directions));
            }
        }
    }
    Ok(())
}

/// A line on a terminal that has the last trial.
struct Progress {
    shown: bool,
}

impl Progress {
    fn show(&self, tried: &Tried) {
        if self.shown {
            let limited = if tried.generator_limited { ", limited by the generator" } else { "" };
            let (rate, lost) = (si(tried.rate as f64), 100.0 * tried.loss());
            eprint!("\r\x1b[K{rate}pps for {} s: {lost:.3} % lost{limited}", tried.seconds);
        }
    }

    fn end(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}
