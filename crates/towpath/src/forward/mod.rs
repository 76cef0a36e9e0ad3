//! Joins two ports by workers.
//!
//! ```text
//!             queue i of A ──► route ──► queue i of B
//!   worker i                                             one thread, run to completion
//!             queue i of A ◄── route ◄── queue i of B
//!
//!   a bridge joins more than two: see `bridge`
//!
//!   with lanes, a worker's routes end in a Steer, and each lane has routes of its own:
//!
//!             queue i of A ──► route ──► Steer ─┬─► LaneRx ──► route ──► queue j of B
//!   worker i                                    └─► …                                   lane j
//! ```
//!
//! | file | |
//! |---|---|
//! | `mod`, `check` | [`Forward`]: its options; their checks against the ports |
//! | `plan` | queues assigned to routes, routes to threads |
//! | `ready`, `running` | ports that are started; workers that run, and the summary |
//! | `failure` | what failed in a run |
//! | `observer` | counters and settings, from any thread |
//! | `hub` | ports of bridges and routers, which are attached and detached |
//! | `bridge`, `bridge_control` | a learning bridge, and its control while it runs |
//! | `router/` | an IP router, its control, and the kernel that it follows |

mod bridge;
mod bridge_control;
mod check;
mod failure;
mod hub;
mod observer;
mod plan;
mod ready;
mod router;
mod running;

pub use bridge::{Bridge, BridgePort};
pub use bridge_control::{BridgeControl, BridgePortReading, FdbEntry};
pub use failure::Failure;
pub use observer::Observer;
pub use ready::Ready;
pub use router::{Neighbour, RouteSource, Router, RouterRoute};
pub use router::{RouterControl, RouterInterface, RouterPortReading, RouterPorts};
pub use running::{PortControls, Running, Summary};

use crate::any::AnyPort;
use crate::tee::Teeable;
use bridge_control::AnyHub;
use check::{common_layer, notes};
use failure::PortEnd;
use observer::{Observed, RuleHits};
use plan::Plan;
use ready::Work;
use router::AnyRouterHub;
use running::PortEnds;
use std::sync::Arc;
use std::time::Duration;
use towpath_engine::filter::{FilterRules, LiveRules};
use towpath_engine::gro_stage::GroStageConfig;
use towpath_engine::idle::Idle;
use towpath_engine::lane::{LaneConfig, Steering};
use towpath_engine::report::{Meter, PortMeter};
use towpath_engine::route::{Limit, RouteConfig};
use towpath_engine::rules::{Classifier, PortSide, RuleError};
use towpath_engine::tee::TeeSlot;
use towpath_engine::worker::WorkerConfig;
use towpath_packet::port::{Edge, Info, Layer, Port, PortError, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Floors, Offloads, Pool, PoolConfig, PoolError};

/// Interval of rebalancing.
const REBALANCE: Duration = Duration::from_millis(100);

/// The directions of forwarding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Directions {
    /// From A to B and from B to A.
    #[default]
    Both,
    /// From A to B only; B's receive queues are not polled.
    OneWay,
}

/// How two ports are joined. Change fields of the default.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Forward {
    /// The directions.
    pub directions: Directions,
    /// Number of threads; each runs one queue of both ports.
    pub workers: u16,
    /// Cores of the workers, in order; workers without one are left to the scheduler.
    pub cores: Vec<usize>,
    /// What a worker does while no packet moves.
    pub idle: Idle,
    /// How long an egress may refuse packets before they are dropped.
    pub egress_wait: Duration,
    /// How long held packets get to leave after a stop.
    pub drain: Duration,
    /// Cores of the lanes; empty: the workers do all the work. A lane and a worker on the same core
    /// share a thread.
    pub lanes: Vec<usize>,
    /// Steering of packets to lanes; its layer is replaced by that of the ports.
    pub steering: LaneConfig,
    /// Move flows from busy to idle lanes while running.
    pub rebalance: bool,
    /// Verdicts on packets as a worker receives them.
    pub at_rx: Verdicts,
    /// Verdicts on packets in their lane, before GRO.
    pub in_lane: Verdicts,
    /// Coalescing.
    pub gro: GroStageConfig,
    /// Whether egresses get super-packets.
    pub gso: Gso,
    /// Stop after this many packets, both directions together.
    pub count: Option<u64>,
    /// The buffer pool.
    pub pool: PoolConfig,
}

