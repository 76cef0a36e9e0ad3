//! The state of a running `towpath`: one document, for all that show it.
//!
//! ```text
//!   Observer, for each thing that runs ──gather──► State ─┬─ towpath state        text, or JSON
//!                                                         ├─ towpath top          a terminal
//!                                                         ├─ --metrics /state     JSON, for the page
//!                                                         └─ --metrics /metrics   OpenMetrics
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`State`], the document; `docs/watch.md` describes its keys |
//! | `gather` | the document of now, from what runs |
//! | `text` | the document for people |
//! | `printable` | texts of users and files without control characters |
//!
//! A reader computes rates: every number counts from the start, unless its name says otherwise.

mod gather;
pub(crate) mod printable;
mod text;

pub(crate) use gather::{began, gather};
pub(crate) use text::{list, print, short_span, span};

use crate::args::StateArgs;
use crate::control::ask_state;
use crate::output::outln;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;

/// The version of the document: it grows when a key is renamed or changes its meaning.
pub(crate) const SCHEMA: u32 = 1;

/// All that runs in a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) schema: u32,
    /// Of towpath.
    pub(crate) version: String,
    pub(crate) pid: u32,
    /// The first words of its command line: `fwd`.
    pub(crate) command: String,
    /// Now, in seconds since 1970 (UTC).
    pub(crate) time: f64,
    /// Seconds since the process began.
    pub(crate) uptime: f64,
    pub(crate) units: Vec<Unit>,
}

/// Ports that are joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Unit {
    pub(crate) name: String,
    /// Seconds since its ports were started.
    pub(crate) seconds: f64,
    pub(crate) notes: Vec<String>,
    pub(crate) ports: Vec<Port>,
    pub(crate) routes: Vec<Route>,
    pub(crate) rules: Vec<Rule>,
    /// None without lanes.
    pub(crate) lanes: Vec<Lane>,
    /// The common pool, then those that belong to ports.
    pub(crate) pools: Vec<PoolState>,
    pub(crate) pages: Pages,
    pub(crate) gro: Gro,
    /// Packets under way at this moment; the parts of the sum are read one after the other.
    pub(crate) in_flight: i64,
}

/// A port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) name: String,
    /// The scheme of its URI.
    pub(crate) kind: String,
    /// `ethernet`, `ip` or `any`.
    pub(crate) layer: String,
    pub(crate) mtu: u32,
    pub(crate) mac: Option<String>,
    pub(crate) interface: Option<String>,
    pub(crate) netns: Option<String>,
    /// `up`, `down`, `done` or `gone`, as the workers saw it last. A port that was detached from a
    /// bridge or a router is gone.
    pub(crate) link: String,
    pub(crate) rx: Direction,
    pub(crate) tx: Direction,
    /// Drops and splits in front of its transmit queues.
    pub(crate) egress: Losses,
    pub(crate) events: BTreeMap<String, u64>,
    pub(crate) settings: Vec<Setting>,
    /// What applications had of resources.
    pub(crate) usage: Vec<Usage>,
    pub(crate) sessions: Vec<String>,
    pub(crate) rate: Option<Rate>,
    /// What was found in sequence numbers.
    pub(crate) verified: BTreeMap<String, u64>,
}

/// One direction of a port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Direction {
    pub(crate) queues: usize,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// System calls or doorbells.
    pub(crate) calls: u64,
    pub(crate) retries: u64,
    pub(crate) errors: u64,
    /// Packets that could not be handed on as they lay.
    pub(crate) copied: u64,
    pub(crate) copied_bytes: u64,
    /// By reason.
    pub(crate) drops: BTreeMap<String, u64>,
    pub(crate) missed: Vec<Missed>,
}

/// Packets that the kernel or a device lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Missed {
    pub(crate) place: String,
    pub(crate) packets: u64,
    pub(crate) remedy: String,
}

/// What a route, or the routes to a port, lost or changed in number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Losses {
    /// By reason.
    pub(crate) drops: BTreeMap<String, u64>,
    /// Packets that segmentation added.
    pub(crate) split: u64,
    /// Packets that became part of others.
    pub(crate) merged: u64,
    pub(crate) copied: u64,
}

/// What can be changed by `towpath set`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) what: String,
}

