//! `towpath`, the command.
//!
//! ```text
//!   args      the command line
//!   commands  the ports and routes of each command
//!   bind      binds a device to vfio-pci and restores its driver
//!   kinds     the kinds of ports and their options: help, man pages, completion
//!   probe     what a port can do;  findings: what its device lacks
//!   report    what is needed when a card or a board fails
//!   bench     measurements as tables
//!   run       start, watch, stop: common to all commands that move packets
//!   sandbox   what of the sandbox is in force, for summary and probe
//!   control   settings of the ports, changed while they run
//!   live      the live view
//!   summary   the tables at the end;  live view and summary as JSON
//!   output    standard output, which may be full or without a reader
//!   units     numbers with SI prefixes
//! ```
//!
//! Exit codes: 0: success (also after ^C). 1: a failure while running: a port is gone, a worker
//! failed, buffers are missing, standard output can't be written. 2: the command line, a port's options or its environment are wrong;
//! nothing was moved.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod args;
mod bench;
mod bind;
mod commands;
mod control;
mod findings;
mod kinds;
mod live;
mod measured;
mod output;
mod probe;
mod report;
mod run;
mod sandbox;
mod summary;
mod units;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = args::Args::parse();
    match commands::dispatch(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("towpath: {error}");
            // Packets may have been moved.
            ExitCode::from(if error.is::<output::OutputError>() { 1 } else { 2 })
        }
    }
}
