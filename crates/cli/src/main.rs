//! `towpath`, the command.
//!
//! ```text
//!   args      the command line
//!   commands  the ports and routes of each command
//!   router    several ports joined by an IP router
//!   bridge    several ports joined by a learning bridge
//!   naming    a port of the command, by the names that options use
//!   bind      binds a device to vfio-pci and restores its driver
//!   kinds     the kinds of ports and their options: help, man pages, completion
//!   probe     what a port can do;  findings: what its device lacks
//!   report    what is needed when a card or a board fails
//!   bench     measurements as tables
//!   measure   throughput and latency of what lies between two ports
//!   measured  what ports measure themselves: rate kept, sequence numbers found
//!   watch     start, watch, stop: common to all commands that move packets
//!   run       the units of a file, and their reload;  file: what a file says
//!   sandbox   what of the sandbox is in force, for summary and probe
//!   control   settings of the ports, changed while they run
//!   tables    the tables of a running bridge or router: addresses, routes, neighbours
//!   server    the thread of a listening socket: --control and --metrics
//!   state     the state of what runs, as a document
//!   metrics   the same by HTTP, with a page;  top: in a terminal
//!   json      the records of --json that are no measurements: start, error
//!   tee       packets that are watched: --tee, 'towpath tee', Wireshark
//!   live      the live view
//!   summary   the tables at the end;  live view and summary as JSON
//!   output    standard output, which may be full or without a reader
//!   units     numbers with SI prefixes
//! ```
//!
//! Exit codes: 0: success (also after ^C). 1: a failure while running: a port is gone, a worker
//! failed, buffers are missing, standard output can't be written. 2: the command line, a port's
//! options or its environment are wrong; nothing was moved.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod args;
mod bench;
mod bind;
mod bridge;
mod commands;
mod control;
mod file;
mod findings;
mod json;
mod kinds;
mod live;
mod measure;
mod measured;
mod metrics;
mod naming;
mod output;
mod probe;
mod report;
mod router;
mod run;
mod sandbox;
mod server;
mod state;
mod summary;
mod tables;
mod tee;
mod top;
mod units;
mod watch;

use clap::Parser;
use nix::libc::{EMFILE, ENFILE, ENOMEM};
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    state::began();
    let result = match args::Args::try_parse() {
        Ok(args) => commands::dispatch(args),
        // Help and version.
        Err(text) if !text.use_stderr() => print(&text.render()).map(|()| ExitCode::SUCCESS).map_err(Into::into),
        Err(refused) => {
            if is_for_machines() {
                let _ = json::error(refused.to_string().trim_end(), 2);
            }
            refused.exit()
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            let text = format!("{error}{}", remedy(&*error));
            eprintln!("towpath: {text}");
            // Packets may have been moved.
            let code = if error.is::<output::OutputError>() { 1 } else { 2 };
            if is_for_machines() {
                // The error may be that of the output.
                let _ = json::error(&text, code);
            }
            ExitCode::from(code)
        }
    }
}

fn print(text: &clap::builder::StyledStr) -> Result<(), output::OutputError> {
    if console::colors_enabled() { output::show(text.ansi()) } else { output::show(text) }
}

/// Whether the command line asks for JSON; it may be one that can't be parsed.
fn is_for_machines() -> bool {
    std::env::args_os().any(|word| word == "--json")
}

/// What helps if the machine or a limit is the cause, unless the error has it.
fn remedy(error: &(dyn Error + 'static)) -> String {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let code = causes.find_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error());
    let (word, remedy) = match code {
        Some(EMFILE) => ("open files", "raise the limit on open files: ulimit -n, or LimitNOFILE= of the unit"),
        Some(ENFILE) => ("open files", "raise the machine's limit on open files: sysctl fs.file-max"),
        Some(ENOMEM) => {
            ("memory", "ask for less memory (--buffers), or raise the limit: ulimit -v and -l, the control group's")
        }
        _ => return String::new(),
    };
    if error.to_string().contains(&format!("limit on {word}")) { String::new() } else { format!(" ({remedy})") }
}
