//! The metrics: one table for what is served and for `docs/watch.md`.

use super::format::{Labels, Samples, Value};
use crate::state::{Losses, Port, Route, State, Unit};

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Info,
    Histogram,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Info => "info",
            Kind::Histogram => "histogram",
        }
    }
}

/// A metric.
pub(crate) struct Metric {
    /// Of the family: without `_total` and `_info`, with its unit.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Empty without one.
    pub(crate) unit: &'static str,
    /// Its labels.
    #[cfg_attr(not(test), expect(dead_code, reason = "the page of the documentation has them"))]
    pub(crate) labels: &'static str,
    pub(crate) help: &'static str,
    pub(crate) read: fn(&State, &mut Samples),
}

macro_rules! metrics {
    ($($name:literal $kind:ident $unit:literal [$labels:literal] $help:literal $read:expr;)*) => {
        &[$(Metric { name: $name, kind: Kind::$kind, unit: $unit, labels: $labels, help: $help, read: $read },)*]
    };
}

/// All metrics, in the order in which they are served.
pub(crate) const METRICS: &[Metric] = metrics! {
    "towpath_build" Info "" ["version"] "The version that runs."
        |state, out| out.add(vec![("version", state.version.clone())], Value::Whole(1));
    "towpath_uptime_seconds" Gauge "seconds" [""] "Time since the process began."
        |state, out| out.add(Vec::new(), Value::Real(state.uptime));
    "towpath_unit_seconds" Gauge "seconds" ["unit"] "Time since the ports were started."
        |state, out| units(state, |unit, labels| out.add(labels, Value::Real(unit.seconds)));
    "towpath_unit_in_flight_packets" Gauge "packets" ["unit"] "Packets that were received and have not left."
        |state, out| units(state, |unit, labels| out.add(labels, Value::Real(unit.in_flight as f64)));
    "towpath_port" Info "" ["unit, port, kind, layer, mac, interface, netns"] "What a port is."
        |state, out| ports(state, |port, labels| {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let more = [
                ("kind", port.kind.clone()), ("layer", port.layer.clone()), ("mac", text(&port.mac)),
                ("interface", text(&port.interface)), ("netns", text(&port.netns)),
            ];
            out.add(with(labels, more), Value::Whole(1));
        });
    "towpath_port_up" Gauge "" ["unit, port"] "Whether the port works: 0 if it is down, at its end, or gone."
        |state, out| ports(state, |port, labels| out.add(labels, Value::Whole(u64::from(port.link == "up"))));
    "towpath_port_mtu_bytes" Gauge "bytes" ["unit, port"] "The longest packet that is not a super-packet."
        |state, out| ports(state, |port, labels| out.add(labels, Value::Whole(port.mtu.into())));
    "towpath_port_queues" Gauge "" ["unit, port, direction"] "Queues in use."
        |state, out| sides(state, |side, labels| out.add(labels, Value::Whole(side.queues as u64)));
    "towpath_port_packets" Counter "packets" ["unit, port, direction"] "Packets that came in or went out."
        |state, out| sides(state, |side, labels| out.add(labels, Value::Whole(side.packets)));
    "towpath_port_bytes" Counter "bytes" ["unit, port, direction"] "Their bytes, without what only a wire has."
        |state, out| sides(state, |side, labels| out.add(labels, Value::Whole(side.bytes)));
    "towpath_port_calls" Counter "" ["unit, port, direction"] "System calls, or doorbells of a device."
        |state, out| sides(state, |side, labels| out.add(labels, Value::Whole(side.calls)));
    "towpath_port_retries" Counter "" ["unit, port, direction"] "Times that the other side was busy."
        |state, out| sides(state, |side, labels| out.add(labels, Value::Whole(side.retries)));
    "towpath_port_errors" Counter "" ["unit, port, direction"] "Errors of the port itself: link lost, a call refused."
        |state, out| sides(state, |side, labels| out.add(labels, Value::Whole(side.errors)));
    "towpath_port_copied_packets" Counter "packets" ["unit, port, direction"] "Packets that could not be handed on as they lay."
        |state, out| sides(state, |side, labels| out.add(labels, Value::Whole(side.copied)));
    "towpath_port_copied_bytes" Counter "bytes" ["unit, port, direction"] "Bytes that were copied for that."
        |state, out| sides(state, |side, labels| out.add(labels, Value::Whole(side.copied_bytes)));
    "towpath_port_dropped_packets" Counter "packets" ["unit, port, direction, reason"] "Packets that a queue dropped; direction egress: in front of the transmit queues."
        |state, out| {
            let mut add = |labels: &Labels, drops: &std::collections::BTreeMap<String, u64>| {
                for (reason, n) in drops {
                    out.add(with(labels.clone(), [("reason", reason.clone())]), Value::Whole(*n));
                }
            };
            ports(state, |port, labels| {
                for (direction, drops) in [("rx", &port.rx.drops), ("tx", &port.tx.drops), ("egress", &port.egress.drops)] {
                    add(&with(labels.clone(), [("direction", direction.to_owned())]), drops);
                }
            });
        };
    "towpath_port_missed_packets" Counter "packets" ["unit, port, direction, place"] "Packets that the kernel or a device lost outside of the queues."
        |state, out| sides(state, |side, labels| {
            for lost in &side.missed {
                out.add(with(labels.clone(), [("place", lost.place.clone())]), Value::Whole(lost.packets));
            }
        });
    "towpath_port_events" Counter "" ["unit, port, event"] "Events of a port, above all faults that it survived."
        |state, out| ports(state, |port, labels| {
            for (event, n) in &port.events {
                out.add(with(labels.clone(), [("event", event.clone())]), Value::Whole(*n));
            }
        });
    "towpath_port_usage" Gauge "" ["unit, port, user, resource"] "What the applications of a user have; user empty: all together."
        |state, out| usage(state, out, |usage| usage.now);
    "towpath_port_usage_limit" Gauge "" ["unit, port, user, resource"] "The most that they may have."
        |state, out| usage(state, out, |usage| usage.limit);
    "towpath_port_rate_asked" Gauge "" ["unit, port"] "Packets per second that a source was asked for."
        |state, out| ports(state, |port, labels| if let Some(rate) = &port.rate { out.add(labels, Value::Real(rate.asked)) });
    "towpath_port_rate_reached" Gauge "" ["unit, port"] "Packets per second that it made, since its start."
        |state, out| ports(state, |port, labels| if let Some(rate) = &port.rate { out.add(labels, Value::Real(rate.reached)) });
    "towpath_port_given_up_packets" Counter "packets" ["unit, port"] "Packets that were due and are never made."
        |state, out| ports(state, |port, labels| if let Some(rate) = &port.rate { out.add(labels, Value::Whole(rate.given_up)) });
    "towpath_port_verified_packets" Gauge "packets" ["unit, port, result"] "What was found in sequence numbers; a lost packet may still arrive."
        |state, out| ports(state, |port, labels| {
            for (result, n) in &port.verified {
                out.add(with(labels.clone(), [("result", result.clone())]), Value::Whole(*n));
            }
        });
    "towpath_route_packets" Counter "packets" ["unit, route"] "Packets that a route received."
        |state, out| routes(state, |route, labels| out.add(labels, Value::Whole(route.packets)));
    "towpath_route_bursts" Counter "" ["unit, route"] "Bursts in which it received them."
        |state, out| routes(state, |route, labels| out.add(labels, Value::Whole(route.bursts)));
    "towpath_route_split_packets" Counter "packets" ["unit, route"] "Packets that segmentation added."
        |state, out| losses(state, |losses, labels| out.add(labels, Value::Whole(losses.split)));
    "towpath_route_merged_packets" Counter "packets" ["unit, route"] "Packets that became part of others."
        |state, out| losses(state, |losses, labels| out.add(labels, Value::Whole(losses.merged)));
    "towpath_route_dropped_packets" Counter "packets" ["unit, route, reason"] "Packets that a route dropped."
        |state, out| losses(state, |losses, labels| {
            for (reason, n) in &losses.drops {
                out.add(with(labels.clone(), [("reason", reason.clone())]), Value::Whole(*n));
            }
        });
    "towpath_route_latency_seconds" Histogram "seconds" ["unit, route, le"] "Time that packets stay in a route, estimated from one burst in 64."
        |state, out| routes(state, |route, labels| out.add(labels, latency(route)));
    "towpath_rule_packets" Counter "packets" ["unit, rule"] "Packets that a rule decided on."
        |state, out| units(state, |unit, labels| {
            for rule in &unit.rules {
                out.add(with(labels.clone(), [("rule", rule.rule.clone())]), Value::Whole(rule.packets));
            }
        });
    "towpath_lane_buckets" Gauge "" ["unit, lane"] "Buckets of the table, of 256, that a lane has."
        |state, out| units(state, |unit, labels| {
            for lane in &unit.lanes {
                out.add(with(labels.clone(), [("lane", lane.lane.to_string())]), Value::Whole(lane.buckets as u64));
            }
        });
    "towpath_pool_buffers" Gauge "" ["unit, pool"] "Buffers of a pool; pool 0 is the common one."
        |state, out| pools(state, |pool, labels| out.add(labels, Value::Whole(pool.capacity as u64)));
    "towpath_pool_free_buffers" Gauge "" ["unit, pool"] "Buffers that are free."
        |state, out| pools(state, |pool, labels| out.add(labels, Value::Whole(pool.free as u64)));
    "towpath_pool_shortages" Counter "" ["unit, pool"] "Times that a pool had fewer free buffers than requested."
        |state, out| pools(state, |pool, labels| out.add(labels, Value::Whole(pool.shortages)));
    "towpath_pages_taken" Counter "" ["unit"] "Pages of applications' memory that were taken into packets."
        |state, out| units(state, |unit, labels| out.add(labels, Value::Whole(unit.pages.taken)));
    "towpath_pages_away" Gauge "" ["unit"] "Pages that are not returned."
        |state, out| units(state, |unit, labels| out.add(labels, Value::Whole(unit.pages.away)));
    "towpath_gro_packets" Counter "packets" ["unit"] "Packets that GRO processed."
        |state, out| units(state, |unit, labels| out.add(labels, Value::Whole(unit.gro.packets)));
    "towpath_gro_merged_packets" Counter "packets" ["unit"] "Packets that it merged into others."
        |state, out| units(state, |unit, labels| out.add(labels, Value::Whole(unit.gro.merged)));
    "towpath_gro_bypassed_packets" Counter "packets" ["unit"] "Packets that passed by while nothing merged."
        |state, out| units(state, |unit, labels| out.add(labels, Value::Whole(unit.gro.aside)));
    "towpath_gro_flushed" Counter "" ["unit, reason"] "Packets and aggregates that left, by reason."
        |state, out| units(state, |unit, labels| {
            for (reason, n) in &unit.gro.flushed {
                out.add(with(labels.clone(), [("reason", reason.clone())]), Value::Whole(*n));
            }
        });
    "towpath_gro_aggregate_bytes" Histogram "bytes" ["unit, le"] "Sizes of aggregates."
        |state, out| units(state, |unit, labels| out.add(labels, sizes(unit)));
};

