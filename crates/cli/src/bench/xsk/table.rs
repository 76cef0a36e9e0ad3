//! Prints the tables in the shape of their authors.

use super::{Column, PacketCost, Report, Table};
use crate::args::BenchXsk;
use crate::units::grouped;
use std::io::{self, Write};

/// The series' table: size, copy, page, percent. Packets per second of a virtio device in a virtual
/// machine, `xdpsock -t`.
const SERIES: [(u32, u64, u64, f64); 4] = [
    (64, 1_916_747, 1_974_058, 3.0),
    (512, 1_775_988, 1_953_655, 10.0),
    (1024, 1_600_203, 1_945_463, 21.58),
    (1500, 1_440_054, 1_904_478, 32.3),
];

pub(super) fn print(report: &Report, args: &BenchXsk) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "the series: packets a second, virtio in a virtual machine, whole kernel")?;
    row(&mut out, "size", SERIES.map(|(size, ..)| size.to_string()))?;
    row(&mut out, "copy", SERIES.map(|(_, copy, ..)| grouped(copy)))?;
    row(&mut out, "page", SERIES.map(|(_, _, page, _)| grouped(page)))?;
    row(&mut out, "percent", SERIES.map(|(.., percent)| format!("{percent:.1} %")))?;
    for table in &report.tables {
        print_table(&mut out, table)?;
    }
    for skipped in &report.skipped {
        writeln!(out, "\nskipped: {skipped}")?;
    }
    let how = if args.threaded { "on a thread of its own" } else { "stepped, not timed" };
    writeln!(
        out,
        "\npackets a second of one core (the slower one if the reader has its own; to virtio, as the back end counts them); an application {how}, bursts of 64 out of \
         4096 frames; medians of {} rounds of {} bursts, copy and page in turn",
        args.rounds, args.bursts
    )
}

fn print_table(out: &mut impl Write, table: &Table) -> io::Result<()> {
    let of = |show: &dyn Fn(&Column) -> String| -> Vec<String> { table.columns.iter().map(show).collect() };
    writeln!(out, "\nto {}: {}\nread: {}\nwritten: {}", table.egress, table.what, table.reader, table.writer)?;
    row(out, "size", of(&|column| column.size.to_string()))?;
    row(out, "copy", of(&|column| grouped(column.copy.pps as u64)))?;
    row(out, "page", of(&|column| grouped(column.page.pps as u64)))?;
    row(out, "percent", of(&|column| format!("{:+.1} %", column.percent)))?;
    row(out, "ns", of(&|column| format!("{:.1} / {:.1}", column.copy.ns, column.page.ns)))?;
    if table.columns.iter().any(|column| column.page.reader_ns.is_some()) {
        let ns = |cost: &PacketCost| cost.reader_ns.unwrap_or(0.0);
        row(out, "reader ns", of(&|column| format!("{:.1} / {:.1}", ns(&column.copy), ns(&column.page))))?;
    }
    row(out, "copies", of(&|column| format!("{:.0} / {:.0}", column.copy.copies, column.page.copies)))?;
    writeln!(out, "a page costs {:.3} ns more for each byte", table.page_ns_per_byte)
}

fn row(out: &mut impl Write, name: &str, cells: impl IntoIterator<Item = String>) -> io::Result<()> {
    write!(out, "{name:10}")?;
    for cell in cells {
        write!(out, " {cell:>15}")?;
    }
    writeln!(out)
}
