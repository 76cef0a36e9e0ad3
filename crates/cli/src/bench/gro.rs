//! `towpath bench gro`: the table of the cpumap series (GRO off, GRO on, Mpps, difference), for
//! three consumers.
//!
//! ```text
//!   counting sink        gen ──► [GRO] ──► null                                one thread
//!   the kernel's stack   gen ──► [GRO] ──► tap ║ namespace: a UDP socket       UDP; root
//!                        sender ║ tap ──► [GRO] ──► tap ║ receiver             TCP, MTU; root
//!   a lane               gen ──► ring ──► lane: [GRO] ──► null                 same, other core
//! ```
//!
//! Every figure is the median of several rounds. In each round GRO is off, then on, so that a slow
//! moment of the machine affects both.

use super::median;
use super::netns::Namespace;
use crate::args::BenchGro;
use serde::Serialize;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use towpath::engine::gro_stage::GroMode;
use towpath::{Directions, Forward, Opener, Role};

/// The authors' table: UDP with small frames on a server, before the series and with all of it.
const SEED: [(&str, f64, Option<f64>); 2] = [("baseline", 2.7, None), ("patch 8", 2.4, Some(4.7))];

#[derive(Serialize)]
struct Row {
    consumer: &'static str,
    /// Packets per second, in millions.
    off: f64,
    on: f64,
    difference_percent: f64,
}

#[derive(Serialize)]
struct Table {
    traffic: String,
    rows: Vec<Row>,
    skipped: Vec<String>,
}

type Measured = Result<f64, Box<dyn Error>>;

