//! `towpath bench copybreak`: the table of the e1000e series (IOMMU off and on, copybreak 0 and
//! 2048, before and after), and the size from which passing a buffer on is cheaper than copying it.
//!
//! ```text
//!   before   a completed buffer is unmapped first; if its frame is copied, it is mapped again
//!   after    it stays mapped unless it is passed on
//!
//!   model        the device delivers a burst ║ timed: rx, refill ║ packets freed   (one thread)
//!   --threaded   the same with device and IOMMU in another thread: waits are for another core
//!   --port       frames from an external sender ║ timed: rx, refill ║ packets freed
//!   --tx         packets made ║ timed: tx, reclaim ║ doorbell, the device sends
//! ```
//!
//! *Before* gets its best form: where a buffer shares no invalidation with others, one pass unmaps
//! it, copies, and maps it again. With the IOMMU off nothing is mapped, and before takes the same
//! steps as after: the control. `--wait-ns` repeats the measurement with an IOMMU that takes a
//! given time for each invalidation, a parameter of the model.
//!
//! As in the authors' measurement, the receive path from descriptors to packets is timed. A sample
//! is one burst, divided by its buffers. The variants take turns, so that a slow moment of the
//! machine affects all of them.
//!
//! | file | content |
//! |---|---|
//! | `rig` | driver and source of frames |
//! | `tx` | transmission: frames mapped, or copied |
//! | `waits` | by the cost of an invalidation |
//! | `table` | output |

mod rig;
mod table;
mod tx;
mod waits;

use super::{median, show};
use crate::args::BenchCopybreak;
use crate::bench::interrupt::{interrupted, until_interrupted};
use rig::Source;
use serde::Serialize;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;
use towpath::bus::{DmaPolicy, Flush};
use towpath::nic::e1000e::RecycleMode;

const COUNTED: &str =
    "nanoseconds of the receive path for a buffer, from its descriptor to a packet and a new descriptor";

pub(crate) const STRICT: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Strict };
pub(crate) const DEFERRED: DmaPolicy = DmaPolicy::PerBuffer { flush: Flush::Deferred };

/// A variant of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) recycle: RecycleMode,
    pub(crate) policy: DmaPolicy,
    pub(crate) copybreak: u16,
    /// Waits for the invalidation of translations once per buffer, as Linux does, instead of once
    /// per burst.
    pub(crate) wait_each: bool,
    /// The time that the model's IOMMU takes for a wait.
    pub(crate) wait: Duration,
}

/// The measurement of a variant.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Seen {
    pub(crate) samples: usize,
    pub(crate) mean_ns: f64,
    pub(crate) stdev_ns: f64,
    /// Median: the statistic that other load of the machine changes least.
    pub(crate) median_ns: f64,
    pub(crate) per_buffer: PerBuffer,
    /// The median of each round.
    #[serde(skip)]
    pub(crate) rounds: Vec<f64>,
}

impl Seen {
    /// What the samples of all rounds show.
    fn of(samples: &[f64], rounds: &[f64], per_buffer: PerBuffer) -> Seen {
        let n = samples.len().max(1) as f64;
        let mean_ns = samples.iter().sum::<f64>() / n;
        let variance = samples.iter().map(|s| (s - mean_ns).powi(2)).sum::<f64>() / n;
        Seen {
            samples: samples.len(),
            mean_ns,
            stdev_ns: variance.sqrt(),
            median_ns: median(samples.to_vec()),
            per_buffer,
            rounds: rounds.to_vec(),
        }
    }

    /// How many times as long this takes as another variant: the median over the rounds, which both
    /// took in turns.
    fn times(&self, other: &Seen) -> f64 {
        median(self.rounds.iter().zip(&other.rounds).map(|(this, other)| this / other).collect())
    }
}

/// Operations per completed buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct PerBuffer {
    pub(crate) maps: f64,
    pub(crate) unmaps: f64,
    pub(crate) waits: f64,
    pub(crate) copies: f64,
    pub(crate) syncs: f64,
}

