//! `towpath report PORT`: what is needed when a card or a board fails, in one file.
//!
//! ```text
//!   machine ── this command, kernel, IOMMU, board
//!   pci ────── the function and the bridge above it: identity, link, ASPM, configuration space
//!   port ───── registers as they are found; the port's own report; then it runs for some seconds:
//!              link, counters, faults, registers
//!   log ────── lines of the kernel about the device and its IOMMU
//! ```
//!
//! Every part is collected whatever becomes of the others: one that can't be says why. No packet,
//! no serial number and no part of the kernel's command line is printed but those named in
//! `machine`.

mod log;
mod machine;
mod pci;
mod port;

use crate::args::ReportArgs;
use crate::findings;
use crate::output::{outln, show};
use serde::Serialize;
use std::error::Error;
use std::fmt::Write;
use std::process::ExitCode;

/// A name and its value.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    value: String,
}

/// A part of the report.
#[derive(Debug, Serialize)]
struct Section {
    name: String,
    entries: Vec<Entry>,
}

impl Section {
    fn new(name: impl Into<String>) -> Section {
        Section { name: name.into(), entries: Vec::new() }
    }

    fn add(&mut self, name: impl Into<String>, value: impl ToString) {
        self.entries.push(Entry { name: name.into(), value: value.to_string() });
    }

    /// Adds a value if it exists.
    fn add_some(&mut self, name: &str, value: Option<impl ToString>) {
        value.into_iter().for_each(|value| self.add(name, value));
    }

    fn with(mut self, name: &str, value: impl ToString) -> Section {
        self.add(name, value);
        self
    }
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    port: &'a str,
    sections: Vec<Section>,
}

/// `towpath report`.
pub(crate) fn report(args: &ReportArgs) -> Result<ExitCode, Box<dyn Error>> {
    let bdf = findings::function(&args.port).and_then(Result::ok);
    let mut sections = machine::sections();
    sections.extend(bdf.into_iter().flat_map(pci::sections));
    sections.extend(port::sections(&args.port, args.run));
    // Last: what was done above may have left lines in it.
    sections.push(log::section(bdf));
    let report = Report { port: &args.port, sections };
    if args.json {
        outln!("{}", serde_json::to_string(&report)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = String::new();
    writeln!(out, "towpath report {}", report.port)?;
    for Section { name, entries } in &report.sections {
        writeln!(out, "\n[{name}]")?;
        let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
        for Entry { name, value } in entries {
            writeln!(out, "{name:width$}  {value}")?;
        }
    }
    show(out)?;
    Ok(ExitCode::SUCCESS)
}
