//! Routes, and the threads that run them.

use super::{Directions, Forward, StartError};
use crate::any::{AnyRx, AnyTx};
use std::sync::Arc;
use std::time::Duration;
use towpath_engine::lane::{self, Full, LaneConfig, Table};
use towpath_engine::route::{Limit, Route, RouteConfig, Standing};
use towpath_engine::rules::PortSide;
use towpath_packet::port::{Layer, Queues, TxLayout};
use towpath_packet::{Counters, Direction, Pool, PoolError};

/// Numbers of pairs of lane routes begin behind those of all queues.
const LANE_PAIRS: usize = 1 << 16;

/// Where a thread runs; what has the same place shares a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Pinned to a core.
    Core(usize),
    /// Wherever the scheduler puts the worker of this number.
    Worker(usize),
}

/// Routes, sorted by the thread that will run them.
pub(super) struct Plan<'a> {
    pub(super) pool: &'a Pool,
    pub(super) layer: Layer,
    pub(super) limit: Option<Arc<Limit>>,
    pub(super) forward: &'a Forward,
    /// What A and B want of packets.
    pub(super) shapes: [TxLayout; 2],
    pub(super) threads: Vec<(Place, Vec<AnyRoute>)>,
    pub(super) counters: Vec<Arc<Counters>>,
}

pub(super) type AnyRoute = Route<AnyRx, AnyTx>;
type AnyQueues = Queues<AnyRx, AnyTx>;

impl Plan<'_> {
    /// Queue i of one port to queue i of the other.
    pub(super) fn direct(&mut self, a: AnyQueues, b: AnyQueues) -> Result<(), PoolError> {
        for (i, ((a_rx, a_tx), (b_rx, b_tx))) in a.rx.into_iter().zip(a.tx).zip(b.rx.into_iter().zip(b.tx)).enumerate()
        {
            let mut routes = vec![self.first(a_rx, b_tx, PortSide::A, i)?.with_gro(&self.forward.gro)];
            if self.forward.directions == Directions::Both {
                routes.push(self.first(b_rx, a_tx, PortSide::B, i)?.with_gro(&self.forward.gro));
            }
            self.assign(self.worker(i), routes);
        }
        Ok(())
    }

    /// Queue i of a port back to itself.
    pub(super) fn back(&mut self, queues: AnyQueues) -> Result<(), PoolError> {
        for (i, (rx, tx)) in queues.rx.into_iter().zip(queues.tx).enumerate() {
            let route = self.first(rx, tx, PortSide::A, i)?.with_mirror();
            self.assign(self.worker(i), vec![route]);
        }
        Ok(())
    }

    /// Queue i of each port to the lanes, and lane j to queue j of the other port.
    pub(super) fn through_lanes(&mut self, a: AnyQueues, b: AnyQueues) -> Result<Arc<Table>, StartError> {
        let lanes = &self.forward.lanes;
        let table = Table::new(lanes.len()).map(Arc::new).ok_or_else(|| StartError::Value {
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
        table: &Arc<Table>,
    ) -> Result<(), StartError> {
        let config = LaneConfig { layer: self.layer, ..self.forward.steering.clone() };
        let made = lane::connect(&config, table, rx.len())
            .map_err(|source| StartError::Thread { worker: self.forward.workers, source })?;
        self.counters.extend(made.counters);
        for (i, (rx, steer)) in rx.into_iter().zip(made.steers).enumerate() {
            let route = self.first(rx, AnyTx::Steer(steer), side, i)?;
            self.assign(self.worker(i), vec![route]);
        }
        for (j, ((core, lane), tx)) in self.forward.lanes.clone().into_iter().zip(made.lanes).zip(tx).enumerate() {
            let standing = Standing { side, pair: LANE_PAIRS + j };
            let mut route =
                self.route(AnyRx::Lane(lane), tx, side, true)?.with_gro(&self.forward.gro).with_standing(standing);
            if let Some(judge) = self.forward.in_lane.judge(side) {
                route = route.with_judge(judge);
            }
            self.counters.push(route.counters().clone());
            self.assign(Place::Core(core), vec![route]);
        }
        Ok(())
    }

    /// Where the worker of queue `i` runs.
    fn worker(&self, i: usize) -> Place {
        let number = i % usize::from(self.forward.workers);
        self.forward.cores.get(number).map_or(Place::Worker(number), |&core| Place::Core(core))
    }

    fn assign(&mut self, place: Place, routes: Vec<AnyRoute>) {
        match self.threads.iter_mut().find(|(taken, _)| *taken == place) {
            Some((_, list)) => list.extend(routes),
            None => self.threads.push((place, routes)),
        }
    }

    /// A route from a port, which the limit counts.
    fn first(&mut self, rx: AnyRx, tx: AnyTx, side: PortSide, queue: usize) -> Result<AnyRoute, PoolError> {
        let mut route = self.route(rx, tx, side, false)?.with_standing(Standing { side, pair: queue });
        if let Some(judge) = self.forward.at_rx.judge(side) {
            route = route.with_judge(judge);
        }
        self.counters.push(route.counters().clone());
        Ok(match &self.limit {
            Some(limit) => route.with_limit(limit.clone()),
            None => route,
        })
    }

    /// A route for packets that came in on a side, to the other one or to a lane.
    fn route(&self, rx: AnyRx, tx: AnyTx, side: PortSide, internal: bool) -> Result<AnyRoute, PoolError> {
        let holds_back = matches!(tx, AnyTx::Steer(_)) && self.forward.steering.full == Full::Hold;
        // Lanes that hold back do so for as long as it takes: they drop what their own egress refuses.
        let egress_wait = if holds_back { Duration::MAX } else { self.forward.egress_wait };
        let [a, b] = self.shapes;
        let shape = match tx {
            AnyTx::Steer(_) => TxLayout::default(),
            _ if side == PortSide::A => b,
            _ => a,
        };
        let config = RouteConfig { egress_wait, layer: self.layer, allow: self.forward.gso.allows(), shape, internal };
        Ok(Route::new(rx, tx, self.pool.cache(Direction::Tx)?, config))
    }
}