impl Default for Forward {
    /// Both directions, one worker that sleeps when idle, the default pool with a sixteenth of it
    /// reserved for transmission.
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
            gro: GroStageConfig::default(),
            gso: Gso::Auto,
            count: None,
            pool: pool.floors(Floors { rx: 0, tx: pool.capacity / 16 }),
        }
    }
}

/// Whether egresses get super-packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gso {
    /// Required: starting fails if an egress supports no kind of them.
    On,
    /// Never: super-packets are segmented before the egress, or by the kernel before the ingress.
    Off,
    /// Egresses that support them get them, others get segments.
    #[default]
    Auto,
}

impl Gso {
    fn allows(self) -> Offloads {
        if self == Gso::Off { Offloads::ALL.without(Offloads::GSO) } else { Offloads::ALL }
    }
}

/// The classifier of each route. By default all packets pass.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Verdicts {
    /// All packets pass.
    #[default]
    Pass,
    /// Textual rules and expressions.
    Rules(FilterRules),
    /// Textual rules that are replaced while packets move.
    ///
    /// ```
    /// use towpath::engine::filter::{FilterRules, LiveRules};
    /// use towpath::{Forward, Opener, Role, Verdicts};
    ///
    /// let mut opener = Opener::new();
    /// let from = opener.open(&"gen:".parse()?, Role::Ingress)?;
    /// let to = opener.open(&"null:".parse()?, Role::Egress)?;
    /// let (live, mut plan) = (LiveRules::default(), Forward::default());
    /// plan.at_rx = Verdicts::Live(live.clone());
    /// let running = plan.start(from, to)?;
    /// live.replace(FilterRules::parse(["default drop"])?);
    /// while running.meter().read().balance().dropped() == 0 {
    ///     std::thread::yield_now();
    /// }
    /// assert_eq!(running.stop().reading.balance().in_flight(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Live(LiveRules),
    /// A classifier for each route, made on the thread that starts it.
    Classifier(Arc<dyn Fn(PortSide) -> Box<dyn Classifier> + Send + Sync>),
}

impl Verdicts {
    fn classifier(&self, side: PortSide, layer: Layer) -> Option<Box<dyn Classifier>> {
        match self {
            Verdicts::Pass => None,
            Verdicts::Rules(rules) => Some(rules.classifier(layer.into())),
            Verdicts::Live(rules) => Some(rules.classifier(layer.into())),
            Verdicts::Classifier(make) => Some(make(side)),
        }
    }

    /// The rules that are to be checked.
    fn rules(&self) -> Option<FilterRules> {
        match self {
            Verdicts::Rules(rules) => Some(rules.clone()),
            Verdicts::Live(rules) => Some(rules.rules()),
            Verdicts::Pass | Verdicts::Classifier(_) => None,
        }
    }

    /// How often each rule decides.
    fn hits(&self) -> Option<RuleHits> {
        match self {
            Verdicts::Rules(rules) => Some(RuleHits::Fixed(rules.hits().clone())),
            Verdicts::Live(rules) => Some(RuleHits::Live(rules.clone())),
            Verdicts::Pass | Verdicts::Classifier(_) => None,
        }
    }
}

impl std::fmt::Debug for Verdicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdicts::Pass => f.write_str("Pass"),
            Verdicts::Live(rules) => f.debug_tuple("Live").field(rules).finish(),
            Verdicts::Rules(rules) => f.debug_tuple("Rules").field(rules).finish(),
            Verdicts::Classifier(_) => f.write_str("Classifier"),
        }
    }
}

