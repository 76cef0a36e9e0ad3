//! `towpath bench xsk`: the table of the series that builds packets from the application's pages
//! (copy, page, percent for 64, 512, 1024 and 1500 bytes), from an application's socket to ports of
//! several kinds.
//!
//! ```text
//!   application ── TX ring ──► sock:…?tx=copy|page ══ route ══► egress ══► (veth: a consumer)
//!               ◄─ COMPLETION ─┘
//!   stepped:  the application sends a burst │ timed: one turn of the route, and of the consumer │ a model works
//! ```
//!
//! The datapath's work on one core is timed: descriptors to packets, the egress, freeing,
//! completions. As with `xdpsock -t`, the application cycles through 4096 frames that it wrote once
//! (or writes each one anew with `--write`). Copy and page take turns, round by round. A round's
//! figure is the median of its bursts, a row's percentage the median of its rounds' ratios.
//!
//! Bytes have a reader in the end. A device reads them by DMA, and the kernel copies them; behind
//! the pair in memory `--read` is what a consumer reads of each frame. A page is cold for its
//! reader, whereas the copy has left the bytes in the cache: what page saves the datapath, its
//! reader pays in part. With `--read-core` the consumer has a core of its own, and the rate is that
//! of the slower core.
//!
//! Behind the virtio driver is a back end of vhost-user on another core, which reads every byte of
//! each frame: that of the series' hypervisor. There the rate is the one that the back end has
//! counted, from the application's step on.
//!
//! | file | content |
//! |---|---|
//! | `app` | the application |
//! | `egress` | the egress ports |
//! | `back_end` | the other sides of a vhost-user socket |
//! | `testpmd` | DPDK's program, as one of them |
//! | `reader` | the consumer behind the pair in memory |
//! | `worker` | threads of application and consumer |
//! | `rig` | application, socket and egress, joined |
//! | `table` | output |

mod app;
mod back_end;
mod egress;
mod reader;
mod rig;
mod table;
mod testpmd;
mod worker;

use super::{median, show};
use crate::args::{BenchXsk, Read};
use crate::bench::interrupt::{self, until_interrupted};
use back_end::BackEndPlace;
use egress::Egress;
use rig::{Rig, Round};
use serde::Serialize;
use std::error::Error;
use std::process::ExitCode;
use towpath::ports::sock::Transmit;

const COUNTED: &str = "nanoseconds of one core for a packet, on the datapath's side: descriptors to packets, the egress, \
                       freeing, completions";

/// A column of a table.
#[derive(Debug, Serialize)]
struct Column {
    size: u32,
    copy: PacketCost,
    page: PacketCost,
    /// Additional packets in the same time, page over copy.
    percent: f64,
}

/// What a packet costs, sent by copy or by page.
#[derive(Debug, Serialize)]
struct PacketCost {
    /// Nanoseconds of the datapath's core per packet, with a consumer in its thread. While a back
    /// end's ring is full, the core waits in it.
    ns: f64,
    /// Nanoseconds of the consumer's core per packet, if it has one; to a back end, of the round
    /// per packet that it has counted.
    reader_ns: Option<f64>,
    /// Bytes of a frame that the consumer read, if there is one.
    read_bytes: Option<f64>,
    /// Packets per second of the slower core; to a back end, as it counts them.
    pps: f64,
    copies: f64,
    copied_bytes: f64,
}

/// One egress.
#[derive(Debug, Serialize)]
struct Table {
    egress: &'static str,
    what: &'static str,
    /// What the consumer reads of each frame, behind the pair in memory.
    read: Option<Read>,
    /// The reader of the bytes, and where it is timed.
    reader: String,
    /// The writer of the bytes.
    writer: &'static str,
    columns: Vec<Column>,
    /// Additional cost of each byte for a page, from the smallest size to the largest.
    page_ns_per_byte: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    tables: Vec<Table>,
    skipped: Vec<String>,
}

