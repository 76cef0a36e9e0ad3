//! (c) Batches on QEMU's 82574L over its qtest bus, where a register access is a line of text to
//! another process.
//!
//! The variants share one machine with a sending and a receiving device. Their batch sizes are
//! changed while they run. Each variant has its turn in every round and is compared with the single
//! doorbells of the same round.

mod rig;

use super::median;
use crate::args::BenchBatch;
use crate::bench::interrupt::rounds;
use rig::{Rig, Sample};
use serde::Serialize;
use std::error::Error;
use towpath::bus::BusError;
use towpath::nic::batching::BatchSize;

/// Sizes of the sweep; the first is the reference.
const SIZES: [u8; 9] = [1, 2, 4, 8, 16, 32, 64, 96, 127];

/// Default bytes of a frame: short, so that the doorbell is measured and not QEMU's copying.
const SHORT: usize = 60;

/// The cost of one direction at a batch size: medians over the rounds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Rate {
    pub(crate) frames_per_second: f64,
    /// Frames relative to single doorbells.
    pub(crate) times: f64,
    /// Writes of the queue's tail per frame.
    pub(crate) doorbells: f64,
    /// Register reads per frame, from the checks that are driven by time.
    pub(crate) reads: f64,
}

/// A line of the sweep.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) batch: u8,
    pub(crate) tx: Rate,
    pub(crate) rx: Rate,
}

/// The sweep, or why it was skipped.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnQemu {
    Measured { size: usize, rows: Vec<Row> },
    Skipped(String),
}

/// Measures, where QEMU is installed.
pub(super) fn measure(args: &BenchBatch) -> Result<OnQemu, Box<dyn Error>> {
    let size = args.size.unwrap_or(SHORT);
    let mut rig = match Rig::new(size, args.socket) {
        Ok(rig) => rig,
        // The program is missing or does not start: the error names the remedy.
        Err(error) if error.downcast_ref::<BusError>().is_some() => return Ok(OnQemu::Skipped(error.to_string())),
        Err(error) => return Err(error),
    };
    let mut samples: [[Vec<Sample>; 2]; SIZES.len()] = Default::default();
    // Warm up: touch the memory and run every code path before counting.
    for _ in 0..3 {
        rig.transmit(BatchSize::MAX)?;
        rig.receive(BatchSize::MAX)?;
    }
    for _ in rounds(args.bursts) {
        for (size, [tx, rx]) in SIZES.into_iter().zip(&mut samples) {
            let size = BatchSize::new(size).unwrap_or_default();
            tx.push(rig.transmit(size)?);
            rx.push(rig.receive(size)?);
        }
    }
    let [singly_tx, singly_rx] = samples[0].clone();
    let rows = SIZES.into_iter().zip(&samples).map(|(batch, [tx, rx])| Row {
        batch,
        tx: rate(tx, &singly_tx),
        rx: rate(rx, &singly_rx),
    });
    Ok(OnQemu::Measured { size, rows: rows.collect() })
}

fn rate(samples: &[Sample], singly: &[Sample]) -> Rate {
    let speed = |s: &Sample| s.frames as f64 * 1e9 / s.ns as f64;
    Rate {
        frames_per_second: median(samples.iter().map(speed)),
        times: median(samples.iter().zip(singly).map(|(s, single)| speed(s) / speed(single))),
        doorbells: median(samples.iter().map(|s| s.doorbells as f64 / s.frames as f64)),
        reads: median(samples.iter().map(|s| s.reads as f64 / s.frames as f64)),
    }
}