/// Why ports could not be joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An error of a port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The pool could not be made.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The ports carry different layers.
    #[error("{a} carries {a_layer}, {b} {b_layer}: both must carry the same (tap, packet: Ethernet; tun: IP)")]
    Layers {
        /// One port.
        a: String,
        /// Its layer.
        a_layer: &'static str,
        /// The other port.
        b: String,
        /// Its layer.
        b_layer: &'static str,
    },
    /// A rule that can't be applied here.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// A value is out of range.
    #[error("{what}={value}: {rule}")]
    Value {
        /// The option.
        what: &'static str,
        /// Its value.
        value: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// A thread could not be started.
    #[error("worker {worker}: {source}")]
    Thread {
        /// Its number.
        worker: u16,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// Interfaces of the same name in different network namespaces: each name gets its namespace.
fn distinguish(a: &mut Info, b: &mut Info) {
    if a.name == b.name {
        for info in [a, b] {
            if let Some(netns) = &info.netns {
                info.name = format!("{}?netns={netns}", info.name);
            }
        }
    }
}

/// The slots of all routes, with the names of their interfaces.
fn teeable(slots: Vec<Arc<TeeSlot>>, layer: Layer, infos: &[Info]) -> Arc<Teeable> {
    let names = infos.iter().map(|info| info.name.clone());
    Arc::new(Teeable::new(slots, layer, names.collect()))
}

/// The meter of a port, without its routes.
fn meter_of<R: RxQueue, T: TxQueue>(info: &Info, queues: &Queues<R, T>, edge: Option<Arc<dyn Edge>>) -> PortMeter {
    let rx = queues.rx.iter().map(|q| q.counters().clone()).collect();
    let tx = queues.tx.iter().map(|q| q.counters().clone()).collect();
    let mut meter = PortMeter::new(info.name.clone(), rx, tx);
    (meter.info, meter.edge) = (Some(info.clone()), edge);
    meter
}

impl Forward {
    /// Starts the ports and the workers.
    ///
    /// # Errors
    /// [`StartError`]; then nothing runs, and everything is undone.
    pub fn start(self, a: AnyPort, b: AnyPort) -> Result<Running, StartError> {
        self.prepare(a, b)?.launch()
    }

    /// Starts the ports, but no worker: nothing moves until [`Ready::launch`].
    ///
    /// # Errors
    /// [`StartError`]; then everything is undone.
    pub fn prepare(self, mut a: AnyPort, b: AnyPort) -> Result<Ready, StartError> {
        a.convert_to(b.info().layer);
        let needs = a.needs().and(b.needs());
        let (mut a_info, mut b_info) = (a.info().clone(), b.info().clone());
        distinguish(&mut a_info, &mut b_info);
        let [a_faulty, b_faulty] = [&a, &b].map(|port| matches!(port, AnyPort::Fault(_)));
        let layer = common_layer(&a_info, &b_info)?;
        self.check(&a_info, &b_info)?;
        self.check_rules(layer)?;
        let pool = Pool::new(self.pool.for_ports([&a_info, &b_info]))?;
        let controls = [(&a, &a_info), (&b, &b_info)];
        let controls =
            controls.into_iter().filter_map(|(port, info)| Some((info.name.clone(), port.control()?))).collect();
        let (a_edge, b_edge) = (a.edge(), b.edge());
        let start = |side, accept: Offloads| Start { pool: pool.clone(), queues: self.queues(side), accept };
        let mut a = a.start(start(PortSide::A, b_info.tx_offloads.and(self.gso.allows())))?;
        let mut b = b.start(start(PortSide::B, a_info.tx_offloads.and(self.gso.allows())))?;
        a.rx.iter_mut().for_each(|rx| rx.set_tx_layout(b_info.tx_layout));
        b.rx.iter_mut().for_each(|rx| rx.set_tx_layout(a_info.tx_layout));
        let mut ports = vec![meter_of(&a_info, &a, a_edge), meter_of(&b_info, &b, b_edge)];
        let gauges = [a.rx.first(), b.rx.first()].into_iter().flatten().filter_map(|rx| rx.memory().ext_bufs).collect();
        let own_pools = a.rx.iter().chain(&b.rx).filter_map(|rx| rx.memory().pool).collect();
        let limit = self.count.map(|n| Arc::new(Limit::new(n)));
        let (threads, counters, tees) = Default::default();
        let tx_layouts = [&a_info, &b_info].map(|info| info.tx_layout);
        let mut plan =
            Plan { pool: &pool, layer, limit, forward: &self, tx_layouts, ports: 2, threads, counters, tees };
        let table = if self.lanes.is_empty() {
            plan.direct(a, b)?;
            None
        } else {
            Some(plan.through_lanes(a, b)?)
        };
        let Plan { threads, counters, tees, .. } = plan;
        let [from_a, from_b] = counters;
        (ports[0].routes, ports[1].routes) = (from_b, from_a);
        let mut notes = notes(&a_info, &b_info, self.directions);
        if matches!(self.steering.steering, Steering::RoundRobin) && self.lanes.len() > 1 {
            notes.push("round-robin: packets of one flow go to different lanes and overtake each other".into());
        }
        let meter = Meter::new(ports, pool).with_pools(own_pools).with_ext_buf_gauges(gauges);
        let ends = vec![PortEnd::new(&a_info, a_faulty), PortEnd::new(&b_info, b_faulty)];
        let (controls, infos) = (PortControls::new(controls), vec![a_info, b_info]);
        let tees = teeable(tees, layer, &infos);
        let threads = threads.into_iter().map(|(placement, routes)| (placement, Work::Routes(routes))).collect();
        let observed = Observed { notes, controls, infos, bridge: None, router: None, tees };
        let ends = PortEnds::new(ends);
        Ok(Ready::new(self, threads, meter, observed, table, ends, needs))
    }

    /// Starts a port and workers that reflect its packets: frames with their Ethernet addresses
    /// swapped, IP packets (of a `tun`) with addresses and ports swapped (see
    /// [`reflect`](towpath_engine::reflect)). Each worker runs a queue of the port; lanes and GRO
    /// are not used.
    ///
    /// # Errors
    /// As for [`start`](Forward::start).
    pub fn echo(self, port: AnyPort) -> Result<Running, StartError> {
        self.prepare_echo(port)?.launch()
    }

    /// Starts the port of [`echo`](Forward::echo), but no worker.
    ///
    /// # Errors
    /// As for [`start`](Forward::start).
    pub fn prepare_echo(mut self, port: AnyPort) -> Result<Ready, StartError> {
        self.directions = Directions::OneWay;
        let needs = port.needs();
        let info = port.info().clone();
        let is_faulty = matches!(port, AnyPort::Fault(_));
        if let Some(lane) = self.lanes.first() {
            let rule = "packets are reflected where they come in: use more workers".into();
            return Err(StartError::Value { what: "lanes", value: lane.to_string(), rule });
        }
        let layer = common_layer(&info, &info)?;
        self.check(&info, &info)?;
        self.check_rules(layer)?;
        let pool = Pool::new(self.pool.for_ports([&info]))?;
        let controls = port.control().map(|control| (info.name.clone(), control)).into_iter().collect();
        let edge = port.edge();
        let accept = info.tx_offloads.and(self.gso.allows());
        let mut queues = port.start(Start { pool: pool.clone(), queues: self.workers, accept })?;
        queues.rx.iter_mut().for_each(|rx| rx.set_tx_layout(info.tx_layout));
        let mut port = meter_of(&info, &queues, edge);
        let gauges = queues.rx.first().and_then(|rx| rx.memory().ext_bufs).into_iter().collect();
        let own_pools = queues.rx.iter().filter_map(|rx| rx.memory().pool).collect();
        let limit = self.count.map(|n| Arc::new(Limit::new(n)));
        let (threads, counters, tees) = Default::default();
        let tx_layouts = [info.tx_layout; 2];
        let mut plan =
            Plan { pool: &pool, layer, limit, forward: &self, tx_layouts, ports: 1, threads, counters, tees };
        plan.reflect(queues)?;
        let Plan { threads, counters, tees, .. } = plan;
        port.routes = counters.concat();
        let meter = Meter::new(vec![port], pool).with_pools(own_pools).with_ext_buf_gauges(gauges);
        let notes = notes(&info, &info, self.directions);
        let ends = vec![PortEnd::new(&info, is_faulty)];
        let (controls, infos) = (PortControls::new(controls), vec![info]);
        let tees = teeable(tees, layer, &infos);
        let threads = threads.into_iter().map(|(placement, routes)| (placement, Work::Routes(routes))).collect();
        let observed = Observed { notes, controls, infos, bridge: None, router: None, tees };
        let ends = PortEnds::new(ends);
        Ok(Ready::new(self, threads, meter, observed, None, ends, needs))
    }
}
