//! `towpath bench gro`: the table of the cpumap series (GRO off, GRO on, Mpps, difference), for
//! several consumers. The series' own path, beside the kernel's, is `towpath bench cpumap`.
//!
//! ```text
//!   counting sink        gen ──► [GRO] ──► null                                one thread
//!   the kernel's stack   gen ──► [GRO] ──► tap ║ namespace: a UDP socket,      UDP; root
//!                                                plain or with UDP_GRO
//!                        sender ║ tap ──► [GRO] ──► tap ║ receiver             TCP, MTU; root
//!   a lane               gen ──► ring ──► lane: [GRO] ──► null                 same, other core
//! ```
//!
//! Every figure is the median of several rounds. In each round GRO is off, then on, so that a slow
//! moment of the machine affects both.

mod table;

use super::cores::CoreTime;
use super::interrupt::{interrupted, rounds, until_interrupted};
use super::netns::Namespace;
use super::udp::Reader;
use super::{median, show};
use crate::args::BenchGro;
use serde::Serialize;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;
use towpath::engine::gro_stage::GroMode;
use towpath::{Directions, Forward, Opener, Role};

/// Payload of a segment: an MTU of 1500 less headers of 52 bytes.
const SEGMENT: u32 = 1448;

/// What is counted where; the head of the report.
const COUNTED: &str = "a sink and lanes: packets that the generator made; sockets: datagrams or segments by the receiver's \
    calls; lost: datagrams without room at the socket; CPU: all work of the cores used for each one delivered";

