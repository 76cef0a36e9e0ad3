//! The figures, and how they are printed.

use crate::honest::Sample;
use crate::machine::Machine;
use serde::Serialize;
use std::time::Duration;

/// The least part of its rate that the honest application keeps.
const LEAST_RATE: f64 = 0.95;
/// The most by which its median latency grows.
const MOST_LATENCY: f64 = 1.5;
/// The longest time to the end, in seconds.
const LONGEST_END: f64 = 2.0;
/// The most processor time of an idle datapath, in percent of a core.
const MOST_IDLE: f64 = 5.0;

const COUNTED: &str = "frames a second that the honest application sent and got back, and round trips between \
    two of its sessions that sleep; ratios beside/alone of medians of pairs";

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    counted: &'static str,
    rounds: usize,
    seconds: f64,
    offered: f64,
    pub(crate) rows: Vec<Row>,
    pub(crate) skipped: Vec<String>,
}

/// A scenario: medians of the rounds.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Row {
    name: &'static str,
    /// What the strangers got: sessions, rules.
    got: String,
    /// Alone, beside.
    rate: [f64; 2],
    rate_ratio: f64,
    p50_us: [f64; 2],
    p50_ratio: f64,
    p99_us: [f64; 2],
    lost: u64,
    rss_mib: f64,
    peak_mib: f64,
    files: usize,
    idle_percent: f64,
    wakeups: f64,
    end_seconds: f64,
    refused: u64,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

impl Row {
    pub(crate) fn new(name: &'static str, pairs: &[[Sample; 2]], got: String) -> Row {
        let of =
            |what: fn(&Sample) -> f64| [0, 1].map(|side: usize| median(pairs.iter().map(|pair| what(&pair[side]))));
        let ratio = |what: fn(&Sample) -> f64| median(pairs.iter().map(|[alone, beside]| what(beside) / what(alone)));
        Row {
            name,
            got,
            rate: of(|sample| sample.rate),
            rate_ratio: ratio(|sample| sample.rate),
            p50_us: of(|sample| sample.p50),
            p50_ratio: ratio(|sample| sample.p50),
            p99_us: of(|sample| sample.p99),
            lost: pairs.iter().flatten().map(|sample| sample.lost).sum(),
            ..Row::default()
        }
    }

    pub(crate) fn used(self, [rss_mib, peak_mib]: [f64; 2], files: usize, [idle_percent, wakeups]: [f64; 2]) -> Row {
        Row { rss_mib, peak_mib, files, idle_percent, wakeups, ..self }
    }

    pub(crate) fn ended(self, end: Duration, refused: u64) -> Row {
        Row { end_seconds: end.as_secs_f64(), refused, ..self }
    }

    fn missed(&self) -> Vec<String> {
        let checks = [
            (self.rate_ratio >= LEAST_RATE, format!("{:.0} % of its rate", self.rate_ratio * 100.0)),
            (self.p50_ratio <= MOST_LATENCY, format!("{:.2} times its p50", self.p50_ratio)),
            (self.end_seconds <= LONGEST_END, format!("{:.1} s to the end", self.end_seconds)),
            (self.idle_percent <= MOST_IDLE, format!("{:.1} % of a core while idle", self.idle_percent)),
            (self.lost == 0, format!("{} requests without a reply", self.lost)),
        ];
        checks.into_iter().filter(|(ok, _)| !ok).map(|(_, what)| format!("{}: {what}", self.name)).collect()
    }
}

impl Report {
    pub(crate) fn new(rounds: usize, seconds: f64, offered: f64) -> Report {
        let (rows, skipped) = (Vec::new(), Vec::new());
        Report { machine: Machine::this(), counted: COUNTED, rounds, seconds, offered, rows, skipped }
    }

    /// The targets that were missed.
    pub(crate) fn missed(&self) -> Vec<String> {
        self.rows.iter().flat_map(Row::missed).collect()
    }

    pub(crate) fn print(&self, json: bool) {
        if json {
            println!("{}", serde_json::to_string(self).unwrap());
            return;
        }
        println!("machine: {}\ncounted: {}\n", self.machine, self.counted);
        println!(
            "{:34} {:>7} {:>7} {:>5} {:>7} {:>7} {:>5} {:>7} {:>5} {:>5} {:>6} {:>7} {:>6}  got",
            "beside",
            "kpps",
            "alone",
            "ratio",
            "p50 us",
            "alone",
            "ratio",
            "p99 us",
            "MiB",
            "files",
            "idle %",
            "wakes/s",
            "end s"
        );
        for row in &self.rows {
            let ([alone, beside], [p50_alone, p50]) = (row.rate.map(|rate| rate / 1e3), row.p50_us);
            println!(
                "{:34} {beside:>7.1} {alone:>7.1} {:>5.2} {p50:>7.1} {p50_alone:>7.1} {:>5.2} {:>7.0} {:>5.0} {:>5} \
                 {:>6.2} {:>7.0} {:>6.2}  {}",
                row.name,
                row.rate_ratio,
                row.p50_ratio,
                row.p99_us[1],
                row.peak_mib,
                row.files,
                row.idle_percent,
                row.wakeups,
                row.end_seconds,
                row.got
            );
        }
        for (what, list) in [("skipped", &self.skipped), ("missed", &self.missed())] {
            list.iter().for_each(|line| println!("{what}: {line}"));
        }
        println!(
            "\n{} rounds of {} s each of rate and latency, alone and beside in turns; {:.0} kpps offered; balance exact",
            self.rounds,
            self.seconds,
            self.offered / 1e3
        );
    }
}
