//! Joins several ports by an IP router.
//!
//! ```text
//!   worker i:  queue i of every port ──► hub ──► queue i of every port
//!                                         │
//!              routes: a snapshot, replaced as a whole        neighbours: one set for all workers
//!                         ▲                                                 ▲
//!                         └──── RouterControl, or the mirror of a kernel ───┘
//! ```
//!
//! A port may have a control port: a tap in the network namespace whose kernel is the control
//! plane. The router then takes the addresses, routes and neighbours of that kernel, so that a
//! routing daemon runs there as it is.
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`Router`]: its settings and its start |
//! | `control` | [`RouterControl`]: routes and neighbours while it runs |
//! | `mirror` | the thread that follows a kernel |

mod control;
mod mirror;

pub use control::{RouteSource, RouterControl};
pub use towpath_engine::router::Route as RouterRoute;
pub use towpath_engine::router::neighbour::Neighbour;

use super::bridge::{check_pass_or_drop, refuse};
use super::check::common_layer;
use super::failure::PortEnd;
use super::hub::HubSettings;
use super::observer::Observed;
use super::plan::Placement;
use super::ready::Work;
use super::running::PortEnds;
use super::{Forward, Gso, PortControls, Ready, Running, StartError, Verdicts};
use crate::any::{AnyPort, AnyRx, AnyTx};
use crate::tee::Teeable;
use control::Shared;
use mirror::Mirror;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_engine::gro_stage::GroStageConfig;
use towpath_engine::hub::{Hub, HubPort};
use towpath_engine::idle::Idle;
use towpath_engine::report::Meter;
use towpath_engine::route::Limit;
use towpath_engine::router::neighbour::{Finder, Key, NeighbourConfig, Neighbours, Outcome, State};
use towpath_engine::router::{self, Fib, Interface, Publisher, RouterConfig, RouterPort};
use towpath_engine::rules::PortSide;
use towpath_packet::port::{Layer, Needs, Port};
use towpath_packet::{Direction, Offloads, PoolConfig};

pub(super) type AnyRouterHub = Hub<AnyRx, AnyTx, router::Router>;

/// Most ports, without control ports.
const MAX_PORTS: usize = 256;
/// Caches of a pool: each worker has some for each port.
const MAX_CACHES: usize = 1024;

/// An IP router. Change fields of the default.
///
/// ```
/// use towpath::{Opener, Role, Router, RouterInterface, RouterPorts};
///
/// let mut opener = Opener::new();
/// let mut port = |uri: &str| opener.open(&uri.parse().unwrap(), Role::Both);
/// let mut lan = RouterInterface::named("lan");
/// lan.addresses = vec![("192.0.2.1".parse()?, 24)];
/// let ports = vec![RouterPorts::new(lan, port("null:")?)];
/// let running = Router::default().prepare(ports)?.launch()?;
/// assert_eq!(running.router().unwrap().routes(), 3, "the subnet, the address, the broadcast address");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Router {
    /// Number of threads; each runs one queue of every port.
    pub workers: u16,
    /// Cores of the workers, in order; workers without one are left to the scheduler.
    pub cores: Vec<usize>,
    /// What a worker does while no packet moves.
    pub idle: Idle,
    /// How long an egress may refuse packets before they are dropped.
    pub egress_wait: Duration,
    /// How long held packets get to leave after a stop.
    pub drain: Duration,
    /// Verdicts on packets that interfaces receive: pass or drop.
    pub at_rx: Verdicts,
    /// Coalescing, for each egress.
    pub gro: GroStageConfig,
    /// Whether egresses get super-packets.
    pub gso: Gso,
    /// Stop after this many packets, of all ports together.
    pub count: Option<u64>,
    /// The buffer pool.
    pub pool: PoolConfig,
    /// Routes besides those that follow from addresses; hops name interfaces by their positions.
    pub routes: Vec<RouterRoute>,
    /// Neighbours that are not asked for: position of the interface, address, Ethernet address.
    pub neighbours: Vec<(u16, IpAddr, [u8; 6])>,
    /// Times and limits of neighbours.
    pub neighbour: NeighbourConfig,
    /// The pace of ICMP errors.
    pub config: RouterConfig,
    /// The network namespace whose kernel is mirrored, if ports have control ports; `None`: that of
    /// the caller.
    pub netns: Option<String>,
}

