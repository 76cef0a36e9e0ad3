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

use crate::any::{AnyPort, AnyRx, AnyTx};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use towpath_datapath::coalesce::CoalesceConfig;
use towpath_datapath::idle::Idle;
use towpath_datapath::lane::{self, Balancer, Full, LaneConfig, Steering, Table};
use towpath_datapath::report::{Meter, PortMeter, Reading};
use towpath_datapath::route::{Limit, Route, RouteConfig, Standing};
use towpath_datapath::rules::{Judge, PortSide, RuleError, Rules};
use towpath_datapath::worker::{Control, Ending, Worker, WorkerConfig};
use towpath_packet::port::{Info, Layer, Port, PortError, Queues, RxQueue, Start, State, TxQueue};
use towpath_packet::{Counters, Direction, Floors, Offloads, Pool, PoolConfig, PoolError};
use towpath_wire::LinkKind;

/// Numbers of pairs of lane routes begin behind those of all queues.
const LANE_PAIRS: usize = 1 << 16;

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
        let start = |side, accept: Offloads| Start { pool: pool.clone(), queues: self.queues(side), accept };
        let a = a.start(start(PortSide::A, b_info.tx_offloads.and(self.gso.allows())))?;
        let b = b.start(start(PortSide::B, a_info.tx_offloads.and(self.gso.allows())))?;
        let ports = vec![meter_of(&a_info, &a), meter_of(&b_info, &b)];
        let own_pools = a.rx.iter().chain(&b.rx).filter_map(RxQueue::own_pool).collect();
        let limit = self.count.map(|n| Arc::new(Limit::new(n)));
        let (threads, counters) = (Vec::new(), Vec::new());
        let mut plan = Plan { pool: &pool, layer, limit, forward: &self, threads, counters };
        let table = if self.lanes.is_empty() {
            plan.direct(a, b)?;
            None
        } else {
            Some(plan.through_lanes(a, b)?)
        };
        let Plan { threads, counters, .. } = plan;
        let gro = threads.iter().flat_map(|(_, routes)| routes).filter_map(|route| route.gro().cloned()).collect();
        let control = Control::new().map_err(|source| StartError::Thread { worker: 0, source })?;
        let mut running = Running {
            control: control.clone(),
            threads: Vec::new(),
            balancer: None,
            meter: Meter::new(ports, counters, pool.clone()).with_gro(gro).with_pools(own_pools),
            notes: notes(&a_info, &b_info, self.directions),
            table: table.clone(),
        };
        if matches!(self.steering.steering, Steering::RoundRobin) && self.lanes.len() > 1 {
            running.notes.push("round-robin: packets of one flow go to different lanes and overtake each other".into());
        }
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

    /// Queues that a port is started with: one for each worker where packets come in, one for each lane where they go out.
    fn queues(&self, side: PortSide) -> u16 {
        let lanes = if self.lanes.is_empty() { self.workers } else { self.lanes.len() as u16 };
        match (self.directions, side) {
            (Directions::OneWay, PortSide::A) => self.workers,
            (Directions::OneWay, PortSide::B) => lanes,
            (Directions::Both, _) => self.workers.max(lanes),
        }
    }

    fn check_rules(&self, layer: Layer) -> Result<(), StartError> {
        let link = if layer == Layer::Ip { LinkKind::Ip } else { LinkKind::Ethernet };
        for verdicts in [&self.at_rx, &self.in_lane] {
            let Verdicts::Rules(rules) = verdicts else { continue };
            rules.check(link, self.lanes.len() as u16)?;
            if self.directions == Directions::OneWay
                && let Some(rule) = rules.turns_back(PortSide::A)
            {
                let rule_text = "sends packets back where they came from: forward both ways, without --oneway".into();
                return Err(StartError::Value { what: "rule", value: rule, rule: rule_text });
            }
        }
        if let Verdicts::Rules(rules) = &self.in_lane
            && let Some(rule) = rules.names_a_lane()
        {
            let rule_text = "in a lane a packet has its lane already: use the rule at rx".into();
            return Err(StartError::Value { what: "rule in a lane", value: rule, rule: rule_text });
        }
        if self.lanes.is_empty() && !matches!(self.in_lane, Verdicts::Pass) {
            let rule = "there are no lanes: give some, or use rules at rx".into();
            return Err(StartError::Value { what: "rules in lanes", value: format!("{:?}", self.in_lane), rule });
        }
        Ok(())
    }

    fn check(&self, a: &Info, b: &Info) -> Result<(), StartError> {
        let value = |what, value: String, rule: String| Err(StartError::Value { what, value, rule });
        let egresses = if self.directions == Directions::Both { vec![a, b] } else { vec![b] };
        let plain = |info: &&&Info| info.tx_offloads.and(Offloads::GSO).is_none();
        if self.gso == Gso::On
            && let Some(info) = egresses.iter().find(plain)
        {
            return value("gso", "on".into(), format!("{} takes no super-packets: use auto", info.name));
        }
        if self.workers == 0 {
            return value("workers", "0".into(), "there must be one".into());
        }
        for (info, side) in [(a, PortSide::A), (b, PortSide::B)] {
            let n = self.queues(side);
            if n > info.max_queues {
                let what = if n == self.workers { "workers" } else { "lanes" };
                let rule = format!("{} has {} queue(s), and each of the {what} needs one", info.name, info.max_queues);
                return value(what, n.to_string(), rule);
            }
        }
        if let Steering::Lane(lane) = self.steering.steering
            && !self.lanes.is_empty()
            && usize::from(lane) >= self.lanes.len()
        {
            let rule = format!("there are {} lane(s), the first is 0", self.lanes.len());
            return value("steering to lane", lane.to_string(), rule);
        }
        let allowed = towpath_datapath::worker::cores();
        match self.cores.iter().chain(&self.lanes).find(|core| !allowed.contains(core)) {
            Some(core) => {
                value("cores", core.to_string(), format!("must be among the cores of this process: {allowed:?}"))
            }
            None => Ok(()),
        }
    }
}

