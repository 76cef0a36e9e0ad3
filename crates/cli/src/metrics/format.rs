//! The text formats: OpenMetrics 1.0, and the older one of Prometheus (0.0.4).
//!
//! They differ in the names of families (`# TYPE towpath_x counter` for samples of
//! `towpath_x_total`, where the older format has `towpath_x_total` in both places), in the type
//! `info`, and in `# UNIT` and `# EOF`, which are OpenMetrics'.

use super::table::{Kind, METRICS, Metric};
use crate::state::State;
use std::collections::HashMap;
use std::fmt::Write;

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The value of a sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Whole(u64),
    Real(f64),
    /// Upper bounds with the numbers of what is no larger, the number of all, and their sum.
    Histogram {
        up_to: Vec<(f64, u64)>,
        all: u64,
        sum: f64,
    },
}

/// Names and values, in a fixed order.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// The samples of a metric; those with the same labels are added up.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    list: Vec<(Labels, Value)>,
    index: HashMap<Labels, usize>,
}

impl Samples {
    pub(crate) fn add(&mut self, labels: Labels, value: Value) {
        let Some(known) = self.index.get(&labels).and_then(|at| self.list.get_mut(*at)) else {
            self.index.insert(labels.clone(), self.list.len());
            self.list.push((labels, value));
            return;
        };
        match (&mut known.1, value) {
            (Value::Whole(sum), Value::Whole(n)) => *sum += n,
            (Value::Real(sum), Value::Real(n)) => *sum += n,
            (Value::Histogram { up_to, all, sum }, Value::Histogram { up_to: more, all: n, sum: s }) => {
                up_to.iter_mut().zip(more).for_each(|((_, sum), (_, n))| *sum += n);
                (*all, *sum) = (*all + n, *sum + s);
            }
            _ => {}
        }
    }
}

/// The text of all metrics.
pub(crate) fn text(state: &State, format: Format) -> String {
    let mut out = String::new();
    for metric in METRICS {
        let mut samples = Samples::default();
        (metric.read)(state, &mut samples);
        if !samples.list.is_empty() {
            family(&mut out, metric, &samples, format);
        }
    }
    if format == Format::OpenMetrics {
        out += "# EOF\n";
    }
    out
}

/// A family; writing to a text does not fail.
fn family(out: &mut String, metric: &Metric, samples: &Samples, format: Format) {
    let suffix = match metric.kind {
        Kind::Counter => "_total",
        Kind::Info => "_info",
        Kind::Gauge | Kind::Histogram => "",
    };
    let sample_name = format!("{}{suffix}", metric.name);
    let (name, kind) = match (format, metric.kind) {
        (Format::OpenMetrics, kind) => (metric.name, kind.name()),
        (Format::Prometheus, Kind::Info) => (sample_name.as_str(), "gauge"),
        (Format::Prometheus, kind) => (sample_name.as_str(), kind.name()),
    };
    let _ = writeln!(out, "# HELP {name} {}", metric.help);
    let _ = writeln!(out, "# TYPE {name} {kind}");
    if format == Format::OpenMetrics && !metric.unit.is_empty() {
        let _ = writeln!(out, "# UNIT {name} {}", metric.unit);
    }
    for (labels, value) in &samples.list {
        match value {
            Value::Whole(n) => line(out, &sample_name, labels, None, n),
            Value::Real(n) => line(out, &sample_name, labels, None, n),
            Value::Histogram { up_to, all, sum } => {
                let bucket = format!("{}_bucket", metric.name);
                for (bound, n) in up_to {
                    line(out, &bucket, labels, Some(&format!("{bound:?}")), n);
                }
                line(out, &bucket, labels, Some("+Inf"), all);
                line(out, &format!("{}_sum", metric.name), labels, None, sum);
                line(out, &format!("{}_count", metric.name), labels, None, all);
            }
        }
    }
}

fn line(out: &mut String, name: &str, labels: &Labels, bound: Option<&str>, value: impl std::fmt::Display) {
    *out += name;
    let all = labels.iter().map(|(label, text)| (*label, text.as_str())).chain(bound.map(|bound| ("le", bound)));
    let mut opened = false;
    for (label, text) in all {
        *out += if opened { "," } else { "{" };
        opened = true;
        let _ = write!(out, "{label}=\"");
        escape(out, text);
        out.push('"');
    }
    *out += if opened { "} " } else { " " };
    let _ = writeln!(out, "{value}");
}

/// The text of a label: backslash, quote and line feed are escaped.
fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\\' => *out += "\\\\",
            '"' => *out += "\\\"",
            '\n' => *out += "\\n",
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::example;

    #[test]
    fn labels_are_escaped_and_stay_on_one_line() {
        let text = text(&example(100), Format::OpenMetrics);
        let name = "port=\"tap:<img src=x onerror=alert(1)>\\\"\\\\\\n\u{1b}[31m漢字\"";
        assert!(text.contains(name), "{text}");
        assert!(text.lines().all(|line| line.starts_with("# ") || line.starts_with("towpath_")), "{text}");
    }

    #[test]
    fn no_two_samples_have_the_same_name_and_labels() {
        for format in [Format::OpenMetrics, Format::Prometheus] {
            let text = text(&example(100), format);
            let mut names: Vec<_> =
                text.lines().filter(|l| !l.starts_with('#')).map(|l| l.rsplit_once(' ').unwrap().0).collect();
            names.sort_unstable();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }

    #[test]
    fn the_formats_differ_in_families_units_and_the_end() {
        let (open, old) = (text(&example(9), Format::OpenMetrics), text(&example(9), Format::Prometheus));
        assert!(open.contains("# TYPE towpath_port_packets counter\n# UNIT towpath_port_packets packets\n"), "{open}");
        assert!(open.ends_with("\n# EOF\n") && !old.contains("# EOF") && !old.contains("# UNIT"));
        assert!(old.contains("# TYPE towpath_port_packets_total counter\ntowpath_port_packets_total{"), "{old}");
        assert!(open.contains("# TYPE towpath_build info\n") && old.contains("# TYPE towpath_build_info gauge\n"));
        let samples = |text: &str| text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(samples(&open), samples(&old));
    }

    #[test]
    fn buckets_of_a_histogram_are_cumulative_and_end_with_all() {
        let text = text(&example(100), Format::OpenMetrics);
        let of = |le: &str| {
            let start = "towpath_route_latency_seconds_bucket{unit=\"fwd\",route=\"a.0\",";
            let line = format!("{start}le=\"{le}\"}} ");
            text.lines().find_map(|l| l.strip_prefix(&line)).unwrap_or_else(|| panic!("{le}: {text}")).to_owned()
        };
        assert_eq!([of("1.024e-6"), of("2.048e-6"), of("4.096e-6"), of("+Inf")], ["0", "100", "103", "103"]);
    }
}
