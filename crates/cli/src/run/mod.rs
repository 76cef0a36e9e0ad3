//! `towpath run`: the units of a file, watched and read again.
//!
//! ```text
//!   FILE ─► file::File ─► Datapath::start ─► a thread for each unit opens its ports ─► workers
//!                 │                │
//!     SIGHUP, 'towpath reload' ────┴─ plan: keep, change while it runs, start anew
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | the main thread: signals, requests, the service manager, the end |
//! | `datapath` | the units that run, and their reload |
//! | `plan` | what a reload changes |
//! | `unit` | one unit: opened, confined, launched, changed, stopped |
//! | `log` | the log: text, JSON, the journal |
//! | `events` | what ports do, as lines of the log |
//!
//! The main thread keeps the rights that ports need to be opened; it reads the file, its sockets'
//! requests are read by a thread that has given them up, and it touches no packet.

mod datapath;
mod events;
pub(crate) mod log;
mod plan;
mod unit;

pub(crate) use unit::while_nothing_opens;

use crate::args::{Args, Command, RunFile};
use crate::control::request::{Answer, line};
use crate::control::{Listener, Service};
use crate::file::File;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::output::{OutputError, is_read, outln, show};
use crate::state::gather;
use crate::watch::needs_of_servers;
use crate::{json, summary};
use clap::Parser;
use console::style;
use datapath::{Datapath, Reloaded};
use events::{Events, LOOK};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::error::Error;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use towpath::sandbox::{Threads, enforce_since};
use tracing::level_filters::LevelFilter;
use unit::Ended;

/// Interval at which the main thread looks for signals, requests and units that have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a client may take to read the answer to its reload.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// `towpath run`.
pub(crate) fn run(given: RunFile) -> Result<ExitCode, Box<dyn Error>> {
    let file = File::read(&given.file)?;
    if given.check {
        outln!("{}: {}", given.file.display(), file.summary())?;
        return Ok(ExitCode::SUCCESS);
    }
    let args = with_options(given, &file)?;
    log::start(args.log, args.log_format).map_err(|error| format!("--log-format: {error}"))?;
    let (stop, hang_up) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    for signal in [SIGINT, SIGTERM] {
        // The first signal stops and drains; the second one ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    signal_hook::flag::register(SIGHUP, hang_up.clone())?;
    let datapath = Datapath::start(&file, args.sandbox.level())?;
    let (ask, requests) = channel();
    let servers = Servers::start(&args, &datapath.service(ask), datapath.needs())?;
    notify(&[NotifyState::Ready, NotifyState::Status(&file.summary())]);
    let mut main = Main { args, datapath, process: file.process, requests, watchdog: Watchdog::new(), failed: false };
    let outcome = main.watch(&stop, &hang_up);
    notify(&[NotifyState::Stopping]);
    drop(servers);
    let ended = main.datapath.stop();
    let failed = main.failed || ended.iter().any(Ended::has_failed);
    outcome?;
    print(&ended, main.args.json)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The options of the command line, and those of the file that it does not give.
fn with_options(given: RunFile, file: &File) -> Result<RunFile, Box<dyn Error>> {
    if file.process.is_empty() {
        return Ok(given);
    }
    let mut words = std::env::args_os();
    let head: Vec<_> = words.by_ref().take(2).collect();
    // What comes last counts.
    let all = head.into_iter().chain(file.process.iter().map(Into::into)).chain(words);
    match Args::try_parse_from(all)?.command {
        Command::Run(args) => Ok(args),
        _ => Ok(given),
    }
}

/// Notifies the service manager, if there is one.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, state) {
        tracing::warn!("systemd is not notified: {error}");
    }
}

/// The sockets of `--control` and `--metrics`, whose threads have given up their rights.
struct Servers {
    _control: Option<Listener>,
    _metrics: Option<Metrics>,
}

impl Servers {
    fn start(args: &RunFile, service: &Service, needs: towpath::packet::port::Needs) -> Result<Servers, String> {
        let needs = needs_of_servers(needs, args.control.as_deref(), args.metrics.as_ref());
        let work = || -> Result<Servers, Box<dyn Error>> {
            let before = Threads::now()?;
            let control = args.control.as_ref().map(|path| Listener::new(path, service.clone())).transpose()?;
            let metrics = args.metrics.as_ref().map(|at| at.serve(service.clone())).transpose()?;
            enforce_since(&before, &needs, args.sandbox.level()).map_err(|error| format!("--{error}"))?;
            metrics.iter().flat_map(Metrics::notes).for_each(|note| tracing::warn!("{note}"));
            Ok(Servers { _control: control, _metrics: metrics })
        };
        std::thread::scope(|scope| {
            let work = || work().map_err(|error| error.to_string());
            let thread = std::thread::Builder::new().name("towpath-servers".into()).spawn_scoped(scope, work);
            let joined = thread.map_err(|error| error.to_string())?.join();
            joined.unwrap_or_else(|_| Err("the thread of the sockets has ended".into()))
        })
    }
}

/// Tells the service manager that the main thread lives.
struct Watchdog {
    interval: Option<Duration>,
    next: Instant,
}

impl Watchdog {
    fn new() -> Watchdog {
        let mut micros = 0;
        let is_on = sd_notify::watchdog_enabled(false, &mut micros);
        Watchdog { interval: is_on.then(|| Duration::from_micros(micros / 2)), next: Instant::now() }
    }

    fn step(&mut self, now: Instant) {
        if let Some(interval) = self.interval.filter(|_| now >= self.next) {
            notify(&[NotifyState::Watchdog]);
            self.next = now + interval;
        }
    }
}