/// Where a thread runs; what has the same place shares a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Pinned to a core.
    Core(usize),
    /// Wherever the scheduler puts the worker of this number.
    Worker(usize),
}

/// Routes, sorted by the thread that will run them.
struct Plan<'a> {
    pool: &'a Pool,
    layer: Layer,
    limit: Option<Arc<Limit>>,
    forward: &'a Forward,
    threads: Vec<(Place, Vec<AnyRoute>)>,
    counters: Vec<Arc<Counters>>,
}

type AnyRoute = Route<AnyRx, AnyTx>;
type AnyQueues = Queues<AnyRx, AnyTx>;

impl Plan<'_> {
    /// Queue i of one port to queue i of the other.
    fn direct(&mut self, a: AnyQueues, b: AnyQueues) -> Result<(), PoolError> {
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

    /// Queue i of each port to the lanes, and lane j to queue j of the other port.
    fn through_lanes(&mut self, a: AnyQueues, b: AnyQueues) -> Result<Arc<Table>, StartError> {
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
                self.route(AnyRx::Lane(lane), tx, true)?.with_gro(&self.forward.gro).with_standing(standing);
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
        let mut route = self.route(rx, tx, false)?.with_standing(Standing { side, pair: queue });
        if let Some(judge) = self.forward.at_rx.judge(side) {
            route = route.with_judge(judge);
        }
        self.counters.push(route.counters().clone());
        Ok(match &self.limit {
            Some(limit) => route.with_limit(limit.clone()),
            None => route,
        })
    }

    fn route(&self, rx: AnyRx, tx: AnyTx, internal: bool) -> Result<AnyRoute, PoolError> {
        let holds_back = matches!(tx, AnyTx::Steer(_)) && self.forward.steering.full == Full::Hold;
        // Lanes that hold back do so for as long as it takes: they drop what their own egress refuses.
        let egress_wait = if holds_back { Duration::MAX } else { self.forward.egress_wait };
        let config = RouteConfig { egress_wait, layer: self.layer, allow: self.forward.gso.allows(), internal };
        Ok(Route::new(rx, tx, self.pool.cache(Direction::Tx)?, config))
    }
}

fn common_layer(a: &Info, b: &Info) -> Result<Layer, StartError> {
    let name = |layer| match layer {
        Layer::Ethernet => "Ethernet frames",
        Layer::Ip => "IP packets",
        Layer::Any => "anything",
    };
    match (a.layer, b.layer) {
        (Layer::Any, Layer::Any) => Ok(Layer::Ethernet),
        (Layer::Any, layer) | (layer, Layer::Any) => Ok(layer),
        (x, y) if x == y => Ok(x),
        (x, y) => Err(StartError::Layers { a: a.name.clone(), a_layer: name(x), b: b.name.clone(), b_layer: name(y) }),
    }
}