/// What a user's applications have of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// The user; none for all together.
    pub(crate) user: Option<u32>,
    pub(crate) resource: String,
    pub(crate) now: u64,
    pub(crate) peak: u64,
    pub(crate) limit: u64,
}

/// How a source keeps its rate, in packets per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rate {
    pub(crate) asked: f64,
    pub(crate) reached: f64,
    pub(crate) given_up: u64,
}

/// One direction between two queues; of a bridge or a router, what one worker receives from a port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Route {
    /// `a.0`, from queue 0 of the first port; `b.lane1`, from lane 1 to the first port; `tap:x.0`,
    /// from queue 0 of a port of a bridge or a router.
    pub(crate) name: String,
    /// The port that the packets are from.
    pub(crate) from: String,
    pub(crate) worker: usize,
    pub(crate) core: Option<usize>,
    /// The lane that it takes its packets from.
    pub(crate) lane: Option<usize>,
    /// Received.
    pub(crate) packets: u64,
    pub(crate) bursts: u64,
    #[serde(flatten)]
    pub(crate) losses: Losses,
    pub(crate) latency: Latency,
    /// The largest first, by bytes.
    pub(crate) flows: Vec<Flow>,
}

/// How long packets stay in a route: an estimate for all packets, from some bursts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) packets: u64,
    /// Of all packets together.
    pub(crate) seconds: f64,
    /// Buckets with packets: those of less than `below_ns` that are in no lower bucket.
    pub(crate) buckets: Vec<Bucket>,
}

/// Packets of a range of times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bucket {
    pub(crate) below_ns: u64,
    pub(crate) packets: u64,
}

impl Latency {
    /// The time that this part of the packets does not exceed, in nanoseconds, up to a factor of
    /// two; `None` without packets.
    pub(crate) fn quantile(&self, part: f64) -> Option<u64> {
        let wanted = part * self.packets as f64;
        let mut seen = 0;
        self.buckets.iter().find_map(|bucket| {
            seen += bucket.packets;
            (seen as f64 >= wanted && seen > 0).then_some(bucket.below_ns)
        })
    }
}

/// A flow, estimated from some packets while the document is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Flow {
    /// `tcp`, `udp`, a number, or a type of Ethernet.
    pub(crate) protocol: String,
    /// Address, and port where there is one; empty for what is not IP.
    pub(crate) from: String,
    pub(crate) to: String,
    /// At least.
    pub(crate) packets: u64,
    pub(crate) at_most: u64,
    pub(crate) bytes: u64,
}

/// How many packets a rule decided on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rule {
    pub(crate) rule: String,
    pub(crate) packets: u64,
}

/// A lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lane {
    pub(crate) lane: usize,
    /// Of the 256 in the table.
    pub(crate) buckets: usize,
    /// Packets so far in the buckets that the lane has now.
    pub(crate) packets: u64,
}

/// A pool of buffers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PoolState {
    pub(crate) capacity: usize,
    pub(crate) free: usize,
    /// Times that it had fewer free buffers than requested.
    pub(crate) shortages: u64,
}

/// Pages of applications' memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pages {
    pub(crate) taken: u64,
    pub(crate) away: u64,
}

/// What GRO did; all zero without GRO.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gro {
    pub(crate) packets: u64,
    pub(crate) merged: u64,
    pub(crate) aggregates: u64,
    /// Packets that passed by while nothing merged.
    pub(crate) aside: u64,
    /// Aggregates and held packets that left, by reason.
    pub(crate) flushed: BTreeMap<String, u64>,
    /// Bytes of all aggregates.
    pub(crate) bytes: u64,
    pub(crate) sizes: Vec<Size>,
}

/// Aggregates of a range of sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Size {
    /// Bytes; null in the last range.
    pub(crate) up_to: Option<u32>,
    pub(crate) aggregates: u64,
}

