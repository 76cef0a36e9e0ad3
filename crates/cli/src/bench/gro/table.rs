//! The report for people.

use super::{Figures, Report, Table};
use std::io::{self, Write};

/// The authors' table: UDP with small frames on a server, before the series and with all of it.
const SEED: [(&str, f64, Option<f64>); 2] = [("baseline", 2.7, None), ("patch 8", 2.4, Some(4.7))];

pub(super) fn print(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let width = width(report);
    for table in &report.tables {
        print_table(&mut out, table, width)?;
    }
    let title = "the cpumap series, UDP, small frames";
    writeln!(out, "{title:width$} {:>8} {:>8} {:>8}", "GRO off", "GRO on", "diff")?;
    let base = SEED[0].1;
    for (name, off, on) in SEED {
        let percent = |value: f64| format!("{:+.0} %", 100.0 * (value / base - 1.0));
        let on_text = on.map_or("N/A".to_owned(), |on| format!("{on:.1}"));
        let diff = on.map_or(String::new(), percent);
        writeln!(out, "{name:width$} {off:>8.1} {on_text:>8} {diff:>8}")?;
    }
    writeln!(
        out,
        "\nmedians of {} rounds of {} s, off and on in turn; merged: datagrams that a call of the receiver returned",
        report.rounds, report.seconds
    )
}

/// The longest name of a consumer.
fn width(report: &Report) -> usize {
    report.tables.iter().flat_map(|table| &table.rows).map(|row| row.consumer.len()).max().unwrap_or(0)
}

fn print_table(out: &mut impl Write, table: &Table, width: usize) -> io::Result<()> {
    writeln!(out, "{}", table.traffic)?;
    writeln!(
        out,
        "{:width$} {:>8} {:>8} {:>8} {:>15} {:>16} {:>17}",
        "Mpps", "GRO off", "GRO on", "diff", "lost, off  on", "merged, off  on", "CPU ns, off   on"
    )?;
    for row in &table.rows {
        let diff = format!("{:+.0} %", row.difference_percent);
        let both = |f: fn(&Figures) -> Option<f64>, digits: usize| match (f(&row.off), f(&row.on)) {
            (Some(off), Some(on)) => format!("{off:.digits$}  {on:.digits$}"),
            _ => "-".to_owned(),
        };
        let (lost, cpu) = (both(|f| f.lost_percent, 1), both(|f| f.cpu_ns, 0));
        let merged = both(|f| f.datagrams_per_message, 1);
        let lost = if lost == "-" { lost } else { format!("{lost} %") };
        writeln!(
            out,
            "{:width$} {:>8.2} {:>8.2} {diff:>8} {lost:>15} {merged:>16} {cpu:>17}",
            row.consumer, row.off.mpps, row.on.mpps
        )?;
    }
    for skipped in &table.skipped {
        writeln!(out, "skipped: {skipped}")?;
    }
    writeln!(out)
}
