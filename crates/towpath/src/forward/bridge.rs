//! Joins several ports by a learning bridge.
//!
//! ```text
//!   worker i:  queue i of every port ──► hub ──► queue i of every port
//!                                         │
//!                  one forwarding database, shared by the hubs of all workers
//! ```

use super::bridge_control::{AnyHub, BridgeControl};
use super::check::{common_layer, off};
use super::hub::{HubSettings, refuse};
use super::observer::Observed;
use super::plan::Placement;
use super::ready::Work;
use super::running::PortEnds;
use super::{Forward, Gso, PortControls, Ready, Running, StartError, Verdicts};
use crate::any::AnyPort;
use std::sync::Arc;
use std::time::Duration;
use towpath_engine::bridge::fdb::{FdbConfig, MAX_PORTS};
use towpath_engine::bridge::{PortMode, StormLimits};
use towpath_engine::gro_stage::GroStageConfig;
use towpath_engine::idle::Idle;
use towpath_engine::report::Meter;
use towpath_engine::route::Limit;
use towpath_packet::port::{Layer, Port};
use towpath_packet::{Offloads, Pool, PoolConfig};

/// Caches of a pool: each worker has some for each port, and ports are attached later.
const MAX_CACHES: usize = 1024;

/// A learning bridge. Change fields of the default.
///
/// ```
/// use towpath::{Bridge, BridgePort, Opener, Role};
///
/// let mut opener = Opener::new();
/// let mut port = |uri: &str| opener.open(&uri.parse().unwrap(), Role::Both);
/// let ports = vec![
///     (BridgePort::default(), port("gen:count=1000")?),
///     (BridgePort::default(), port("null:")?),
/// ];
/// let summary = Bridge::default().prepare(ports)?.launch()?.join();
/// let balance = summary.reading.balance();
/// assert_eq!((balance.received, balance.in_flight()), (1000, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Bridge {
    /// Number of threads; each runs one queue of every port.
    pub workers: u16,
    /// Cores of the workers, in order; workers without one are left to the scheduler.
    pub cores: Vec<usize>,
    /// What a worker does while no packet moves.
    pub idle: Idle,
    /// How long an egress may refuse packets before they are dropped. The others go on meanwhile.
    pub egress_wait: Duration,
    /// How long held packets get to leave after a stop, or when their port is detached.
    pub drain: Duration,
    /// Packets that may wait for an egress that refuses them; what comes beyond is dropped.
    pub backlog: usize,
    /// Whether the bridge is VLAN-aware. Otherwise it passes tags as they are, and its ports have
    /// no [`mode`](BridgePort::mode).
    pub vlans: bool,
    /// How long an address without a packet stays; zero: for ever.
    pub ageing: Duration,
    /// Most addresses, 1 to 2^24. At the limit new ones are not learned, and counted.
    pub max_entries: usize,
    /// Verdicts on received packets, at ports without some of their own: pass or drop.
    pub at_rx: Verdicts,
    /// Coalescing, for each egress.
    pub gro: GroStageConfig,
    /// Whether egresses get super-packets.
    pub gso: Gso,
    /// Stop after this many packets, of all ports together.
    pub count: Option<u64>,
    /// Go on when no port delivers anything any more: others are [attached](BridgeControl::attach)
    /// later.
    pub endless: bool,
    /// The buffer pool.
    pub pool: PoolConfig,
}

impl Default for Bridge {
    /// One worker that sleeps when idle, no VLANs, 131072 addresses that age in 300 seconds; all
    /// else as in [`Forward`].
    fn default() -> Bridge {
        let Forward { workers, cores, idle, egress_wait, drain, at_rx, gro, gso, count, pool, .. } = Forward::default();
        let FdbConfig { max_entries, ageing, .. } = FdbConfig::default();
        let (backlog, vlans, endless) = (512, false, false);
        Bridge {
            workers,
            cores,
            idle,
            egress_wait,
            drain,
            backlog,
            vlans,
            ageing,
            max_entries,
            at_rx,
            gro,
            gso,
            count,
            endless,
            pool,
        }
    }
}

