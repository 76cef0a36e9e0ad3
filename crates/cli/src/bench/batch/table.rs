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
            "on the model of CPSW: accesses are exact, ns are the driver's alone with the model in place of a bus;\n\
             medians of {} rounds of {} bursts, the variants in turn\n",
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
    writeln!(out, "{:<39} {:>16} {:>17}", "each packet", "before", "after")?;
    writeln!(
        out,
        "{:<39} {:>8} {:>8} {:>8} {:>8} {:>8}   {:<17} {:>7}",
        "", "accesses", "ns", "accesses", "ns", "diff", "the CPSW series", "diff"
    )?;
    for scenarios::Row { scenario, before, after, difference_percent, authors, authors_percent } in rows {
        writeln!(
            out,
            "{scenario:<39} {:>8.3} {:>8.1} {:>8.3} {:>8.1} {difference_percent:>+6.1} %   {authors:<17} {authors_percent:>+5.1} %",
            before.writes + before.reads,
            before.ns,
            after.writes + after.reads,
            after.ns
        )?;
    }
    writeln!(
        out,
        "diff: packets more in the same time. Theirs is of a whole kernel on silicon, ours of the driver's share alone on the model.\n"
    )
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
