//! The summary: one object for machines here, tables for people in `table`, and the balance in
//! both.

mod table;

pub(crate) use table::print;

use crate::json::time;
use crate::measured::{Check, Measured, Rate};
use crate::output;
use crate::sandbox::Sandbox;
use crate::tee::TeeTotals;
use crate::units::grouped;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use towpath::engine::bridge::fdb::FdbStats;
use towpath::engine::report::{Balance, Drops, GroReading, PortReading, Reading};
use towpath::packet::port::Usage;
use towpath::packet::{Missed, Snapshot};
use towpath::sandbox::Enforced;
use towpath::tee::TeeReport;
use towpath::{Failure, Summary};

/// One line of JSON.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Line<'a> {
    /// While it runs: totals, and rates since the last line.
    Live {
        time: f64,
        seconds: f64,
        ports: Vec<Port<'a>>,
        gro: Gro,
        rates: Vec<Rate<'a>>,
        verified: Vec<Check<'a>>,
        events: Vec<Event<'a>>,
    },
    /// At the end: totals, mean rates, the balance.
    Summary {
        time: f64,
        /// Of several that `run` has.
        #[serde(skip_serializing_if = "Option::is_none")]
        unit: Option<&'a str>,
        seconds: f64,
        ports: Vec<Port<'a>>,
        gro: Gro,
        balance: Balance,
        in_flight: i64,
        buffers_away: usize,
        pages: u64,
        pages_away: u64,
        /// Packets that had to be copied for their egress.
        copied: u64,
        pool_shortages: u64,
        rates: Vec<Rate<'a>>,
        verified: Vec<Check<'a>>,
        events: Vec<Event<'a>>,
        /// What applications did, with the port of each.
        #[serde(rename = "visitors")]
        session_log: &'a [(String, String)],
        users: Vec<UserUsage<'a>>,
        rules: Vec<RuleHits<'a>>,
        gone: Vec<String>,
        failed: &'a [String],
        /// What a bridge did with addresses; none without a bridge.
        fdb: Option<Addresses>,
        /// Everything that failed: the reasons of exit code 1.
        failures: Vec<String>,
        /// What was copied to those that watch.
        tees: Vec<TeeTotals<'a>>,
        sandbox: Box<Sandbox<'a>>,
    },
}

/// What GRO did; all zero without GRO.
#[derive(Serialize)]
pub(crate) struct Gro {
    packets: u64,
    merged: u64,
    aggregates: u64,
    aside: u64,
    flushed: BTreeMap<&'static str, u64>,
}

impl Gro {
    fn new(reading: &GroReading) -> Gro {
        let GroReading { packets, merged, aggregates, bypassed, .. } = *reading;
        Gro { packets, merged, aggregates, aside: bypassed, flushed: reading.flushed().collect() }
    }
}

/// An event that a port survived.
#[derive(Serialize)]
pub(crate) struct Event<'a> {
    port: &'a str,
    event: &'static str,
    times: u64,
}

/// How many packets a rule decided on.
#[derive(Serialize)]
pub(crate) struct RuleHits<'a> {
    rule: &'a str,
    packets: u64,
}

impl<'a> RuleHits<'a> {
    fn of(summary: &'a Summary) -> Vec<RuleHits<'a>> {
        summary.rule_hits.iter().map(|(rule, packets)| RuleHits { rule, packets: *packets }).collect()
    }
}

/// What a user's applications had of a resource of a port.
#[derive(Serialize)]
pub(crate) struct UserUsage<'a> {
    port: &'a str,
    /// The user; none for all together.
    user: Option<u32>,
    resource: &'static str,
    now: u64,
    peak: u64,
    limit: u64,
}

