//! The summary: tables for people, one object for machines, and the balance in both.

use crate::json::time;
use crate::measured::{Check, Measured, Rate};
use crate::output;
use crate::sandbox::{self, Sandbox};
use crate::tee::{self, TeeTotals};
use crate::units::{grouped, si};
use console::{StyledObject, style};
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

/// Most log lines of sessions that are printed.
const MAX_SESSION_LINES: usize = 8;
/// Most lines of users that are printed.
const MAX_USER_LINES: usize = 8;

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
        visitors: &'a [(String, String)],
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

/// A line for each user of a port: what its applications had at most, of what they may have, and
/// what is left on its account.
fn usage_lines(usage: &[(String, Usage)]) -> Vec<String> {
    let amount = |resource: &str, n: u64| match resource {
        "memory" | "metadata" => format!("{}B", si(n as f64)),
        _ => grouped(n),
    };
    let one = |(_, Usage { resource, now, peak, limit, .. }): &(String, Usage)| {
        let left = if *now > 0 { format!(", {} now", amount(resource, *now)) } else { String::new() };
        format!("{} of {} {resource}{left}", amount(resource, *peak), amount(resource, *limit))
    };
    let line = |rows: &[(String, Usage)]| {
        let (port, user) = rows.first().map(|(port, usage)| (port.as_str(), usage.user)).unwrap_or_default();
        let user = user.map_or_else(|| "all".to_owned(), |user| format!("user {user}"));
        format!("{port}: {user}: at most {}", rows.iter().map(one).collect::<Vec<_>>().join("; "))
    };
    usage.chunk_by(|(port, a), (other, b)| port == other && a.user == b.user).map(line).collect()
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
            drops: named(total),
        }
    }
}

fn named(counters: &Snapshot) -> Vec<Drops> {
    counters.drops().map(|(reason, packets)| Drops { reason: reason.name(), packets }).collect()
}

