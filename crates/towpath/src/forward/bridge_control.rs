//! A bridge while it runs: its addresses, and ports that come and go.

use super::bridge::{Hubs, refuse};
use super::failure::PortEnd;
use super::hub::HubSettings;
use super::running::PortEnds;
use super::{Bridge, BridgePort, PortControls, StartError};
use crate::any::{AnyPort, AnyRx, AnyTx};
use crate::tee::Teeable;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use towpath_engine::bridge::fdb::{Fdb, FdbConfig, FdbStats, Key, MAX_PORTS};
use towpath_engine::bridge::{self, PortState};
use towpath_engine::hub::{Hub, HubControl, HubPort};
use towpath_engine::report::Meter;
use towpath_engine::route::Limit;
use towpath_engine::rules::PortSide;
use towpath_engine::tee::TeeSlot;
use towpath_packet::port::{Layer, Port, State};
use towpath_packet::{Offloads, Pool};

pub(super) type AnyHub = Hub<AnyRx, AnyTx, bridge::Bridge>;
type AnyHubPort = HubPort<AnyRx, AnyTx, PortState>;

/// What a bridge is made of besides its hubs.
pub(super) struct Settings {
    pub(super) bridge: Bridge,
    pub(super) pool: Pool,
    pub(super) meter: Meter,
    pub(super) controls: PortControls,
    pub(super) ends: PortEnds,
}

/// A port that takes part.
struct Attached {
    name: String,
    number: usize,
    tx_offloads: Offloads,
}

struct Shared {
    settings: Settings,
    fdb: Arc<Fdb>,
    hubs: Vec<HubControl<AnyRx, AnyTx, PortState>>,
    /// In the order in which they were attached. Locked while a port is attached or detached.
    ports: Mutex<Ports>,
}

#[derive(Default)]
struct Ports {
    attached: Vec<Attached>,
    /// Numbers that were used so far.
    used: usize,
    /// Where tees of the ports are attached, until the bridge is prepared. Ports that are attached
    /// later have none.
    tees: Vec<Arc<TeeSlot>>,
}

impl Ports {
    /// A number for a new port: one that no other port had, as long as there is one.
    fn number(&self) -> Option<usize> {
        let is_free = |number: &usize| self.attached.iter().all(|port| port.number != *number);
        if self.used < MAX_PORTS { Some(self.used) } else { (0..MAX_PORTS).find(is_free) }
    }
}

/// A handle to the addresses and ports of a bridge. It works from any thread, and may outlive the
/// run; a clone refers to the same bridge.
///
/// ```
/// use towpath::{Bridge, BridgePort, Opener, Role};
///
/// let mut opener = Opener::new();
/// let running = Bridge::default().start(Vec::new())?;
/// let bridge = running.bridge().unwrap();
/// bridge.attach(BridgePort::named("one"), opener.open(&"veth:a".parse()?, Role::Both)?)?;
/// bridge.attach(BridgePort::named("two"), opener.open(&"null:".parse()?, Role::Both)?)?;
/// bridge.detach("one")?;
/// assert_eq!(bridge.ports().len(), 1);
/// assert!(bridge.fdb().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct BridgeControl(Arc<Shared>);

/// An address that a bridge knows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FdbEntry {
    /// The VLAN; 0 if the bridge ignores VLANs.
    pub vlan: u16,
    /// The address.
    pub mac: [u8; 6],
    /// The port that it is behind.
    pub port: String,
    /// Time since the last packet from it.
    pub age: Duration,
    /// It was configured: it neither ages nor moves.
    pub is_static: bool,
}

/// A port of a bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BridgePortReading {
    /// Its name in the bridge.
    pub name: String,
    /// Addresses that are known behind it.
    pub entries: u64,
    /// Why it takes part no more, although it is not detached: its interface was deleted.
    pub lost: Option<String>,
}

impl BridgeControl {
    pub(super) fn new(settings: Settings, limit: Option<Arc<Limit>>) -> Result<(BridgeControl, Hubs), StartError> {
        let bridge = &settings.bridge;
        let mut config = FdbConfig::default();
        (config.max_entries, config.ageing) = (bridge.max_entries, bridge.ageing);
        let fdb = Arc::new(Fdb::new(config));
        let hub = |worker| {
            let hub = Hub::new(bridge::Bridge::new(fdb.clone(), bridge.vlans));
            let hub = hub.map_err(|source| StartError::Thread { worker, source })?;
            let hub = if bridge.endless { hub.endless() } else { hub };
            Ok::<_, StartError>(limit.iter().fold(hub, |hub, limit| hub.with_limit(limit.clone())))
        };
        let made = (0..bridge.workers.max(1)).map(hub).collect::<Result<Hubs, _>>()?;
        let hubs = made.iter().map(Hub::control).collect();
        let control = BridgeControl(Arc::new(Shared { settings, fdb, hubs, ports: Mutex::default() }));
        Ok((control, made))
    }

