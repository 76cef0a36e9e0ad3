//! Start, watch, stop: common to all commands that move packets.

use crate::args::{Run, SandboxArg};
use crate::control::{Listener, Service};
use crate::json;
use crate::live::Live;
use crate::output::is_read;
use crate::summary;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath::packet::port::{Calls, PathUse};
use towpath::sandbox::{self, Enforced, Level};
use towpath::{AnyPort, Forward, Ready};

/// Interval at which the main thread checks for finished workers and signals.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Moves packets between two ports, as [`watch`] says.
pub(crate) fn run(plan: Forward, a: AnyPort, b: AnyPort, args: &Run) -> Result<ExitCode, Box<dyn Error>> {
    watch(plan.prepare(a, b)?, args)
}

/// Gives up rights and runs what is ready until a signal, the time limit, or the end of the ports; prints the
/// live view and the summary.
pub(crate) fn watch(ready: Ready, args: &Run) -> Result<ExitCode, Box<dyn Error>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The first signal stops and drains; the second one ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, asked.clone())?;
        signal_hook::flag::register(signal, asked.clone())?;
    }
    let control = args.control.as_ref().map(|path| Listener::new(path, Service::of(ready.observer()))).transpose()?;
    let enforced = enforce(&ready, args)?;
    let running = ready.launch()?;
    for note in running.notes() {
        eprintln!("note: {note}");
    }
    for missing in enforced.missing() {
        eprintln!("note: sandbox: {missing}");
    }
    let mut output = Ok(true);
    if args.json {
        output =
            is_read(json::start(running.observer(), enforced.missing().iter().map(|part| part.to_string()).collect()));
    }
    let mut live = Live::new(args, running.meter());
    let started = Instant::now();
    let mut next = started + args.interval;
    loop {
        // The output may be full, or have no reader any more.
        if asked.load(Ordering::Relaxed) || running.is_finished() || !matches!(output, Ok(true)) {
            break;
        }
        let now = Instant::now();
        let left = args.duration.map_or(Duration::MAX, |d| d.saturating_sub(now - started));
        if left.is_zero() {
            break;
        }
        if now >= next {
            output = is_read(live.update(&running.meter().read(), running.port_controls()));
            next += args.interval;
        }
        std::thread::sleep(POLL_INTERVAL.min(left));
    }
    live.end();
    drop(control);
    let summary = running.stop();
    output?;
    is_read(if args.json { summary::json(&summary, &enforced) } else { summary::print(&summary, &enforced) })?;
    Ok(if summary.failures().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Leaves the process what the ports, and the socket of `--control`, use from now on.
fn enforce(ready: &Ready, args: &Run) -> Result<Enforced, Box<dyn Error>> {
    let level = match args.sandbox {
        SandboxArg::Require => Level::Require,
        SandboxArg::Prefer => Level::Prefer,
        SandboxArg::Off => Level::Off,
    };
    let needs = ready.needs().clone();
    let needs = match &args.control {
        Some(path) => needs.calls([Calls::Sockets, Calls::Accept]).directory_of(path, PathUse::Remove),
        None => needs,
    };
    Ok(sandbox::enforce(&needs, level).map_err(|error| format!("--{error}"))?)
}
