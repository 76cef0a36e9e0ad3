//! (b) The measurements of the CPSW series in their shape, beside the series' figures.
//!
//! The series' figures are of a whole kernel on silicon, ours of the datapath's share on a model.
//! What the two have in common is the number of register accesses that are saved. The table
//! therefore shows, beside the accesses, the time that the series saved on a packet: divided by the
//! writes saved, it is an upper bound for the cost of a posted write there.

use super::frames::{Protocol, frame};
use super::rig::{BURST, Cost, Rig, Setup};
use super::{Family, MESSAGES, PKTDMA, PerPacket, per_packet};
use crate::args::BenchBatch;
use crate::bench::interrupt::{rounds, until_interrupted};
use serde::Serialize;
use std::error::Error;
use std::time::Duration;
use towpath::nic::cpsw::{BatchSize, DescAlloc};

/// Costs of a posted write, in ns, for which throughput and load are computed: none, and those of a
/// slow interconnect.
pub(super) const WRITE_NS: [f64; 4] = [0.0, 100.0, 250.0, 500.0];

/// A line of the scenarios.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) scenario: &'static str,
    pub(crate) before: PerPacket,
    pub(crate) after: PerPacket,
    /// The same at the rate that the series had before it.
    pub(crate) paced: [PerPacket; 2],
    /// The cost of a posted write from which on *after* is faster, in ns; 0 if it always is, none
    /// if no write is saved.
    pub(crate) break_even_ns: Option<f64>,
    /// At each cost of a posted write: before and after.
    pub(crate) at: Vec<At>,
    pub(crate) series: Series,
    /// Processor time that the series saved on a packet, in ns.
    pub(crate) series_saved_ns: f64,
}

/// Throughput and load if a posted write costs so much.
#[derive(Debug, Serialize)]
pub(crate) struct At {
    pub(crate) write_ns: f64,
    /// Mb/s of payload that 100 % of a core make or take.
    pub(crate) mbps: [f64; 2],
    /// Percent of a core at the rate that the series had before it.
    pub(crate) cpu_percent: [f64; 2],
}

/// The series' figures.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Series {
    /// Mb/s of payload, before and after.
    pub(crate) mbps: [f64; 2],
    /// Percent of a core, before and after.
    pub(crate) cpu_percent: [f64; 2],
    /// Whether the direction's rings are batched by the series; descriptors are recycled in both.
    pub(crate) batched: bool,
}

impl Series {
    /// Processor time that the series saved on a packet with `payload` bytes, in ns.
    fn saved_ns(&self, payload: usize) -> f64 {
        let [mbps, cpu] = [self.mbps, self.cpu_percent];
        let ns = |mbps: f64, percent: f64| 8000.0 * payload as f64 / mbps * percent / 100.0;
        ns(mbps[0], cpu[0]) - ns(mbps[1], cpu[1])
    }
}

/// The shape of one of the series' measurements: UDP is sent, TCP received.
struct Scenario {
    name: &'static str,
    family: Family,
    /// MAC ports of the switch, and the number of them that carry traffic.
    ports: u8,
    busy: u8,
    protocol: Protocol,
    series: Series,
}

/// Payload of iperf's UDP datagrams and TCP segments, and the lengths of their frames without FCS.
pub(super) const UDP: usize = 1512;
pub(super) const TCP: usize = 1514;

impl Scenario {
    fn size(&self) -> usize {
        match self.protocol {
            Protocol::Udp => UDP,
            Protocol::Tcp => TCP,
        }
    }

    /// Bytes behind the headers.
    fn payload(&self) -> usize {
        match self.protocol {
            Protocol::Udp => UDP - 42,
            Protocol::Tcp => TCP - 66,
        }
    }
}