    fn lock(&self) -> MutexGuard<'_, Ports> {
        self.0.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a port before the hubs run.
    pub(super) fn add(
        &self,
        port: BridgePort,
        opened: AnyPort,
        accept: Offloads,
        hubs: &mut Hubs,
    ) -> Result<(), StartError> {
        let mut ports = self.lock();
        let (number, made) = self.make(&mut ports, port, opened, accept)?;
        for (hub, port) in hubs.iter_mut().zip(made) {
            hub.add(number, port);
        }
        Ok(())
    }

    /// Where tees of the ports that were added are attached.
    pub(super) fn teeable(&self) -> Teeable {
        let mut ports = self.lock();
        let interfaces = ports.attached.iter().map(|port| port.name.clone()).collect();
        Teeable { slots: std::mem::take(&mut ports.tees), layer: Layer::Ethernet, interfaces }
    }

    /// Starts a port, and registers it under a new number.
    fn make(
        &self,
        ports: &mut Ports,
        mut port: BridgePort,
        opened: AnyPort,
        accept: Offloads,
    ) -> Result<(usize, Vec<AnyHubPort>), StartError> {
        let Settings { bridge, pool, meter, controls, ends } = &self.0.settings;
        bridge.check_port(&port, &opened)?;
        let mut info = opened.info().clone();
        let is_used = |ports: &Ports, name: &str| ports.attached.iter().any(|port| port.name == name);
        if port.name.is_empty() {
            port.name = info.name.clone();
        }
        if is_used(ports, &port.name) {
            return refuse("port", port.name, "is the name of another port of the bridge: give it its own");
        }
        info.name = port.name.clone();
        let Some(number) = ports.number() else {
            return refuse("port", port.name, format!("a bridge has {MAX_PORTS} ports at most"));
        };
        let end = PortEnd::new(&info, matches!(opened, AnyPort::Fault(_)));
        let control = opened.control();
        let accept = accept.and(bridge.gso.allows()).with(Offloads::VLAN);
        let mut engine_port = bridge::BridgePort::default();
        (engine_port.mode, engine_port.group, engine_port.storm) = (port.mode.clone(), port.group, port.storm);
        let (workers, egress_wait, gso) = (bridge.workers, bridge.egress_wait, bridge.gso);
        let hub = HubSettings { pool, workers, egress_wait, gso, gro: &bridge.gro };
        let state = || PortState::new(&engine_port, workers.into());
        let started = hub.start(opened, &info, accept, (number, &mut ports.tees), state)?;
        let parts = started.parts.into_iter().map(|part| {
            let part = part.with_backlog(bridge.backlog);
            match bridge.verdicts(&port).classifier(PortSide::A, Layer::Ethernet) {
                Some(classifier) => part.with_classifier(classifier),
                None => part,
            }
        });
        let made: Vec<_> = parts.collect();
        self.0.fdb.set_port_limit(number, port.max_entries);
        for (vlan, mac) in &port.static_macs {
            let [a, b, c, d, e, f] = *mac;
            let key = Key::new(*vlan, u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
            if !self.0.fdb.add_static(key, number) {
                self.0.fdb.flush(number, true);
                return refuse("static", format!("{mac:02x?}"), "the table, or the port's part of it, is full");
            }
        }
        meter.attach(started.row, started.gro, started.memory);
        controls.attach(&port.name, control);
        ends.set(number, end);
        ports.used = ports.used.max(number + 1);
        ports.attached.push(Attached { name: port.name, number, tx_offloads: info.tx_offloads });
        Ok((number, made))
    }

    /// The offloads that any port takes, with those of one more.
    fn accept(&self, ports: &Ports, one: Offloads) -> Offloads {
        let allowed = self.0.settings.bridge.gso.allows();
        ports.attached.iter().fold(one, |all, port| all.with(port.tx_offloads)).and(allowed).with(Offloads::VLAN)
    }

    /// Attaches a port while the bridge runs; before its launch it waits for that. A port of the
    /// same name that was [lost](BridgePortReading::lost) is detached before.
    ///
    /// # Errors
    /// [`StartError`]: the port does not fit, its name is used, or the bridge has ended. Then the
    /// bridge is as it was.
    pub fn attach(&self, port: BridgePort, opened: AnyPort) -> Result<(), StartError> {
        let name = if port.name.is_empty() { opened.info().name.clone() } else { port.name.clone() };
        if self.ports().iter().any(|known| known.name == name && known.lost.is_some()) {
            self.detach(&name)?;
        }
        let mut ports = self.lock();
        let accept = self.accept(&ports, opened.info().tx_offloads);
        let (number, made) = self.make(&mut ports, port, opened, accept)?;
        let replies: Vec<_> = self.0.hubs.iter().zip(made).map(|(hub, port)| hub.attach(number, port)).collect();
        self.0.hubs.iter().for_each(|hub| hub.set_rx_offloads(accept));
        // Each is acknowledged within a turn; the channel is closed when a hub ends.
        if replies.iter().any(|reply| reply.recv().is_err()) {
            ports.attached.retain(|port| port.number != number);
            return refuse("port", name, "the bridge has ended");
        }
        Ok(())
    }

    /// Detaches a port, and forgets the addresses behind it. What waits for it gets
    /// [`drain`](Bridge::drain) to leave. The counters of the port stay in the summary.
    ///
    /// # Errors
    /// [`StartError::Value`] if there is no such port, or if packets that it had taken were not
    /// sent.
    pub fn detach(&self, name: &str) -> Result<(), StartError> {
        let mut ports = self.lock();
        let number = Self::number_of(&ports, name)?;
        let drain = self.0.settings.bridge.drain;
        let replies: Vec<_> = self.0.hubs.iter().map(|hub| hub.detach(number, drain)).collect();
        let failure = replies.iter().filter_map(|reply| reply.recv().ok()?.failure).next();
        self.0.fdb.flush(number, true);
        self.0.fdb.set_port_limit(number, None);
        ports.attached.retain(|port| port.number != number);
        self.0.settings.controls.attach(name, None);
        failure.map_or(Ok(()), |why| refuse("port", name, why))
    }

    fn number_of(ports: &Ports, name: &str) -> Result<usize, StartError> {
        match ports.attached.iter().find(|port| port.name == name) {
            Some(port) => Ok(port.number),
            None => {
                let known: Vec<_> = ports.attached.iter().map(|port| port.name.as_str()).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                refuse("port", name, format!("must be a port of the bridge: {known}"))
            }
        }
    }

    /// The ports, in the order in which they were attached.
    pub fn ports(&self) -> Vec<BridgePortReading> {
        let lost: Vec<_> = self.0.hubs.iter().flat_map(HubControl::lost).collect();
        let why = |number| {
            lost.iter().find(|(lost, _)| *lost == number).map(|(_, state)| match state {
                State::Gone(why) => why.to_string(),
                other => format!("{other:?}"),
            })
        };
        let reading = |port: &Attached| BridgePortReading {
            name: port.name.clone(),
            entries: self.0.fdb.port_entries(port.number),
            lost: why(port.number),
        };
        self.lock().attached.iter().map(reading).collect()
    }

    /// The addresses that are known now, by VLAN and address.
    pub fn fdb(&self) -> Vec<FdbEntry> {
        let ports = self.lock();
        let name = |number| {
            let port = ports.attached.iter().find(|port| port.number == number);
            port.map(|port| port.name.clone())
        };
        let mut entries: Vec<_> = self
            .0
            .fdb
            .entries()
            .into_iter()
            .filter_map(|entry| {
                let port = name(entry.port)?;
                Some(FdbEntry { vlan: entry.vlan, mac: entry.mac, port, age: entry.age, is_static: entry.is_static })
            })
            .collect();
        entries.sort_unstable_by_key(|entry| (entry.vlan, entry.mac));
        entries
    }

    /// Counters of the addresses.
    pub fn stats(&self) -> FdbStats {
        self.0.fdb.stats()
    }

    /// Forgets the addresses behind a port, but for configured ones; returns their number.
    ///
    /// # Errors
    /// [`StartError::Value`] if there is no such port.
    pub fn flush(&self, name: &str) -> Result<u64, StartError> {
        let ports = self.lock();
        Ok(self.0.fdb.flush(Self::number_of(&ports, name)?, false))
    }

    /// Sets how long an address without a packet stays; zero: for ever.
    pub fn set_ageing(&self, ageing: Duration) {
        self.0.fdb.set_ageing(ageing);
    }

    /// How long an address without a packet stays; zero: for ever.
    pub fn ageing(&self) -> Duration {
        self.0.fdb.ageing()
    }
}

impl std::fmt::Debug for BridgeControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BridgeControl").field("ports", &self.ports()).field("stats", &self.stats()).finish()
    }
}