impl<'a> UserUsage<'a> {
    fn new((port, usage): &'a (String, Usage)) -> UserUsage<'a> {
        let Usage { user, resource, now, peak, limit, .. } = *usage;
        UserUsage { port, user, resource, now, peak, limit }
    }
}

/// What a bridge did with addresses.
#[derive(Serialize)]
pub(crate) struct Addresses {
    entries: u64,
    learned: u64,
    moved: u64,
    refused: u64,
    aged: u64,
    flushed: u64,
}

impl Addresses {
    fn new(stats: &FdbStats) -> Addresses {
        let FdbStats { entries, learned, moved, refused, aged, flushed, .. } = *stats;
        Addresses { entries, learned, moved, refused, aged, flushed }
    }
}

/// Port, event, count.
pub(crate) type Happened = (String, &'static str, u64);

impl<'a> Event<'a> {
    fn new((port, event, times): &'a Happened) -> Event<'a> {
        Event { port, event, times: *times }
    }
}

/// An event as a printed line.
pub(crate) fn event((port, event, times): &Happened) -> String {
    format!("{port}: {} {}", grouped(*times), event.replace(['_', '-'], " "))
}

/// Port, direction, place, count.
pub(crate) type Loss<'a> = (&'a str, &'static str, Missed, u64);

/// What the kernel or a device lost around the ports.
pub(crate) fn missed(reading: &Reading) -> Vec<Loss<'_>> {
    let sides = |port: &'_ PortReading| [("rx", port.rx), ("tx", port.tx)];
    let all = reading.ports.iter().flat_map(|port| sides(port).map(|(side, flow)| (port.name.as_str(), side, flow)));
    all.flat_map(|(port, side, flow)| flow.missed().map(|(place, n)| (port, side, place, n)).collect::<Vec<_>>())
        .collect()
}

/// A loss as a printed line, with its remedy.
pub(crate) fn loss((port, side, place, n): Loss<'_>) -> String {
    format!("{port} {side}: {} at {}: {}", grouped(n), place.name(), place.remedy())
}

/// One port.
#[derive(Serialize)]
pub(crate) struct Port<'a> {
    name: &'a str,
    rx: Flow,
    tx: Flow,
    /// Between the queues: behind its receive queue, and in front of its transmit queue.
    drops: Vec<Drops>,
}

/// One direction of a port.
#[derive(Serialize)]
struct Flow {
    packets: u64,
    bytes: u64,
    packets_per_second: f64,
    bits_per_second: f64,
    calls: u64,
    retries: u64,
    errors: u64,
    missed: u64,
    missed_at: Vec<MissedAt>,
    drops: Vec<Drops>,
}

/// Packets that the kernel or the device lost at one place, and what prevents it.
#[derive(Serialize)]
struct MissedAt {
    place: &'static str,
    packets: u64,
    remedy: &'static str,
}

impl Flow {
    /// Totals, and the rates of `step`.
    fn new(total: &Snapshot, step: &Snapshot, seconds: f64) -> Flow {
        Flow {
            packets: total.packets,
            bytes: total.bytes,
            packets_per_second: step.packets as f64 / seconds,
            bits_per_second: step.bytes as f64 * 8.0 / seconds,
            calls: total.calls,
            retries: total.retries,
            errors: total.errors,
            missed: total.all_missed(),
            missed_at: total
                .missed()
                .map(|(place, packets)| MissedAt { place: place.name(), packets, remedy: place.remedy() })
                .collect(),
            drops: Drops::of(total),
        }
    }
}

fn ports<'a>(total: &'a Reading, step: &Reading) -> Vec<Port<'a>> {
    let seconds = step.elapsed.as_secs_f64().max(1e-9);
    let port = |(total, step): (&'a PortReading, &PortReading)| Port {
        name: &total.name,
        rx: Flow::new(&total.rx, &step.rx, seconds),
        tx: Flow::new(&total.tx, &step.tx, seconds),
        drops: Drops::of(&total.routes),
    };
    total.ports.iter().zip(&step.ports).map(port).collect()
}

impl<'a> Line<'a> {
    pub(crate) fn live(total: &'a Reading, step: &Reading, events: &'a [Happened], measured: &'a Measured) -> Line<'a> {
        Line::Live {
            time: time(),
            seconds: total.elapsed.as_secs_f64(),
            ports: ports(total, step),
            gro: Gro::new(&total.gro),
            rates: measured.rates(),
            verified: measured.checks(),
            events: events.iter().map(Event::new).collect(),
        }
    }

    fn summary(
        unit: Option<&'a str>,
        (summary, failures): (&'a Summary, &[Failure]),
        tees: &'a [TeeReport],
        measured: &'a Measured,
        enforced: &'a Enforced,
    ) -> Line<'a> {
        let reading = &summary.reading;
        let balance = reading.balance();
        let gone = failures.iter().filter(|failure| matches!(failure, Failure::Gone { .. }));
        Line::Summary {
            time: time(),
            unit,
            seconds: reading.elapsed.as_secs_f64(),
            ports: ports(reading, reading),
            gro: Gro::new(&reading.gro),
            in_flight: balance.in_flight(),
            balance,
            buffers_away: summary.buffers_away,
            pages: summary.pages,
            pages_away: summary.pages_away,
            copied: reading.copied().0,
            pool_shortages: summary.shortages,
            rates: measured.rates(),
            verified: measured.checks(),
            events: summary.events.iter().map(Event::new).collect(),
            session_log: &summary.session_log,
            users: summary.usage.iter().map(UserUsage::new).collect(),
            rules: RuleHits::of(summary),
            gone: gone.map(Failure::to_string).collect(),
            failed: &summary.failed,
            fdb: summary.fdb.as_ref().map(Addresses::new),
            failures: failures.iter().map(Failure::to_string).collect(),
            tees: tees.iter().map(TeeTotals::new).collect(),
            sandbox: Box::new(Sandbox::new(enforced)),
        }
    }
}

/// The last line of `--json`, or that of a unit. `failures`: those that count.
pub(crate) fn json(
    unit: Option<&str>,
    (summary, failures): (&Summary, &[Failure]),
    tees: &[TeeReport],
    enforced: &Enforced,
) -> io::Result<()> {
    let mut out = output::lock();
    serde_json::to_writer(&mut out, &Line::summary(unit, (summary, failures), tees, &Measured::of(summary), enforced))?;
    writeln!(out)
}
