//! `towpath bench vm`: what a packet costs at both sides of a virtual machine's rings.
//!
//! ```text
//!   VirtioTx ── ring ──► VhostRx      driver_tx, then device_rx
//!   VirtioRx ◄── ring ── VhostTx      driver_rx, after device_tx
//!   driver               device
//! ```
//!
//! The driver is `virtio:user=`, the device `vhost:`; both are in one thread, which takes turns: no
//! other core touches the rings. Frames are made before they are sent and freed after they were
//! received, and neither is timed. The driver adds buffers once in several bursts, so that a sample
//! is the mean of eight. A round's figure is the median of its samples, a row's that of its rounds;
//! beside it stands the best sample, which the load of the machine touches least.
//!
//! Each of the four steps is a function of its own (`driver_tx`, …), for callgrind's
//! `--toggle-collect`.
//!
//! | file | content |
//! |---|---|
//! | `rig` | driver and device, joined |

mod rig;

use super::{median, show};
use crate::args::{BenchVm, Ring};
use crate::bench::interrupt::{rounds, until_interrupted};
use rig::{Rig, STEPS};
use serde::Serialize;
use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

const COUNTED: &str =
    "nanoseconds of one core for a packet, at each side of a virtqueue, whose other side is in the same thread";

/// Bursts of a sample.
const SAMPLE: usize = 8;

/// A step at one side of one kind of ring.
#[derive(Debug, Serialize)]
struct Row {
    /// `split` or `packed`.
    ring: &'static str,
    size: u32,
    /// `driver` (`virtio:user=`) or `device` (`vhost:`).
    side: &'static str,
    /// `send` or `receive`.
    way: &'static str,
    /// What becomes of the frame's bytes.
    bytes: &'static str,
    /// Nanoseconds a packet: median of the rounds' medians.
    ns: f64,
    /// Of the best sample.
    best_ns: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    burst: usize,
    rows: Vec<Row>,
}

pub(crate) fn run(args: &BenchVm) -> Result<ExitCode, Box<dyn Error>> {
    let mut rows = Vec::new();
    for &ring in &args.rings {
        for &size in until_interrupted(&args.sizes) {
            rows.extend(measure(ring, size, args)?);
        }
    }
    let report = Report { burst: args.burst, rows };
    show(args.json, COUNTED, &report, || print(&report, args))?;
    Ok(ExitCode::SUCCESS)
}

/// The driver's options.
fn options(ring: Ring, args: &BenchVm) -> String {
    let packed = if ring == Ring::Packed { "on" } else { "off" };
    let more = args.with.iter().map(|with| format!(",{with}")).collect::<String>();
    format!("packed={packed}{more}")
}

fn measure(ring: Ring, size: u32, args: &BenchVm) -> Result<[Row; STEPS], Box<dyn Error>> {
    let mut rig = Rig::new(&options(ring, args), size, args.burst)?;
    let (mut medians, mut best) = ([const { Vec::new() }; STEPS], [f64::INFINITY; STEPS]);
    for _ in rounds(args.rounds) {
        let mut samples = [const { Vec::new() }; STEPS];
        for begin in (0..args.bursts).step_by(SAMPLE) {
            let (bursts, mut took) = (SAMPLE.min(args.bursts - begin), [Duration::ZERO; STEPS]);
            for _ in 0..bursts {
                took.iter_mut().zip(rig.turn()?).for_each(|(sum, burst)| *sum += burst);
            }
            for (samples, took) in samples.iter_mut().zip(took) {
                samples.push(took.as_nanos() as f64 / (bursts * args.burst) as f64);
            }
        }
        for (step, samples) in samples.into_iter().enumerate() {
            best[step] = samples.iter().copied().fold(best[step], f64::min);
            medians[step].push(median(samples));
        }
    }
    let [driver_tx, device_rx, device_tx, driver_rx] = medians.map(median);
    let ring = match ring {
        Ring::Split => "split",
        Ring::Packed => "packed",
    };
    let row = |side, way, bytes, ns, best_ns| Row { ring, size, side, way, bytes, ns, best_ns };
    let taken = if rig.takes_pages { "stay in the guest's pages" } else { "are copied" };
    Ok([
        row("driver", "send", "stay where they are", driver_tx, best[0]),
        row("device", "receive", taken, device_rx, best[1]),
        row("device", "send", "are copied", device_tx, best[2]),
        row("driver", "receive", "stay where they are", driver_rx, best[3]),
    ])
}

fn print(report: &Report, args: &BenchVm) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{:8} {:>6}  {:8} {:9} {:>8} {:>8}  the bytes", "ring", "size", "side", "", "ns", "best")?;
    for Row { ring, size, side, way, bytes, ns, best_ns } in &report.rows {
        writeln!(out, "{ring:8} {size:>6}  {side:8} {way:9} {ns:>8.1} {best_ns:>8.1}  {bytes}")?;
    }
    writeln!(
        out,
        "\nbursts of {}; medians of {} rounds of {} bursts, sampled by {SAMPLE}, and the best sample; \
         driver: virtio:user=, device: vhost:",
        report.burst, args.rounds, args.bursts
    )
}