/// A port of a bridge. Change fields of the default.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct BridgePort {
    /// Its name in the bridge; empty: that of the port, `tap:tp0`.
    pub name: String,
    /// Its part in VLANs; of a bridge that ignores them, [`PortMode::Plain`].
    pub mode: PortMode,
    /// Ports of one group do not exchange frames (split horizon); 0: no group.
    pub group: u16,
    /// Most addresses behind the port; `None`: only the bridge's own limit.
    pub max_entries: Option<u32>,
    /// How many frames per second it may have flooded.
    pub storm: StormLimits,
    /// Addresses that neither age nor move, each with its VLAN: 0 if the bridge ignores them.
    pub static_macs: Vec<(u16, [u8; 6])>,
    /// Verdicts on the packets that it receives: pass or drop. [`Verdicts::Pass`]: those of the
    /// bridge.
    pub at_rx: Verdicts,
}

impl BridgePort {
    /// A port with a name of its own.
    pub fn named(name: impl Into<String>) -> BridgePort {
        BridgePort { name: name.into(), ..BridgePort::default() }
    }
}

const RULE: &str = "a bridge finds the port by the address: its rules pass or drop";

/// Checks verdicts on received frames where something else decides the way; `rule`: what does.
pub(super) fn check_pass_or_drop(verdicts: &Verdicts, rule: &str) -> Result<(), StartError> {
    use towpath_engine::rules::PortSide::{A, B};
    let Some(rules) = verdicts.rules() else { return Ok(()) };
    rules.check(Layer::Ethernet.into(), 0)?;
    match rules.first_reflecting(A).or(rules.first_reflecting(B)) {
        Some(first) => refuse("rule", first, rule),
        None => Ok(()),
    }
}

impl Bridge {
    /// Starts the ports and the workers.
    ///
    /// # Errors
    /// [`StartError`]; then nothing runs, and everything is undone.
    pub fn start(self, ports: Vec<(BridgePort, AnyPort)>) -> Result<Running, StartError> {
        self.prepare(ports)?.launch()
    }

    /// Starts the ports, but no worker: nothing moves until [`Ready::launch`]. There may be no port
    /// at all: they can be [attached](BridgeControl::attach).
    ///
    /// # Errors
    /// [`StartError`]; then everything is undone.
    pub fn prepare(self, ports: Vec<(BridgePort, AnyPort)>) -> Result<Ready, StartError> {
        let plan = self.forward();
        let needs = ports
            .iter()
            .fold(Default::default(), |needs: towpath_packet::port::Needs, (_, port)| needs.and(port.needs()));
        let infos: Vec<_> = ports.iter().map(|(_, port)| port.info().clone()).collect();
        if ports.len() > MAX_PORTS {
            return refuse("ports", ports.len().to_string(), format!("there can be {MAX_PORTS}"));
        }
        if !(1..=towpath_engine::bridge::fdb::MAX_ENTRIES).contains(&self.max_entries) {
            let rule = format!("must be from 1 to {}", towpath_engine::bridge::fdb::MAX_ENTRIES);
            return refuse("max-entries", self.max_entries.to_string(), rule);
        }
        self.check_rules()?;
        let pool = Pool::new(plan.pool.for_ports(&infos))?;
        let meter = Meter::new(Vec::new(), pool.clone());
        let (controls, ends) = (PortControls::default(), PortEnds::default());
        let limit = self.count.map(|n| Arc::new(Limit::new(n)));
        let mut hits: Vec<_> = self.at_rx.hits().into_iter().collect();
        hits.extend(ports.iter().filter_map(|(port, _)| port.at_rx.hits()));
        let cores = self.cores.clone();
        let settings = HubSettings {
            what: "bridge",
            most: MAX_PORTS,
            pool,
            workers: self.workers,
            cores: cores.clone(),
            egress_wait: self.egress_wait,
            drain: self.drain,
            gso: self.gso,
            gro: self.gro,
            meter: meter.clone(),
            controls: controls.clone(),
            ends: ends.clone(),
        };
        // All at once: what one port may deliver depends on what the others take.
        let accept = infos.iter().fold(Offloads::NONE, |all, info| all.with(info.tx_offloads)).and(self.gso.allows());
        let (control, mut hubs) = BridgeControl::new(self, settings, limit)?;
        let mut named = infos.clone();
        for (at, (mut port, opened)) in ports.into_iter().enumerate() {
            let info = opened.info();
            if port.name.is_empty()
                && let Some(netns) = &info.netns
                && infos.iter().filter(|other| other.name == info.name).count() > 1
            {
                // Interfaces of the same name in different network namespaces.
                port.name = format!("{}?netns={netns}", info.name);
            }
            if !port.name.is_empty() {
                named[at].name.clone_from(&port.name);
            }
            control.add(port, opened, accept, &mut hubs)?;
        }
        let mut threads = Vec::<(Placement, Work)>::new();
        for (number, hub) in hubs.into_iter().enumerate() {
            let placement = cores.get(number).map_or(Placement::Worker(number), |&core| Placement::Core(core));
            threads.push((placement, Work::Hub(Box::new(hub))));
        }
        let mut notes: Vec<_> = infos
            .iter()
            .flat_map(|info| info.abilities.iter().filter(|ability| !ability.on).map(|ability| off(info, ability)))
            .collect();
        let mtus = || infos.iter().filter(|info| info.layer != Layer::Any);
        if let (Some(least), Some(most)) = (mtus().min_by_key(|info| info.mtu), mtus().max_by_key(|info| info.mtu))
            && least.mtu < most.mtu
        {
            notes.push(format!(
                "{} has an MTU of {}, {} of {}: longer packets for the first are dropped as too-long",
                least.name, least.mtu, most.name, most.mtu
            ));
        }
        let tees = control.tees();
        let observed = Observed { notes, controls, infos: named, bridge: Some(control), router: None, tees };
        Ok(Ready::new(plan, threads, meter, observed, None, ends, needs).with_hits(hits))
    }

