//! The report for people.

use super::{Report, Table, Traffic};
use std::io::{self, Write};

/// The authors' table: UDP with small frames, GRO off and on, in millions of packets per second.
const SEED: [(&str, f64, Option<f64>); 3] =
    [("baseline", 2.7, None), ("patch 3", 2.3, Some(4.0)), ("patch 8", 2.4, Some(4.7))];

/// What moves, and who reads it.
pub(super) fn title(traffic: Traffic) -> String {
    match traffic {
        Traffic::Udp { flows, reader } => format!("UDP, small datagrams, flows: {flows}; receiver: {}", reader.name()),
        Traffic::Stream => {
            "TCP, one stream, segments of 1448 bytes; receiver: a socket, read() of up to 128 KiB".into()
        }
        Traffic::Transactions { connections } => {
            format!("TCP_RR, connections: {connections}; a byte each way; receiver: a thread with epoll")
        }
    }
}

pub(super) fn print(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for table in &report.tables {
        print_table(&mut out, table)?;
    }
    writeln!(
        out,
        "{:44} {:>8} {:>8} {:>8}",
        "the cpumap series, UDP, small frames, Mpps", "GRO off", "GRO on", "diff"
    )?;
    let base = SEED[0].1;
    for (name, off, on) in SEED {
        let (on_text, best) = on.map_or(("N/A".to_owned(), off), |on| (format!("{on:.1}"), on));
        writeln!(out, "{name:44} {off:>8.1} {on_text:>8} {:>+6.0} %", 100.0 * (best / base - 1.0))?;
    }
    for note in &report.notes {
        writeln!(out, "note: {note}")?;
    }
    for skipped in &report.skipped {
        writeln!(out, "skipped: {skipped}")?;
    }
    writeln!(
        out,
        "\nmedians of {} rounds of {} s, all rows in turn; merged: datagrams that a call of \
         the receiver returned; ratios of delivered, medians of the pairs of a round: by GRO off, by the kernel's cpumap, by the same \
         without steering; UDP: {} bytes of payload, {} \
         datagrams of a flow in turn, the sender as fast as it can; queue between the cores: {} frames",
        report.rounds, report.seconds, report.payload, report.train, report.queue
    )
}

fn print_table(out: &mut impl Write, table: &Table) -> io::Result<()> {
    writeln!(out, "{}", title(table.traffic))?;
    let (unit, scale) = match table.traffic {
        Traffic::Udp { .. } | Traffic::Stream => ("M/s", 1e6),
        Traffic::Transactions { .. } => ("k/s", 1e3),
    };
    writeln!(
        out,
        "{unit:44} {:>4} {:>9} {:>9} {:>7} {:>6} {:>8} {:>8} {:>8} {:>8}",
        "GRO", "offered", "delivered", "lost", "merged", "CPU ns", "/off", "/cpumap", "/direct"
    )?;
    for row in &table.rows {
        let udp = |text: String| if matches!(table.traffic, Traffic::Udp { .. }) { text } else { "-".to_owned() };
        let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        writeln!(
            out,
            "{:44} {:>4} {:>9} {:>9.3} {:>7} {:>6} {:>8.0} {:>8} {:>8.2} {:>8}",
            row.datapath.name(),
            if row.gro { "on" } else { "off" },
            udp(format!("{:.3}", row.offered_per_second / scale)),
            row.delivered_per_second / scale,
            udp(format!("{:.1} %", row.lost_percent)),
            udp(format!("{:.1}", row.datagrams_per_message)),
            row.cpu_ns,
            ratio(row.by_off),
            row.by_kernel_cpumap,
            ratio(row.by_unsteered),
        )?;
    }
    writeln!(out)
}
