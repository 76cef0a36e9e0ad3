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
//! | `machine` | the machine, which heads every report |
//! | `progress` | the time so far, on a terminal |
//!
//! Every report begins with what it counts and on which machine ([`show`]).

mod batch;
mod copybreak;
mod cores;
mod cpumap;
mod gro;
mod latency;
pub(crate) mod machine;
mod netns;
mod progress;
mod tcp;
mod udp;
mod vm;
mod xsk;

use crate::args::{Bench, BenchKind};
use crate::output::{is_read, outln};
use machine::Machine;
use serde::Serialize;
use std::error::Error;
use std::io;
use std::process::ExitCode;

pub(crate) fn bench(args: &Bench) -> Result<ExitCode, Box<dyn Error>> {
    progress::begin();
    let outcome = match &args.kind {
        BenchKind::Gro(args) => gro::run(args),
        BenchKind::Cpumap(args) => cpumap::run(args),
        BenchKind::Copybreak(args) => copybreak::run(args),
        BenchKind::Batch(args) => batch::run(args),
        BenchKind::Xsk(args) => xsk::run(args),
        BenchKind::Vm(args) => vm::run(args),
        BenchKind::Latency(args) => latency::run(args),
    };
    progress::end();
    outcome
}

/// The head of a report.
#[derive(Serialize)]
struct Headed<'r, R> {
    machine: Machine,
    /// What is counted, and where.
    counted: &'r str,
    #[serde(flatten)]
    report: &'r R,
}

/// Prints a report: as one JSON object that begins with `machine` and `counted`, or these two as
/// the first lines and `print` after them. `counted` says what is counted, and where.
fn show<R: Serialize>(
    json: bool,
    counted: &str,
    report: &R,
    print: impl FnOnce() -> io::Result<()>,
) -> Result<(), Box<dyn Error>> {
    progress::end();
    let machine = Machine::this();
    if json {
        outln!("{}", serde_json::to_string(&Headed { machine, counted, report })?)?;
    } else {
        outln!("machine: {machine}\ncounted: {counted}\n")?;
        is_read(print())?;
    }
    Ok(())
}

/// The median; 0 for an empty list.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