/// `towpath state`.
pub(crate) fn state(args: &StateArgs) -> Result<ExitCode, Box<dyn Error>> {
    let state = ask_state(&args.control)?;
    if args.json {
        outln!("{}", serde_json::to_string(&state)?)?;
    } else {
        print(&state)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_bound_of_the_bucket_that_has_it() {
        let bucket = |below_ns, packets| Bucket { below_ns, packets };
        let buckets = vec![bucket(1024, 90), bucket(4096, 9), bucket(65536, 1)];
        let latency = Latency { packets: 100, seconds: 1.0, buckets };
        let of = |part| latency.quantile(part).unwrap();
        assert_eq!((of(0.0), of(0.5), of(0.9), of(0.91), of(0.99), of(1.0)), (1024, 1024, 1024, 4096, 4096, 65536));
        assert_eq!(Latency::default().quantile(0.5), None);
    }

    /// A document with all parts; texts of it are hostile.
    pub(crate) fn example(packets: u64) -> State {
        let drops = BTreeMap::from([("filtered".to_owned(), packets / 10)]);
        let missed = Missed { place: "qdisc".into(), packets: 3, remedy: "raise \"it\"".into() };
        let losses = Losses { drops: drops.clone(), split: 4, merged: 2, copied: 1 };
        let port = |name: &str, link: &str| Port {
            name: name.into(),
            kind: "tap".into(),
            layer: "ethernet".into(),
            mtu: 1500,
            mac: Some("02:00:00:00:00:01".into()),
            interface: Some("tp0".into()),
            netns: None,
            link: link.into(),
            rx: Direction { queues: 1, packets, bytes: packets * 100, drops: drops.clone(), ..Direction::default() },
            tx: Direction { queues: 1, packets: packets / 2, missed: vec![missed.clone()], ..Direction::default() },
            egress: losses.clone(),
            events: BTreeMap::from([("resets".to_owned(), 1)]),
            settings: vec![Setting { name: "copybreak".into(), value: "256".into(), what: "bytes".into() }],
            usage: vec![Usage { user: Some(1000), resource: "sessions".into(), now: 1, peak: 2, limit: 64 }],
            sessions: vec!["1 user 1000: 10 packets".into()],
            rate: Some(Rate { asked: 1000.0, reached: 990.0, given_up: 7 }),
            verified: BTreeMap::from([("lost".to_owned(), 5)]),
        };
        let flow = |n: u64| Flow {
            protocol: "udp".into(),
            from: format!("10.0.0.{n}:1024"),
            to: "[2001:db8::1]:53".into(),
            packets: packets / n,
            at_most: packets,
            bytes: packets * 60 / n,
        };
        let buckets = vec![Bucket { below_ns: 2048, packets }, Bucket { below_ns: 4096, packets: 3 }];
        let latency = Latency { packets: packets + 3, seconds: 0.5, buckets };
        let route = |name: &str| Route {
            name: name.into(),
            from: "tap:a".into(),
            worker: 0,
            core: Some(1),
            lane: None,
            packets,
            bursts: packets / 8,
            losses: losses.clone(),
            latency: latency.clone(),
            flows: vec![flow(1), flow(2)],
        };
        let hostile = "tap:<img src=x onerror=alert(1)>\"\\\n\u{1b}[31m漢字";
        let unit = Unit {
            name: "fwd".into(),
            seconds: 12.5,
            notes: vec!["offload: off".into()],
            ports: vec![port(hostile, "up"), port("null:", "down"), port("null:", "gone")],
            routes: vec![route("a.0"), route("b.0")],
            rules: vec![Rule { rule: "drop udp dport 53".into(), packets: 9 }],
            lanes: vec![Lane { lane: 0, buckets: 256, packets }],
            pools: vec![PoolState { capacity: 16384, free: 16000, shortages: 1 }],
            pages: Pages { taken: 8, away: 1 },
            gro: Gro {
                packets,
                merged: packets / 2,
                aggregates: 10,
                aside: 0,
                flushed: BTreeMap::from([("burst".to_owned(), 10)]),
                bytes: 40_000,
                sizes: vec![Size { up_to: Some(4096), aggregates: 10 }, Size { up_to: None, aggregates: 0 }],
            },
            in_flight: 0,
        };
        let (version, command) = ("0.1.0".to_owned(), "fwd".to_owned());
        State { schema: SCHEMA, version, pid: 1, command, time: packets as f64, uptime: 13.0, units: vec![unit] }
    }

    #[test]
    fn the_document_is_read_as_it_was_written() {
        let state = example(1000);
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
    }
}
