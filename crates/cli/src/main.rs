//! `towpath`, the command.
//!
//! ```text
//!   args      what can be typed
//!   commands  what each command opens and joins
//!   bind      hand a device over, give it back
//!   probe     what a port can do; findings: what its device lacks
//!   bench     the measurements, as tables
//!   run       start, watch, stop: the same for all that move packets
//!   control   settings of the ports, changed while it runs
//!   live      the line per port while it runs
//!   summary   the tables at the end, and both as JSON
//! ```
//!
//! Exit codes: 0 all went well (also after ^C); 1 something failed while running: a port is gone, a worker failed, buffers were
//! lost; 2 the command line, a port's options or its environment are wrong, nothing was moved.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod args;
mod bench;
mod bind;
mod commands;
mod control;
mod findings;
mod live;
mod probe;
mod run;
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
            ExitCode::from(2)
        }
    }
}