/// The main thread while units run.
struct Main {
    args: RunFile,
    datapath: Datapath,
    /// Options of `run` in the file that was read first.
    process: Vec<String>,
    /// Clients that ask for a reload.
    requests: Receiver<UnixStream>,
    watchdog: Watchdog,
    /// A unit that has ended failed.
    failed: bool,
}

impl Main {
    /// Returns at a signal, at the time limit, and when all units have ended.
    fn watch(&mut self, stop: &AtomicBool, hang_up: &AtomicBool) -> Result<(), Box<dyn Error>> {
        let mut output = Ok(true);
        if self.args.json {
            for (name, observer) in self.datapath.observers() {
                output = output.and_then(|_| is_read(json::start(Some(name), observer, Vec::new())));
            }
        }
        let Some(reading) = self.datapath.read() else { return Ok(()) };
        let mut live = Live::new(self.args.json, self.args.quiet, reading);
        let started = Instant::now();
        let mut next = started + self.args.interval;
        let mut events = (self.args.log != LevelFilter::OFF).then(|| Events::new(started));
        live.has_log = events.is_some();
        let mut look = started + LOOK;
        let mut client = None;
        while !stop.load(Ordering::Relaxed) && matches!(output, Ok(true)) {
            let now = Instant::now();
            let left = self.args.duration.map_or(Duration::MAX, |limit| limit.saturating_sub(now - started));
            let has_ended = self.datapath.reap();
            let mut is_changed = has_ended;
            if hang_up.swap(false, Ordering::Relaxed) {
                // It is logged.
                let _ = self.reload();
                is_changed = true;
            }
            if let Some(client) = client.take() {
                let answer = match self.reload() {
                    Ok(Reloaded { changes, failures }) => Answer::Reloaded { changes, failures },
                    Err(error) => Answer::Error(error),
                };
                reply(client, &answer);
                is_changed = true;
            }
            if is_changed {
                live.end();
                output = output.and_then(|_| self.print_ended(has_ended));
            }
            if self.datapath.is_finished() {
                break;
            }
            if is_changed && let Some(reading) = self.datapath.read() {
                live.restart(reading);
            }
            if now >= look {
                self.log_events(&mut events, &mut live);
                look = now + LOOK;
            }
            if now >= next
                && let Some(reading) = self.datapath.read()
            {
                output = is_read(live.update(&reading, &self.datapath.controls()));
                next += self.args.interval;
            }
            // What was due or requested before the end is done, and a request answered.
            if left.is_zero() {
                break;
            }
            self.watchdog.step(now);
            client = self.requests.recv_timeout(POLL_INTERVAL.min(left)).ok();
        }
        live.end();
        self.log_events(&mut events, &mut live);
        output.map(drop).map_err(Into::into)
    }

    /// Logs what happened to ports since the last look.
    fn log_events(&self, events: &mut Option<Events>, live: &mut Live) {
        let Some(events) = events else { return };
        let running: Vec<_> = self.datapath.observers().map(|(name, one)| (name.to_owned(), one.clone())).collect();
        let lines = events.look(&gather(&running), Instant::now());
        if !lines.is_empty() {
            live.end();
        }
        lines.iter().for_each(events::Line::write);
    }

    /// Prints those of units that have ended. Those that a reload ended are in the log.
    fn print_ended(&mut self, by_themselves: bool) -> Result<bool, OutputError> {
        let ended = self.datapath.take_ended();
        self.failed |= ended.iter().any(Ended::has_failed);
        if by_themselves || self.args.json { print(&ended, self.args.json) } else { Ok(true) }
    }

    /// Reads the file again.
    fn reload(&mut self) -> Result<Reloaded, String> {
        let now = NotifyState::monotonic_usec_now();
        notify(&[Some(NotifyState::Reloading), now.ok()].into_iter().flatten().collect::<Vec<_>>());
        let read = File::read(&self.args.file).map_err(|error| error.to_string());
        let outcome = read.and_then(|file| {
            let mut done = self.datapath.reload(&file)?;
            if file.process != self.process {
                let rule = "control, metrics, sandbox, log, log-format: what differs takes a restart";
                done.failures.push(rule.to_owned());
            }
            notify(&[NotifyState::Status(&file.summary())]);
            Ok(done)
        });
        match &outcome {
            Ok(done) => {
                done.changes.iter().for_each(|line| tracing::info!("reload: {line}"));
                done.failures.iter().for_each(|line| tracing::error!("reload: {line}"));
                if done.changes.is_empty() && done.failures.is_empty() {
                    tracing::info!("reload: nothing has changed");
                }
            }
            Err(error) => tracing::error!("reload: nothing has changed: {error}"),
        }
        notify(&[NotifyState::Ready]);
        outcome
    }
}

/// Answers a client, which may have left.
fn reply(mut client: UnixStream, answer: &Answer) {
    let _ = client.set_nonblocking(false);
    let _ = client.set_write_timeout(Some(ANSWER_TIME));
    let _ = line(answer).map(|line| client.write_all(&line));
}

/// The summaries of units; returns whether the output still has a reader.
fn print(ended: &[Ended], json: bool) -> Result<bool, OutputError> {
    for one in ended {
        let (Ended { name, summary, tees, enforced, .. }, failures) = (one, one.failures());
        let of = (summary, failures.as_slice());
        let written = if json {
            summary::json(Some(name), of, tees, enforced)
        } else {
            show(format_args!("\n{}\n", style(name).bold()))?;
            summary::print(of, tees, enforced)
        };
        if !is_read(written)? {
            return Ok(false);
        }
    }
    Ok(true)
}
