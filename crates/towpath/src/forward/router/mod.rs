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
//! | `control` | [`RouterControl`]: ports, routes and neighbours while it runs |
//! | `mirror` | the thread that follows a kernel |

mod control;
mod mirror;

pub use control::{RouteSource, RouterControl, RouterPortReading};
pub use towpath_engine::router::Route as RouterRoute;
pub use towpath_engine::router::neighbour::Neighbour;

use super::bridge::check_pass_or_drop;
use super::check::common_layer;
use super::hub::refuse;
use super::hub::{HubPorts, HubSettings, Parts};
use super::observer::Observed;
use super::plan::Placement;
use super::ready::Work;
use super::running::PortEnds;
use super::{Forward, Gso, PortControls, Ready, Running, StartError, Verdicts};
use crate::any::{AnyPort, AnyRx, AnyTx};
use control::{Member, RouterShared, fib_of, start_control, start_interface, with_connected};
use mirror::Mirror;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_engine::gro_stage::GroStageConfig;
use towpath_engine::hub::Hub;
use towpath_engine::idle::Idle;
use towpath_engine::report::Meter;
use towpath_engine::route::Limit;
use towpath_engine::router::neighbour::{Key, NeighbourConfig, Neighbours, Outcome, Resolver, State};
use towpath_engine::router::{self, Interface, Publisher, RouterConfig, RouterPort};
use towpath_packet::port::{Layer, Needs, Port};
use towpath_packet::{Direction, Offloads, Pool, PoolConfig};

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
/// // The subnet, the address, the broadcast address.
/// assert_eq!(running.router().unwrap().routes(), 3);
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
    /// How long held packets get to leave after a stop, or when their port is detached.
    pub drain: Duration,
    /// Verdicts on packets that interfaces receive: pass or drop.
    pub at_rx: Verdicts,
    /// Coalescing, for each egress.
    pub gro: GroStageConfig,
    /// Whether egresses get super-packets.
    pub gso: Gso,
    /// Stop after this many packets, of all ports together.
    pub count: Option<u64>,
    /// Go on when no port delivers anything any more: others are [attached](RouterControl::attach)
    /// later.
    pub endless: bool,
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
            endless: false,
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

    /// The name of the interface.
    fn name(&self) -> &str {
        if self.interface.name.is_empty() { &self.port.info().name } else { &self.interface.name }
    }

    /// The interface of this number as it is before a mirror has read the kernel's; `control`: the
    /// number of its control port.
    fn member(&self, number: usize, control: Option<usize>) -> Result<Member, StartError> {
        let (given, info) = (&self.interface, self.port.info());
        let own = info.interface.as_ref().and_then(|interface| interface.source_mac());
        let chosen = [2, 0x74, 0x70, 0, (number >> 8) as u8, number as u8];
        let mac = given.mac.or(own).unwrap_or(chosen);
        if mac[0] & 1 != 0 {
            return refuse("mac", format!("{mac:02x?}"), "must not be that of a group");
        }
        let mtu = given.mtu.unwrap_or(info.mtu).min(info.mtu);
        if mtu < 68 {
            return refuse("mtu", mtu.to_string(), "must be at least 68");
        }
        let mut addresses = given.addresses.clone();
        for (address, len) in &addresses {
            if *len > if address.is_ipv4() { 32 } else { 128 } || address.is_unspecified() || address.is_multicast() {
                return refuse("address", format!("{address}/{len}"), "must be of a host, with a length");
            }
        }
        let is_local = |(address, _): &(IpAddr, u8)| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if !addresses.iter().any(is_local) && addresses.iter().any(|(address, _)| address.is_ipv6()) {
            addresses.push((link_local(mac).into(), 128));
        }
        let control = control.map(|number| number as u16);
        let interface = Interface { name: self.name().to_owned(), mac, mtu, addresses, control };
        let tap = self.control.as_ref().and_then(|tap| Some(tap.info().interface.as_ref()?.index));
        Ok(Member { interface, tap })
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
        neighbour.resolver = if controls > 0 { Resolver::Kernel } else { Resolver::Own };
        let thread = |source| StartError::Thread { worker: 0, source };
        let neighbours = Arc::new(Neighbours::new(neighbour).map_err(thread)?);
        let all = || ports.iter().flat_map(|port| [Some(&port.port), port.control.as_ref()]).flatten();
        let needs = all().fold(Needs::default(), |needs, port| needs.and(port.needs()));
        let infos: Vec<_> = all().map(|port| port.info().clone()).collect();
        let count = ports.len();
        let mut interfaces = Vec::<Option<Member>>::new();
        for (number, port) in ports.iter().enumerate() {
            self.check_ports(port)?;
            if interfaces.iter().flatten().any(|known| known.interface.name == port.name()) {
                return refuse("port", port.name(), "is the name of another port of the router: give it its own");
            }
            interfaces.push(Some(port.member(number, port.control.is_some().then_some(count + number))?));
        }
        let shown = if controls > 0 { Vec::new() } else { with_connected(&interfaces, &self.routes) };
        let fib = Publisher::new(fib_of(&interfaces, &shown)?);
        let pool = Pool::new(plan.pool.for_ports(&infos))?;
        let limit = self.count.map(|n| Arc::new(Limit::new(n)));
        let (mut hubs, mut own) = (Vec::new(), Vec::new());
        for _ in 0..self.workers.max(1) {
            let cache = pool.cache(Direction::Tx)?;
            let switch = router::Router::new(fib.reader(), neighbours.clone(), cache, self.config);
            own.push(switch.counters().clone());
            let hub = Hub::new(switch).map_err(thread)?;
            let hub = if self.endless { hub.endless() } else { hub };
            hubs.push(limit.iter().fold(hub, |hub, limit| hub.with_limit(limit.clone())));
        }
        // What belongs to no port is counted with the first one.
        let meter = Meter::new(Vec::new(), pool.clone()).with_shared(own);
        let (port_controls, ends) = (PortControls::default(), PortEnds::default());
        let settings = HubSettings {
            what: "router",
            most: 2 * MAX_PORTS,
            pool,
            workers: self.workers,
            cores: self.cores.clone(),
            egress_wait: self.egress_wait,
            drain: self.drain,
            gso: self.gso,
            gro: self.gro,
            meter: meter.clone(),
            controls: port_controls.clone(),
            ends: ends.clone(),
        };
        let hub_ports = HubPorts::new(settings, &hubs);
        let accept = infos.iter().fold(Offloads::NONE, |all, info| all.with(info.tx_offloads)).and(self.gso.allows());
        {
            let mut members = hub_ports.lock();
            let add = |hubs: &mut Vec<AnyRouterHub>, number, parts: Parts<RouterPort>| {
                hubs.iter_mut().zip(parts).for_each(|(hub, part)| hub.add(number, part));
            };
            let mut control_ports = Vec::new();
            for ((number, ports), member) in ports.into_iter().enumerate().zip(interfaces.iter().flatten()) {
                let port = (ports.port, member.interface.name.as_str(), number);
                add(&mut hubs, number, start_interface(&self, &hub_ports, &mut members, port, accept)?);
                control_ports.extend(ports.control.map(|port| (port, &member.interface, number)));
            }
            for (port, interface, of) in control_ports {
                let port = (port, interface, count + of);
                add(&mut hubs, count + of, start_control(&hub_ports, &mut members, port, of, accept)?);
            }
        }
        let mut out = Outcome::default();
        for (port, address, mac) in &self.neighbours {
            if usize::from(*port) >= count {
                return refuse("neighbour", address.to_string(), format!("there is no interface {port}"));
            }
            let key = Key { port: *port, address: *address };
            neighbours.set(key, *mac, State::Permanent, Instant::now(), &mut out);
        }
        let shared = Arc::new(RouterShared::new(fib, neighbours, self.routes.clone(), interfaces));
        let mirror = if controls > 0 { Some(Mirror::start(&shared, self.netns.as_deref())?) } else { None };
        let mut threads = Vec::<(Placement, Work)>::new();
        for (number, hub) in hubs.into_iter().enumerate() {
            let core = self.cores.get(number);
            let placement = core.map_or(Placement::Worker(number), |&core| Placement::Core(core));
            threads.push((placement, Work::Router(Box::new(hub))));
        }
        let hits = self.at_rx.hits().into_iter().collect();
        let tees = hub_ports.tees();
        let router = Some(RouterControl::new(self, shared, mirror, hub_ports));
        let observed = Observed { notes: Vec::new(), controls: port_controls, infos, bridge: None, router, tees };
        Ok(Ready::new(plan, threads, meter, observed, None, ends, needs).with_hits(hits))
    }

    /// Checks ports against the router.
    fn check_ports(&self, ports: &RouterPorts) -> Result<(), StartError> {
        let plan = self.forward();
        for info in [Some(&ports.port), ports.control.as_ref()].into_iter().flatten().map(Port::info) {
            if common_layer(info, info)? == Layer::Ip {
                return refuse("port", info.name.clone(), "carries IP packets without Ethernet: use a tap");
            }
            plan.check(info, info)?;
        }
        Ok(())
    }

    /// Checks the verdicts on received packets, as a start does: they pass or are dropped, and
    /// routes decide where they go.
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
}

#[cfg(test)]
mod tests;