    /// The same settings as they are checked and used for two ports.
    pub(super) fn forward(&self) -> Forward {
        let Bridge { workers, cores, idle, egress_wait, drain, gro, gso, pool, .. } = self.clone();
        let pool = pool.max_caches(MAX_CACHES);
        Forward { workers, cores, idle, egress_wait, drain, gro, gso, pool, ..Forward::default() }
    }

    /// The verdicts that a port's packets get.
    pub(super) fn verdicts<'a>(&'a self, port: &'a BridgePort) -> &'a Verdicts {
        if matches!(port.at_rx, Verdicts::Pass) { &self.at_rx } else { &port.at_rx }
    }

    /// Checks the verdicts on received packets, as a start does: they pass or are dropped, and the
    /// table decides where they go.
    ///
    /// # Errors
    /// [`StartError`] names the rule that can't be applied.
    pub fn check_rules(&self) -> Result<(), StartError> {
        check_pass_or_drop(&self.at_rx, RULE)
    }

    /// Checks a port against the bridge.
    pub(super) fn check_port(&self, port: &BridgePort, opened: &AnyPort) -> Result<(), StartError> {
        let info = opened.info();
        if common_layer(info, info)? == Layer::Ip {
            return refuse(
                "port",
                info.name.clone(),
                "carries IP packets without the addresses of Ethernet: use a tap",
            );
        }
        self.forward().check(info, info)?;
        check_pass_or_drop(&port.at_rx, RULE)?;
        match &port.mode {
            PortMode::Plain => {}
            _ if !self.vlans => {
                return refuse("mode", format!("{:?}", port.mode), "the bridge ignores VLANs: set `vlans`");
            }
            PortMode::Access(1..=4094) => {}
            PortMode::Access(vlan) => return refuse("access", vlan.to_string(), "must be a VLAN from 1 to 4094"),
            PortMode::Trunk { native: Some(vlan @ (0 | 4095..)), .. } => {
                return refuse("native", vlan.to_string(), "must be a VLAN from 1 to 4094");
            }
            PortMode::Trunk { vlans, native: None } if vlans.is_empty() => {
                return refuse("trunk", "", "must have one VLAN, or more: 10+100-199");
            }
            _ => {}
        }
        let is_wrong = |(vlan, mac): &&(u16, [u8; 6])| mac[0] & 1 != 0 || (*vlan == 0) == self.vlans || *vlan > 4094;
        if let Some((vlan, mac)) = port.static_macs.iter().find(is_wrong) {
            let rule = if self.vlans { "needs a VLAN from 1 to 4094" } else { "has VLAN 0: the bridge ignores VLANs" };
            return refuse("static", format!("{vlan} {mac:02x?}"), format!("must not be a group, and {rule}"));
        }
        Ok(())
    }
}

/// The hubs of a bridge before they run, one per worker.
pub(super) type Hubs = Vec<AnyHub>;
