//! Prints the tables.

use super::qemu::OnQemu;
use super::{Report, qemu, scenarios, sweep};
use crate::args::BenchBatch;
use std::io::{self, Write};

pub(super) fn print(report: &Report, args: &BenchBatch) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if !report.sweep.is_empty() || !report.scenarios.is_empty() {
        writeln!(
            out,
            "on the model of CPSW: accesses (W writes, R reads) are those of silicon; medians of {} rounds of {} bursts,\n\
             the variants in turn\n",
            args.rounds, args.bursts
        )?;
    }
    if !report.sweep.is_empty() {
        print_sweep(&mut out, report)?;
    }
    if !report.scenarios.is_empty() {
        print_scenarios(&mut out, &report.scenarios)?;
    }
    match &report.qemu {
        None => Ok(()),
        Some(OnQemu::Skipped(why)) => writeln!(out, "on QEMU's e1000e: not measured: {why}"),
        Some(OnQemu::Measured { size, rows }) => print_qemu(&mut out, *size, rows),
    }
}

fn print_sweep(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(
        out,
        "{:>5} bytes                     transmit                receive             wait for the doorbell",
        report.size
    )?;
    writeln!(
        out,
        "{:<15} {:<9} {:>5} {:>8} {:>7} {:>7} {:>8} {:>7} {:>7} {:>9} {:>9}",
        "", "", "batch", "ns", "W", "R", "ns", "W", "R", "p50 ns", "p99 ns"
    )?;
    for sweep::Row { family, descriptors, batch, tx, rx, wait_ns } in &report.sweep {
        writeln!(
            out,
            "{family:<15} {descriptors:<9} {batch:>5} {:>8.1} {:>7.3} {:>7.3} {:>8.1} {:>7.3} {:>7.3} {:>9.0} {:>9.0}",
            tx.ns, tx.writes, tx.reads, rx.ns, rx.writes, rx.reads, wait_ns[0], wait_ns[1]
        )?;
    }
    writeln!(out)
}

fn print_scenarios(out: &mut impl Write, rows: &[scenarios::Row]) -> io::Result<()> {
    writeln!(
        out,
        "{:<39} {:>15} {:>17} {:>13} {:>19}",
        "each packet", "accesses", "driver, ns", "", "the series saved"
    )?;
    writeln!(
        out,
        "{:<39} {:>7} {:>7} {:>9} {:>7} {:>13} {:>8} {:>11}",
        "", "before", "after", "before", "after", "break-even", "ns", "ns a write"
    )?;
    for row in rows {
        let scenarios::Row { scenario, before, after, break_even_ns, series, series_saved_ns, .. } = row;
        let break_even = break_even_ns.map_or("-".to_owned(), |ns| format!("{ns:.0} ns"));
        let a_write = match series.batched {
            true => format!("{:.0}", series_saved_ns / (before.writes - after.writes)),
            false => "not batched".to_owned(),
        };
        writeln!(
            out,
            "{scenario:<39} {:>7.3} {:>7.3} {:>9.1} {:>7.1} {break_even:>13} {series_saved_ns:>8.0} {a_write:>11}",
            before.writes + before.reads,
            after.writes + after.reads,
            before.ns,
            after.ns
        )?;
    }
    writeln!(
        out,
        "break-even: from this cost of a posted write on, *after* is faster. The series saved: from its rates and loads on silicon;\n\
         ns a write: if the writes saved were all of it. The series batches what is sent, not what is received; here both are.\n"
    )?;
    print_loads(out, rows)
}

/// Throughput and load of the datapath's share, for several costs of a posted write.
fn print_loads(out: &mut impl Write, rows: &[scenarios::Row]) -> io::Result<()> {
    write!(out, "{:<48}", "before → after, if a posted write costs")?;
    for write_ns in scenarios::WRITE_NS {
        write!(out, " {:>15}", format!("{write_ns:.0} ns"))?;
    }
    writeln!(out, " {:>19}", "the series")?;
    for row in rows {
        let pairs = |show: &dyn Fn(&scenarios::At) -> String| row.at.iter().map(show).collect::<Vec<_>>();
        let [full, fixed] = [
            pairs(&|at| format!("{:.2} → {:.2}", at.mbps[0] / 1e3, at.mbps[1] / 1e3)),
            pairs(&|at| format!("{:.2} → {:.2}", at.cpu_percent[0], at.cpu_percent[1])),
        ];
        let series = &row.series;
        let [theirs_full, theirs_fixed] = match series.cpu_percent[0] == series.cpu_percent[1] {
            true => [format!("{} → {} Mb/s", series.mbps[0], series.mbps[1]), String::new()],
            false => [String::new(), format!("{} → {} %", series.cpu_percent[0], series.cpu_percent[1])],
        };
        line(out, row.scenario, "Gb/s", &full, &theirs_full)?;
        line(out, "", &format!("% at {} Mb/s", series.mbps[0]), &fixed, &theirs_fixed)?;
    }
    writeln!(
        out,
        "Gb/s: of payload, by 100 % of a core; %: of a core, paced. Ours: of the datapath's share (making or freeing packets, and the\n\
         driver) measured on the model, plus the writes at that cost. The series': of a whole kernel.\n"
    )
}

fn line(out: &mut impl Write, name: &str, unit: &str, cells: &[String], series: &str) -> io::Result<()> {
    write!(out, "{name:<39} {unit:<8}")?;
    cells.iter().try_for_each(|cell| write!(out, " {cell:>15}"))?;
    writeln!(out, " {series:>19}")
}

fn print_qemu(out: &mut impl Write, size: usize, rows: &[qemu::Row]) -> io::Result<()> {
    writeln!(
        out,
        "on QEMU's e1000e over qtest: a register access is a line of text to another process, inside of which it moves the frames;\n\
         medians of samples of up to 128 frames; times: against one doorbell a frame, in pairs of neighbouring samples\n"
    )?;
    writeln!(out, "{size:>5} bytes               transmit                              receive")?;
    let heads = ["frames/s", "times", "tail W", "reads"];
    write!(out, "{:<7}", "batch")?;
    for head in heads.iter().chain(&heads) {
        write!(out, " {head:>9}")?;
    }
    writeln!(out)?;
    for qemu::Row { batch, tx, rx } in rows {
        write!(out, "{batch:<7}")?;
        for rate in [tx, rx] {
            let qemu::Rate { frames_per_second, times, doorbells, reads } = rate;
            write!(out, " {frames_per_second:>9.0} {times:>9.2} {doorbells:>9.3} {reads:>9.3}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
