//! The ports of the hubs of a bridge or a router: each has a part for the hub of every worker.

use super::failure::PortEnd;
use super::running::PortEnds;
use super::{Gso, PortControls, StartError, meter_of};
use crate::any::{AnyPort, AnyRx, AnyTx};
use crate::tee::Teeable;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use towpath_engine::gro_stage::GroStageConfig;
use towpath_engine::hub::{Hub, HubControl, HubPort, Switch};
use towpath_engine::report::{Meter, RouteMeter};
use towpath_engine::route::{RouteConfig, RouteId};
use towpath_engine::rules::PortSide;
use towpath_engine::tee::TeeSlot;
use towpath_packet::port::{Info, Layer, Port, Queues, RxQueue, Start, State};
use towpath_packet::{Direction, Offloads, Pool};
use towpath_wire::LinkKind;

/// Why a value is refused.
pub(super) fn refuse<X>(
    what: &'static str,
    value: impl Into<String>,
    rule: impl Into<String>,
) -> Result<X, StartError> {
    Err(StartError::Value { what, value: value.into(), rule: rule.into() })
}

/// How the ports of hubs are run, and where they are registered.
pub(super) struct HubSettings {
    /// What the hubs are, for errors: `bridge`.
    pub(super) what: &'static str,
    /// Most ports at a time.
    pub(super) most: usize,
    pub(super) pool: Pool,
    pub(super) workers: u16,
    /// The cores of the workers that are pinned to one.
    pub(super) cores: Vec<usize>,
    pub(super) egress_wait: Duration,
    pub(super) drain: Duration,
    pub(super) gso: Gso,
    pub(super) gro: GroStageConfig,
    pub(super) meter: Meter,
    pub(super) controls: PortControls,
    pub(super) ends: PortEnds,
}

/// A port that takes part.
pub(super) struct Attached {
    pub(super) name: String,
    pub(super) number: usize,
    tx_offloads: Offloads,
}

/// The ports that take part.
#[derive(Default)]
pub(super) struct Members {
    /// In the order in which they were attached.
    pub(super) attached: Vec<Attached>,
    /// Numbers that were used so far.
    used: usize,
}

impl Members {
    pub(super) fn get(&self, name: &str) -> Option<&Attached> {
        self.attached.iter().find(|port| port.name == name)
    }
}

/// The parts of a port, one for the hub of each worker.
pub(super) type Parts<P> = Vec<HubPort<AnyRx, AnyTx, P>>;

/// Ports of hubs, which come and go.
pub(super) struct HubPorts<P> {
    settings: HubSettings,
    hubs: Vec<HubControl<AnyRx, AnyTx, P>>,
    /// Locked while a port is attached or detached.
    members: Mutex<Members>,
    tees: Arc<Teeable>,
}

impl<P> HubPorts<P> {
    pub(super) fn new<S: Switch<Port = P>>(settings: HubSettings, hubs: &[Hub<AnyRx, AnyTx, S>]) -> HubPorts<P> {
        let hubs = hubs.iter().map(Hub::control).collect();
        let tees = Arc::new(Teeable::new(Vec::new(), Layer::Ethernet, Vec::new()));
        HubPorts { settings, hubs, members: Mutex::default(), tees }
    }