/// A platform's two measurements, UDP out and TCP in: names, and the series' figures. The series
/// batches the transmit path alone.
const fn platform(
    [out, back]: [&'static str; 2],
    (family, ports, busy): (Family, u8, u8),
    [(out_mbps, out_cpu), (back_mbps, back_cpu)]: [([f64; 2], [f64; 2]); 2],
) -> [Scenario; 2] {
    let sent = Series { mbps: out_mbps, cpu_percent: out_cpu, batched: true };
    let received = Series { mbps: back_mbps, cpu_percent: back_cpu, batched: false };
    [
        Scenario { name: out, family, ports, busy, protocol: Protocol::Udp, series: sent },
        Scenario { name: back, family, ports, busy, protocol: Protocol::Tcp, series: received },
    ]
}

/// Percent of a core, before and after.
const FULL: [f64; 2] = [100.0, 100.0];

/// From the numbers of the cover letter.
const SCENARIOS: [[Scenario; 2]; 3] = [
    platform(
        ["AM625 CPSW3G, two ports, UDP out", "AM625 CPSW3G, two ports, TCP-sized in"],
        (PKTDMA, 2, 2),
        [([811.0, 865.0], FULL), ([667.0, 669.0], FULL)],
    ),
    platform(
        ["J784S4 CPSW2G, one port, UDP out", "J784S4 CPSW2G, one port, TCP-sized in"],
        (MESSAGES, 1, 1),
        [([956.0, 956.0], [84.0, 80.0]), ([941.0, 941.0], FULL)],
    ),
    platform(
        ["J784S4 CPSW9G, one of 8 ports, UDP out", "J784S4 CPSW9G, one of 8, TCP-sized in"],
        (MESSAGES, 8, 1),
        [([1260.0, 1280.0], FULL), ([1730.0, 1750.0], [75.0, 75.0])],
    ),
];

pub(super) fn measure(args: &BenchBatch) -> Result<Vec<Row>, Box<dyn Error>> {
    until_interrupted(SCENARIOS.iter().flatten()).map(|scenario| row(scenario, args)).collect()
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
    let frame = frame(scenario.protocol, scenario.size())?;
    let payload = scenario.payload();
    let rate = scenario.series.mbps[0] / 8000.0 / payload as f64; // packets per ns
    let pace = Duration::from_nanos((BURST as f64 * f64::from(scenario.busy) / rate) as u64);
    let mut rigs = [Rig::new(setup(true))?, Rig::new(setup(false))?];
    // Before and after; at full speed and paced.
    let mut costs: [[Vec<Cost>; 2]; 2] = Default::default();
    for _ in rounds(args.rounds) {
        for (speed, (pace, bursts)) in [(None, args.bursts), (Some(pace), args.bursts / 8 + 1)].into_iter().enumerate()
        {
            for (rig, costs) in rigs.iter_mut().zip(&mut costs) {
                let Some(costs) = costs.get_mut(speed) else { continue };
                costs.push(match scenario.protocol {
                    Protocol::Udp => rig.transmit(bursts, &frame, pace)?,
                    Protocol::Tcp => rig.receive(bursts, &frame, pace)?,
                });
            }
        }
    }
    let [[before, paced_before], [after, paced_after]] = costs.map(|speeds| speeds.map(|costs| per_packet(&costs)));
    let paced = [paced_before, paced_after];
    let at = |write_ns: f64| At {
        write_ns,
        mbps: [before, after].map(|cost| 8000.0 * payload as f64 / cost.total_ns(write_ns)),
        cpu_percent: paced.map(|cost| 100.0 * rate * cost.total_ns(write_ns)),
    };
    Ok(Row {
        scenario: scenario.name,
        before,
        after,
        paced,
        break_even_ns: break_even(before, after),
        at: WRITE_NS.map(at).into(),
        series: scenario.series,
        series_saved_ns: scenario.series.saved_ns(payload),
    })
}

/// The cost of a posted write at which both cost the same, in ns.
fn break_even(before: PerPacket, after: PerPacket) -> Option<f64> {
    let saved = before.writes - after.writes;
    (saved > 0.0).then(|| ((after.ns - before.ns) / saved).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_break_even_is_where_the_writes_saved_pay_for_the_time_lost() {
        let cost = |ns, writes| PerPacket { ns, writes, ..PerPacket::default() };
        assert_eq!(break_even(cost(30.0, 2.0), cost(40.0, 1.5)), Some(20.0));
        assert_eq!(break_even(cost(40.0, 2.0), cost(30.0, 1.0)), Some(0.0));
        assert_eq!(break_even(cost(40.0, 1.0), cost(30.0, 1.0)), None);
    }

    /// 956 Mb/s of 1470 bytes are a packet in 12.3 us; four percent of that are 0.49 us.
    #[test]
    fn what_the_series_saved_follows_from_rate_and_load() {
        let [rows, ..] = &SCENARIOS[1..] else { panic!() };
        let saved = rows[0].series.saved_ns(rows[0].payload());
        assert!((491.0..493.0).contains(&saved), "{saved}");
    }
}
