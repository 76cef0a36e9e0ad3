//! The summary for people.

use super::{event, loss, missed};
use crate::measured::Measured;
use crate::output;
use crate::sandbox;
use crate::tee;
use crate::units::{grouped, si};
use console::{StyledObject, style};
use std::io::{self, Write};
use towpath::engine::report::{Balance, GroReading};
use towpath::packet::port::Usage;
use towpath::sandbox::Enforced;
use towpath::tee::TeeReport;
use towpath::{Failure, Summary};

/// Most log lines of sessions that are printed.
const MAX_SESSION_LINES: usize = 8;
/// Most lines of users that are printed.
const MAX_USER_LINES: usize = 8;

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
    let returned = match summary.buffers_away {
        0 => "all returned".to_owned(),
        n => format!("{n} NOT RETURNED"),
    };
    let shortages = match summary.shortages {
        0 => String::new(),
        n => format!("; the pool was dry {} times (--buffers)", grouped(n)),
    };
    writeln!(out, "buffers  {returned}{shortages}")?;
    if summary.pages > 0 {
        let returned = match summary.pages_away {
            0 => "all returned".to_owned(),
            n => format!("{n} NOT RETURNED"),
        };
        writeln!(out, "pages    {} of applications, {returned}", grouped(summary.pages))?;
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
        writeln!(out, "session  {port}: {line}")?;
    }
    if earlier > 0 {
        writeln!(out, "sessions {earlier} earlier ones (--json lists all that are kept)")?;
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
        write!(out, "; {:.0} % bypassed, because nothing merged", percent(gro.bypassed))?;
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