pub(crate) fn run(args: &BenchGro) -> Result<ExitCode, Box<dyn Error>> {
    let cores = towpath::engine::worker::cores();
    let (first, other) = (cores[0], cores[cores.len() - 1]);
    let udp = format!("gen:proto=udp,size={},flows={}", args.size, args.flows);
    let tcp = format!("gen:proto=tcp,size={},flows={}", 14 + 40 + 1448, args.flows);
    let mut tables = Vec::new();
    for (source, udp_only) in [(&udp, true), (&tcp, false)] {
        let mut table = Table { traffic: source.clone(), rows: Vec::new(), skipped: Vec::new() };
        let sink = |mode| direct(source, mode, args, first);
        table.rows.push(pairs("counting sink", args, sink)?);
        let kernel = if udp_only {
            pairs("kernel's stack, UDP socket behind a TAP", args, |mode| to_socket(&udp, mode, args, first, other))
        } else {
            pairs("kernel's stack, TCP through two TAPs", args, |mode| through_taps(mode, args, first))
        };
        match kernel {
            Ok(row) => table.rows.push(row),
            Err(error) => table.skipped.push(format!("kernel's stack: {error}")),
        }
        table.rows.push(pairs("lane on the same core", args, |mode| lane(source, mode, args, first, first))?);
        if other != first {
            table.rows.push(pairs("lane on another core", args, |mode| lane(source, mode, args, first, other))?);
        }
        tables.push(table);
    }
    if args.json {
        println!("{}", serde_json::to_string(&tables)?);
    } else {
        print(&tables, args)?;
    }
    let incomplete = tables.iter().any(|table| !table.skipped.is_empty());
    Ok(if incomplete && args.require { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Medians of off and on, measured in turn.
fn pairs(
    consumer: &'static str,
    args: &BenchGro,
    mut measure: impl FnMut(GroMode) -> Measured,
) -> Result<Row, Box<dyn Error>> {
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        off.push(measure(GroMode::Off)?);
        on.push(measure(GroMode::On)?);
    }
    let (off, on) = (median(off), median(on));
    Ok(Row { consumer, off, on, difference_percent: 100.0 * (on / off - 1.0) })
}

fn plan(mode: GroMode, core: usize) -> Forward {
    let mut plan = Forward::default();
    (plan.directions, plan.cores) = (Directions::OneWay, vec![core]);
    plan.gro.mode = mode;
    plan
}

/// Runs for the time of a round; returns the source's rate in millions of packets per second.
fn rate(plan: Forward, from: &str, to: &str, args: &BenchGro) -> Measured {
    let mut opener = Opener::new();
    let a = opener.open(&from.parse()?, Role::Ingress)?;
    let b = opener.open(&to.parse()?, Role::Egress)?;
    let running = plan.start(a, b)?;
    std::thread::sleep(args.seconds / 10);
    let before = running.meter().read();
    std::thread::sleep(args.seconds);
    let step = running.meter().read().since(&before);
    let summary = running.stop();
    if summary.reading.balance().in_flight() != 0 || summary.buffers_away > 0 {
        return Err("the balance does not add up".into());
    }
    let packets = step.ports.first().map_or(0, |port| port.rx.packets);
    Ok(packets as f64 / step.elapsed.as_secs_f64() / 1e6)
}

fn direct(source: &str, mode: GroMode, args: &BenchGro, core: usize) -> Measured {
    rate(plan(mode, core), source, "null:", args)
}

fn lane(source: &str, mode: GroMode, args: &BenchGro, worker: usize, lane: usize) -> Measured {
    let mut plan = plan(mode, worker);
    plan.lanes = vec![lane];
    rate(plan, source, "null:", args)
}

/// Millions of datagrams per second that a socket behind a TAP receives.
fn to_socket(source: &str, mode: GroMode, args: &BenchGro, core: usize, other: usize) -> Measured {
    let namespace = Namespace::new(Some(other))?;
    let tap = format!("tap:bench%d?netns={},addr=198.19.0.1/15,mac=00:00:5e:00:53:02", namespace.path());
    let mut opener = Opener::new();
    let from = opener.open(&source.parse()?, Role::Ingress)?;
    let to = opener.open(&tap.parse()?, Role::Egress)?;
    let running = plan(mode, core).start(from, to)?;
    let payload = args.size.saturating_sub(14 + 20 + 8) as usize;
    let received = namespace.count_datagrams(9, payload, args.seconds / 10, args.seconds)?;
    running.stop();
    Ok(received as f64 / args.seconds.as_secs_f64() / 1e6)
}

/// Millions of 1448-byte segments per second of a TCP connection from one namespace to another.
fn through_taps(mode: GroMode, args: &BenchGro, core: usize) -> Measured {
    let (near, far) = (Namespace::new(None)?, Namespace::new(None)?);
    // The sender's side emits packets as on a wire: MTU-sized frames with complete checksums.
    let a = format!("tap:bench%d?netns={},addr=198.18.0.1/24,tso=off,uso=off,csum=off", near.path());
    let b = format!("tap:bench%d?netns={},addr=198.18.0.2/24", far.path());
    let mut opener = Opener::new();
    let (a, b) = (opener.open(&a.parse()?, Role::Both)?, opener.open(&b.parse()?, Role::Both)?);
    let mut plan = plan(mode, core);
    plan.directions = Directions::Both;
    let running = plan.start(a, b)?;
    let bytes = far.receive_stream_from(&near, ([198, 18, 0, 2], 5201).into(), args.seconds)?;
    running.stop();
    Ok(bytes as f64 / 1448.0 / args.seconds.as_secs_f64() / 1e6)
}

fn print(tables: &[Table], args: &BenchGro) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let width = 42;
    for table in tables {
        writeln!(out, "{}", table.traffic)?;
        writeln!(out, "{:width$} {:>10} {:>10} {:>8}", "Mpps", "GRO off", "GRO on", "diff")?;
        for row in &table.rows {
            let diff = format!("{:+.0} %", row.difference_percent);
            writeln!(out, "{:width$} {:>10.2} {:>10.2} {diff:>8}", row.consumer, row.off, row.on)?;
        }
        for skipped in &table.skipped {
            writeln!(out, "skipped: {skipped}")?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "{:width$} {:>10} {:>10} {:>8}",
        "the cpumap series, UDP, small frames", "GRO off", "GRO on", "diff"
    )?;
    let base = SEED[0].1;
    for (name, off, on) in SEED {
        let percent = |value: f64| format!("{:+.0} %", 100.0 * (value / base - 1.0));
        let on_text = on.map_or("N/A".to_owned(), |on| format!("{on:.1}"));
        let diff = on.map_or(String::new(), percent);
        writeln!(out, "{name:width$} {off:>10.1} {on_text:>10} {diff:>8}")?;
    }
    let seconds = args.seconds.as_secs_f64();
    writeln!(
        out,
        "\nmedians of {} rounds of {seconds} s, off and on in turn, on this machine and its kernel",
        args.rounds
    )
}
