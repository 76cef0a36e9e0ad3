//! (a) Accesses, time and added latency by batch size, on both DMA families, with recycled
//! descriptors and with a pool.

use super::frames::{Protocol, frame};
use super::rig::{Cost, Rig, Setup};
use super::scenarios::UDP;
use super::{MESSAGES, PKTDMA, PerPacket, UDMA, per_packet};
use crate::args::BenchBatch;
use crate::bench::interrupt::{rounds, until_interrupted};
use serde::Serialize;
use std::error::Error;
use towpath::nic::cpsw::{BatchSize, DescAlloc};

/// Sizes of the sweep.
const SIZES: [u8; 9] = [1, 2, 4, 8, 16, 32, 64, 96, 127];

/// A line of the sweep.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) family: &'static str,
    pub(crate) descriptors: &'static str,
    pub(crate) batch: u8,
    pub(crate) tx: PerPacket,
    /// The driver polls after as many frames as the batch, at most 64, have arrived.
    pub(crate) rx: PerPacket,
    /// Time from `tx` to the doorbell that announces the packet: median and 99th percentile in ns.
    pub(crate) wait_ns: [f64; 2],
}

pub(super) fn measure(args: &BenchBatch) -> Result<Vec<Row>, Box<dyn Error>> {
    let (mut rows, frame) = (Vec::new(), frame(Protocol::Udp, args.size.unwrap_or(UDP))?);
    for family in until_interrupted([PKTDMA, UDMA, MESSAGES]) {
        let mut variants = Vec::new();
        for (descriptors, desc_alloc) in [("recycler", DescAlloc::Recycled), ("pool", DescAlloc::GenPool)] {
            for count in SIZES {
                let batch = BatchSize::new(count).unwrap_or_default();
                let setup =
                    Setup { family, ports: 1, busy: 1, desc_alloc, singly: false, batch, arrivals: count.into() };
                variants.push((descriptors, count, Rig::new(setup)?));
            }
        }
        let mut costs: Vec<[Vec<Cost>; 2]> = variants.iter().map(|_| Default::default()).collect();
        let mut waits: Vec<Vec<u64>> = vec![Vec::new(); variants.len()];
        for _ in rounds(args.rounds) {
            for ((rig, costs), waits) in variants.iter_mut().map(|v| &mut v.2).zip(&mut costs).zip(&mut waits) {
                costs[0].push(rig.transmit(args.bursts, &frame, None)?);
                costs[1].push(rig.receive(args.bursts, &frame, None)?);
                rig.waits(args.bursts / 4 + 1, &frame, waits)?;
            }
        }
        for (((descriptors, batch, _), [tx, rx]), mut waits) in variants.iter().zip(&costs).zip(waits) {
            waits.sort_unstable();
            let percentile = |p: usize| waits.get(waits.len() * p / 100).map_or(0.0, |&ns| ns as f64);
            rows.push(Row {
                family: family.name,
                descriptors,
                batch: *batch,
                tx: per_packet(tx),
                rx: per_packet(rx),
                wait_ns: [percentile(50), percentile(99)],
            });
        }
    }
    Ok(rows)
}