/// One round, or the median of all.
#[derive(Debug, Clone, Copy, Serialize)]
struct Figures {
    /// Packets per second, in millions.
    mpps: f64,
    /// Of the datagrams that reached the socket.
    lost_percent: Option<f64>,
    /// Datagrams that a call of the receiver returned.
    datagrams_per_message: Option<f64>,
    /// Processor time of the cores used for each packet delivered.
    cpu_ns: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Row {
    /// What receives, and what reads it.
    consumer: String,
    off: Figures,
    on: Figures,
    difference_percent: f64,
}

#[derive(Debug, Serialize)]
struct Table {
    traffic: String,
    rows: Vec<Row>,
    skipped: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    rounds: u32,
    seconds: f64,
    tables: Vec<Table>,
}

type Measured = Result<Figures, Box<dyn Error>>;

pub(crate) fn run(args: &BenchGro) -> Result<ExitCode, Box<dyn Error>> {
    let cores = towpath::engine::worker::cores();
    let cores = [cores[0], cores[cores.len() - 1]];
    let mut tables = Vec::new();
    for &flows in until_interrupted(&args.flows) {
        tables.push(udp(&format!("gen:proto=udp,size={},flows={flows}", args.size), args, cores)?);
    }
    let flows = args.flows.first().copied().unwrap_or(8);
    if !interrupted() {
        tables.push(tcp(&format!("gen:proto=tcp,size={},flows={flows}", 14 + 40 + SEGMENT), args, cores)?);
    }
    let incomplete = tables.iter().any(|table| !table.skipped.is_empty());
    let report = Report { rounds: args.rounds, seconds: args.seconds.as_secs_f64(), tables };
    show(args.json, COUNTED, &report, || table::print(&report))?;
    Ok(if incomplete && args.require { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Small frames of UDP: to a sink, to sockets behind a TAP, to lanes.
fn udp(source: &str, args: &BenchGro, cores: [usize; 2]) -> Result<Table, Box<dyn Error>> {
    let mut table = Table { traffic: source.to_owned(), rows: Vec::new(), skipped: Vec::new() };
    table.rows.push(pairs("counting sink".into(), args, |mode| direct(source, mode, args, cores[0]))?);
    for reader in until_interrupted(Reader::ALL) {
        let name = format!("kernel's stack behind a TAP: {}", reader.name());
        match pairs(name.clone(), args, |mode| to_socket(source, mode, reader, args, cores)) {
            Ok(row) => table.rows.push(row),
            Err(error) => table.skipped.push(format!("{name}: {error}")),
        }
    }
    lanes(&mut table, source, args, cores)?;
    Ok(table)
}

/// Segments of TCP as long as the MTU allows: to a sink, through the kernel's stack, to lanes.
fn tcp(source: &str, args: &BenchGro, cores: [usize; 2]) -> Result<Table, Box<dyn Error>> {
    let mut table = Table { traffic: source.to_owned(), rows: Vec::new(), skipped: Vec::new() };
    table.rows.push(pairs("counting sink".into(), args, |mode| direct(source, mode, args, cores[0]))?);
    let name = "kernel's stack, one stream through two TAPs: TCP socket, read() of up to 128 KiB".to_owned();
    if !interrupted() {
        match pairs(name.clone(), args, |mode| through_taps(mode, args, cores)) {
            Ok(row) => table.rows.push(row),
            Err(error) => table.skipped.push(format!("{name}: {error}")),
        }
    }
    lanes(&mut table, source, args, cores)?;
    Ok(table)
}

fn lanes(table: &mut Table, source: &str, args: &BenchGro, [first, last]: [usize; 2]) -> Result<(), Box<dyn Error>> {
    if interrupted() {
        return Ok(());
    }
    table.rows.push(pairs("lane on the same core, sink".into(), args, |mode| lane(source, mode, args, first, first))?);
    if last != first && !interrupted() {
        table
            .rows
            .push(pairs("lane on another core, sink".into(), args, |mode| lane(source, mode, args, first, last))?);
    }
    Ok(())
}

/// Medians of off and on, measured in turn.
fn pairs(
    consumer: String,
    args: &BenchGro,
    mut measure: impl FnMut(GroMode) -> Measured,
) -> Result<Row, Box<dyn Error>> {
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for _ in rounds(args.rounds as usize) {
        off.push(measure(GroMode::Off)?);
        on.push(measure(GroMode::On)?);
    }
    let (off, on) = (middle(&off), middle(&on));
    Ok(Row { consumer, off, on, difference_percent: 100.0 * (on.mpps / off.mpps - 1.0) })
}

/// The median of each figure.
fn middle(rounds: &[Figures]) -> Figures {
    let of = |f: fn(&Figures) -> Option<f64>| {
        let values: Vec<f64> = rounds.iter().filter_map(f).collect();
        (!values.is_empty()).then(|| median(values))
    };
    Figures {
        mpps: of(|round| Some(round.mpps)).unwrap_or(0.0),
        lost_percent: of(|round| round.lost_percent),
        datagrams_per_message: of(|round| round.datagrams_per_message),
        cpu_ns: of(|round| round.cpu_ns),
    }
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
    let mpps = packets as f64 / step.elapsed.as_secs_f64() / 1e6;
    Ok(Figures { mpps, lost_percent: None, datagrams_per_message: None, cpu_ns: None })
}

fn direct(source: &str, mode: GroMode, args: &BenchGro, core: usize) -> Measured {
    rate(plan(mode, core), source, "null:", args)
}

fn lane(source: &str, mode: GroMode, args: &BenchGro, worker: usize, lane: usize) -> Measured {
    let mut plan = plan(mode, worker);
    plan.lanes = vec![lane];
    rate(plan, source, "null:", args)
}

/// Datagrams that reach a socket behind a TAP.
fn to_socket(source: &str, mode: GroMode, reader: Reader, args: &BenchGro, cores: [usize; 2]) -> Measured {
    let namespace = Namespace::new(Some(cores[1]))?;
    let tap = format!("tap:bench%d?netns={},addr=198.19.0.1/15,mac=00:00:5e:00:53:02", namespace.path());
    let mut opener = Opener::new();
    let from = opener.open(&source.parse()?, Role::Ingress)?;
    let to = opener.open(&tap.parse()?, Role::Egress)?;
    let running = plan(mode, cores[0]).start(from, to)?;
    let payload = args.size.saturating_sub(14 + 20 + 8) as usize;
    let times = [args.seconds / 10, args.seconds];
    let delivered = namespace.receive_datagrams(9, payload, reader, times, &cores)?;
    running.stop();
    Ok(Figures {
        lost_percent: Some(delivered.lost_percent()),
        datagrams_per_message: Some(delivered.per_message()),
        ..figures(delivered.datagrams, delivered.time, delivered.busy)
    })
}

/// Segments of a TCP connection from one namespace to another.
fn through_taps(mode: GroMode, args: &BenchGro, cores: [usize; 2]) -> Measured {
    let (near, far) = (Namespace::new(None)?, Namespace::new(None)?);
    // The sender's side emits packets as on a wire: MTU-sized frames with complete checksums.
    let a = format!("tap:bench%d?netns={},addr=198.18.0.1/24,tso=off,uso=off,csum=off", near.path());
    let b = format!("tap:bench%d?netns={},addr=198.18.0.2/24", far.path());
    let mut opener = Opener::new();
    let (a, b) = (opener.open(&a.parse()?, Role::Both)?, opener.open(&b.parse()?, Role::Both)?);
    let mut plan = plan(mode, cores[0]);
    plan.directions = Directions::Both;
    let running = plan.start(a, b)?;
    let before = CoreTime::of(&cores)?;
    let bytes = far.receive_stream_from(&near, ([198, 18, 0, 2], 5201).into(), args.seconds)?;
    let (_, busy) = CoreTime::of(&cores)?.since(&before);
    running.stop();
    Ok(figures(bytes / u64::from(SEGMENT), args.seconds, busy))
}

fn figures(delivered: u64, time: Duration, busy: Duration) -> Figures {
    let cpu_ns = Some(busy.as_nanos() as f64 / delivered.max(1) as f64);
    Figures {
        mpps: delivered as f64 / time.as_secs_f64() / 1e6,
        lost_percent: None,
        datagrams_per_message: None,
        cpu_ns,
    }
}
