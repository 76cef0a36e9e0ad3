//! The rows of each view, from two documents.

use super::app::{App, View};
use super::layout::{Cell, Column};
use crate::state::{Direction, Flow, Port, Route, Unit};
use crate::units::{grouped, si};
use std::collections::BTreeMap;

const fn text(title: &'static str) -> Column {
    Column { title, is_text: true }
}

const fn number(title: &'static str) -> Column {
    Column { title, is_text: false }
}

/// The columns of a view, the most important first; none of the overview.
pub(super) fn columns(view: View) -> &'static [Column] {
    match view {
        View::Overview => &[],
        View::Ports => {
            const {
                &[
                    text("port"),
                    number("rx pps"),
                    number("tx pps"),
                    number("rx b/s"),
                    number("tx b/s"),
                    number("drops"),
                    number("missed"),
                    number("link"),
                    number("errors"),
                    number("rx packets"),
                    number("tx packets"),
                    number("copied"),
                    text("unit"),
                ]
            }
        }
        View::Routes => {
            const {
                &[
                    text("route"),
                    number("pps"),
                    number("burst"),
                    number("half stay"),
                    number("99 %"),
                    number("drops"),
                    number("worker"),
                    number("merged"),
                    number("split"),
                    number("packets"),
                    text("from"),
                    text("unit"),
                ]
            }
        }
        View::Lanes => const { &[text("lane"), number("pps"), number("buckets"), number("packets"), text("unit")] },
        View::Flows => {
            const {
                &[
                    text("from"),
                    text("to"),
                    number("b/s"),
                    number("pps"),
                    number("proto"),
                    number("bytes"),
                    number("packets"),
                    text("route"),
                    text("unit"),
                ]
            }
        }
        View::Sessions => {
            const { &[text("port"), text("user or session"), number("now"), number("peak"), number("limit"), text("unit")] }
        }
        View::Drops => {
            const { &[text("where"), text("why"), number("per s"), number("packets"), text("remedy"), text("unit")] }
        }
    }
}

/// The rows of a view.
pub(super) fn rows(app: &App, view: View) -> Vec<Vec<Cell>> {
    let seconds = app.seconds();
    let of = |(unit, before): (&Unit, Option<&Unit>)| match view {
        View::Overview => Vec::new(),
        View::Ports => ports(unit, before, seconds),
        View::Routes => routes(unit, before, seconds),
        View::Lanes => lanes(unit, before, seconds),
        View::Flows => flows(unit, before, seconds),
        View::Sessions => sessions(unit),
        View::Drops => drops(unit, before, seconds),
    };
    app.units().flat_map(of).collect()
}

/// A rate from two counts; none without an earlier one.
pub(super) fn rate(now: u64, then: Option<u64>, seconds: f64) -> Option<f64> {
    then.filter(|_| seconds.is_finite()).map(|then| now.saturating_sub(then) as f64 / seconds)
}

fn rated(now: u64, then: Option<u64>, seconds: f64) -> Cell {
    scaled(rate(now, then, seconds))
}

fn scaled(rate: Option<f64>) -> Cell {
    // A rate below one is a number with a fraction.
    rate.map_or(Cell::Number("-".into(), -1.0), |rate| Cell::Number(si(rate).trim_end().to_owned(), rate))
}

fn count(n: u64) -> Cell {
    Cell::Number(grouped(n), n as f64)
}

fn bad(n: u64) -> Cell {
    Cell::Bad(grouped(n), n as f64)
}

/// Ports keep their places.
pub(super) fn port_before<'a>(before: Option<&'a Unit>, at: usize, port: &Port) -> Option<&'a Port> {
    before.and_then(|unit| unit.ports.get(at)).filter(|other| other.name == port.name)
}

fn route_before<'a>(before: Option<&'a Unit>, route: &Route) -> Option<&'a Route> {
    before.and_then(|unit| unit.routes.iter().find(|other| other.name == route.name))
}

pub(super) fn sum(numbers: &BTreeMap<String, u64>) -> u64 {
    numbers.values().sum()
}

pub(super) fn missed(side: &Direction) -> u64 {
    side.missed.iter().map(|lost| lost.packets).sum()
}

fn ports(unit: &Unit, before: Option<&Unit>, seconds: f64) -> Vec<Vec<Cell>> {
    let row = |(at, port): (usize, &Port)| {
        let then = port_before(before, at, port);
        let of = |now: &Direction, then: Option<&Direction>| {
            let packets = rated(now.packets, then.map(|then| then.packets), seconds);
            (packets, scaled(rate(now.bytes, then.map(|then| then.bytes), seconds).map(|bytes| bytes * 8.0)))
        };
        let (rx_packets, rx_bits) = of(&port.rx, then.map(|then| &then.rx));
        let (tx_packets, tx_bits) = of(&port.tx, then.map(|then| &then.tx));
        vec![
            Cell::Text(port.name.clone()),
            rx_packets,
            tx_packets,
            rx_bits,
            tx_bits,
            bad(sum(&port.rx.drops) + sum(&port.tx.drops) + sum(&port.egress.drops)),
            bad(missed(&port.rx) + missed(&port.tx)),
            Cell::Bad(port.link.clone(), if matches!(port.link.as_str(), "up" | "done") { 0.0 } else { 1.0 }),
            bad(port.rx.errors + port.tx.errors),
            count(port.rx.packets),
            count(port.tx.packets),
            count(port.rx.copied + port.tx.copied + port.egress.copied),
            Cell::Text(unit.name.clone()),
        ]
    };
    unit.ports.iter().enumerate().map(row).collect()
}

