//! `towpath bench cpumap`: the cpumap series in its own shape, beside the kernel's own cpumap.
//!
//! ```text
//!                            core 0                                    core 1
//!   kernel, no steering      sender ─► veth ─► NAPI: [GRO], stack ──► receiver
//!   kernel, cpumap           sender ─► veth ─► NAPI: XDP redirect ──► kthread: [GRO], stack ─► receiver
//!   kernel, cpumap, rx-gro-list    the same, and GRO merges for plain UDP sockets too
//!   towpath, no lane         sender ─► veth ─► NAPI, AF_XDP, worker: [GRO], tap, stack ──► receiver
//!   towpath, lane            sender ─► veth ─► NAPI, AF_XDP, worker ──► lane: [GRO], tap, stack ─► receiver
//! ```
//!
//! All rows have the same sender on the same end of the same veth, the same receiver behind the
//! kernel's stack, and the same placement. The sender shares the first core with what receives
//! frames, the receiver shares the last one with what steering moves there. Answers of TCP leave
//! directly by the veth in all rows. The sender segments in software and completes its checksums,
//! so that frames come as from a wire. GRO behind a cpumap obeys the interface's setting
//! (`ethtool -K IF gro`), which is off for the rows without GRO.
//!
//! | file | content |
//! |---|---|
//! | `rig` | the namespaces, the veth, and the datapaths from it to the stack |
//! | `kernel` | the program that redirects to a CPUMAP |
//! | `mechanisms` | the lane without arrays and bulk heads: the row of the series' patch 3 |
//! | `table` | the report |

mod kernel;
mod mechanisms;
mod rig;
mod table;

use super::cores::CoreTime;
use super::udp::{Flows, Reader};
use super::{median, show};
use crate::args::{BenchCpumap, CpumapTable};
use crate::bench::interrupt::until_interrupted;
use rig::{Datapath, PORT, Pair, TARGET};
use serde::Serialize;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

/// What is counted where; the head of the report.
const COUNTED: &str = "datagrams, bytes and transactions by the receiver's calls; lost: datagrams without room at the \
    receiver's socket; CPU: all work of both cores (sender, interrupts and receiver too) for each delivered one";

/// The traffic of one table.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(tag = "traffic", rename_all = "kebab-case")]
enum Traffic {
    /// Small datagrams of several flows.
    Udp { flows: u32, reader: Reader },
    /// One TCP connection in one direction.
    Stream,
    /// TCP connections, a byte each way at a time.
    Transactions { connections: usize },
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Sent per second; UDP only.
    offered: f64,
    /// Delivered per second: datagrams, segments of 1448 bytes, transactions.
    delivered: f64,
    /// Of those delivered or lost at the socket.
    lost_percent: f64,
    /// Datagrams that a call of the receiver returned; UDP only.
    per_message: f64,
    /// Processor time of both cores for each delivered one.
    cpu_ns: f64,
}

