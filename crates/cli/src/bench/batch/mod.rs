//! `towpath bench batch`: what recycled descriptors and batched rings save.
//!
//! ```text
//!   sweep      batch size 1…127 × PKTDMA, UDMA × recycler, pool    on the model of CPSW:
//!                                               accesses and ns per packet, added latency
//!   scenarios  the CPSW series' own: UDP out, TCP-sized in         on the model of CPSW:
//!                                               before, after, difference, the authors' figures
//!   qemu       batch size 1…127, out and in                        on QEMU's e1000e:
//!                                               frames/s where a register access is expensive
//! ```
//!
//! *Before* is a driver without either: descriptors come from a pool, and every packet is
//! announced, popped and refilled on its own. On the model there is one thread. The model works
//! between the timed calls, so that only the driver's time is measured, with the model's
//! bookkeeping in place of the bus for each register access. The accesses are exact; on silicon
//! each costs far more.
//!
//! The variants take turns, so that a slow moment of the machine affects all of them.
//!
//! | file | content |
//! |---|---|
//! | `rig` | driver and model on one thread |
//! | `sweep` | by batch size |
//! | `scenarios` | the measurements of the CPSW series |
//! | `qemu` | by batch size on QEMU's e1000e |
//! | `table` | output |

mod qemu;
mod rig;
mod scenarios;
mod sweep;
mod table;

use crate::args::{BatchTable, BenchBatch};
use rig::Cost;
use serde::Serialize;
use std::error::Error;
use std::process::ExitCode;
use towpath::model::cpsw as model;
use towpath::nic::cpsw::Soc;

/// A DMA family.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) soc: Soc,
    pub(crate) model: model::Soc,
}

pub(crate) const PKTDMA: Family = Family { name: "PKTDMA", soc: Soc::AM64X, model: model::Soc::Am64x };
pub(crate) const UDMA: Family = Family { name: "UDMA", soc: Soc::J7200, model: model::Soc::J784s4 };
pub(crate) const MESSAGES: Family = Family { name: "UDMA, messages", soc: Soc::J784S4, model: model::Soc::J784s4 };

/// What a packet costs in one direction: medians over the rounds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct PerPacket {
    pub(crate) ns: f64,
    pub(crate) writes: f64,
    pub(crate) reads: f64,
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
        qemu: is_selected(BatchTable::Qemu).then(|| qemu::measure(args)).transpose()?,
    };
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        table::print(&report, args)?;
    }
    let skipped = matches!(report.qemu, Some(qemu::OnQemu::Skipped(_)));
    Ok(if args.require && skipped { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn per_packet(costs: &[Cost]) -> PerPacket {
    let each = |of: fn(&Cost) -> u64| median(costs.iter().map(|c| of(c) as f64 / c.packets as f64));
    PerPacket { ns: each(|c| c.ns), writes: each(|c| c.writes), reads: each(|c| c.reads) }
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
    use rig::{BURST, Rig, Setup};
    use scenarios::{TCP, UDP};
    use towpath::nic::cpsw::{BatchSize, DescAlloc};

    fn cost(batch: u8, before: bool, sends: bool) -> PerPacket {
        let desc_alloc = if before { DescAlloc::GenPool } else { DescAlloc::Recycled };
        let batch = BatchSize::new(batch).unwrap();
        let mut rig =
            Rig::new(Setup { family: PKTDMA, ports: 2, busy: 2, desc_alloc, singly: before, batch, arrivals: BURST })
                .unwrap();
        let cost = if sends { rig.transmit(20, UDP) } else { rig.receive(20, TCP) };
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