fn with<const N: usize>(mut labels: Labels, more: [(&'static str, String); N]) -> Labels {
    labels.extend(more);
    labels
}

fn units(state: &State, mut f: impl FnMut(&Unit, Labels)) {
    for unit in &state.units {
        f(unit, vec![("unit", unit.name.clone())]);
    }
}

/// Ports of a unit that have the same name are numbered: `null:`, `null:#2`.
fn ports(state: &State, mut f: impl FnMut(&Port, Labels)) {
    units(state, |unit, labels| {
        for (at, port) in unit.ports.iter().enumerate() {
            let before = unit.ports.iter().take(at).filter(|other| other.name == port.name).count();
            let name = if before == 0 { port.name.clone() } else { format!("{}#{}", port.name, before + 1) };
            f(port, with(labels.clone(), [("port", name)]));
        }
    });
}

/// Both directions of each port.
fn sides(state: &State, mut f: impl FnMut(&crate::state::Direction, Labels)) {
    ports(state, |port, labels| {
        for (direction, side) in [("rx", &port.rx), ("tx", &port.tx)] {
            f(side, with(labels.clone(), [("direction", direction.to_owned())]));
        }
    });
}

fn routes(state: &State, mut f: impl FnMut(&Route, Labels)) {
    units(state, |unit, labels| {
        for route in &unit.routes {
            f(route, with(labels.clone(), [("route", route.name.clone())]));
        }
    });
}

fn losses(state: &State, mut f: impl FnMut(&Losses, Labels)) {
    routes(state, |route, labels| f(&route.losses, labels));
}

fn pools(state: &State, mut f: impl FnMut(&crate::state::PoolState, Labels)) {
    units(state, |unit, labels| {
        for (number, pool) in unit.pools.iter().enumerate() {
            f(pool, with(labels.clone(), [("pool", number.to_string())]));
        }
    });
}

fn usage(state: &State, out: &mut Samples, of: fn(&crate::state::Usage) -> u64) {
    ports(state, |port, labels| {
        for usage in &port.usage {
            let user = usage.user.map_or_else(String::new, |user| user.to_string());
            let more = [("user", user), ("resource", usage.resource.clone())];
            out.add(with(labels.clone(), more), Value::Whole(of(usage)));
        }
    });
}

/// Times from 256 ns to 17 s; what is longer is in the last bucket.
fn latency(route: &Route) -> Value {
    let mut seen = 0;
    let mut buckets = route.latency.buckets.iter().peekable();
    let up_to = (8..=34).map(|exponent| {
        let bound = 1u64 << exponent;
        while let Some(bucket) = buckets.next_if(|bucket| bucket.below_ns <= bound) {
            seen += bucket.packets;
        }
        // The shortest text of a bound that is a whole number of nanoseconds.
        (format!("{bound}e-9").parse().unwrap_or(0.0), seen)
    });
    Value::Histogram { up_to: up_to.collect(), all: route.latency.packets, sum: route.latency.seconds }
}

fn sizes(unit: &Unit) -> Value {
    let (mut seen, mut up_to) = (0, Vec::new());
    for size in &unit.gro.sizes {
        seen += size.aggregates;
        up_to.extend(size.up_to.map(|bytes| (f64::from(bytes), seen)));
    }
    Value::Histogram { up_to, all: seen, sum: unit.gro.bytes as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of `docs/watch.md`.
    fn documented() -> String {
        let mut out = "| metric | type | unit | labels | |\n|---|---|---|---|---|\n".to_owned();
        for metric in METRICS {
            let Metric { name, kind, unit, labels, help, .. } = metric;
            let suffix = match kind {
                Kind::Counter => "_total",
                Kind::Info => "_info",
                Kind::Gauge | Kind::Histogram => "",
            };
            out += &format!("| `{name}{suffix}` | {} | {unit} | {labels} | {help} |\n", kind.name());
        }
        out
    }

    #[test]
    fn the_page_of_the_documentation_has_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/watch.md");
        let Ok(page) = std::fs::read_to_string(path) else { return };
        assert!(page.contains(&documented()), "docs/watch.md must have this table:\n\n{}", documented());
    }

    #[test]
    fn names_are_those_of_the_format_and_end_with_their_unit() {
        for Metric { name, kind, unit, help, .. } in METRICS {
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
            assert!(unit.is_empty() || name.ends_with(&format!("_{unit}")), "{name} {unit}");
            assert!(!name.ends_with("_total") && !name.ends_with("_info") && !name.ends_with("_count"), "{name}");
            assert!(help.ends_with('.') && !help.contains(['\n', '\\', '"']), "{name}");
            assert_eq!(METRICS.iter().filter(|other| other.name == *name).count(), 1, "{name} {kind:?}");
        }
    }
}