/// One datapath with GRO off or on: medians.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(rename = "way")]
    datapath: Datapath,
    gro: bool,
    offered_per_second: f64,
    delivered_per_second: f64,
    lost_percent: f64,
    datagrams_per_message: f64,
    cpu_ns: f64,
    /// Medians of the ratios of pairs in the same round, `delivered` by that of the row named.
    by_kernel_cpumap: f64,
    by_off: Option<f64>,
    by_unsteered: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Table {
    #[serde(flatten)]
    traffic: Traffic,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Report {
    rounds: usize,
    seconds: f64,
    payload: usize,
    train: u32,
    queue: u32,
    tables: Vec<Table>,
    notes: Vec<String>,
    skipped: Vec<String>,
}

pub(crate) fn run(args: &BenchCpumap) -> Result<ExitCode, Box<dyn Error>> {
    let cores = towpath::engine::worker::cores();
    let cores = [cores[0], cores[cores.len() - 1]];
    let (seconds, payload) = (args.seconds.as_secs_f64(), args.payload);
    let (rounds, train, queue) = (args.rounds, args.train, args.queue);
    let (tables, notes, skipped) = (Vec::new(), Vec::new(), Vec::new());
    let mut report = Report { rounds, seconds, payload, train, queue, tables, notes, skipped };
    if cores[0] == cores[1] {
        report.skipped.push("all rows: two cores are needed, one to receive and one to steer to".into());
    } else {
        let (major, minor) = towpath_sys::host::kernel_version();
        if (major, minor) < (6, 15) {
            let note = format!(
                "Linux {major}.{minor} has no GRO behind a cpumap, which Linux 6.15 has: its rows `on` are like `off`"
            );
            report.notes.push(note);
        }
        if !rig::has_ethtool() {
            let why = "ethtool is not installed, which switches it on: apt-get install ethtool";
            report.skipped.push(format!("the kernel's cpumap with rx-gro-list: {why}"));
        }
        for traffic in until_interrupted(traffics(args)) {
            match measure_all(traffic, args, cores) {
                Ok(table) if table.rows.is_empty() => {}
                Ok(table) => report.tables.push(table),
                Err(error) => report.skipped.push(format!("{}: {error}", table::title(traffic))),
            }
        }
    }
    show(args.json, COUNTED, &report, || table::print(&report))?;
    let failed = args.require && !(report.skipped.is_empty() && report.notes.is_empty());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The tables that were asked for.
fn traffics(args: &BenchCpumap) -> Vec<Traffic> {
    let wanted = |table| args.only.is_none_or(|only| only == table);
    let mut list = Vec::new();
    if wanted(CpumapTable::Udp) {
        list.extend(
            Reader::ALL.iter().flat_map(|&reader| args.flows.iter().map(move |&flows| Traffic::Udp { flows, reader })),
        );
    }
    if wanted(CpumapTable::Stream) {
        list.push(Traffic::Stream);
    }
    if wanted(CpumapTable::Rr) {
        list.extend(args.connections.iter().map(|&connections| Traffic::Transactions { connections }));
    }
    list
}

/// All datapaths, GRO off and on, in turn.
fn measure_all(traffic: Traffic, args: &BenchCpumap, cores: [usize; 2]) -> Result<Table, Box<dyn Error>> {
    let all = Datapath::ALL.iter().flat_map(|&datapath| [(datapath, false), (datapath, true)]);
    // Lists are another kind of GRO for UDP.
    let udp = matches!(traffic, Traffic::Udp { .. });
    let with_lists = udp && rig::has_ethtool();
    let kinds: Vec<(Datapath, bool)> =
        all.filter(|&(datapath, gro)| datapath != Datapath::CpumapList || gro && with_lists).collect();
    let mut samples: Vec<Vec<Sample>> = kinds.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.rounds {
        for (&(datapath, gro), list) in until_interrupted(kinds.iter().zip(&mut samples)) {
            let sample = measure(traffic, datapath, gro, args, cores);
            list.push(sample.map_err(|error| format!("{}: {error}", datapath.name()))?);
        }
    }
    let of = |datapath, gro| kinds.iter().position(|&kind| kind == (datapath, gro)).and_then(|i| samples.get(i));
    let by = |list: &[Sample], other: Option<&Vec<Sample>>| {
        let pairs = list.iter().zip(other.into_iter().flatten());
        median(pairs.map(|(a, b)| a.delivered / b.delivered.max(1.0)).collect())
    };
    let row = |(&(datapath, gro), list): (&(Datapath, bool), &Vec<Sample>)| {
        let median_of = |f: fn(&Sample) -> f64| median(list.iter().map(f).collect());
        Row {
            datapath,
            gro,
            offered_per_second: median_of(|s| s.offered),
            delivered_per_second: median_of(|s| s.delivered),
            lost_percent: median_of(|s| s.lost_percent),
            datagrams_per_message: median_of(|s| s.per_message),
            cpu_ns: median_of(|s| s.cpu_ns),
            by_kernel_cpumap: by(list, of(Datapath::Cpumap, gro)),
            by_off: of(datapath, false).map(|off| by(list, Some(off))),
            by_unsteered: datapath.unsteered().map(|unsteered| by(list, of(unsteered, gro))),
        }
    };
    // An interrupted first round has not measured all.
    let measured = kinds.iter().zip(&samples).filter(|(_, list)| !list.is_empty());
    let rows = measured.map(row).collect();
    Ok(Table { traffic, rows })
}

/// One datapath for the time of a measurement.
fn measure(
    traffic: Traffic,
    datapath: Datapath,
    gro: bool,
    args: &BenchCpumap,
    cores: [usize; 2],
) -> Result<Sample, Box<dyn Error>> {
    let pair = Pair::new(cores)?;
    let running = pair.open(datapath, gro, args.queue, cores)?;
    let time = args.seconds;
    let sample = match traffic {
        Traffic::Udp { flows, reader } => {
            let to = (TARGET, PORT).into();
            let sender = pair.near.send_datagrams(Flows { to, flows, train: args.train, payload: args.payload });
            let times = [time / 2, time];
            let delivered = pair.far.receive_datagrams(PORT, args.payload, reader, times, &cores)?;
            let sent = sender.sent() as f64 / (times[0] + times[1]).as_secs_f64();
            sender.stop()?;
            Sample {
                offered: sent,
                lost_percent: delivered.lost_percent(),
                per_message: delivered.per_message(),
                ..sample(delivered.datagrams, delivered.time, delivered.busy)
            }
        }
        Traffic::Stream => {
            let before = CoreTime::of(&cores)?;
            let bytes = pair.far.receive_stream_from(&pair.near, (TARGET, PORT).into(), time)?;
            let (_, busy) = CoreTime::of(&cores)?.since(&before);
            sample(bytes / 1448, time, busy)
        }
        Traffic::Transactions { connections } => {
            let before = CoreTime::of(&cores)?;
            let done = pair.far.transactions_from(&pair.near, (TARGET, PORT).into(), connections, time)?;
            // The warm-up is a tenth of the time.
            let (_, busy) = CoreTime::of(&cores)?.since(&before);
            sample(done, time, busy * 10 / 11)
        }
    };
    running.stop()?;
    if sample.delivered == 0.0 {
        return Err("nothing arrives".into());
    }
    Ok(sample)
}

fn sample(delivered: u64, time: Duration, busy: Duration) -> Sample {
    let (offered, lost_percent, per_message) = (0.0, 0.0, 0.0);
    let cpu_ns = busy.as_nanos() as f64 / delivered.max(1) as f64;
    Sample { offered, delivered: delivered as f64 / time.as_secs_f64(), lost_percent, per_message, cpu_ns }
}
