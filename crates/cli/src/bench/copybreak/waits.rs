//! The sweep over the cost of an invalidation, and the costs from which copying pays.

use super::rig::Source;
use super::{STRICT, Variant};
use crate::args::BenchCopybreak;
use crate::bench::interrupt::until_interrupted;
use serde::Serialize;
use std::error::Error;
use std::time::Duration;
use towpath::nic::e1000e::RecycleMode;

/// Before against after in the series, with the IOMMU on and copybreak 2048.
pub(super) const SERIES: f64 = 1267.02 / 562.25;

/// The sweep.
#[derive(Debug, Serialize)]
pub(crate) struct Sweep {
    pub(crate) rows: Vec<Row>,
    /// The cost from which copying out of a mapped buffer costs less than passing it on, with one
    /// wait per buffer; none within the sweep if it is not given.
    pub(crate) break_even_each_ns: Option<f64>,
    /// The same with one wait per burst.
    pub(crate) break_even_burst_ns: Option<f64>,
    /// The cost from which before / after is at least that of the series.
    pub(crate) series_ns: Option<f64>,
}

/// Medians in nanoseconds per buffer with the IOMMU on: copybreak 0, copybreak 2048.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) wait_ns: u64,
    pub(crate) before: [f64; 2],
    pub(crate) after: [f64; 2],
    pub(crate) ours: [f64; 2],
    /// Before against after, copybreak 2048.
    pub(crate) before_after: f64,
}

pub(super) fn measure(source: &Source, args: &BenchCopybreak) -> Result<Sweep, Box<dyn Error>> {
    let mut costs = args.wait_ns.clone();
    costs.sort_unstable();
    let rows = until_interrupted(&costs).map(|&wait_ns| row(source, args, wait_ns)).collect::<Result<Vec<_>, _>>()?;
    let from = |gain: fn(&Row) -> f64| break_even(rows.iter().map(|row| (row.wait_ns as f64, gain(row))));
    Ok(Sweep {
        break_even_each_ns: from(|row| row.after[0] - row.after[1]),
        break_even_burst_ns: from(|row| row.ours[0] - row.ours[1]),
        series_ns: from(|row| row.before_after - SERIES),
        rows,
    })
}

fn row(source: &Source, args: &BenchCopybreak, wait_ns: u64) -> Result<Row, Box<dyn Error>> {
    let wait = Duration::from_nanos(wait_ns);
    let modes = [(RecycleMode::UnmapFirst, true), (RecycleMode::KeepMapped, true), (RecycleMode::KeepMapped, false)];
    let variants = modes.map(|(recycle, wait_each)| {
        [0, 2048].map(|copybreak| Variant { recycle, policy: STRICT, copybreak, wait_each, wait })
    });
    let seen = source.measure(variants.as_flattened(), args.samples, args.rounds, args.size)?;
    let [before_0, before, after_0, after, ours_0, ours] = seen.as_slice() else {
        return Err("a variant was not measured".into());
    };
    Ok(Row {
        wait_ns,
        before: [before_0.median_ns, before.median_ns],
        after: [after_0.median_ns, after.median_ns],
        ours: [ours_0.median_ns, ours.median_ns],
        before_after: before.times(after),
    })
}

/// The cost from which the gain is not negative, on straight lines between the points; `None` if it
/// is negative at the last point.
fn break_even(points: impl DoubleEndedIterator<Item = (f64, f64)>) -> Option<f64> {
    let mut found = None;
    for (cost, gain) in points.rev() {
        match found {
            _ if gain >= 0.0 => found = Some((cost, gain)),
            None => return None,
            Some((next, gained)) => return Some(cost + (next - cost) * -gain / (gained - gain)),
        }
    }
    found.map(|(cost, _)| cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_break_even_lies_on_the_line_between_the_last_loss_and_the_gains_after_it() {
        let at = |points: &[(f64, f64)]| break_even(points.iter().copied());
        assert_eq!(at(&[(0.0, -10.0), (100.0, 30.0), (200.0, 50.0)]), Some(25.0));
        assert_eq!(at(&[(0.0, 1.0), (100.0, -30.0), (200.0, 30.0)]), Some(150.0), "the last loss counts");
        assert_eq!(at(&[(50.0, 0.0), (100.0, 30.0)]), Some(50.0), "at every cost of the sweep");
        assert_eq!(at(&[(0.0, 10.0), (100.0, -1.0)]), None);
        assert_eq!(at(&[]), None);
    }
}