/// A line of the authors' table.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) rev: &'static str,
    pub(crate) protection: &'static str,
    pub(crate) copybreak: u16,
    #[serde(flatten)]
    pub(crate) seen: Seen,
    /// Mean and standard deviation of the authors.
    pub(crate) authors_ns: Option<(f64, f64)>,
}

/// Before against after.
#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) protection: &'static str,
    pub(crate) copybreak: u16,
    pub(crate) before_after: f64,
    /// Of the authors' means.
    pub(crate) authors: Option<f64>,
}

/// A line of the sweep over sizes: median ns of a buffer that is passed on, and of one that is
/// copied, under each policy.
#[derive(Debug, Serialize)]
pub(crate) struct SizeRow {
    pub(crate) size: usize,
    pub(crate) handed_on: [f64; 3],
    pub(crate) copied: [f64; 3],
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) on: String,
    pub(crate) size: usize,
    pub(crate) rows: Vec<Row>,
    /// Those with the IOMMU off are the control.
    pub(crate) ratios: Vec<Ratio>,
    pub(crate) waits: Option<waits::Sweep>,
    pub(crate) sizes: Vec<SizeRow>,
}

/// Policies in the order of the sweep's columns.
pub(crate) const POLICIES: [(&str, DmaPolicy); 3] =
    [("persistent", DmaPolicy::Persistent), ("deferred", DEFERRED), ("strict", STRICT)];

/// The authors' figures: mean and standard deviation by (after, IOMMU, copybreak).
fn authors(after: bool, on: bool, copybreak: u16) -> Option<(f64, f64)> {
    Some(match (after, on, copybreak) {
        (false, false, 0) => (453.72, 155.82),
        (false, false, 2048) => (554.83, 103.67),
        (false, true, 0) => (1139.22, 150.56),
        (false, true, 2048) => (1267.02, 184.62),
        (true, false, 0) => (456.30, 146.33),
        (true, false, 2048) => (538.56, 132.97),
        (true, true, 0) => (1165.97, 140.19),
        (true, true, 2048) => (562.25, 171.80),
        _ => return None,
    })
}

pub(crate) fn run(args: &BenchCopybreak) -> Result<ExitCode, Box<dyn Error>> {
    let source = Source::new(args)?;
    if args.tx {
        return tx::run(&source, args);
    }
    let mut lines = Vec::new();
    for (rev, recycle) in [("before", RecycleMode::UnmapFirst), ("after", RecycleMode::KeepMapped)] {
        for (protection, policy) in [("off", DmaPolicy::Persistent), ("on", STRICT), ("deferred", DEFERRED)] {
            for copybreak in [0, 2048] {
                let wait_each = policy == STRICT;
                let wait = Duration::ZERO;
                lines.push((rev, protection, Variant { recycle, policy, copybreak, wait_each, wait }));
            }
        }
    }
    for copybreak in [0, 2048] {
        let recycle = RecycleMode::KeepMapped;
        let ours = Variant { recycle, policy: STRICT, copybreak, wait_each: false, wait: Duration::ZERO };
        lines.push(("ours", "on", ours));
    }
    let variants: Vec<_> = lines.iter().map(|(_, _, variant)| *variant).collect();
    let seen = source.measure(&variants, args.samples, args.rounds, args.size)?;
    let rows = lines.into_iter().zip(seen).map(|((rev, protection, variant), seen)| {
        let compared = rev != "ours" && protection != "deferred";
        let of_authors = compared.then(|| authors(rev == "after", protection == "on", variant.copybreak));
        Row { rev, protection, copybreak: variant.copybreak, seen, authors_ns: of_authors.flatten() }
    });
    let rows: Vec<_> = rows.collect();
    let mut report =
        Report { on: source.on(), size: args.size, ratios: ratios(&rows), rows, waits: None, sizes: Vec::new() };
    if !args.wait_ns.is_empty() && !interrupted() {
        report.waits = Some(waits::measure(&source, args)?);
    }
    if source.is_model() && !args.no_sizes {
        report.sizes = sweep(&source, args)?;
    }
    show(args.json, COUNTED, &report, || table::print(&report))?;
    Ok(ExitCode::SUCCESS)
}

