//! `towpath bench`: the measurements that the mechanisms are judged by, in the shape of their authors' tables.

mod gro;
mod netns;

use crate::args::{Bench, BenchKind};
use std::error::Error;
use std::process::ExitCode;

pub(crate) fn bench(args: &Bench) -> Result<ExitCode, Box<dyn Error>> {
    match &args.kind {
        BenchKind::Gro(args) => gro::run(args),
    }
}
