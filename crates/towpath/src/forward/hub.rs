//! Ports of a hub, as a bridge and a router start them: a part for each worker.

use super::{Gso, StartError, meter_of};
use crate::any::{AnyPort, AnyRx, AnyTx};
use std::sync::Arc;
use std::time::Duration;
use towpath_engine::gro_stage::GroStageConfig;
use towpath_engine::hub::HubPort;
use towpath_engine::report::{GroCounters, PortMeter};
use towpath_engine::route::RouteConfig;
use towpath_engine::tee::TeeSlot;
use towpath_packet::port::{Info, Layer, Port, Queues, RxMemory, RxQueue, Start};
use towpath_packet::{Direction, Offloads, Pool};
use towpath_wire::LinkKind;

/// Ports among which a tee can choose.
const WATCHED_PORTS: usize = 64;

/// How the ports of a hub are run.
pub(super) struct HubSettings<'a> {
    pub(super) pool: &'a Pool,
    pub(super) workers: u16,
    pub(super) egress_wait: Duration,
    pub(super) gso: Gso,
    pub(super) gro: &'a GroStageConfig,
}

/// A started port.
pub(super) struct StartedPort<P> {
    /// A part for the hub of each worker.
    pub(super) parts: Vec<HubPort<AnyRx, AnyTx, P>>,
    /// What a meter reads of it.
    pub(super) row: PortMeter,
    pub(super) gro: Vec<Arc<GroCounters>>,
    pub(super) memory: Vec<RxMemory>,
}

impl HubSettings<'_> {
    /// Starts a port under the name of `info`. `number`: its number among the ports that tees choose
    /// from, whose slots are added to `slots`. `state`: what the switch of each worker knows of it.
    ///
    /// # Errors
    /// Those of the port, or of the pool.
    pub(super) fn start<P>(
        &self,
        port: AnyPort,
        info: &Info,
        accept: Offloads,
        (number, slots): (usize, &mut Vec<Arc<TeeSlot>>),
        state: impl Fn() -> P,
    ) -> Result<StartedPort<P>, StartError> {
        let edge = port.edge();
        let queues = port.start(Start { pool: self.pool.clone(), queues: self.workers, accept })?;
        let mut row = meter_of(info, &queues, edge);
        let memory = queues.rx.iter().map(RxQueue::memory).collect();
        let mut config = RouteConfig::default();
        (config.egress_wait, config.layer) = (self.egress_wait, Layer::Ethernet);
        (config.tx_layout, config.offloads) = (info.tx_layout, self.gso.allows());
        let watched = u8::try_from(number).ok().filter(|_| number < WATCHED_PORTS);
        let (Queues { rx, tx }, mut parts) = (queues, Vec::new());
        for (rx, tx) in rx.into_iter().zip(tx) {
            let mut part = HubPort::new(rx, tx, self.pool.cache(Direction::Tx)?, config, state()).with_gro(self.gro);
            if watched.is_some() {
                let slot = TeeSlot::new(watched, watched, LinkKind::Ethernet);
                slots.push(slot.clone());
                part = part.with_tees(slot);
            }
            row.routes.push(part.counters().clone());
            parts.push(part);
        }
        let gro = parts.iter().filter_map(|part| part.gro().cloned()).collect();
        Ok(StartedPort { parts, row, gro, memory })
    }
}
