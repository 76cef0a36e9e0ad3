//! `towpath bench batch`: what recycled descriptors and batched rings save.
//!
//! ```text
//!   sweep      batch size 1…127 × PKTDMA, UDMA × recycler, pool    on the model of CPSW:
//!                                               accesses and ns per packet, added latency
//!   scenarios  the CPSW series' own: UDP out, TCP-sized in         on the model of CPSW:
//!                                               accesses before and after, break-even, throughput
//!                                               of a core, load at the series' rate
//!   qemu       batch size 1…127, out and in                        on QEMU's e1000e:
//!                                               frames/s where a register access is expensive
//! ```
//!
//! *Before* is a driver without either: descriptors come from a pool, and every packet is
//! announced, popped and refilled on its own.
//!
//! The result is the number of register accesses: it is exact, and that of silicon. Nanoseconds are
//! the driver's own: there is one thread, the model works between the timed calls, a write is
//! posted into a queue in memory, and reads are not timed. The cost of an access on silicon is no
//! part of them. A read is a round trip through the interconnect. A posted write costs the core
//! from a store to some hundred nanoseconds, when it has to wait for those before it. The tables
//! therefore have the break-even point: from what cost of a posted write on batching pays.
//!
//! The variants take turns, so that a slow moment of the machine affects all of them.
//!
//! | file | content |
//! |---|---|
//! | `rig` | driver and model on one thread |
//! | `posted` | the bus between them: posted writes, reads that are not timed |
//! | `frames` | frames with whole headers |
//! | `sweep` | by batch size |
//! | `scenarios` | the measurements of the CPSW series |
//! | `qemu` | by batch size on QEMU's e1000e |
//! | `table` | output |

mod frames;
mod posted;
mod qemu;
mod rig;
mod scenarios;
mod sweep;
mod table;

use super::show;
use crate::args::{BatchTable, BenchBatch};
use crate::bench::interrupt::interrupted;
use rig::Cost;
use serde::Serialize;
use std::error::Error;
use std::process::ExitCode;
use towpath::model::cpsw as model;
use towpath::nic::cpsw::Soc;

const COUNTED: &str = "accesses of registers for a packet, exactly; nanoseconds of the driver itself, between the calls \
                       of tx, rx, refill and reclaim, without what its accesses cost; on QEMU: frames a second of the clock";

/// A DMA family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) soc: Soc,
    pub(crate) model: model::Soc,
}

pub(crate) const PKTDMA: Family = Family { name: "PKTDMA", soc: Soc::AM64X, model: model::Soc::Am64x };
pub(crate) const UDMA: Family = Family { name: "UDMA", soc: Soc::J7200, model: model::Soc::J7200 };
pub(crate) const MESSAGES: Family = Family { name: "UDMA, messages", soc: Soc::J784S4, model: model::Soc::J784s4 };

/// What a packet costs in one direction: medians over the rounds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct PerPacket {
    /// The driver's own time, without register accesses.
    pub(crate) ns: f64,
    /// Time of the datapath beside the driver: making what is sent, freeing what was received.
    pub(crate) around_ns: f64,
    pub(crate) writes: f64,
    pub(crate) reads: f64,
}

impl PerPacket {
    /// The time of a packet if a posted write costs so much; reads are left out.
    fn total_ns(&self, write_ns: f64) -> f64 {
        self.ns + self.around_ns + self.writes * write_ns
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) size: usize,
    pub(crate) sweep: Vec<sweep::Row>,
    pub(crate) scenarios: Vec<scenarios::Row>,
    pub(crate) qemu: Option<qemu::OnQemu>,
}

pub(crate) fn run(args: &BenchBatch) -> Result<ExitCode, Box<dyn Error>> {
    let is_selected = |table| args.only.is_none_or(|only| only == table);
    let report = Report {
        size: args.size.unwrap_or(scenarios::UDP),
        sweep: is_selected(BatchTable::Sweep).then(|| sweep::measure(args)).transpose()?.unwrap_or_default(),
        scenarios: is_selected(BatchTable::Scenarios)
            .then(|| scenarios::measure(args))
            .transpose()?
            .unwrap_or_default(),
        qemu: (is_selected(BatchTable::Qemu) && !interrupted()).then(|| qemu::measure(args)).transpose()?,
    };
    show(args.json, COUNTED, &report, || table::print(&report, args))?;
    let skipped = matches!(report.qemu, Some(qemu::OnQemu::Skipped(_)));
    Ok(if args.require && skipped { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn per_packet(costs: &[Cost]) -> PerPacket {
    let each = |of: fn(&Cost) -> u64| median(costs.iter().map(|c| of(c) as f64 / c.packets as f64));
    PerPacket {
        ns: each(|c| c.ns),
        around_ns: each(|c| c.around_ns),
        writes: each(|c| c.writes),
        reads: each(|c| c.reads),
    }
}

/// The median.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use frames::{Protocol, frame};
    use rig::{BURST, Rig, Setup};
    use scenarios::{TCP, UDP};
    use towpath::nic::cpsw::{BatchSize, DescAlloc};

    fn cost(batch: u8, before: bool, sends: bool) -> PerPacket {
        let desc_alloc = if before { DescAlloc::GenPool } else { DescAlloc::Recycled };
        let batch = BatchSize::new(batch).unwrap();
        let mut rig =
            Rig::new(Setup { family: PKTDMA, ports: 2, busy: 2, desc_alloc, singly: before, batch, arrivals: BURST })
                .unwrap();
        let cost = match sends {
            true => rig.transmit(20, &frame(Protocol::Udp, UDP).unwrap(), None),
            false => rig.receive(20, &frame(Protocol::Tcp, TCP).unwrap(), None),
        };
        per_packet(&[cost.unwrap()])
    }

    #[test]
    fn before_every_packet_sent_costs_two_writes_and_after_a_batch_of_32_not_a_tenth_of_an_access() {
        let before = cost(32, true, true);
        assert!((1.9..=2.0).contains(&before.writes), "{before:?}");
        let after = cost(32, false, true);
        assert!(after.writes + after.reads <= 0.09, "{after:?}");
    }

    #[test]
    fn before_every_packet_received_costs_two_writes_and_after_less_than_a_tenth() {
        let before = cost(32, true, false);
        assert!((1.9..=2.1).contains(&before.writes), "{before:?}");
        let after = cost(32, false, false);
        assert!(after.writes + after.reads <= 0.1, "{after:?}");
    }
}
