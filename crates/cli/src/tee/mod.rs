//! Tees of the command: those of `--tee` and `--drops`, and `towpath tee`, which watches a running
//! instance.
//!
//! | file | content |
//! |---|---|
//! | `mod` | tees of a command that moves packets; their lines in the summary |
//! | `watch` | `towpath tee`: the client of the control socket |
//! | `blocks` | the stream that it reads: blocks of pcapng, bounded |
//! | `extcap` | `towpath extcap`: instances as interfaces of Wireshark |

mod blocks;
mod extcap;
mod watch;

pub(crate) use extcap::extcap;
pub(crate) use watch::watch;

use crate::args::Run;
use crate::units::grouped;
use serde::Serialize;
use std::error::Error;
use towpath::Observer;
use towpath::packet::port::Needs;
use towpath::tee::{Tee, TeeReport, TeeSpec};

/// The tees of a command, from before its first packet to behind its last one.
pub(crate) struct Tees(Vec<Tee>);

impl Tees {
    /// Attaches the tees of `--tee` and `--drops`.
    pub(crate) fn new(observer: &Observer, args: &Run) -> Result<Tees, Box<dyn Error>> {
        let drops = args.drops.iter().cloned().map(|mut spec| {
            (spec.config.rx, spec.config.tx, spec.config.drops) = (false, false, true);
            spec
        });
        let attach = |spec: TeeSpec| -> Result<Tee, Box<dyn Error>> {
            let mut config = spec.config.clone();
            config.interfaces = observer.tee_interfaces(&spec.ports)?;
            Ok(observer.tee(&config, spec.open()?)?)
        };
        args.tee.iter().cloned().chain(drops).map(attach).collect::<Result<_, _>>().map(Tees)
    }

    /// What the sinks use of the kernel.
    pub(crate) fn needs(&self) -> Needs {
        self.0.iter().fold(Needs::none(), |all, tee| all.and(tee.needs().clone()))
    }

    /// Ends the tees, once nothing moves any more.
    pub(crate) fn stop(self) -> Vec<TeeReport> {
        self.0.iter().for_each(Tee::detach);
        self.0.into_iter().map(Tee::stop).collect()
    }
}

/// A tee in the summary.
#[derive(Serialize)]
pub(crate) struct TeeTotals<'a> {
    sink: &'a str,
    matched: u64,
    written: u64,
    missed: u64,
    failure: Option<&'a str>,
}

impl<'a> TeeTotals<'a> {
    pub(crate) fn new(report: &'a TeeReport) -> TeeTotals<'a> {
        let TeeReport { name, matched, written, missed, failure, .. } = report;
        let (matched, written, missed) = (*matched, *written, *missed);
        TeeTotals { sink: name, matched, written, missed, failure: failure.as_deref() }
    }
}

/// A tee as a line of the summary.
pub(crate) fn line(report: &TeeReport) -> String {
    let TeeReport { name, matched, written, missed, failure, .. } = report;
    let failure = failure.as_ref().map(|why| format!(": FAILED: {why}")).unwrap_or_default();
    format!(
        "{name}: {} matched, {} written, {} missed{failure}",
        grouped(*matched),
        grouped(*written),
        grouped(*missed)
    )
}
