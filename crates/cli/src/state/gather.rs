//! The document of now, from what runs.

use super::{
    Bucket, Direction, Flow, Gro, Lane, Latency, Losses, Missed, Pages, PoolState, Port, Rate, Route, Rule, SCHEMA,
    Setting, Size, State, Unit, Usage,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;
use std::time::{Instant, SystemTime};
use towpath::Observer;
use towpath::engine::report::{GroReading, PortMeter, PortReading, RouteMeter, SIZES};
use towpath::engine::rules::PortSide;
use towpath::engine::samples::{FlowCount, QueueState};
use towpath::packet::Snapshot;
use towpath::packet::port::{Layer, PortControl};
use towpath::wire::ethernet::MacText;

/// When the process began, and its command; the first call is in `main`.
pub(crate) fn began() -> (Instant, &'static str) {
    static BEGAN: OnceLock<(Instant, String)> = OnceLock::new();
    let first = || (Instant::now(), std::env::args().nth(1).unwrap_or_default());
    let (began, command) = BEGAN.get_or_init(first);
    (*began, command)
}

/// The document of what runs.
pub(crate) fn gather(running: &[(String, Observer)]) -> State {
    let (began, command) = began();
    State {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        command: command.into(),
        time: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64(),
        uptime: began.elapsed().as_secs_f64(),
        units: running.iter().map(|(name, observer)| unit(name, observer)).collect(),
    }
}

fn unit(name: &str, observer: &Observer) -> Unit {
    let meter = observer.meter();
    let reading = meter.read();
    let queues = meter.ports();
    let port = |(number, reading): (usize, &PortReading)| {
        let control = observer.port_controls().port(&reading.name);
        let control = control.as_deref().unwrap_or(&Nothing);
        port(reading, queues.get(number), link(observer, &queues, number), control)
    };
    let mut routes: Vec<_> = meter.routes().iter().map(|meter| between(meter, observer)).collect();
    for queues in &queues {
        let part = |meter: &RouteMeter| route(meter, format!("{}.{}", queues.name, meter.worker), queues.name.clone());
        routes.extend(queues.parts.iter().map(part));
    }
    Unit {
        name: name.into(),
        seconds: reading.elapsed.as_secs_f64(),
        notes: observer.notes().to_vec(),
        ports: reading.ports.iter().enumerate().map(port).collect(),
        routes,
        rules: observer.rule_hits().into_iter().map(|(rule, packets)| Rule { rule, packets }).collect(),
        lanes: lanes(observer),
        pools: meter
            .pools()
            .into_iter()
            .map(|pool| PoolState { capacity: pool.capacity, free: pool.free, shortages: pool.shortages })
            .collect(),
        pages: Pages { taken: meter.pages(), away: meter.pages_away() },
        gro: gro(&reading.gro),
        in_flight: reading.balance().in_flight(),
    }
}

/// The control of a port that has none.
struct Nothing;

impl PortControl for Nothing {}

/// The worst of what the workers saw of a port.
fn link(observer: &Observer, queues: &[PortMeter], port: usize) -> &'static str {
    let parts = queues.get(port).map_or(&[][..], |queues| &queues.parts);
    let of_parts = parts.iter().flat_map(|part| <[QueueState; 2]>::from(part.samples.queue_states()));
    let (routes, ports) = (observer.meter().routes(), observer.infos().len());
    let has_lanes = routes.iter().any(|route| route.lane.is_some());
    let seen = routes.iter().flat_map(|route| {
        let (rx, tx) = route.samples.queue_states();
        let side = route.id.side as usize;
        let egress = if ports == 1 { side } else { route.id.side.other() as usize };
        let rx = (side == port && route.lane.is_none()).then_some(rx);
        let tx = (egress == port && (route.lane.is_some() || !has_lanes)).then_some(tx);
        [rx, tx].into_iter().flatten()
    });
    let severity = |state: &QueueState| match state {
        QueueState::Up => 0,
        QueueState::Done => 1,
        QueueState::Down => 2,
        QueueState::Gone => 3,
    };
    match seen.chain(of_parts).max_by_key(severity).unwrap_or_default() {
        QueueState::Up => "up",
        QueueState::Done => "done",
        QueueState::Down => "down",
        QueueState::Gone => "gone",
    }
}

