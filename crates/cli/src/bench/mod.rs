//! `towpath bench`: measurements of each mechanism, in the shape of the tables of its authors.
//!
//! | file | content |
//! |---|---|
//! | `gro` | GRO off and on: a sink, the kernel's stack, a lane |
//! | `cpumap` | receive on one core, GRO and the stack on another: beside the kernel's cpumap |
//! | `copybreak` | receive buffers re-mapped or kept mapped |
//! | `batch` | recycled descriptors and batched doorbells |
//! | `xsk` | frames of applications, copied or sent by page |
//! | `latency` | from application to application |
//! | `vm` | both sides of a virtual machine's rings |
//! | `netns` | a private network namespace with a thread in it |
//! | `udp`, `tcp` | senders and receivers in namespaces |
//! | `cores` | processor time, losses at sockets |
//! | `machine`, `provenance` | the machine and the run, which head every report |
//! | `progress` | the time so far, on a terminal |
//! | `interrupt` | ^C: the report of what is measured so far |
//! | `plot` | reports as figures |
//!
//! Every report begins with what it counts and on which machine ([`show`]).

mod batch;
mod copybreak;
mod cores;
mod cpumap;
mod gro;
mod interrupt;
mod latency;
pub(crate) mod machine;
mod netns;
mod plot;
mod progress;
pub(crate) mod provenance;
mod tcp;
mod udp;
mod vm;
mod xsk;

use crate::args::{Bench, BenchKind};
use crate::output::{is_read, outln};
use machine::Machine;
use provenance::Provenance;
use serde::Serialize;
use std::error::Error;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;

/// Where `--svg` draws the report to; one bench runs in a process.
static SVG: OnceLock<PathBuf> = OnceLock::new();

pub(crate) fn bench(args: &Bench) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(path) = &args.svg {
        // What can be wrong with it is found before the measurement.
        File::options()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| format!("--svg {}: {error}", path.display()))?;
        SVG.get_or_init(|| path.clone());
    }
    if let BenchKind::Plot(plot) = &args.kind {
        let svg = args.svg.as_ref().ok_or("--svg FILE: must name the file to draw to")?;
        plot::plot(&plot.report, svg)?;
        return Ok(ExitCode::SUCCESS);
    }
    interrupt::begin()?;
    progress::begin();
    let outcome = match &args.kind {
        BenchKind::Gro(args) => gro::run(args),
        BenchKind::Cpumap(args) => cpumap::run(args),
        BenchKind::Copybreak(args) => copybreak::run(args),
        BenchKind::Batch(args) => batch::run(args),
        BenchKind::Xsk(args) => xsk::run(args),
        BenchKind::Vm(args) => vm::run(args),
        BenchKind::Latency(args) => latency::run(args),
        BenchKind::Plot(_) => Ok(ExitCode::SUCCESS),
    };
    progress::end();
    if outcome.is_ok() && interrupt::interrupted() { Ok(ExitCode::from(130)) } else { outcome }
}

/// The head of a report.
#[derive(Serialize)]
struct Headed<'r, R> {
    machine: Machine,
    #[serde(flatten)]
    run: Provenance,
    /// What is counted, and where.
    counted: &'r str,
    /// ^C ended it: what was not measured is missing, and medians are of fewer rounds.
    partial: bool,
    #[serde(flatten)]
    report: &'r R,
}

/// Prints a report: as one JSON object that begins with `machine`, the run, `counted` and
/// `partial`, or with what is measured and where as the first lines and `print` after them.
/// `counted` says what is counted, and where. With `--svg` the report is also drawn.
fn show<R: Serialize>(
    json: bool,
    counted: &str,
    report: &R,
    print: impl FnOnce() -> io::Result<()>,
) -> Result<(), Box<dyn Error>> {
    progress::end();
    let (machine, run) = (Machine::this(), Provenance::this());
    let headed = Headed { machine, run, counted, partial: interrupt::interrupted(), report };
    if json {
        outln!("{}", serde_json::to_string(&headed)?)?;
    } else {
        outln!("machine: {}\ncounted: {counted}", headed.machine)?;
        if headed.partial {
            outln!("PARTIAL: interrupted; what was not measured is missing, and medians are of fewer rounds")?;
        }
        outln!("")?;
        is_read(print())?;
    }
    let report = serde_json::to_value(&headed)?;
    match SVG.get() {
        // One that was interrupted early has nothing to draw.
        Some(path) if !headed.partial || !plot::is_empty(&report) => plot::write(&report, path),
        _ => Ok(()),
    }
}

/// The median; 0 for an empty list.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
