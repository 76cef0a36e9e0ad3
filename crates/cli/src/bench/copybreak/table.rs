//! Prints the tables.

use super::{POLICIES, Report, SizeRow};
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
    let median = |rev: &str| {
        let row = report.rows.iter().find(|r| r.rev == rev && r.protection == "on" && r.copybreak == 2048);
        row.map(|row| row.seen.median_ns)
    };
    if let (Some(before), Some(after)) = (median("before"), median("after")) {
        writeln!(
            out,
            "iommu on, copybreak 2048: before / after = {:.2} by medians (the series: 2.25)",
            before / after
        )?;
    }
    if !report.sizes.is_empty() {
        sizes(&mut out, &report.sizes)?;
    }
    Ok(())
}

fn sizes(out: &mut impl Write, rows: &[SizeRow]) -> io::Result<()> {
    writeln!(out, "\nns for each buffer, by size (medians)")?;
    write!(out, "{:>6}", "bytes")?;
    for (name, _) in POLICIES {
        write!(out, " | {:>21}", name)?;
    }
    write!(out, "\n{:>6}", "")?;
    for _ in POLICIES {
        write!(out, " | {:>10} {:>10}", "handed on", "copied")?;
    }
    writeln!(out)?;
    for row in rows {
        write!(out, "{:>6}", row.size)?;
        for (handed_on, copied) in row.handed_on.iter().zip(&row.copied) {
            write!(out, " | {handed_on:>10.1} {copied:>10.1}")?;
        }
        writeln!(out)?;
    }
    for (i, (name, _)) in POLICIES.iter().enumerate() {
        let cheaper = |row: &&SizeRow| row.copied.get(i) < row.handed_on.get(i);
        let word = match rows.iter().take_while(cheaper).last() {
            None => "handing on costs less at every size".to_owned(),
            Some(last) if Some(last.size) == rows.last().map(|r| r.size) => {
                "copying costs less at every size".to_owned()
            }
            Some(last) => format!("copying costs less up to {} bytes", last.size),
        };
        writeln!(out, "{name:10} {word}")?;
    }
    Ok(())
}