fn port(reading: &PortReading, queues: Option<&PortMeter>, link: &str, control: &dyn PortControl) -> Port {
    let info = queues.and_then(|queues| queues.info.as_ref());
    let interface = info.and_then(|info| info.interface.as_ref());
    let mac = interface.and_then(|interface| interface.mac);
    let (rx_queues, tx_queues) = queues.map_or((0, 0), |meter| (meter.rx.len(), meter.tx.len()));
    Port {
        name: reading.name.clone(),
        kind: reading.name.split(':').next().unwrap_or_default().into(),
        layer: match info.map_or(Layer::Any, |info| info.layer) {
            Layer::Ethernet => "ethernet",
            Layer::Ip => "ip",
            Layer::Any => "any",
        }
        .into(),
        mtu: info.map_or(0, |info| info.mtu),
        mac: mac.map(|mac| MacText(mac).to_string()),
        interface: interface.map(|interface| interface.name.clone()),
        netns: info.and_then(|info| info.netns.clone()),
        link: link.into(),
        rx: direction(&reading.rx, rx_queues),
        tx: direction(&reading.tx, tx_queues),
        egress: losses(&reading.routes),
        events: control.events().into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| (name.into(), n)).collect(),
        settings: control
            .settings()
            .into_iter()
            .map(|one| Setting { name: one.name.into(), value: one.value.to_string(), what: one.what.into() })
            .collect(),
        usage: control
            .usage()
            .into_iter()
            .map(|one| Usage {
                user: one.user,
                resource: one.resource.into(),
                now: one.now,
                peak: one.peak,
                limit: one.limit,
            })
            .collect(),
        sessions: control.session_log(),
        rate: control.pacing(Instant::now()).map(|rate| Rate {
            asked: rate.asked,
            reached: rate.reached,
            given_up: rate.given_up,
        }),
        verified: control.verified().map(verified).unwrap_or_default(),
    }
}

fn verified(found: towpath::packet::port::Verified) -> BTreeMap<String, u64> {
    let all = [
        ("arrived", found.arrived),
        ("lost", found.lost),
        ("before_first", found.before_first),
        ("outstanding", found.outstanding),
        ("late", found.late),
        ("twice", found.twice),
        ("too_old", found.too_old),
        ("foreign", found.foreign),
    ];
    all.map(|(name, n)| (name.to_owned(), n)).into()
}

fn drops(counters: &Snapshot) -> BTreeMap<String, u64> {
    counters.drops().map(|(reason, n)| (reason.name().to_owned(), n)).collect()
}

fn direction(counters: &Snapshot, queues: usize) -> Direction {
    let missed = counters.missed();
    Direction {
        queues,
        packets: counters.packets,
        bytes: counters.bytes,
        calls: counters.calls,
        retries: counters.retries,
        errors: counters.errors,
        copied: counters.copied,
        copied_bytes: counters.copied_bytes,
        drops: drops(counters),
        missed: missed
            .map(|(place, packets)| Missed { place: place.name().into(), packets, remedy: place.remedy().into() })
            .collect(),
    }
}

fn losses(counters: &Snapshot) -> Losses {
    let Snapshot { split, merged, copied, .. } = *counters;
    Losses { drops: drops(counters), split, merged, copied }
}

/// A route between two ports.
fn between(meter: &RouteMeter, observer: &Observer) -> Route {
    let side = if meter.id.side == PortSide::A { "a" } else { "b" };
    let name = match meter.lane {
        Some(lane) => format!("{side}.lane{lane}"),
        None => format!("{side}.{}", meter.id.pair),
    };
    let from = observer.infos().get(meter.id.side as usize).map_or_else(String::new, |info| info.name.clone());
    route(meter, name, from)
}

fn route(meter: &RouteMeter, name: String, from: String) -> Route {
    let samples = &meter.samples;
    let times = samples.latency();
    let buckets = times.buckets.iter().enumerate().filter(|(_, packets)| **packets > 0);
    let mut flows: Vec<_> = samples.flows().iter().map(flow).collect();
    flows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.from.cmp(&b.from)));
    Route {
        name,
        from,
        worker: meter.worker,
        core: meter.core,
        lane: meter.lane,
        packets: samples.packets(),
        bursts: samples.bursts(),
        losses: losses(&meter.counters.snapshot()),
        latency: Latency {
            packets: times.buckets.iter().sum(),
            seconds: times.total_ns as f64 / 1e9,
            buckets: buckets.map(|(i, packets)| Bucket { below_ns: 1 << i, packets: *packets }).collect(),
        },
        flows,
    }
}

fn flow(count: &FlowCount) -> Flow {
    let key = &count.key;
    let protocol = match (key.protocol, count.ethertype) {
        (6, _) => "tcp".into(),
        (17, _) => "udp".into(),
        (132, _) => "sctp".into(),
        (1, 0x0800) => "icmp".into(),
        (58, 0x86dd) => "icmp6".into(),
        (_, 0x0806) => "arp".into(),
        (n, 0x0800 | 0x86dd) => format!("ip {n}"),
        (0, ethertype) => format!("0x{ethertype:04x}"),
        (n, _) => format!("ip {n}"),
    };
    let is_ip = key.src != Ipv6Addr::UNSPECIFIED || key.dst != Ipv6Addr::UNSPECIFIED;
    let end = |address: Ipv6Addr, port: u16| {
        let address = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
        match (is_ip, matches!(key.protocol, 6 | 17 | 132)) {
            (false, _) => String::new(),
            (true, true) => SocketAddr::new(address, port).to_string(),
            (true, false) => address.to_string(),
        }
    };
    let (from, to) = (end(key.src, key.src_port), end(key.dst, key.dst_port));
    Flow { protocol, from, to, packets: count.packets, at_most: count.at_most, bytes: count.bytes }
}

