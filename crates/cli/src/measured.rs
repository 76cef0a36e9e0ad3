//! What ports measure themselves: how a rate is kept, and what was found in sequence numbers.

use crate::units::{grouped, si};
use serde::Serialize;
use std::time::Instant;
use towpath::packet::port::{Latency, Pacing, Verified};
use towpath::{PortControls, Summary};

/// The measurements of all ports.
pub(crate) struct Measured {
    pacing: Vec<(String, Pacing)>,
    verified: Vec<(String, Verified)>,
}

/// A rate, for machines.
#[derive(Serialize)]
pub(crate) struct Rate<'a> {
    port: &'a str,
    asked: f64,
    reached: f64,
    given_up: u64,
}

/// A check, for machines.
#[derive(Serialize)]
pub(crate) struct Check<'a> {
    port: &'a str,
    arrived: u64,
    lost: u64,
    before_first: u64,
    outstanding: u64,
    late: u64,
    late_extent: u64,
    twice: u64,
    too_old: u64,
    foreign: u64,
    latency_us: Option<LatencyUs>,
}

/// Latencies in microseconds, for machines.
#[derive(Serialize)]
pub(crate) struct LatencyUs {
    samples: u64,
    min: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl LatencyUs {
    pub(crate) fn new(latency: &Latency) -> LatencyUs {
        let us = |nanos: u64| nanos as f64 / 1000.0;
        let Latency { samples, min, p50, p99, p999, max, .. } = *latency;
        LatencyUs { samples, min: us(min), p50: us(p50), p99: us(p99), p999: us(p999), max: us(max) }
    }

    /// From the least to the greatest.
    pub(crate) fn figures(&self) -> [f64; 5] {
        [self.min, self.p50, self.p99, self.p999, self.max]
    }
}

impl<'a> Rate<'a> {
    fn new((port, pacing): &'a (String, Pacing)) -> Rate<'a> {
        let Pacing { asked, reached, given_up, .. } = *pacing;
        Rate { port, asked, reached, given_up }
    }
}

impl<'a> Check<'a> {
    fn new((port, found): &'a (String, Verified)) -> Check<'a> {
        let Verified { arrived, lost, before_first, outstanding, late, late_extent, twice, too_old, foreign, .. } =
            *found;
        let latency_us = found.latency.as_ref().map(LatencyUs::new);
        Check { port, arrived, lost, before_first, outstanding, late, late_extent, twice, too_old, foreign, latency_us }
    }
}

impl Measured {
    /// Those of now.
    pub(crate) fn new(controls: &PortControls) -> Measured {
        Measured { pacing: controls.pacing(Instant::now()), verified: controls.verified() }
    }

    /// Those of the end.
    pub(crate) fn of(summary: &Summary) -> Measured {
        Measured { pacing: summary.pacing.clone(), verified: summary.verified.clone() }
    }

    pub(crate) fn rates(&self) -> Vec<Rate<'_>> {
        self.pacing.iter().map(Rate::new).collect()
    }

    pub(crate) fn checks(&self) -> Vec<Check<'_>> {
        self.verified.iter().map(Check::new).collect()
    }

    /// Packets that all sources gave up.
    pub(crate) fn given_up(&self) -> u64 {
        self.pacing.iter().map(|(_, pacing)| pacing.given_up).sum()
    }

    /// Sources that fell behind their rate.
    pub(crate) fn behind(&self) -> impl Iterator<Item = String> {
        self.pacing.iter().filter(|(_, pacing)| pacing.given_up > 0).map(rate_line)
    }

    /// All lines, for people.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let latencies = self.verified.iter().filter_map(|(port, found)| Some(latency_line(port, &found.latency?)));
        self.pacing.iter().map(rate_line).chain(self.verified.iter().map(check_line)).chain(latencies)
    }
}

fn rate_line((port, pacing): &(String, Pacing)) -> String {
    let pps = |rate: f64| format!("{}pps", si(rate).trim_start());
    let line = format!("rate     {port} asked {}, reached {}", pps(pacing.asked), pps(pacing.reached));
    match pacing.given_up {
        0 => line,
        n => {
            let hint = "--idle spin, a core of its own, or a lower rate";
            format!("{line}: FELL BEHIND, {} packets given up ({hint})", grouped(n))
        }
    }
}

fn check_line((port, found): &(String, Verified)) -> String {
    let n = grouped;
    let mut line = format!("verify   {port} {} arrived, {} lost", n(found.arrived), n(found.lost));
    if found.before_first > 0 {
        line += &format!(" ({} before the first arrival)", n(found.before_first));
    }
    line += &format!(", {} late", n(found.late));
    if found.late > 0 {
        line += &format!(" (overtaken by at most {})", n(found.late_extent));
    }
    line += &format!(", {} twice", n(found.twice));
    let rest = [
        (found.outstanding, "not arrived after the last"),
        (found.too_old, "late or twice, too old to tell"),
        (found.foreign, "foreign"),
    ];
    for (number, what) in rest.into_iter().filter(|(number, _)| *number > 0) {
        line += &format!(", {} {what}", n(number));
    }
    line
}

/// One-way latencies, from the generator's burst to the one in which the packet arrived.
fn latency_line(port: &str, latency: &Latency) -> String {
    let Latency { samples, min, p50, p99, p999, max, .. } = *latency;
    let us = |nanos: u64| format!("{:.1} µs", nanos as f64 / 1000.0);
    format!(
        "latency  {port} {} packets: min {}, p50 {}, p99 {}, p99.9 {}, max {}",
        grouped(samples),
        us(min),
        us(p50),
        us(p99),
        us(p999),
        us(max)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_fell_behind_has_what_was_asked_reached_and_given_up_and_the_hint() {
        let line = |given_up| rate_line(&("gen:".to_owned(), Pacing::new(2e6, 1.5e6, given_up)));
        assert_eq!(line(0), "rate     gen: asked 2.00 Mpps, reached 1.50 Mpps");
        assert!(
            line(12_345)
                .ends_with(": FELL BEHIND, 12 345 packets given up (--idle spin, a core of its own, or a lower rate)")
        );
    }

    #[test]
    fn a_check_has_lost_late_and_twice_always_and_the_rest_if_there_is_some() {
        let mut found = Verified::default();
        found.arrived = 1000;
        let line = |found: &Verified| check_line(&("gen:".to_owned(), *found));
        assert_eq!(line(&found), "verify   gen: 1 000 arrived, 0 lost, 0 late, 0 twice");
        (found.too_old, found.foreign) = (1, 2);
        assert!(line(&found).ends_with("1 late or twice, too old to tell, 2 foreign"));
        (found.too_old, found.foreign) = (0, 0);
        (found.lost, found.before_first, found.late, found.late_extent) = (7, 2, 3, 9);
        (found.twice, found.outstanding) = (4, 5);
        let whole = "verify   gen: 1 000 arrived, 7 lost (2 before the first arrival), 3 late (overtaken by at most 9), 4 twice, \
                     5 not arrived after the last";
        assert_eq!(line(&found), whole);
    }

    #[test]
    fn latencies_are_in_microseconds() {
        let mut latency = Latency::default();
        (latency.samples, latency.min, latency.p50, latency.p99) = (2000, 900, 12_340, 50_000);
        (latency.p999, latency.max) = (1_000_000, 2_000_000);
        let whole = "latency  gen: 2 000 packets: min 0.9 µs, p50 12.3 µs, p99 50.0 µs, p99.9 1000.0 µs, max 2000.0 µs";
        assert_eq!(latency_line("gen:", &latency), whole);
    }
}
