//! The document for people.

use super::printable::{columns, fit, printable};
use super::{Port, Route, State, Unit};
use crate::output::{OutputError, show};
use crate::units::{grouped, si};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// Most flows of a route that are printed.
const MAX_FLOWS: usize = 8;
/// Most lines of sessions that are printed, as in the summary.
const MAX_SESSIONS: usize = 8;

/// Prints the document on standard output.
pub(crate) fn print(state: &State) -> Result<(), OutputError> {
    show(text(state).unwrap_or_default())
}

fn text(state: &State) -> Result<String, fmt::Error> {
    let State { version, pid, command, uptime, .. } = state;
    let mut out = String::new();
    writeln!(out, "towpath {version}  {}  pid {pid}  up {}", printable(command), span(*uptime))?;
    for unit in &state.units {
        unit_text(&mut out, unit)?;
    }
    Ok(out)
}

/// A time: `9.5 s`, `3 min 07 s`, `2 h 05 min`, `3 d 4 h`.
pub(crate) fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        3600..86400 => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86400, whole % 86400 / 3600),
    }
}

/// A time of a packet: `850 ns`, `2.05 µs`.
pub(crate) fn short_span(ns: u64) -> String {
    match ns {
        0..1000 => format!("{ns} ns"),
        1000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// `filtered 12, too-long 3`; empty without any.
pub(crate) fn list(numbers: &BTreeMap<String, u64>) -> String {
    let all: Vec<_> = numbers.iter().map(|(name, n)| format!("{} {}", printable(name), grouped(*n))).collect();
    all.join(", ")
}

fn unit_text(out: &mut String, unit: &Unit) -> fmt::Result {
    writeln!(out, "\nunit {}  running {}", printable(&unit.name), span(unit.seconds))?;
    for note in &unit.notes {
        writeln!(out, "note     {}", printable(note))?;
    }
    let width = unit.ports.iter().map(|port| columns(&printable(&port.name))).max().unwrap_or(0).max(4);
    writeln!(out, "{:width$}  {:4}      {:>17} {:>10} {:>9} {:>9}", "port", "link", "packets", "", "drops", "missed")?;
    for port in &unit.ports {
        port_text(out, port, width)?;
    }
    for route in &unit.routes {
        route_text(out, route)?;
    }
    for rule in &unit.rules {
        writeln!(out, "rule     {:>13}  {}", grouped(rule.packets), printable(&rule.rule))?;
    }
    for lane in &unit.lanes {
        writeln!(out, "lane {}   {} of 256 buckets, {} packets", lane.lane, lane.buckets, grouped(lane.packets))?;
    }
    for (number, pool) in unit.pools.iter().enumerate() {
        let name = if number == 0 { "pool    " } else { "own pool" };
        let (free, capacity) = (grouped(pool.free as u64), grouped(pool.capacity as u64));
        writeln!(out, "{name} {free} of {capacity} buffers free, {} shortages", grouped(pool.shortages))?;
    }
    if unit.pages.taken > 0 {
        let (taken, away) = (grouped(unit.pages.taken), grouped(unit.pages.away));
        writeln!(out, "pages    {taken} taken, {away} away")?;
    }
    if unit.gro.packets > 0 {
        let gro = &unit.gro;
        let (packets, merged, made) = (grouped(gro.packets), grouped(gro.merged), grouped(gro.aggregates));
        let flushed = list(&gro.flushed);
        let flushed = if flushed.is_empty() { flushed } else { format!("; flushed: {flushed}") };
        writeln!(out, "gro      {packets} packets, {merged} merged, {made} aggregates{flushed}")?;
        let sizes = gro.sizes.iter().filter(|size| size.aggregates > 0);
        let sizes: Vec<_> = sizes
            .map(|size| {
                let bound = size.up_to.map_or("longer".to_owned(), |bytes| format!("to {bytes}"));
                format!("{bound}: {}", grouped(size.aggregates))
            })
            .collect();
        if !sizes.is_empty() {
            writeln!(out, "         aggregates by bytes: {}", sizes.join(", "))?;
        }
    }
    Ok(())
}

fn port_text(out: &mut String, port: &Port, width: usize) -> fmt::Result {
    for (side, flow) in [("rx", &port.rx), ("tx", &port.tx)] {
        let (name, link) = if side == "rx" { (port.name.as_str(), port.link.as_str()) } else { ("", "") };
        let drops = grouped(flow.drops.values().sum());
        let missed = grouped(flow.missed.iter().map(|lost| lost.packets).sum());
        let (packets, bytes) = (grouped(flow.packets), format!("{}B", si(flow.bytes as f64)));
        writeln!(out, "{}  {link:4}  {side}  {packets:>17} {bytes:>10} {drops:>9} {missed:>9}", fit(name, width))?;
    }
    for (side, numbers) in [("rx", &port.rx.drops), ("tx", &port.tx.drops), ("before tx", &port.egress.drops)] {
        if !numbers.is_empty() {
            writeln!(out, "  dropped {side}: {}", list(numbers))?;
        }
    }
    for (side, flow) in [("rx", &port.rx), ("tx", &port.tx)] {
        for lost in &flow.missed {
            writeln!(out, "  missed {side}: {} at {}: {}", grouped(lost.packets), lost.place, lost.remedy)?;
        }
        if flow.errors + flow.retries + flow.copied > 0 {
            let (errors, retries, copied) = (grouped(flow.errors), grouped(flow.retries), grouped(flow.copied));
            writeln!(out, "  {side}: {errors} errors, {retries} retries, {copied} copied")?;
        }
    }
    if !port.events.is_empty() {
        writeln!(out, "  events: {}", list(&port.events))?;
    }
    if !port.settings.is_empty() {
        let all = port.settings.iter().map(|one| format!("{}={}", one.name, printable(&one.value)));
        writeln!(out, "  settings: {}", all.collect::<Vec<_>>().join(" "))?;
    }
    if let Some(rate) = &port.rate {
        let (asked, reached) = (si(rate.asked), si(rate.reached));
        writeln!(out, "  rate: asked {asked}pps, reached {reached}pps, {} given up", grouped(rate.given_up))?;
    }
    if !port.verified.is_empty() {
        writeln!(out, "  verified: {}", list(&port.verified))?;
    }
    for usage in &port.usage {
        let user = usage.user.map_or("all".to_owned(), |user| format!("user {user}"));
        let (now, peak, limit) = (grouped(usage.now), grouped(usage.peak), grouped(usage.limit));
        writeln!(out, "  {user}: {now} {} now, {peak} at most, of {limit}", usage.resource)?;
    }
    for line in port.sessions.iter().rev().take(MAX_SESSIONS).rev() {
        writeln!(out, "  session: {}", printable(line))?;
    }
    Ok(())
}

fn route_text(out: &mut String, route: &Route) -> fmt::Result {
    let core = route.core.map_or(String::new(), |core| format!(" on core {core}"));
    let (packets, bursts) = (grouped(route.packets), grouped(route.bursts));
    writeln!(out, "route {}  worker {}{core}: {packets} packets in {bursts} bursts", route.name, route.worker)?;
    let losses = &route.losses;
    if losses.split + losses.merged > 0 {
        writeln!(out, "  {} split off, {} merged", grouped(losses.split), grouped(losses.merged))?;
    }
    if !losses.drops.is_empty() {
        writeln!(out, "  dropped: {}", list(&losses.drops))?;
    }
    let quantiles = [(0.5, "half"), (0.99, "99 %"), (1.0, "all")];
    let below: Vec<_> = quantiles
        .iter()
        .filter_map(|(part, name)| Some(format!("{name} below {}", short_span(route.latency.quantile(*part)?))))
        .collect();
    if !below.is_empty() {
        writeln!(out, "  stay: {}", below.join(", "))?;
    }
    for flow in route.flows.iter().take(MAX_FLOWS) {
        let (packets, bytes) = (grouped(flow.packets), si(flow.bytes as f64));
        writeln!(out, "  flow {} {} > {}: {packets} packets, {bytes}B", flow.protocol, flow.from, flow.to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    #[test]
    fn the_text_has_every_part_and_no_control_character() {
        let text = text(&example(1000)).unwrap();
        for part in [
            "towpath 0.1.0  fwd  pid 1",
            "down",
            "rule                 9  drop udp dport 53",
            "dropped rx: filtered 100",
            "missed tx: 3 at qdisc: raise \"it\"",
            "events: resets 1",
            "settings: copybreak=256",
            "user 1000: 1 sessions now, 2 at most, of 64",
            "99 % below 2.0 µs",
            "flow udp 10.0.0.1:1024 > [2001:db8::1]:53: 1 000 packets",
            "lane 0   256 of 256 buckets",
            "aggregates by bytes: to 4096: 10",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }

    #[test]
    fn times_have_the_units_that_fit() {
        let texts = [9.46, 187.0, 7500.0, 273_600.0].map(span);
        assert_eq!(texts, ["9.5 s", "3 min 07 s", "2 h 05 min", "3 d 4 h"]);
        assert_eq!([850, 2048, 3_000_000, 2 << 30].map(short_span), ["850 ns", "2.0 µs", "3.0 ms", "2.1 s"]);
    }
}