fn meter_of<R: RxQueue, T: TxQueue>(info: &Info, queues: &Queues<R, T>) -> PortMeter {
    PortMeter {
        name: info.name.clone(),
        rx: queues.rx.iter().map(|q| q.counters().clone()).collect(),
        tx: queues.tx.iter().map(|q| q.counters().clone()).collect(),
    }
}

/// What a user should know about this pair of ports.
fn notes(a: &Info, b: &Info, directions: Directions) -> Vec<String> {
    let mut notes = Vec::new();
    for info in [a, b] {
        for ability in info.abilities.iter().filter(|ability| !ability.on) {
            let mend = ability.mend.as_ref().map(|m| format!("; to mend it: {m}")).unwrap_or_default();
            notes.push(format!("{}: {} is off: {}{mend}", info.name, ability.name, ability.why));
        }
    }
    let mut longer = |from: &Info, to: &Info| {
        if from.layer != Layer::Any && to.layer != Layer::Any && from.mtu > to.mtu {
            notes.push(format!(
                "{} has an MTU of {}, {} of {}: longer packets from the first are dropped as too-long",
                from.name, from.mtu, to.name, to.mtu
            ));
        }
    };
    longer(a, b);
    if directions == Directions::Both {
        longer(b, a);
    }
    notes
}

/// Ports that are being forwarded between. Dropping it stops the workers and waits for them.
#[derive(Debug)]
pub struct Running {
    control: Arc<Control>,
    threads: Vec<JoinHandle<std::io::Result<Vec<Ending>>>>,
    /// Runs for as long as the workers do.
    balancer: Option<JoinHandle<()>>,
    meter: Meter,
    notes: Vec<String>,
    table: Option<Arc<Table>>,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Summary {
    /// All counters, at the end.
    pub reading: Reading,
    /// Buffers that are not home: 0, or something is leaked.
    pub buffers_away: usize,
    /// Times that the pool was dry.
    pub shortages: u64,
    /// Ports that are gone, as their queues said it.
    pub gone: Vec<String>,
    /// Workers that failed.
    pub failed: Vec<String>,
}

impl Running {
    fn spawn(
        &mut self,
        number: usize,
        f: impl FnOnce() -> std::io::Result<Vec<Ending>> + Send + 'static,
    ) -> Result<(), StartError> {
        let thread = std::thread::Builder::new().name(format!("towpath-{number}")).spawn(f);
        self.threads.push(thread.map_err(|source| StartError::Thread { worker: number as u16, source })?);
        Ok(())
    }

    /// The table that lanes are chosen by, to be changed while it runs; `None` without lanes.
    pub fn lane_table(&self) -> Option<&Arc<Table>> {
        self.table.as_ref()
    }

    /// Where to read the counters.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// What a user should know: abilities that are off, packets that can't pass.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Asks the workers to stop, without waiting for them. Can be called from anywhere.
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Whether all workers have ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Stops the workers, and waits until they have: at most as long as draining takes.
    pub fn stop(mut self) -> Summary {
        self.control.stop();
        self.finish()
    }

    /// Waits until the workers end by themselves.
    pub fn join(mut self) -> Summary {
        self.finish()
    }

    /// The workers have ended, so there is nothing left to stop but the balancer.
    fn end_balancer(&mut self) {
        self.control.stop();
        if let Some(balancer) = self.balancer.take() {
            balancer.thread().unpark();
            let _ = balancer.join();
        }
    }

    fn finish(&mut self) -> Summary {
        let (mut gone, mut failed) = (Vec::new(), Vec::new());
        for (number, thread) in self.threads.drain(..).enumerate() {
            match thread.join() {
                Ok(Ok(endings)) => {
                    for ending in endings {
                        if let State::Gone(why) = ending.state
                            && !gone.iter().any(|known| *known == why)
                        {
                            gone.push(why.into_owned());
                        }
                    }
                }
                Ok(Err(error)) => failed.push(format!("worker {number}: {error}")),
                Err(_) => failed.push(format!("worker {number} panicked")),
            }
        }
        self.end_balancer();
        Summary {
            reading: self.meter.read(),
            buffers_away: self.meter.buffers_away(),
            shortages: self.meter.shortages(),
            gone,
            failed,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.control.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.end_balancer();
    }
}