pub(crate) fn run(args: &BenchXsk) -> Result<ExitCode, Box<dyn Error>> {
    let mut report = Report { tables: Vec::new(), skipped: Vec::new() };
    for &egress in Egress::ALL {
        if !args.egress.is_empty() && !args.egress.iter().any(|name| name == egress.name()) {
            continue;
        }
        let reads = if egress == Egress::Veth { args.read.as_slice() } else { &[Read::None] };
        for &read in until_interrupted(reads) {
            match measure(egress, read, args) {
                Ok(table) if table.columns.is_empty() => {}
                Ok(table) => report.tables.push(table),
                Err(error) => report.skipped.push(format!("{}: {error}", egress.name())),
            }
        }
    }
    if let Some(name) = args.egress.iter().find(|name| Egress::ALL.iter().all(|egress| egress.name() != *name)) {
        let all: Vec<_> = Egress::ALL.iter().map(|egress| egress.name()).collect();
        return Err(format!("--egress {name}: must be one of {}", all.join(", ")).into());
    }
    show(args.json, COUNTED, &report, || table::print(&report, args))?;
    Ok(if args.require && !report.skipped.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(egress: Egress, read: Read, args: &BenchXsk) -> Result<Table, Box<dyn Error>> {
    let place = BackEndPlace::of(args);
    let sizes = until_interrupted(&args.sizes);
    let columns: Vec<_> = sizes.map(|&size| column(egress, size, (read, place), args)).collect::<Result<_, _>>()?;
    let slope = match columns.as_slice() {
        [first, .., last] => (last.page.ns - first.page.ns) / f64::from(last.size - first.size),
        _ => 0.0,
    };
    Ok(Table {
        egress: egress.name(),
        what: egress.what(),
        read: (egress == Egress::Veth).then_some(read),
        reader: egress.reader(read, args.read_core, place),
        writer: match (args.write, args.threaded) {
            (false, _) => "the application wrote the frames once",
            (true, false) => "the application writes every byte of each frame anew, not timed",
            (true, true) => "the application writes every byte of each frame anew, in a thread of its own",
        },
        columns,
        page_ns_per_byte: slope,
    })
}

fn column(egress: Egress, size: u32, reader: (Read, BackEndPlace), args: &BenchXsk) -> Result<Column, Box<dyn Error>> {
    let umems = [app::memory()?, app::memory()?];
    let make = |umem, transmit| Rig::new(umem, egress, transmit, size, reader, args);
    let [copy, page] = &umems;
    let (mut copy, mut page) = (make(copy, Transmit::Copy)?, make(page, Transmit::Page)?);
    let (mut rounds, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for _ in interrupt::rounds(args.rounds) {
        let round = [copy.round(args.bursts)?, page.round(args.bursts)?];
        ratios.push(round[0].limit() / round[1].limit());
        rounds.iter_mut().zip(round).for_each(|(all, round)| all.push(round));
    }
    let [of_copy, of_page] = rounds.map(|rounds| middle(&rounds));
    Ok(Column { size, copy: copy.seen(of_copy)?, page: page.seen(of_page)?, percent: 100.0 * (median(ratios) - 1.0) })
}

/// The medians of both cores.
fn middle(rounds: &[Round]) -> Round {
    let reader: Option<Vec<_>> = rounds.iter().map(|round| round.reader).collect();
    Round {
        datapath: median(rounds.iter().map(|round| round.datapath).collect()),
        reader: reader.map(median),
        counted: rounds.iter().any(|round| round.counted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Bench, BenchKind, Command};
    use clap::Parser;

    fn seen(egress: Egress, transmit: Transmit, size: u32) -> (f64, f64) {
        let umem = app::memory().unwrap();
        let args = match Args::parse_from(["towpath", "bench", "xsk"]).command {
            Command::Bench(Bench { kind: BenchKind::Xsk(args), .. }) => args,
            other => panic!("{other:?}"),
        };
        let mut rig = Rig::new(&umem, egress, transmit, size, (Read::All, BackEndPlace::of(&args)), &args).unwrap();
        let round = rig.round(4).unwrap();
        let cost = rig.seen(round).unwrap();
        (cost.copies, cost.copied_bytes)
    }

    #[test]
    fn a_page_to_memory_and_to_a_device_costs_no_copy_and_a_copy_one_of_every_byte() {
        for egress in [Egress::Veth, Egress::E1000e, Egress::Virtio] {
            for size in [64, 1500] {
                assert_eq!(seen(egress, Transmit::Page, size), (0.0, 0.0), "{egress:?} {size}");
                assert_eq!(seen(egress, Transmit::Copy, size), (1.0, size.into()), "{egress:?} {size}");
            }
        }
    }

    #[test]
    fn what_a_back_end_counts_is_the_rate_even_where_most_bursts_took_longer_than_their_mean() {
        let round = Round { datapath: 8073.5, reader: Some(7992.9), counted: true };
        assert_eq!(middle(&[round]).limit(), 7992.9);
        let core = Round { counted: false, ..round };
        assert_eq!(middle(&[core]).limit(), 8073.5);
    }
}