/// Before against after, control first.
fn ratios(rows: &[Row]) -> Vec<Ratio> {
    let pairs = rows.iter().filter(|row| row.rev == "before").filter_map(|before| {
        let same = |row: &&Row| (row.protection, row.copybreak) == (before.protection, before.copybreak);
        let after = rows.iter().filter(same).find(|row| row.rev == "after")?;
        let authors = before.authors_ns.zip(after.authors_ns).map(|((before, _), (after, _))| before / after);
        let before_after = before.seen.times(&after.seen);
        Some(Ratio { protection: before.protection, copybreak: before.copybreak, before_after, authors })
    });
    pairs.collect()
}

/// The sweep over sizes, with the behaviour of `towpath`.
fn sweep(source: &Source, args: &BenchCopybreak) -> Result<Vec<SizeRow>, Box<dyn Error>> {
    let recycle = RecycleMode::KeepMapped;
    let mut variants = Vec::new();
    for (_, policy) in POLICIES {
        for copybreak in [0, 2048] {
            variants.push(Variant { recycle, policy, copybreak, wait_each: false, wait: Duration::ZERO });
        }
    }
    until_interrupted([64, 128, 256, 512, 768, 1024, 1280, 1500])
        .map(|size| {
            let seen = source.measure(&variants, args.samples, args.rounds, size)?;
            let median = |i: usize| seen.get(i).map_or(f64::NAN, |s| s.median_ns);
            Ok(SizeRow {
                size,
                handed_on: [median(0), median(2), median(4)],
                copied: [median(1), median(3), median(5)],
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rig::Rig;

    fn counts(variant: Variant) -> PerBuffer {
        Rig::model(variant, 1500, false).unwrap().run(4).unwrap().seen().per_buffer
    }

    const KEEP: Variant = Variant {
        recycle: RecycleMode::KeepMapped,
        policy: STRICT,
        copybreak: 2048,
        wait_each: true,
        wait: Duration::ZERO,
    };

    #[test]
    fn a_copied_buffer_that_stays_mapped_costs_a_copy_and_two_syncs() {
        assert_eq!(counts(KEEP), PerBuffer { maps: 0.0, unmaps: 0.0, waits: 0.0, copies: 1.0, syncs: 2.0 });
    }

    #[test]
    fn unmapping_first_costs_a_map_an_unmap_and_a_wait_besides_the_copy() {
        let before = counts(Variant { recycle: RecycleMode::UnmapFirst, ..KEEP });
        assert_eq!(before, PerBuffer { maps: 1.0, unmaps: 1.0, waits: 1.0, copies: 1.0, syncs: 1.0 });
    }

    #[test]
    fn a_buffer_that_is_handed_on_costs_the_same_before_and_after() {
        let after = counts(Variant { copybreak: 0, ..KEEP });
        let before = counts(Variant { copybreak: 0, recycle: RecycleMode::UnmapFirst, ..KEEP });
        assert_eq!(before, after);
        assert_eq!(after, PerBuffer { maps: 1.0, unmaps: 1.0, waits: 1.0, copies: 0.0, syncs: 1.0 });
    }

    #[test]
    fn one_wait_serves_a_burst_unless_each_buffer_is_to_have_its_own() {
        let ours = counts(Variant { copybreak: 0, wait_each: false, ..KEEP });
        assert_eq!((ours.unmaps, ours.waits), (1.0, 1.0 / 64.0));
    }

    #[test]
    fn nothing_is_mapped_per_buffer_where_all_is_mapped() {
        for copybreak in [0, 2048] {
            let seen = counts(Variant { policy: DmaPolicy::Persistent, copybreak, ..KEEP });
            assert_eq!((seen.maps, seen.unmaps, seen.waits), (0.0, 0.0, 0.0));
        }
    }
}
