//! Prints the tables.

use super::waits::{SERIES, Sweep};
use super::{POLICIES, Ratio, Report};
use std::io::{self, Write};

pub(super) fn print(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{} bytes, on {}", report.size, report.on)?;
    writeln!(
        out,
        "{:6} | {:>8} | {:>9} | {:>7} | {:>9} | {:>8} | {:>7} | {:>5} {:>6} {:>5} {:>6} {:>5} | {:>17}",
        "rev",
        "iommu",
        "copybreak",
        "samples",
        "mean (ns)",
        "stdev",
        "median",
        "maps",
        "unmaps",
        "waits",
        "copies",
        "syncs",
        "the series (ns)"
    )?;
    for row in &report.rows {
        let authors = row.authors_ns.map_or(String::new(), |(mean, stdev)| format!("{mean:.2} ± {stdev:.2}"));
        let seen = &row.seen;
        let per = &seen.per_buffer;
        writeln!(
            out,
            "{:6} | {:>8} | {:>9} | {:>7} | {:>9.2} | {:>8.2} | {:>7.2} | {:>5.2} {:>6.2} {:>5.2} {:>6.2} {:>5.2} | {authors:>17}",
            row.rev,
            row.protection,
            row.copybreak,
            seen.samples,
            seen.mean_ns,
            seen.stdev_ns,
            seen.median_ns,
            per.maps,
            per.unmaps,
            per.waits,
            per.copies,
            per.syncs,
        )?;
    }
    writeln!(
        out,
        "maps … syncs: for each buffer. before, after with the iommu on: one wait for translations a buffer, as in Linux; ours: one a burst"
    )?;
    for Ratio { protection, copybreak, before_after, authors } in &report.ratios {
        let control = if *protection == "off" { ", the control: nothing is mapped" } else { "" };
        let authors = authors.map_or(String::new(), |ratio| format!(" (the series: {ratio:.2})"));
        writeln!(
            out,
            "iommu {protection}, copybreak {copybreak}: before / after = {before_after:.2}{authors}{control}"
        )?;
    }
    if let Some(sweep) = &report.waits {
        waits(&mut out, sweep)?;
    }
    if !report.sizes.is_empty() {
        let rows = report.sizes.iter().map(|row| (row.size, row.handed_on, row.copied));
        sizes(&mut out, "buffer", "handed on", rows)?;
    }
    Ok(())
}

fn waits(out: &mut impl Write, sweep: &Sweep) -> io::Result<()> {
    writeln!(
        out,
        "\niommu on, by the time that an invalidation takes (a parameter of the model, in addition to its own work): \
         median ns for each buffer"
    )?;
    writeln!(
        out,
        "{:>8} | {:>8} {:>8} | {:>8} {:>8} | {:>8} {:>8} | {:>14}",
        "wait ns", "before 0", "2048", "after 0", "2048", "ours 0", "2048", "before / after"
    )?;
    for row in &sweep.rows {
        write!(out, "{:>8}", row.wait_ns)?;
        for [handed_on, copied] in [row.before, row.after, row.ours] {
            write!(out, " | {handed_on:>8.1} {copied:>8.1}")?;
        }
        writeln!(out, " | {:>14.2}", row.before_after)?;
    }
    let mut from = |what: &str, cost: Option<f64>| match (cost, sweep.rows.first()) {
        (Some(ns), Some(first)) if ns <= first.wait_ns as f64 => writeln!(out, "{what}: at every cost of the sweep"),
        (Some(ns), _) => writeln!(out, "{what}: from {ns:.0} ns on"),
        (None, _) => writeln!(out, "{what}: at no cost of the sweep"),
    };
    from("break-even, one wait a buffer: copying costs less than passing on", sweep.break_even_each_ns)?;
    from("break-even, one wait a burst: copying costs less than passing on", sweep.break_even_burst_ns)?;
    from(&format!("before / after at least the series' {SERIES:.2}"), sweep.series_ns)
}

/// The table by sizes: for each, ns under each policy of what is passed on or mapped, and of what
/// is copied.
pub(super) fn sizes(
    out: &mut impl Write,
    what: &str,
    uncopied: &str,
    rows: impl Iterator<Item = (usize, [f64; 3], [f64; 3])>,
) -> io::Result<()> {
    let rows: Vec<_> = rows.collect();
    writeln!(out, "\nns for each {what}, by size (medians)")?;
    write!(out, "{:>6}", "bytes")?;
    for (name, _) in POLICIES {
        write!(out, " | {:>21}", name)?;
    }
    write!(out, "\n{:>6}", "")?;
    for _ in POLICIES {
        write!(out, " | {uncopied:>10} {:>10}", "copied")?;
    }
    writeln!(out)?;
    for (size, left, copied) in &rows {
        write!(out, "{size:>6}")?;
        for (left, copied) in left.iter().zip(copied) {
            write!(out, " | {left:>10.1} {copied:>10.1}")?;
        }
        writeln!(out)?;
    }
    for (i, (name, _)) in POLICIES.iter().enumerate() {
        let cheaper = |(_, left, copied): &&(usize, [f64; 3], [f64; 3])| copied.get(i) < left.get(i);
        let word = match rows.iter().take_while(cheaper).last() {
            None => "copying costs more at every size".to_owned(),
            Some(last) if Some(last.0) == rows.last().map(|row| row.0) => "copying costs less at every size".to_owned(),
            Some(last) => format!("copying costs less up to {} bytes", last.0),
        };
        writeln!(out, "{name:10} {word}")?;
    }
    Ok(())
}