impl Default for Router {
    /// One worker that sleeps when idle, no routes; all else as in [`Forward`].
    fn default() -> Router {
        let Forward { workers, cores, idle, egress_wait, drain, at_rx, gro, gso, count, pool, .. } = Forward::default();
        let (routes, neighbours, netns) = (Vec::new(), Vec::new(), None);
        let (neighbour, config) = (NeighbourConfig::default(), RouterConfig::default());
        Router {
            workers,
            cores,
            idle,
            egress_wait,
            drain,
            at_rx,
            gro,
            gso,
            count,
            pool,
            routes,
            neighbours,
            neighbour,
            config,
            netns,
        }
    }
}

/// An interface of a router. Change fields of the default.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RouterInterface {
    /// Its name in the router; empty: that of the port, `tap:tp0`.
    pub name: String,
    /// Its addresses with the lengths of their subnets. A link-local IPv6 address is added if there
    /// is none. An interface with a control port has those of the tap.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Its Ethernet address; `None`: that of the port's interface, or one of the router's choice.
    pub mac: Option<[u8; 6]>,
    /// Longest IP packet; `None`: what the port takes.
    pub mtu: Option<u32>,
}

impl RouterInterface {
    /// An interface with a name of its own.
    pub fn named(name: impl Into<String>) -> RouterInterface {
        RouterInterface { name: name.into(), ..RouterInterface::default() }
    }
}

/// An interface with its port, and its control port if there is one.
#[derive(Debug)]
#[non_exhaustive]
pub struct RouterPorts {
    /// The interface.
    pub interface: RouterInterface,
    /// Its port.
    pub port: AnyPort,
    /// A tap in the mirrored namespace.
    pub control: Option<AnyPort>,
}

impl RouterPorts {
    /// An interface without a control port.
    pub fn new(interface: RouterInterface, port: AnyPort) -> RouterPorts {
        RouterPorts { interface, port, control: None }
    }

    /// With a control port.
    #[must_use]
    pub fn with_control(mut self, control: AnyPort) -> RouterPorts {
        self.control = Some(control);
        self
    }
}

/// The link-local address that follows from a MAC address (RFC 4291, appendix A).
fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    let word = |high: u8, low: u8| u16::from(high) << 8 | u16::from(low);
    Ipv6Addr::new(0xfe80, 0, 0, 0, word(a ^ 2, b), word(c, 0xff), word(0xfe, d), word(e, f))
}

impl Router {
    /// Starts the ports and the workers.
    ///
    /// # Errors
    /// [`StartError`]; then nothing runs, and everything is undone.
    pub fn start(self, ports: Vec<RouterPorts>) -> Result<Running, StartError> {
        self.prepare(ports)?.launch()
    }

