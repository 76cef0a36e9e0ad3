//! What ports measure themselves: how a rate is kept, and what was found in sequence numbers.

use crate::units::{grouped, si};
use serde::Serialize;
use std::time::Instant;
use towpath::packet::port::{Pacing, Verified};
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
    twice: u64,
    too_old: u64,
    foreign: u64,
}

impl<'a> Rate<'a> {
    fn new((port, pacing): &'a (String, Pacing)) -> Rate<'a> {
        let Pacing { asked, reached, given_up } = *pacing;
        Rate { port, asked, reached, given_up }
    }
}

impl<'a> Check<'a> {
    fn new((port, found): &'a (String, Verified)) -> Check<'a> {
        let Verified { arrived, lost, before_first, outstanding, late, twice, too_old, foreign } = *found;
        Check { port, arrived, lost, before_first, outstanding, late, twice, too_old, foreign }
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
        self.pacing.iter().map(rate_line).chain(self.verified.iter().map(check_line))
    }
}

fn rate_line((port, pacing): &(String, Pacing)) -> String {
    let pps = |rate: f64| format!("{}pps", si(rate).trim_start());
    let line = format!("rate     {port} asked {}, reached {}", pps(pacing.asked), pps(pacing.reached));
    match pacing.given_up {
        0 => line,
        n => {
            let mend = "--idle spin, a core of its own, or a lower rate";
            format!("{line}: FELL BEHIND, {} packets given up ({mend})", grouped(n))
        }
    }
}

fn check_line((port, found): &(String, Verified)) -> String {
    let n = grouped;
    let mut line = format!("verify   {port} {} arrived, {} lost", n(found.arrived), n(found.lost));
    if found.before_first > 0 {
        line += &format!(" ({} before the first arrival)", n(found.before_first));
    }
    line += &format!(", {} late, {} twice", n(found.late), n(found.twice));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_fell_behind_has_what_was_asked_reached_and_given_up_and_the_mend() {
        let line = |given_up| rate_line(&("gen:".to_owned(), Pacing { asked: 2e6, reached: 1.5e6, given_up }));
        assert_eq!(line(0), "rate     gen: asked 2.00 Mpps, reached 1.50 Mpps");
        assert!(
            line(12_345)
                .ends_with(": FELL BEHIND, 12 345 packets given up (--idle spin, a core of its own, or a lower rate)")
        );
    }

    #[test]
    fn a_check_has_lost_late_and_twice_always_and_the_rest_if_there_is_some() {
        let clean = Verified { arrived: 1000, ..Verified::default() };
        let line = |found| check_line(&("gen:".to_owned(), found));
        assert_eq!(line(clean), "verify   gen: 1 000 arrived, 0 lost, 0 late, 0 twice");
        let found = Verified { lost: 7, before_first: 2, late: 3, twice: 4, outstanding: 5, ..clean };
        let whole = "verify   gen: 1 000 arrived, 7 lost (2 before the first arrival), 3 late, 4 twice, 5 not arrived after the last";
        assert_eq!(line(found), whole);
        assert!(
            line(Verified { too_old: 1, foreign: 2, ..clean }).ends_with("1 late or twice, too old to tell, 2 foreign")
        );
    }
}
