//! Two ports, and workers that move packets between them.
//!
//! ```text
//!             queue i of A ──► route ──► queue i of B
//!   worker i                                             one thread, run to completion
//!             queue i of A ◄── route ◄── queue i of B
//!
//!   with lanes, a worker's routes end in a Steer, and a lane has routes of its own (see `lane`):
//!
//!             queue i of A ──► route ──► Steer ─┬─► LaneRx ──► route ──► queue j of B
//!   worker i                                    └─► …                                   lane j
//! ```

mod check;
mod plan;
mod running;

pub use running::{Running, Summary, Tuners};

use crate::any::AnyPort;
use check::{common_layer, notes};
use plan::{AnyRoute, Place, Plan};
use std::sync::Arc;
use std::time::Duration;
use towpath_engine::gro_stage::CoalesceConfig;
use towpath_engine::idle::Idle;
use towpath_engine::lane::{Balancer, LaneConfig, Steering, Table};
use towpath_engine::report::{Meter, PortMeter};
use towpath_engine::route::{Limit, RouteConfig};
use towpath_engine::rules::{Judge, PortSide, RuleError, Rules};
use towpath_engine::worker::{Control, Worker, WorkerConfig};
use towpath_packet::port::{Info, Port, PortError, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Floors, Offloads, Pool, PoolConfig, PoolError};

/// Time between two steps of rebalancing.
const REBALANCE: Duration = Duration::from_millis(100);

/// Which way packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Directions {
    /// From A to B and from B to A.
    #[default]
    Both,
    /// From A to B only; B's receive queues are not looked at.
    OneWay,
}

/// How two ports are joined. Plain data: change what you need.
#[derive(Debug, Clone)]
pub struct Forward {
    /// Which way packets go.
    pub directions: Directions,
    /// Threads; each runs one queue of both ports.
    pub workers: u16,
    /// Cores to pin the workers to, in order; fewer than workers leaves the rest to the scheduler.
    pub cores: Vec<usize>,
    /// What a worker does when there is nothing to do.
    pub idle: Idle,
    /// How long an egress may refuse before what is held for it is dropped.
    pub egress_wait: Duration,
    /// How long packets that are held get to leave when stopping.
    pub drain: Duration,
    /// Cores of the lanes; none: the workers do all the work. A lane and a worker on the same core share a thread.
    pub lanes: Vec<usize>,
    /// How packets get to their lanes; its layer is that of the ports.
    pub steering: LaneConfig,
    /// Move flows from busy to idle lanes while running.
    pub rebalance: bool,
    /// What becomes of packets as a worker receives them.
    pub at_rx: Verdicts,
    /// What becomes of packets in their lane, before GRO.
    pub in_lane: Verdicts,
    /// How packets are coalesced on their way.
    pub gro: CoalesceConfig,
    /// Whether egresses get super-packets.
    pub gso: Gso,
    /// Stop after so many packets, both directions together.
    pub count: Option<u64>,
    /// Buffers for everything.
    pub pool: PoolConfig,
}

impl Default for Forward {
    /// Both ways, one worker that sleeps when idle, the default pool with a sixteenth of it kept for transmission.
    fn default() -> Forward {
        let worker = WorkerConfig::default();
        let pool = PoolConfig::default();
        Forward {
            directions: Directions::Both,
            workers: 1,
            cores: Vec::new(),
            idle: worker.idle,
            egress_wait: RouteConfig::default().egress_wait,
            drain: worker.drain,
            lanes: Vec::new(),
            steering: LaneConfig::default(),
            rebalance: false,
            at_rx: Verdicts::default(),
            in_lane: Verdicts::default(),
            gro: CoalesceConfig::default(),
            gso: Gso::Auto,
            count: None,
            pool: PoolConfig { floors: Floors { rx: 0, tx: pool.capacity / 16 }, ..pool },
        }
    }
}

/// Whether egresses get super-packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gso {
    /// They must take some kind of them, else starting fails.
    On,
    /// Never: super-packets are cut before the egress, or by the kernel before the ingress.
    Off,
    /// Those that take them do, the others get segments.
    #[default]
    Auto,
}

impl Gso {
    fn allows(self) -> Offloads {
        if self == Gso::Off { Offloads::ALL.without(Offloads::GSO) } else { Offloads::ALL }
    }
}

