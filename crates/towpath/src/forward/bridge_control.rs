//! A bridge while it runs: its addresses, and ports that come and go.

use super::bridge::Hubs;
use super::hub::refuse;
use super::hub::{Attached, HubPorts, HubSettings, Members, Parts};
use super::{Bridge, BridgePort, StartError};
use crate::any::{AnyPort, AnyRx, AnyTx};
use crate::tee::Teeable;
use std::sync::Arc;
use std::time::Duration;
use towpath_engine::bridge::fdb::{Fdb, FdbConfig, FdbStats, Key};
use towpath_engine::bridge::{self, PortState};
use towpath_engine::hub::Hub;
use towpath_engine::route::Limit;
use towpath_engine::rules::PortSide;
use towpath_packet::Offloads;
use towpath_packet::port::{Layer, Port};

pub(super) type AnyHub = Hub<AnyRx, AnyTx, bridge::Bridge>;

struct BridgeShared {
    bridge: Bridge,
    fdb: Arc<Fdb>,
    ports: HubPorts<PortState>,
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
pub struct BridgeControl(Arc<BridgeShared>);

/// An entry of a bridge's forwarding database.
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
    /// Why it is unused, although it is not detached: its interface was deleted.
    pub lost: Option<String>,
}

impl BridgeControl {
    pub(super) fn new(
        bridge: Bridge,
        settings: HubSettings,
        limit: Option<Arc<Limit>>,
    ) -> Result<(BridgeControl, Hubs), StartError> {
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
        let ports = HubPorts::new(settings, &made);
        Ok((BridgeControl(Arc::new(BridgeShared { bridge, fdb, ports })), made))
    }

    /// Adds a port before the hubs run.
    pub(super) fn add(
        &self,
        port: BridgePort,
        opened: AnyPort,
        accept: Offloads,
        hubs: &mut Hubs,
    ) -> Result<(), StartError> {
        let mut members = self.0.ports.lock();
        let (number, parts) = self.make(&mut members, port, opened, accept)?;
        for (hub, part) in hubs.iter_mut().zip(parts) {
            hub.add(number, part);
        }
        Ok(())
    }

    /// Where tees of the ports are attached.
    pub(super) fn tees(&self) -> Arc<Teeable> {
        self.0.ports.tees()
    }

    /// Starts a port under a new number.
    fn make(
        &self,
        members: &mut Members,
        port: BridgePort,
        opened: AnyPort,
        accept: Offloads,
    ) -> Result<(usize, Parts<PortState>), StartError> {
        let BridgeShared { bridge, fdb, ports } = &*self.0;
        bridge.check_port(&port, &opened)?;
        let mut info = opened.info().clone();
        if !port.name.is_empty() {
            info.name.clone_from(&port.name);
        }
        let [number] = ports.numbers(members, [info.name.as_str()])?;
        fdb.set_port_limit(number, port.max_entries);
        for (vlan, mac) in &port.static_macs {
            let [a, b, c, d, e, f] = *mac;
            let key = Key::new(*vlan, u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
            if !fdb.add_static(key, number) {
                fdb.flush(number, true);
                return refuse("static", format!("{mac:02x?}"), "the table, or the port's part of it, is full");
            }
        }
        let mut engine_port = bridge::BridgePort::default();
        (engine_port.mode, engine_port.group, engine_port.storm) = (port.mode.clone(), port.group, port.storm);
        let state = || PortState::new(&engine_port, bridge.workers.into());
        let started = ports.start(members, number, (opened, &info), accept.with(Offloads::VLAN), state);
        let started = started.inspect_err(|_| {
            fdb.flush(number, true);
        });
        let parts = started?.into_iter().map(|part| {
            let part = part.with_backlog(bridge.backlog);
            match bridge.verdicts(&port).classifier(PortSide::A, Layer::Ethernet) {
                Some(classifier) => part.with_classifier(classifier),
                None => part,
            }
        });
        Ok((number, parts.collect()))
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
        let ports = &self.0.ports;
        let mut members = ports.lock();
        let accept = ports.accept(&members, opened.info().tx_offloads).with(Offloads::VLAN);
        let (number, parts) = self.make(&mut members, port, opened, accept)?;
        ports.join(&mut members, number, parts, accept)
    }

    /// Detaches a port, and removes the addresses behind it. What waits for it gets
    /// [`drain`](Bridge::drain) to leave. The counters of the port stay in the summary.
    ///
    /// # Errors
    /// [`StartError::Value`] if there is no such port, or if packets that it had taken were not
    /// sent.
    pub fn detach(&self, name: &str) -> Result<(), StartError> {
        let BridgeShared { fdb, ports, .. } = &*self.0;
        let mut members = ports.lock();
        let number = ports.number_of(&members, name)?;
        let failure = ports.leave(&mut members, &[number]);
        fdb.flush(number, true);
        fdb.set_port_limit(number, None);
        failure.map_or(Ok(()), |why| refuse("port", name, why))
    }

    /// The ports, in the order in which they were attached.
    pub fn ports(&self) -> Vec<BridgePortReading> {
        let BridgeShared { fdb, ports, .. } = &*self.0;
        let reading = |port: &Attached| BridgePortReading {
            name: port.name.clone(),
            entries: fdb.port_entries(port.number),
            lost: ports.lost(port.number),
        };
        ports.lock().attached.iter().map(reading).collect()
    }

    /// The addresses that are known now, by VLAN and address.
    pub fn fdb(&self) -> Vec<FdbEntry> {
        let members = self.0.ports.lock();
        let name = |number| {
            let port = members.attached.iter().find(|port| port.number == number);
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
        let members = self.0.ports.lock();
        Ok(self.0.fdb.flush(self.0.ports.number_of(&members, name)?, false))
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