    /// Where tees of the ports are attached.
    pub(super) fn tees(&self) -> Arc<Teeable> {
        self.tees.clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers for new ports: such that no other port had, as long as there are some.
    ///
    /// # Errors
    /// A name is that of another port, or there are too many.
    pub(super) fn numbers<const N: usize>(
        &self,
        members: &Members,
        names: [&str; N],
    ) -> Result<[usize; N], StartError> {
        let HubSettings { what, most, .. } = self.settings;
        if let Some(name) = names.iter().find(|name| members.get(name).is_some()) {
            return refuse("port", *name, format!("is the name of another port of the {what}: give it its own"));
        }
        let is_free = |number: &usize| members.attached.iter().all(|port| port.number != *number);
        let all: Vec<_> = (members.used..most).chain((0..members.used).filter(is_free)).take(N).collect();
        all.try_into().or_else(|_| refuse("port", names.join(", "), format!("a {what} has {most} ports at most")))
    }

    /// The offloads that received packets may need: those that any port takes, with those of one
    /// more.
    pub(super) fn accept(&self, members: &Members, more: Offloads) -> Offloads {
        let all = members.attached.iter().fold(more, |all, port| all.with(port.tx_offloads));
        all.and(self.settings.gso.allows())
    }

    /// Starts a port under the name of `info`, and registers it. `state`: the port's state in the
    /// switch of each worker.
    ///
    /// # Errors
    /// Those of the port, or of the pool.
    pub(super) fn start(
        &self,
        members: &mut Members,
        number: usize,
        (port, info): (AnyPort, &Info),
        accept: Offloads,
        state: impl Fn() -> P,
    ) -> Result<Parts<P>, StartError> {
        let HubSettings { pool, workers, cores, egress_wait, gso, gro, meter, controls, ends, .. } = &self.settings;
        let (edge, control) = (port.edge(), port.control());
        let end = PortEnd::new(info, matches!(port, AnyPort::Fault(_)));
        let queues = port.start(Start { pool: pool.clone(), queues: *workers, accept })?;
        let mut row = meter_of(info, &queues, edge);
        let memory = queues.rx.iter().map(RxQueue::memory).collect();
        let mut config = RouteConfig::default();
        (config.egress_wait, config.layer) = (*egress_wait, Layer::Ethernet);
        (config.tx_layout, config.offloads) = (info.tx_layout, gso.allows());
        let watched = self.tees.number(&info.name);
        let (Queues { rx, tx }, mut parts, mut slots) = (queues, Vec::new(), Vec::new());
        for (worker, (rx, tx)) in rx.into_iter().zip(tx).enumerate() {
            let mut part = HubPort::new(rx, tx, pool.cache(Direction::Tx)?, config, state()).with_gro(gro);
            if watched.is_some() {
                let slot = TeeSlot::new(watched, watched, LinkKind::Ethernet);
                slots.push(slot.clone());
                part = part.with_tees(slot);
            }
            row.routes.push(part.counters().clone());
            let id = RouteId { side: PortSide::A, pair: worker };
            let mut meter = RouteMeter::new(id, worker, part.counters().clone(), part.samples().clone());
            meter.core = cores.get(worker).copied();
            row.parts.push(meter);
            parts.push(part);
        }
        let gro = parts.iter().filter_map(|part| part.gro().cloned()).collect();
        slots.into_iter().for_each(|slot| self.tees.add(slot));
        meter.attach(row, gro, memory);
        controls.attach(&info.name, control);
        ends.set(number, end);
        members.used = members.used.max(number + 1);
        members.attached.push(Attached { name: info.name.clone(), number, tx_offloads: info.tx_offloads });
        Ok(parts)
    }

    /// Gives the hubs their parts of a port that was started.
    ///
    /// # Errors
    /// The hubs have ended; then the port takes no part.
    pub(super) fn join(
        &self,
        members: &mut Members,
        number: usize,
        parts: Parts<P>,
        accept: Offloads,
    ) -> Result<(), StartError> {
        let replies: Vec<_> = self.hubs.iter().zip(parts).map(|(hub, part)| hub.attach(number, part)).collect();
        self.hubs.iter().for_each(|hub| hub.set_rx_offloads(accept));
        // Each is acknowledged within a turn; the channel is closed when a hub ends.
        if replies.iter().all(|reply| reply.recv().is_ok()) {
            return Ok(());
        }
        let at = members.attached.iter().position(|port| port.number == number);
        let name = at.map_or_else(String::new, |at| members.attached.remove(at).name);
        self.tees.remove(&name);
        refuse("port", name, format!("the {} has ended", self.settings.what))
    }

    /// Takes ports from the hubs; what waits for them gets the time to drain. Returns why packets
    /// that they had taken were not sent.
    pub(super) fn leave(&self, members: &mut Members, numbers: &[usize]) -> Option<String> {
        let drain = self.settings.drain;
        let of = |number: &usize| self.hubs.iter().map(|hub| hub.detach(*number, drain)).collect::<Vec<_>>();
        let replies: Vec<_> = numbers.iter().flat_map(of).collect();
        let failures: Vec<_> = replies.iter().filter_map(|reply| reply.recv().ok()?.failure).collect();
        members.attached.retain(|port| {
            let stays = !numbers.contains(&port.number);
            if !stays {
                self.settings.controls.attach(&port.name, None);
                self.tees.remove(&port.name);
            }
            stays
        });
        failures.into_iter().next()
    }

    /// The number of a port.
    ///
    /// # Errors
    /// There is no such port: the names of those that there are.
    pub(super) fn number_of(&self, members: &Members, name: &str) -> Result<usize, StartError> {
        match members.get(name) {
            Some(port) => Ok(port.number),
            None => {
                let known: Vec<_> = members.attached.iter().map(|port| port.name.as_str()).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                refuse("port", name, format!("must be a port of the {}: {known}", self.settings.what))
            }
        }
    }

    /// Why a port takes part no more, although it is not detached.
    pub(super) fn lost(&self, number: usize) -> Option<String> {
        let mut lost = self.hubs.iter().flat_map(HubControl::lost);
        lost.find(|(lost, _)| *lost == number).map(|(_, state)| match state {
            State::Gone(why) => why.to_string(),
            other => format!("{other:?}"),
        })
    }
}