/// Who decides what becomes of packets. The default lets all of them pass.
#[derive(Clone, Default)]
pub enum Verdicts {
    /// All pass.
    #[default]
    Pass,
    /// Rules in words.
    Rules(Rules),
    /// A judge of one's own for each route, made on the thread that starts it.
    Judge(Arc<dyn Fn(PortSide) -> Box<dyn Judge> + Send + Sync>),
}

impl Verdicts {
    fn judge(&self, side: PortSide) -> Option<Box<dyn Judge>> {
        match self {
            Verdicts::Pass => None,
            Verdicts::Rules(rules) => Some(Box::new(rules.clone())),
            Verdicts::Judge(make) => Some(make(side)),
        }
    }
}

impl std::fmt::Debug for Verdicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdicts::Pass => f.write_str("Pass"),
            Verdicts::Rules(rules) => f.debug_tuple("Rules").field(rules).finish(),
            Verdicts::Judge(_) => f.write_str("Judge"),
        }
    }
}

/// Why two ports could not be joined.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// One of the ports says no.
    #[error(transparent)]
    Port(#[from] PortError),
    /// There are no buffers.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The packets of one begin otherwise than those of the other.
    #[error("{a} carries {a_layer}, {b} {b_layer}: both must carry the same (tap, packet: Ethernet; tun: IP)")]
    Layers {
        /// One port.
        a: String,
        /// What it carries.
        a_layer: &'static str,
        /// The other port.
        b: String,
        /// What it carries.
        b_layer: &'static str,
    },
    /// A rule can't be kept here.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// A number is out of range.
    #[error("{what}={value}: {rule}")]
    Value {
        /// What number.
        what: &'static str,
        /// Its value.
        value: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// A thread could not be started.
    #[error("worker {worker}: {source}")]
    Thread {
        /// Which.
        worker: u16,
        /// What the system said.
        source: std::io::Error,
    },
}

fn meter_of<R: RxQueue, T: TxQueue>(info: &Info, queues: &Queues<R, T>) -> PortMeter {
    PortMeter {
        name: info.name.clone(),
        rx: queues.rx.iter().map(|q| q.counters().clone()).collect(),
        tx: queues.tx.iter().map(|q| q.counters().clone()).collect(),
    }
}

impl Forward {
    /// Starts the ports and the workers.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then, and whatever was set up is undone.
    pub fn start(self, a: AnyPort, b: AnyPort) -> Result<Running, StartError> {
        let (a_info, b_info) = (a.info().clone(), b.info().clone());
        let layer = common_layer(&a_info, &b_info)?;
        self.check(&a_info, &b_info)?;
        self.check_rules(layer)?;
        let pool = Pool::new(self.pool)?;
        let tuners =
            [&a, &b].into_iter().filter_map(|port| Some((port.info().name.clone(), port.control()?))).collect();
        let start = |side, accept: Offloads| Start { pool: pool.clone(), queues: self.queues(side), accept };
        let mut a = a.start(start(PortSide::A, b_info.tx_offloads.and(self.gso.allows())))?;
        let mut b = b.start(start(PortSide::B, a_info.tx_offloads.and(self.gso.allows())))?;
        a.rx.iter_mut().for_each(|rx| rx.set_tx_layout(b_info.tx_layout()));
        b.rx.iter_mut().for_each(|rx| rx.set_tx_layout(a_info.tx_layout()));
        let ports = vec![meter_of(&a_info, &a), meter_of(&b_info, &b)];
        let lent = [a.rx.first(), b.rx.first()].into_iter().flatten().filter_map(|rx| rx.memory().ext_bufs).collect();
        let own_pools = a.rx.iter().chain(&b.rx).filter_map(|rx| rx.memory().pool).collect();
        let limit = self.count.map(|n| Arc::new(Limit::new(n)));
        let (threads, counters) = (Vec::new(), Vec::new());
        let shapes = [&a_info, &b_info].map(Info::tx_layout);
        let mut plan = Plan { pool: &pool, layer, limit, forward: &self, shapes, threads, counters };
        let table = if self.lanes.is_empty() {
            plan.direct(a, b)?;
            None
        } else {
            Some(plan.through_lanes(a, b)?)
        };
        let Plan { threads, counters, .. } = plan;
        let meter = Meter::new(ports, counters, pool.clone()).with_pools(own_pools).with_lent(lent);
        let mut notes = notes(&a_info, &b_info, self.directions);
        if matches!(self.steering.steering, Steering::RoundRobin) && self.lanes.len() > 1 {
            notes.push("round-robin: packets of one flow go to different lanes and overtake each other".into());
        }
        self.launch(threads, meter, notes, table, Tuners(tuners))
    }

    /// Starts a port and the workers that send what it receives back through it: frames with their Ethernet addresses swapped, IP
    /// packets (of a `tun`) with addresses and ports swapped (see [`mirror`](towpath_engine::reflect)). Each worker runs a queue of the
    /// port; there are no lanes, and no coalescing.
    ///
    /// # Errors
    /// As for [`start`](Forward::start).
    pub fn echo(mut self, port: AnyPort) -> Result<Running, StartError> {
        self.directions = Directions::OneWay;
        let info = port.info().clone();
        if let Some(lane) = self.lanes.first() {
            let rule = "packets are turned round where they come in: use more workers".into();
            return Err(StartError::Value { what: "lanes", value: lane.to_string(), rule });
        }
        let layer = common_layer(&info, &info)?;
        self.check(&info, &info)?;
        self.check_rules(layer)?;
        let pool = Pool::new(self.pool)?;
        let tuners = port.control().map(|tuner| (info.name.clone(), tuner)).into_iter().collect();
        let accept = info.tx_offloads.and(self.gso.allows());
        let mut queues = port.start(Start { pool: pool.clone(), queues: self.workers, accept })?;
        queues.rx.iter_mut().for_each(|rx| rx.set_tx_layout(info.tx_layout()));
        let ports = vec![meter_of(&info, &queues)];
        let lent = queues.rx.first().and_then(|rx| rx.memory().ext_bufs).into_iter().collect();
        let own_pools = queues.rx.iter().filter_map(|rx| rx.memory().pool).collect();
        let limit = self.count.map(|n| Arc::new(Limit::new(n)));
        let (threads, counters) = (Vec::new(), Vec::new());
        let shapes = [info.tx_layout(); 2];
        let mut plan = Plan { pool: &pool, layer, limit, forward: &self, shapes, threads, counters };
        plan.back(queues)?;
        let Plan { threads, counters, .. } = plan;
        let meter = Meter::new(ports, counters, pool.clone()).with_pools(own_pools).with_lent(lent);
        let notes = notes(&info, &info, self.directions);
        self.launch(threads, meter, notes, None, Tuners(tuners))
    }

    /// Starts the threads.
    fn launch(
        &self,
        threads: Vec<(Place, Vec<AnyRoute>)>,
        meter: Meter,
        notes: Vec<String>,
        table: Option<Arc<Table>>,
        tuners: Tuners,
    ) -> Result<Running, StartError> {
        let gro = threads.iter().flat_map(|(_, routes)| routes).filter_map(|route| route.gro().cloned()).collect();
        let control = Control::new().map_err(|source| StartError::Thread { worker: 0, source })?;
        let mut running = Running {
            control: control.clone(),
            threads: Vec::new(),
            balancer: None,
            meter: meter.with_gro(gro),
            notes,
            table: table.clone(),
            tuners,
        };
        for (number, (place, routes)) in threads.into_iter().enumerate() {
            let core = if let Place::Core(core) = place { Some(core) } else { None };
            let config = WorkerConfig { core, idle: self.idle, drain: self.drain };
            let worker = Worker::new(routes, config, control.clone());
            running.spawn(number, move || worker.run())?;
        }
        if let Some(table) = table.filter(|_| self.rebalance) {
            let thread = std::thread::Builder::new().name("towpath-balance".into());
            let balance = move || {
                let mut balancer = Balancer::new(table);
                while !control.is_stopping() {
                    std::thread::park_timeout(REBALANCE);
                    balancer.step();
                }
            };
            let number = running.threads.len() as u16;
            running.balancer =
                Some(thread.spawn(balance).map_err(|source| StartError::Thread { worker: number, source })?);
        }
        Ok(running)
    }
}
