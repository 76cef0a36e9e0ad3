//! `towpath bench`: measurements of each mechanism, in the shape of the tables of its authors.

mod batch;
mod copybreak;
mod gro;
mod latency;
mod netns;
mod xsk;

use crate::args::{Bench, BenchKind};
use std::error::Error;
use std::process::ExitCode;

pub(crate) fn bench(args: &Bench) -> Result<ExitCode, Box<dyn Error>> {
    match &args.kind {
        BenchKind::Gro(args) => gro::run(args),
        BenchKind::Copybreak(args) => copybreak::run(args),
        BenchKind::Batch(args) => batch::run(args),
        BenchKind::Xsk(args) => xsk::run(args),
        BenchKind::Latency(args) => latency::run(args),
    }
}

/// The median; 0 for an empty list.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