    /// Starts the ports, but no worker: nothing moves until [`Ready::launch`].
    ///
    /// # Errors
    /// [`StartError`]; then everything is undone.
    pub fn prepare(self, ports: Vec<RouterPorts>) -> Result<Ready, StartError> {
        let plan = self.forward();
        self.check_rules()?;
        if ports.is_empty() || ports.len() > MAX_PORTS {
            return refuse("ports", ports.len().to_string(), format!("a router has 1 to {MAX_PORTS}"));
        }
        let controls = ports.iter().filter(|port| port.control.is_some()).count();
        if controls > 0 && controls < ports.len() {
            return refuse("control", controls.to_string(), "every port of a router has a control port, or none has");
        }
        let mut neighbour = self.neighbour;
        neighbour.finder = if controls > 0 { Finder::Kernel } else { Finder::Own };
        let thread = |source| StartError::Thread { worker: 0, source };
        let neighbours = Arc::new(Neighbours::new(neighbour).map_err(thread)?);
        let all = || ports.iter().flat_map(|port| [Some(&port.port), port.control.as_ref()]).flatten();
        let needs = all().fold(Needs::default(), |needs, port| needs.and(port.needs()));
        let infos: Vec<_> = all().map(|port| port.info().clone()).collect();
        for info in &infos {
            if common_layer(info, info)? == Layer::Ip {
                return refuse("port", info.name.clone(), "carries IP packets without Ethernet: use a tap");
            }
            plan.check(info, info)?;
        }
        let interfaces = self.interfaces(&ports)?;
        let shown = if controls > 0 { Vec::new() } else { self.all_routes(&interfaces) };
        let fib = Fib::new(interfaces.iter().cloned().map(Some).collect(), &shown);
        let fib = match fib {
            Ok(fib) => Publisher::new(fib),
            Err(error) => return refuse("route", "", error.to_string()),
        };
        let pool = plan.pool_for(&infos.iter().collect::<Vec<_>>())?;
        let meter = Meter::new(Vec::new(), pool.clone());
        let (settings, ends) = (PortControls::default(), PortEnds::default());
        let limit = self.count.map(|n| Arc::new(Limit::new(n)));
        let (mut hubs, mut own) = (Vec::new(), Vec::new());
        for _ in 0..self.workers.max(1) {
            let cache = pool.cache(Direction::Tx)?;
            let switch = router::Router::new(fib.reader(), neighbours.clone(), cache, self.config);
            own.push(switch.counters().clone());
            let hub = Hub::new(switch).map_err(thread)?;
            hubs.push(limit.iter().fold(hub, |hub, limit| hub.with_limit(limit.clone())));
        }
        let indices = ports.iter().map(|port| Some(port.control.as_ref()?.info().interface.as_ref()?.index)).collect();
        let accept = infos.iter().fold(Offloads::NONE, |all, info| all.with(info.tx_offloads)).and(self.gso.allows());
        let many = ports.len();
        let (mut slots, mut watched) = (Vec::new(), Vec::new());
        let (workers, egress_wait, gso) = (self.workers, self.egress_wait, self.gso);
        let hub = HubSettings { pool: &pool, workers, egress_wait, gso, gro: &self.gro };
        for (number, RouterPorts { port, control, .. }) in ports.into_iter().enumerate() {
            let of = number as u16;
            let interface = (number, port, interfaces.get(number).map_or_else(String::new, |i| i.name.clone()));
            let control = control.map(|port| (many + number, port, format!("{} (control)", interface.2)));
            for (number, port, name) in [Some(interface), control].into_iter().flatten() {
                let state = if number < many { RouterPort::Interface } else { RouterPort::Control { of } };
                let mut info = port.info().clone();
                info.name = name;
                ends.set(number, PortEnd::new(&info, matches!(port, AnyPort::Fault(_))));
                settings.attach(&info.name, port.control());
                let mut started = hub.start(port, &info, accept, (watched.len(), &mut slots), || state)?;
                for (part, hub) in started.parts.into_iter().zip(&mut hubs) {
                    let rules = self.at_rx.classifier(PortSide::A, Layer::Ethernet).filter(|_| number < many);
                    hub.add(number, rules.into_iter().fold(part, HubPort::with_classifier));
                }
                // What belongs to no port is counted with the first one.
                started.row.routes.append(&mut own);
                watched.push(info.name);
                meter.attach(started.row, started.gro, started.memory);
            }
        }
        let mut out = Outcome::default();
        for (port, address, mac) in &self.neighbours {
            if usize::from(*port) >= many {
                return refuse("neighbour", address.to_string(), format!("there is no interface {port}"));
            }
            let key = Key { port: *port, address: *address };
            neighbours.set(key, *mac, State::Permanent, Instant::now(), &mut out);
        }
        let shared = Arc::new(Shared::new(fib, neighbours, self.routes.clone(), interfaces));
        let mirror = if controls > 0 { Some(Mirror::start(&shared, self.netns.as_deref(), indices)?) } else { None };
        let control = RouterControl::new(shared, mirror);
        let mut threads = Vec::<(Placement, Work)>::new();
        for (number, hub) in hubs.into_iter().enumerate() {
            let core = self.cores.get(number);
            let placement = core.map_or(Placement::Worker(number), |&core| Placement::Core(core));
            threads.push((placement, Work::Router(Box::new(hub))));
        }
        let tees = Teeable { slots, layer: Layer::Ethernet, interfaces: watched };
        let (notes, router) = (Vec::new(), Some(control));
        let observed = Observed { notes, controls: settings, infos, bridge: None, router, tees };
        let hits = self.at_rx.hits().into_iter().collect();
        Ok(Ready::new(plan, threads, meter, observed, None, ends, needs).with_hits(hits))
    }