fn lanes(observer: &Observer) -> Vec<Lane> {
    let Some(table) = observer.lane_table() else { return Vec::new() };
    let mut lanes: Vec<_> = (0..table.lanes()).map(|lane| Lane { lane, buckets: 0, packets: 0 }).collect();
    for (bucket, packets) in table.loads().into_iter().enumerate() {
        if let Some(lane) = lanes.get_mut(usize::from(table.lane(bucket))) {
            lane.buckets += 1;
            lane.packets += packets;
        }
    }
    lanes
}

fn gro(reading: &GroReading) -> Gro {
    let GroReading { packets, merged, aggregates, bypassed, bytes, .. } = *reading;
    let size = |(bound, aggregates): (&u32, &u64)| Size {
        up_to: (*bound != u32::MAX).then_some(*bound),
        aggregates: *aggregates,
    };
    Gro {
        packets,
        merged,
        aggregates,
        aside: bypassed,
        flushed: reading.flushed().map(|(reason, n)| (reason.to_owned(), n)).collect(),
        bytes,
        sizes: SIZES.iter().zip(&reading.sizes).map(size).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath::{Bridge, BridgePort, Forward, Opener, Role};

    #[test]
    fn the_document_of_a_run_agrees_with_its_summary() {
        let mut opener = Opener::new();
        let from = opener.open(&"gen:count=6400,size=100,flows=3".parse().unwrap(), Role::Ingress).unwrap();
        let to = opener.open(&"null:".parse().unwrap(), Role::Egress).unwrap();
        let ready = Forward::default().prepare(from, to).unwrap();
        let observer = ready.observer().clone();
        observer.watch_flows();
        let summary = ready.launch().unwrap().join();
        let state = gather(&[("it".into(), observer)]);
        let [unit] = &state.units[..] else { panic!("{state:?}") };
        assert_eq!(unit.name, "it");
        assert_eq!((unit.ports[0].kind.as_str(), unit.ports[0].link.as_str()), ("gen", "done"));
        assert_eq!((unit.ports[0].rx.packets, unit.ports[1].tx.packets), (6400, summary.reading.balance().sent));
        assert_eq!((unit.routes[0].packets, unit.routes[0].name.as_str()), (6400, "a.0"));
        assert!(unit.routes[0].latency.packets > 0 && unit.routes[0].latency.seconds > 0.0);
        assert_eq!(unit.routes[0].flows.len(), 3, "{:?}", unit.routes[0].flows);
        assert!(unit.routes[0].flows[0].from.contains(':'), "{:?}", unit.routes[0].flows);
        assert_eq!((unit.in_flight, unit.pools[0].free, unit.lanes.len()), (0, unit.pools[0].capacity, 0));
    }

    #[test]
    fn ports_of_a_bridge_have_links_times_and_flows_also_those_that_left() {
        let open = |uri: &str| Opener::new().open(&uri.parse().unwrap(), Role::Both).unwrap();
        let port = |name: &str, uri: &str| (BridgePort::named(name), open(uri));
        let feed = port("feed", "gen:count=6400,size=100,flows=3");
        let mut bridge = Bridge::default();
        bridge.endless = true;
        let ready = bridge.prepare(vec![feed, port("out", "null:")]).unwrap();
        let observer = ready.observer().clone();
        observer.watch_flows();
        let running = ready.launch().unwrap();
        let (config, later) = port("later", "null:");
        running.bridge().unwrap().attach(config, later).unwrap();
        let until = |holds: &dyn Fn(&Unit) -> bool| {
            let end = Instant::now() + std::time::Duration::from_secs(60);
            loop {
                let mut state = gather(&[("it".into(), observer.clone())]);
                let unit = state.units.remove(0);
                if holds(&unit) {
                    return unit;
                }
                assert!(Instant::now() < end, "{unit:?}");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        let links = |unit: &Unit| unit.ports.iter().map(|port| port.link.clone()).collect::<Vec<_>>();
        // Links are read later than routes.
        let unit = until(&|unit| links(unit) == ["done", "up", "up"] && unit.routes[0].packets == 6400);
        assert_eq!((unit.ports[2].layer.as_str(), unit.ports[2].mtu > 0), ("any", true));
        assert_eq!((unit.routes[0].name.as_str(), unit.routes[0].from.as_str()), ("feed.0", "feed"));
        assert_eq!(unit.routes[0].flows.len(), 3);
        assert!(unit.routes[0].latency.packets > 0);
        running.bridge().unwrap().detach("later").unwrap();
        until(&|unit| links(unit) == ["done", "up", "gone"]);
        running.stop();
    }
}
