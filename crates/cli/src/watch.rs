//! Start, watch, stop: common to all commands that move packets.

use crate::args::Run;
use crate::control::{Listener, Service};
use crate::json;
use crate::live::Live;
use crate::metrics::{Address, Metrics};
use crate::output::is_read;
use crate::summary;
use crate::tee::Tees;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath::packet::port::{Calls, Needs, PathUse};
use towpath::sandbox::{self, Enforced};
use towpath::{AnyPort, Forward, Ready};

/// Interval at which the main thread checks for finished workers and signals.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Moves packets between two ports, as [`watch`] says.
pub(crate) fn run(plan: Forward, a: AnyPort, b: AnyPort, args: &Run) -> Result<ExitCode, Box<dyn Error>> {
    watch(plan.prepare(a, b)?, args)
}

/// Gives up rights and runs what is ready until a signal, the time limit, or the end of the ports;
/// prints the live view and the summary.
pub(crate) fn watch(ready: Ready, args: &Run) -> Result<ExitCode, Box<dyn Error>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The first signal stops and drains; the second one ends the process at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, interrupted.clone())?;
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    let tees = Tees::new(ready.observer(), args)?;
    let control = args.control.as_ref().map(|path| Listener::new(path, Service::of(ready.observer()))).transpose()?;
    let metrics = args.metrics.as_ref().map(|at| at.serve(Service::of(ready.observer()))).transpose()?;
    // Before the sandbox, which has no call for a socket of systemd's: what the ports are open for
    // waits in their queues. Without systemd nothing is notified.
    let names: Vec<_> = ready.infos().iter().map(|info| info.name.as_str()).collect();
    let state = [NotifyState::Ready, NotifyState::Status(&format!("moves packets of {}", names.join(", ")))];
    if let Err(error) = sd_notify::notify(false, &state) {
        eprintln!("note: systemd is not notified: {error}");
    }
    let enforced = enforce(ready.needs().clone().and(tees.needs()), args)?;
    let running = ready.launch()?;
    for note in running.notes().iter().cloned().chain(metrics.iter().flat_map(Metrics::notes)) {
        eprintln!("note: {note}");
    }
    for missing in enforced.missing() {
        eprintln!("note: sandbox: {missing}");
    }
    let mut output = Ok(true);
    if args.json {
        output = is_read(json::start(
            None,
            running.observer(),
            enforced.missing().iter().map(|part| part.to_string()).collect(),
        ));
    }
    let mut live = Live::new(args.json, args.quiet, running.meter().read());
    let started = Instant::now();
    let mut next = started + args.interval;
    loop {
        // The output may be full, or have no reader any more.
        if interrupted.load(Ordering::Relaxed) || running.is_finished() || !matches!(output, Ok(true)) {
            break;
        }
        let now = Instant::now();
        // A line that is due is printed at the end as well: this thread may not have run before.
        if now >= next {
            output = is_read(live.update(&running.meter().read(), running.port_controls()));
            next += args.interval;
        }
        let left = args.duration.map_or(Duration::MAX, |d| d.saturating_sub(now - started));
        if left.is_zero() {
            break;
        }
        std::thread::sleep(POLL_INTERVAL.min(left));
    }
    live.end();
    drop((control, metrics));
    let summary = running.stop();
    let tees = tees.stop();
    output?;
    let failures = summary.failures();
    is_read(if args.json {
        summary::json(None, (&summary, &failures), &tees, &enforced)
    } else {
        summary::print((&summary, &failures), &tees, &enforced)
    })?;
    let tees_failed = tees.iter().any(|tee| tee.failure.is_some());
    Ok(if failures.is_empty() && !tees_failed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Leaves the process what the ports, and the sockets of `--control` and `--metrics`, use from now
/// on.
fn enforce(needs: Needs, args: &Run) -> Result<Enforced, Box<dyn Error>> {
    let needs = needs_of_servers(needs, args.control.as_deref(), args.metrics.as_ref());
    Ok(sandbox::enforce(&needs, args.sandbox.level()).map_err(|error| format!("--{error}"))?)
}

/// With what the sockets of `--control` and `--metrics` use.
pub(crate) fn needs_of_servers(needs: Needs, control: Option<&Path>, metrics: Option<&Address>) -> Needs {
    let needs = match control {
        Some(path) => needs.calls([Calls::Sockets, Calls::Accept]).directory_of(path, PathUse::Remove),
        None => needs,
    };
    metrics.into_iter().fold(needs, |needs, at| at.needs(needs))
}