    /// Checks the verdicts on received packets, as a start does: they pass or are dropped, and routes
    /// decide where they go.
    ///
    /// # Errors
    /// [`StartError`] names the rule that can't be applied.
    pub fn check_rules(&self) -> Result<(), StartError> {
        check_pass_or_drop(&self.at_rx, "a router finds the port by its routes: its rules pass or drop")
    }

    fn forward(&self) -> Forward {
        let Router { workers, cores, idle, egress_wait, drain, gro, gso, pool, .. } = self.clone();
        let pool = pool.max_caches(MAX_CACHES);
        Forward { workers, cores, idle, egress_wait, drain, gro, gso, pool, ..Forward::default() }
    }

    /// The interfaces as they are before a mirror knows better.
    fn interfaces(&self, ports: &[RouterPorts]) -> Result<Vec<Interface>, StartError> {
        let mut made = Vec::<Interface>::new();
        for (number, RouterPorts { interface, port, control }) in ports.iter().enumerate() {
            let info = port.info();
            let name = if interface.name.is_empty() { info.name.clone() } else { interface.name.clone() };
            let mut one = Interface { name, ..Interface::default() };
            if made.iter().any(|known| known.name == one.name) {
                return refuse("port", one.name, "is the name of another port of the router: give it its own");
            }
            let own = info.interface.as_ref().and_then(|interface| interface.source_mac());
            let chosen = [2, 0x74, 0x70, 0, (number >> 8) as u8, number as u8];
            one.mac = interface.mac.or(own).unwrap_or(chosen);
            if one.mac[0] & 1 != 0 {
                return refuse("mac", format!("{:02x?}", one.mac), "must not be that of a group");
            }
            one.mtu = interface.mtu.unwrap_or(info.mtu).min(info.mtu);
            if one.mtu < 68 {
                return refuse("mtu", one.mtu.to_string(), "must be at least 68");
            }
            one.addresses = interface.addresses.clone();
            for (address, len) in &one.addresses {
                if *len > if address.is_ipv4() { 32 } else { 128 } || address.is_unspecified() || address.is_multicast()
                {
                    return refuse("address", format!("{address}/{len}"), "must be of a host, with a length");
                }
            }
            let is_local =
                |(address, _): &(IpAddr, u8)| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
            if !one.addresses.iter().any(is_local) && one.addresses.iter().any(|(address, _)| address.is_ipv6()) {
                one.addresses.push((link_local(one.mac).into(), 128));
            }
            one.control = control.as_ref().map(|_| (ports.len() + number) as u16);
            made.push(one);
        }
        Ok(made)
    }

    fn all_routes(&self, interfaces: &[Interface]) -> Vec<RouterRoute> {
        control::with_connected(interfaces, &self.routes)
    }
}