fn routes(unit: &Unit, before: Option<&Unit>, seconds: f64) -> Vec<Vec<Cell>> {
    let row = |route: &Route| {
        let then = route_before(before, route);
        let burst = route.packets as f64 / route.bursts.max(1) as f64;
        let stay = |part| match route.latency.quantile(part) {
            Some(ns) => Cell::Number(format!("<{}", super::picture::short_span(ns)), ns as f64),
            None => Cell::Number("-".into(), 0.0),
        };
        let worker = route.core.map_or(route.worker.to_string(), |core| format!("{} on {core}", route.worker));
        vec![
            Cell::Text(route.name.clone()),
            rated(route.packets, then.map(|then| then.packets), seconds),
            Cell::Number(format!("{burst:.1}"), burst),
            stay(0.5),
            stay(0.99),
            bad(sum(&route.losses.drops)),
            Cell::Number(worker, route.worker as f64),
            count(route.losses.merged),
            count(route.losses.split),
            count(route.packets),
            Cell::Text(route.from.clone()),
            Cell::Text(unit.name.clone()),
        ]
    };
    unit.routes.iter().map(row).collect()
}

fn lanes(unit: &Unit, before: Option<&Unit>, seconds: f64) -> Vec<Vec<Cell>> {
    let row = |lane: &crate::state::Lane| {
        let then = before.and_then(|unit| unit.lanes.iter().find(|other| other.lane == lane.lane));
        vec![
            Cell::Text(format!("lane {}", lane.lane)),
            rated(lane.packets, then.map(|then| then.packets), seconds),
            Cell::Number(lane.buckets.to_string(), lane.buckets as f64),
            count(lane.packets),
            Cell::Text(unit.name.clone()),
        ]
    };
    unit.lanes.iter().map(row).collect()
}

/// The largest first, by what they sent since the earlier document.
fn flows(unit: &Unit, before: Option<&Unit>, seconds: f64) -> Vec<Vec<Cell>> {
    let mut all = Vec::new();
    for route in &unit.routes {
        let then = route_before(before, route);
        for flow in &route.flows {
            let is_same =
                |other: &&Flow| other.protocol == flow.protocol && other.from == flow.from && other.to == flow.to;
            let then = then.and_then(|then| then.flows.iter().find(is_same));
            let bits = rate(flow.bytes, then.map(|then| then.bytes), seconds).map(|bytes| bytes * 8.0);
            let row = vec![
                Cell::Text(flow.from.clone()),
                Cell::Text(flow.to.clone()),
                scaled(bits),
                rated(flow.packets, then.map(|then| then.packets), seconds),
                Cell::Number(flow.protocol.clone(), 0.0),
                Cell::Number(format!("{}B", si(flow.bytes as f64)), flow.bytes as f64),
                count(flow.packets),
                Cell::Text(route.name.clone()),
                Cell::Text(unit.name.clone()),
            ];
            all.push((bits.unwrap_or(-1.0), flow.bytes, row));
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    all.into_iter().map(|(_, _, row)| row).collect()
}

fn sessions(unit: &Unit) -> Vec<Vec<Cell>> {
    let of = |port: &Port| {
        let name = || Cell::Text(port.name.clone());
        let usage = port.usage.iter().map(|usage| {
            let user = usage.user.map_or("all".to_owned(), |user| format!("user {user}"));
            let what = Cell::Text(format!("{user}: {}", usage.resource));
            vec![name(), what, count(usage.now), count(usage.peak), count(usage.limit), Cell::Text(unit.name.clone())]
        });
        let empty = || Cell::Number(String::new(), 0.0);
        let lines = port.sessions.iter().map(|line| {
            vec![name(), Cell::Text(line.clone()), empty(), empty(), empty(), Cell::Text(unit.name.clone())]
        });
        usage.chain(lines).collect::<Vec<_>>()
    };
    unit.ports.iter().flat_map(of).collect()
}

/// Drops, losses outside of the queues, and events.
fn drops(unit: &Unit, before: Option<&Unit>, seconds: f64) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for (at, port) in unit.ports.iter().enumerate() {
        let then = port_before(before, at, port);
        let mut add = |side: &str, why: String, n: u64, earlier: Option<u64>, remedy: &str| {
            rows.push(vec![
                Cell::Text(format!("{} {side}", port.name)),
                Cell::Text(why),
                rated(n, earlier, seconds),
                bad(n),
                Cell::Text(remedy.to_owned()),
                Cell::Text(unit.name.clone()),
            ]);
        };
        // What is new was 0 before.
        let was = |map: fn(&Port) -> &BTreeMap<String, u64>, name: &str| {
            then.map(|then| map(then).get(name).copied().unwrap_or(0))
        };
        type Of = fn(&Port) -> &BTreeMap<String, u64>;
        let sides: [(&str, Of); 3] =
            [("rx", |port| &port.rx.drops), ("tx", |port| &port.tx.drops), ("before tx", |port| &port.egress.drops)];
        for (side, of) in sides {
            for (reason, n) in of(port) {
                add(side, reason.clone(), *n, was(of, reason), "");
            }
        }
        for (side, now, earlier) in
            [("rx", &port.rx, then.map(|then| &then.rx)), ("tx", &port.tx, then.map(|then| &then.tx))]
        {
            for lost in &now.missed {
                let earlier = earlier.map(|earlier| {
                    earlier.missed.iter().find(|other| other.place == lost.place).map_or(0, |other| other.packets)
                });
                add(side, format!("missed: {}", lost.place), lost.packets, earlier, &lost.remedy);
            }
        }
        for (event, n) in &port.events {
            add("", format!("event: {event}"), *n, was(|port| &port.events, event), "");
        }
    }
    rows
}
