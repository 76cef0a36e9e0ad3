//! The axes of lines: where a value lies, which values are marked, and how they read.

use super::draw::short;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// How values lie along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// From zero, or from the least if that is below it.
    Linear,
    /// Between the least and the most.
    Span,
    /// Each doubling is as wide: batches, flows.
    Doublings,
    /// Each factor of ten is as wide.
    Tens,
    /// Percent of a distribution, each further nine as wide: 90, 99, 99.9.
    Nines,
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Scale::Linear | Scale::Span => value,
            Scale::Doublings => value.max(f64::MIN_POSITIVE).log2(),
            Scale::Tens => value.max(f64::MIN_POSITIVE).log10(),
            Scale::Nines => -(1.0 - value / 100.0).max(1e-9).log10(),
        }
    }

    /// Whether it has a place for a value.
    pub(super) fn has(self, value: f64) -> bool {
        value.is_finite() && (matches!(self, Scale::Linear | Scale::Span | Scale::Nines) || value > 0.0)
    }
}

/// An axis: a scale, and the part of it that is drawn.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    scale: Scale,
    /// Places, not values.
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that has these values, and a margin of this part of it at both ends.
    pub(super) fn over(scale: Scale, values: impl Iterator<Item = f64>, margin: f64) -> Axis {
        let (from, to) = values
            .filter(|value| scale.has(*value))
            .map(|value| scale.place(value))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), place| (place.min(from), place.max(to)));
        let from = if scale == Scale::Linear { from.min(0.0) } else { from };
        // One value alone has some room around it.
        let room = ((to - from) * margin).max(0.02);
        Axis { scale, from: if scale == Scale::Linear && from == 0.0 { 0.0 } else { from - room }, to: to + room }
    }

    /// Values that are marked, in order.
    fn marks(&self) -> Vec<f64> {
        let (scale, wide) = (self.scale, self.to - self.from);
        let values = match scale {
            Scale::Linear | Scale::Span => steps(self.from, self.to, 7.0),
            Scale::Doublings => {
                let each = ((wide / 8.0).ceil() as usize).max(1);
                (0..60).step_by(each).map(|power| 2f64.powi(power)).collect()
            }
            Scale::Tens => {
                let digits: &[f64] = if wide > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                (-9..12).flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power))).collect()
            }
            Scale::Nines => vec![0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999],
        };
        values.into_iter().filter(|value| (self.from..=self.to).contains(&scale.place(*value))).collect()
    }
}

/// Round numbers between two others, some seven of them.
fn steps(from: f64, to: f64, most: f64) -> Vec<f64> {
    let least = (to - from) / most;
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0].map(|digit| digit * power).into_iter().find(|step| *step >= least);
    let step = step.unwrap_or(10.0 * power);
    let (first, last) = ((from / step).ceil() as i64, (to / step).floor() as i64);
    (first..=last).map(|at| at as f64 * step).collect()
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let part = (self.scale.place(*value) - self.from) / (self.to - self.from);
        first + (part * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks()
    }

    fn range(&self) -> Range<f64> {
        let value = |place: f64| match self.scale {
            Scale::Linear | Scale::Span => place,
            Scale::Doublings => place.exp2(),
            Scale::Tens => 10f64.powf(place),
            Scale::Nines => 100.0 - 10f64.powf(2.0 - place),
        };
        value(self.from)..value(self.to)
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        if self.scale == Scale::Nines { format!("{value} %") } else { short(*value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, from: f64, to: f64) -> Vec<String> {
        let axis = Axis::over(scale, [from, to].into_iter(), 0.0);
        axis.marks().iter().map(|value| axis.format_ext(value)).collect()
    }

    #[test]
    fn marks_are_round_numbers_of_their_scale() {
        assert_eq!(labels(Scale::Linear, 7.0, 31.0), ["0", "5", "10", "15", "20", "25", "30"]);
        assert_eq!(labels(Scale::Span, 64.0, 1510.0), ["500", "1000", "1500"]);
        assert_eq!(labels(Scale::Doublings, 1.0, 64.0), ["1", "2", "4", "8", "16", "32", "64"]);
        assert_eq!(labels(Scale::Doublings, 1.0, 2000.0), ["1", "4", "16", "64", "256", "1024"]);
        assert_eq!(labels(Scale::Tens, 1.0, 60.0), ["1", "2", "5", "10", "20", "50"]);
        assert_eq!(labels(Scale::Tens, 1.0, 1000.0), ["1", "10", "100", "1000"]);
        assert_eq!(labels(Scale::Nines, 10.0, 99.95), ["50 %", "90 %", "99 %", "99.9 %"]);
    }

    #[test]
    fn a_value_lies_where_its_scale_says_and_one_alone_has_an_axis() {
        let at = |scale, value: f64| Axis::over(scale, [1.0, 64.0].into_iter(), 0.0).map(&value, (0, 600));
        assert!((at(Scale::Doublings, 8.0) - 300).abs() <= 2 && (at(Scale::Tens, 8.0) - 300).abs() <= 8);
        assert_eq!(at(Scale::Linear, 0.0), 0);
        assert_eq!(Axis::over(Scale::Span, [3.0].into_iter(), 0.03).marks().len(), 5);
    }
}
