//! Assigns queues to routes, and routes to threads.

use super::{Directions, Forward, StartError};
use crate::any::{AnyRx, AnyTx};
use std::sync::Arc;
use std::time::Duration;
use towpath_engine::lane::{self, FullPolicy, LaneTable};
use towpath_engine::route::{Limit, Route, RouteConfig, RouteId};
use towpath_engine::rules::PortSide;
use towpath_engine::tee::TeeSlot;
use towpath_packet::port::{Layer, Queues, TxLayout};
use towpath_packet::{Counters, Direction, Pool, PoolError};

/// Pair numbers of lane routes begin after those of all queues.
pub(super) const LANE_PAIRS: usize = 1 << 16;

/// Where a thread runs; routes with the same placement share a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// Pinned to a core.
    Core(usize),
    /// Placed by the scheduler: the worker of this number.
    Worker(usize),
}

/// Routes, grouped by thread.
pub(super) struct Plan<'a> {
    pub(super) pool: &'a Pool,
    pub(super) layer: Layer,
    pub(super) limit: Option<Arc<Limit>>,
    pub(super) forward: &'a Forward,
    /// The memory layouts that A and B require.
    pub(super) tx_layouts: [TxLayout; 2],
    /// The number of ports: 1 for an echo.
    pub(super) ports: u8,
    pub(super) threads: Vec<(Placement, Vec<AnyRoute>)>,
    /// Counters of the routes from A, and from B.
    pub(super) counters: [Vec<Arc<Counters>>; 2],
    /// Where tees of the routes are attached.
    pub(super) tees: Vec<Arc<TeeSlot>>,
}

pub(super) type AnyRoute = Route<AnyRx, AnyTx>;
type AnyQueues = Queues<AnyRx, AnyTx>;

impl Plan<'_> {
    /// Joins queue i of one port to queue i of the other.
    pub(super) fn direct(&mut self, a: AnyQueues, b: AnyQueues) -> Result<(), PoolError> {
        for (i, ((a_rx, a_tx), (b_rx, b_tx))) in a.rx.into_iter().zip(a.tx).zip(b.rx.into_iter().zip(b.tx)).enumerate()
        {
            let mut routes = vec![self.port_route(a_rx, b_tx, PortSide::A, i)?.with_gro(&self.forward.gro)];
            if self.forward.directions == Directions::Both {
                routes.push(self.port_route(b_rx, a_tx, PortSide::B, i)?.with_gro(&self.forward.gro));
            }
            self.assign(self.worker(i), routes);
        }
        Ok(())
    }

    /// Joins queue i of a port to itself.
    pub(super) fn reflect(&mut self, queues: AnyQueues) -> Result<(), PoolError> {
        for (i, (rx, tx)) in queues.rx.into_iter().zip(queues.tx).enumerate() {
            let route = self.port_route(rx, tx, PortSide::A, i)?.with_reflect();
            self.assign(self.worker(i), vec![route]);
        }
        Ok(())
    }

    /// Joins queue i of each port to the lanes, and lane j to queue j of the other port.
    pub(super) fn through_lanes(&mut self, a: AnyQueues, b: AnyQueues) -> Result<Arc<LaneTable>, StartError> {
        let lanes = &self.forward.lanes;
        let table = LaneTable::new(lanes.len()).map(Arc::new).ok_or_else(|| StartError::Value {
            what: "lanes",
            value: lanes.len().to_string(),
            rule: "there can be 1 to 64".into(),
        })?;
        self.one_way(a.rx, b.tx, PortSide::A, &table)?;
        if self.forward.directions == Directions::Both {
            self.one_way(b.rx, a.tx, PortSide::B, &table)?;
        }
        Ok(table)
    }

    fn one_way(
        &mut self,
        rx: Vec<AnyRx>,
        tx: Vec<AnyTx>,
        side: PortSide,
        table: &Arc<LaneTable>,
    ) -> Result<(), StartError> {
        let mut config = self.forward.steering.clone();
        config.layer = self.layer;
        let made = lane::connect(&config, table, rx.len())
            .map_err(|source| StartError::Thread { worker: self.forward.workers, source })?;
        self.counters[side as usize].extend(made.counters);
        for (i, (rx, steer)) in rx.into_iter().zip(made.steers).enumerate() {
            let route = self.port_route(rx, AnyTx::Steer(steer), side, i)?;
            self.assign(self.worker(i), vec![route]);
        }
        for (j, ((core, lane), tx)) in self.forward.lanes.clone().into_iter().zip(made.lanes).zip(tx).enumerate() {
            let id = RouteId { side, pair: LANE_PAIRS + j };
            let mut route = self.route(AnyRx::Lane(lane), tx, side, true)?.with_gro(&self.forward.gro).with_id(id);
            if let Some(classifier) = self.forward.in_lane.classifier(side, self.layer) {
                route = route.with_classifier(classifier);
            }
            self.counters[side as usize].push(route.counters().clone());
            self.assign(Placement::Core(core), vec![route]);
        }
        Ok(())
    }

    /// The placement of the worker of queue `i`.
    fn worker(&self, i: usize) -> Placement {
        let number = i % usize::from(self.forward.workers);
        self.forward.cores.get(number).map_or(Placement::Worker(number), |&core| Placement::Core(core))
    }

    fn assign(&mut self, placement: Placement, routes: Vec<AnyRoute>) {
        match self.threads.iter_mut().find(|(taken, _)| *taken == placement) {
            Some((_, list)) => list.extend(routes),
            None => self.threads.push((placement, routes)),
        }
    }

    /// A route from a port; its packets count towards the limit.
    fn port_route(&mut self, rx: AnyRx, tx: AnyTx, side: PortSide, queue: usize) -> Result<AnyRoute, PoolError> {
        let mut route = self.route(rx, tx, side, false)?.with_id(RouteId { side, pair: queue });
        if let Some(classifier) = self.forward.at_rx.classifier(side, self.layer) {
            route = route.with_classifier(classifier);
        }
        self.counters[side as usize].push(route.counters().clone());
        Ok(match &self.limit {
            Some(limit) => route.with_limit(limit.clone()),
            None => route,
        })
    }

    /// A route for packets of one side, to the other side or to a lane.
    fn route(&mut self, rx: AnyRx, tx: AnyTx, side: PortSide, internal: bool) -> Result<AnyRoute, PoolError> {
        let holds_back = matches!(tx, AnyTx::Steer(_)) && self.forward.steering.full == FullPolicy::Hold;
        // A steering route that holds back does so without a limit: lanes drop what their own
        // egress refuses.
        let egress_wait = if holds_back { Duration::MAX } else { self.forward.egress_wait };
        let [a, b] = self.tx_layouts;
        let (ingress, egress) = (side as u8, (side.other() as u8).min(self.ports - 1));
        let ingress = (!matches!(rx, AnyRx::Lane(_))).then_some(ingress);
        let egress = (!matches!(tx, AnyTx::Steer(_))).then_some(egress);
        let slot = TeeSlot::new(ingress, egress, self.layer.into());
        self.tees.push(slot.clone());
        let tx_layout = match tx {
            AnyTx::Steer(_) => TxLayout::default(),
            _ if side == PortSide::A => b,
            _ => a,
        };
        let mut config = RouteConfig::default();
        (config.egress_wait, config.layer, config.tx_layout) = (egress_wait, self.layer, tx_layout);
        (config.offloads, config.internal) = (self.forward.gso.allows(), internal);
        Ok(Route::new(rx, tx, self.pool.cache(Direction::Tx)?, config).with_tees(slot))
    }
}