fn ports<'a>(total: &'a Reading, step: &Reading) -> Vec<Port<'a>> {
    let seconds = step.elapsed.as_secs_f64().max(1e-9);
    let port = |(total, step): (&'a PortReading, &PortReading)| Port {
        name: &total.name,
        rx: Flow::new(&total.rx, &step.rx, seconds),
        tx: Flow::new(&total.tx, &step.tx, seconds),
        drops: named(&total.routes),
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
            visitors: &summary.session_log,
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

/// A number of lost packets, which stands out on a terminal.
fn lost(packets: u64) -> StyledObject<String> {
    let text = style(format!("{:>9}", grouped(packets)));
    if packets > 0 { text.yellow() } else { text }
}

/// The summary for people, on standard output. `failures`: those that count.
pub(crate) fn print(
    (summary, failures): (&Summary, &[Failure]),
    tees: &[TeeReport],
    enforced: &Enforced,
) -> io::Result<()> {
    let mut out = output::lock();
    let reading = &summary.reading;
    let seconds = reading.elapsed.as_secs_f64().max(1e-9);
    let width = reading.ports.iter().map(|p| p.name.chars().count()).max().unwrap_or(0).max(4);
    writeln!(out, "{:width$}      {:>17} {:>11} {:>11} {:>9} {:>9}", "port", "packets", "rate", "", "drops", "missed")?;
    for port in &reading.ports {
        for (side, flow) in [("rx", &port.rx), ("tx", &port.tx)] {
            let name = if side == "rx" { port.name.as_str() } else { "" };
            let pps = format!("{}pps", si(flow.packets as f64 / seconds));
            let bps = format!("{}b/s", si(flow.bytes as f64 * 8.0 / seconds));
            let packets = grouped(flow.packets);
            let [drops, missed] = [flow.all_drops(), flow.all_missed()].map(lost);
            writeln!(out, "{name:width$}  {side}  {packets:>17} {pps:>11} {bps:>11} {drops} {missed}")?;
        }
    }
    print_gro(&mut out, &reading.gro)?;
    for lost in missed(reading) {
        writeln!(out, "{}   {}", style("missed").yellow(), loss(lost))?;
    }
    print_balance(&mut out, &reading.balance())?;
    if let Some(fdb) = &summary.fdb {
        write!(out, "fdb      {} addresses; {} learned", grouped(fdb.entries), grouped(fdb.learned))?;
        let others = [(fdb.moved, "moved"), (fdb.aged, "aged"), (fdb.flushed, "flushed"), (fdb.refused, "refused")];
        for (n, what) in others.into_iter().filter(|(n, _)| *n > 0) {
            write!(out, ", {} {what}", grouped(n))?;
        }
        writeln!(out)?;
        for port in &reading.ports {
            let drops: Vec<_> =
                port.routes.drops().map(|(reason, n)| format!("{} {}", grouped(n), reason.name())).collect();
            if !drops.is_empty() {
                writeln!(out, "drops    {}: {}", port.name, drops.join(", "))?;
            }
        }
    }
    if let (copies @ 1.., bytes) = reading.copied() {
        writeln!(out, "copied   {} packets, {}B, on their way to egresses", grouped(copies), si(bytes as f64))?;
    }
    let home = match summary.buffers_away {
        0 => "all home".to_owned(),
        n => format!("{n} NOT HOME"),
    };
    let shortages = match summary.shortages {
        0 => String::new(),
        n => format!("; the pool was dry {} times (--buffers)", grouped(n)),
    };
    writeln!(out, "buffers  {home}{shortages}")?;
    if summary.pages > 0 {
        let home = match summary.pages_away {
            0 => "all home".to_owned(),
            n => format!("{n} NOT HOME"),
        };
        writeln!(out, "pages    {} of applications, {home}", grouped(summary.pages))?;
    }
    let hits: Vec<_> = summary.rule_hits.iter().map(|(rule, packets)| (grouped(*packets), rule)).collect();
    let width = hits.iter().map(|(packets, _)| packets.len()).max().unwrap_or(0);
    for (packets, rule) in hits {
        writeln!(out, "rule     {packets:>width$}  {rule}")?;
    }
    for tee in tees {
        writeln!(out, "tee      {}", tee::line(tee))?;
    }
    writeln!(out, "time     {seconds:.2} s")?;
    sandbox::lines(enforced).try_for_each(|line| writeln!(out, "{line}"))?;
    for line in Measured::of(summary).lines() {
        writeln!(out, "{line}")?;
    }
    for happened in &summary.events {
        writeln!(out, "events   {}", event(happened))?;
    }
    let users = usage_lines(&summary.usage);
    for line in users.iter().take(MAX_USER_LINES) {
        writeln!(out, "users    {line}")?;
    }
    if users.len() > MAX_USER_LINES {
        writeln!(out, "users    {} more (--json has all)", users.len() - MAX_USER_LINES)?;
    }
    let earlier = summary.session_log.len().saturating_sub(MAX_SESSION_LINES);
    for (port, line) in summary.session_log.iter().skip(earlier) {
        writeln!(out, "visitor  {port}: {line}")?;
    }
    if earlier > 0 {
        writeln!(out, "visitors {earlier} earlier ones (--json tells all that are remembered)")?;
    }
    for failure in failures {
        match failure {
            Failure::Gone { .. } => writeln!(out, "{}     {failure}", style("gone").red())?,
            Failure::Down { .. } => writeln!(out, "{}     {failure}", style("down").red())?,
            // The lines above have them.
            Failure::Unaccounted(_) | Failure::NotReturned { .. } => {}
            _ => writeln!(out, "{}   {failure}", style("FAILED").red())?,
        }
    }
    Ok(())
}

fn print_gro(out: &mut impl Write, gro: &GroReading) -> io::Result<()> {
    if gro.packets == 0 {
        return Ok(());
    }
    let percent = |n: u64| 100.0 * n as f64 / gro.packets as f64;
    write!(out, "\ngro      {:.1} % of {} packets merged", percent(gro.merged), grouped(gro.packets))?;
    if gro.aggregates > 0 {
        let mean = (gro.merged + gro.aggregates) as f64 / gro.aggregates as f64;
        write!(out, ", {} aggregates of {mean:.1} on average", grouped(gro.aggregates))?;
    }
    if gro.bypassed > 0 {
        write!(out, "; stood aside for {:.0} %, because nothing merged", percent(gro.bypassed))?;
    }
    writeln!(out)?;
    let reasons: Vec<_> = gro.flushed().map(|(reason, n)| format!("{reason} {}", grouped(n))).collect();
    if !reasons.is_empty() {
        writeln!(out, "flushed  {}", reasons.join(", "))?;
    }
    Ok(())
}

fn print_balance(out: &mut impl Write, balance: &Balance) -> io::Result<()> {
    let mut left = format!("{} in", grouped(balance.received));
    if balance.split > 0 {
        left += &format!(" + {} split", grouped(balance.split));
    }
    if balance.flooded > 0 {
        left += &format!(" + {} flooded", grouped(balance.flooded));
    }
    if balance.originated > 0 {
        left += &format!(" + {} originated", grouped(balance.originated));
    }
    let mut right = format!("{} out", grouped(balance.sent));
    if balance.merged > 0 {
        right += &format!(" + {} merged", grouped(balance.merged));
    }
    for drops in &balance.drops {
        right += &format!(" + {}", style(format!("{} {}", grouped(drops.packets), drops.reason)).yellow());
    }
    match balance.in_flight() {
        0 => writeln!(out, "\nbalance  {left} = {right}"),
        n => writeln!(out, "\nbalance  {left} = {right} + {n} UNACCOUNTED FOR"),
    }
}
