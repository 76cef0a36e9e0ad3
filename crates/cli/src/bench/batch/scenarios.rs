//! (b) The measurements of the CPSW series in their shape, beside the series' figures.

use super::rig::{BURST, Cost, Rig, Setup};
use super::{Family, MESSAGES, PKTDMA, PerPacket, per_packet};
use crate::args::BenchBatch;
use serde::Serialize;
use std::error::Error;
use towpath::nic::cpsw::{BatchSize, DescAlloc};

/// A line of the scenarios: nanoseconds per packet.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) scenario: &'static str,
    pub(crate) before: PerPacket,
    pub(crate) after: PerPacket,
    /// Additional packets in the same time.
    pub(crate) difference_percent: f64,
    /// The authors' figures, before and after, and their unit.
    pub(crate) authors: &'static str,
    pub(crate) authors_percent: f64,
}

/// The shape of one of the authors' measurements.
struct Scenario {
    name: &'static str,
    family: Family,
    /// MAC ports of the switch, and the number of them that carry traffic.
    ports: u8,
    busy: u8,
    /// Bytes of a frame.
    size: usize,
    sends: bool,
    authors: &'static str,
    authors_percent: f64,
}

/// Frame lengths without FCS of UDP with 1470 bytes and of TCP with 1448.
pub(super) const UDP: usize = 1512;
pub(super) const TCP: usize = 1514;

/// A platform's two measurements: UDP out, TCP in.
const fn platform(
    names: [&'static str; 2],
    (family, ports, busy): (Family, u8, u8),
    authors: [(&'static str, f64); 2],
) -> [Scenario; 2] {
    let [(out, out_percent), (back, back_percent)] = authors;
    [
        Scenario {
            name: names[0],
            family,
            ports,
            busy,
            size: UDP,
            sends: true,
            authors: out,
            authors_percent: out_percent,
        },
        Scenario {
            name: names[1],
            family,
            ports,
            busy,
            size: TCP,
            sends: false,
            authors: back,
            authors_percent: back_percent,
        },
    ]
}

/// From the numbers of the cover letter. Its second TX figure is a load at the same rate: packets
/// for the same load are 84/80.
const SCENARIOS: [[Scenario; 2]; 3] = [
    platform(
        ["AM625 CPSW3G, two ports, UDP out", "AM625 CPSW3G, two ports, TCP-sized in"],
        (PKTDMA, 2, 2),
        [("811 → 865 Mb/s", 6.7), ("667 → 669 Mb/s", 0.3)],
    ),
    platform(
        ["J784S4 CPSW2G, one port, UDP out", "J784S4 CPSW2G, one port, TCP-sized in"],
        (MESSAGES, 1, 1),
        [("84 → 80 % CPU", 5.0), ("941 → 941 Mb/s", 0.0)],
    ),
    platform(
        ["J784S4 CPSW9G, one of 8 ports, UDP out", "J784S4 CPSW9G, one of 8, TCP-sized in"],
        (MESSAGES, 8, 1),
        [("1.26 → 1.28 Gb/s", 1.6), ("1.73 → 1.75 Gb/s", 1.2)],
    ),
];

pub(super) fn measure(args: &BenchBatch) -> Result<Vec<Row>, Box<dyn Error>> {
    SCENARIOS.iter().flatten().map(|scenario| row(scenario, args)).collect()
}

fn row(scenario: &Scenario, args: &BenchBatch) -> Result<Row, Box<dyn Error>> {
    let setup = |before: bool| Setup {
        family: scenario.family,
        ports: scenario.ports,
        busy: scenario.busy,
        desc_alloc: if before { DescAlloc::GenPool } else { DescAlloc::Recycled },
        singly: before,
        batch: BatchSize::default(),
        arrivals: BURST,
    };
    let mut rigs = [Rig::new(setup(true))?, Rig::new(setup(false))?];
    let mut costs: [Vec<Cost>; 2] = Default::default();
    for _ in 0..args.rounds {
        for (rig, costs) in rigs.iter_mut().zip(&mut costs) {
            costs.push(match scenario.sends {
                true => rig.transmit(args.bursts, scenario.size)?,
                false => rig.receive(args.bursts, scenario.size)?,
            });
        }
    }
    let [before, after] = costs.map(|costs| per_packet(&costs));
    Ok(Row {
        scenario: scenario.name,
        before,
        after,
        difference_percent: 100.0 * (before.ns / after.ns - 1.0),
        authors: scenario.authors,
        authors_percent: scenario.authors_percent,
    })
}
