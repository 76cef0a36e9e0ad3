//! Started ports whose workers do not run yet.

use super::observer::{Observed, Observer, RuleHits};
use super::plan::{AnyRoute, LANE_PAIRS, Placement};
use super::running::PortEnds;
use super::{AnyHub, AnyRouterHub, Forward, PortControls, REBALANCE, Running, StartError};
use std::sync::Arc;
use towpath_engine::lane::{Balancer, LaneTable};
use towpath_engine::report::{GroCounters, Meter, RouteMeter};
use towpath_engine::worker::{StopSignal, Worker, WorkerConfig};
use towpath_packet::port::{Info, Needs};

/// Started ports whose workers do not run yet: the moment to give up rights.
///
/// ```
/// use towpath::sandbox::{Level, enforce};
/// use towpath::{Forward, Opener, Role};
///
/// let mut opener = Opener::new();
/// let from = opener.open(&"gen:count=1000".parse()?, Role::Ingress)?;
/// let to = opener.open(&"null:".parse()?, Role::Egress)?;
/// let ready = Forward::default().prepare(from, to)?;
/// let enforced = enforce(ready.needs(), Level::Prefer)?;
/// assert!(enforced.no_new_privs);
/// let running = ready.launch()?;
/// while !running.is_finished() {
///     std::thread::yield_now();
/// }
/// assert_eq!(running.stop().reading.balance().received, 1000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Ready {
    plan: Forward,
    threads: Vec<(Placement, Work)>,
    observer: Observer,
    table: Option<Arc<LaneTable>>,
    ends: PortEnds,
    needs: Needs,
}

/// What a worker runs.
pub(super) enum Work {
    Routes(Vec<AnyRoute>),
    Hub(Box<AnyHub>),
    Router(Box<AnyRouterHub>),
}

impl Work {
    /// The GRO counters of routes. Those of a hub's ports come with the ports
    /// ([`Meter::attach`]).
    fn gro(&self) -> Vec<Arc<GroCounters>> {
        match self {
            Work::Routes(routes) => routes.iter().filter_map(|route| route.gro().cloned()).collect(),
            Work::Hub(_) | Work::Router(_) => Vec::new(),
        }
    }
}

impl Ready {
    pub(super) fn new(
        plan: Forward,
        threads: Vec<(Placement, Work)>,
        meter: Meter,
        observed: Observed,
        table: Option<Arc<LaneTable>>,
        ends: PortEnds,
        needs: Needs,
    ) -> Ready {
        let gro = threads.iter().flat_map(|(_, work)| work.gro()).collect();
        let hits = [plan.at_rx.hits(), plan.in_lane.hits()].into_iter().flatten().collect();
        let meter = meter.with_gro(gro).with_routes(route_meters(&threads));
        let mut observer = Observer::new(meter, observed, hits);
        observer.table.clone_from(&table);
        Ready { plan, threads, observer, table, ends, needs }
    }

    /// With the rules of a bridge and its ports, in the place of those of a route.
    pub(super) fn with_hits(mut self, hits: Vec<RuleHits>) -> Ready {
        self.observer.hits = hits;
        self
    }

    /// What the ports use of the kernel from now on.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// What can be seen of the ports, from now on.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// What the ports are, as they were opened: A and B, the port of an echo, or those of a bridge.
    pub fn infos(&self) -> &[Info] {
        self.observer.infos()
    }

    /// Settings and events of the ports.
    pub fn port_controls(&self) -> &PortControls {
        self.observer.port_controls()
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// [`StartError::Thread`]; then nothing runs, and everything is undone.
    pub fn launch(self) -> Result<Running, StartError> {
        let Ready { plan, threads, observer, table, ends, .. } = self;
        let stop = StopSignal::new().map_err(|source| StartError::Thread { worker: 0, source })?;
        let mut running =
            Running { stop: stop.clone(), threads: Vec::new(), balancer: None, observer, table: table.clone(), ends };
        for (number, (placement, work)) in threads.into_iter().enumerate() {
            let core = if let Placement::Core(core) = placement { Some(core) } else { None };
            let mut config = WorkerConfig::default();
            (config.core, config.idle, config.drain) = (core, plan.idle, plan.drain);
            let stop = stop.clone();
            match work {
                Work::Routes(routes) => {
                    let worker = Worker::new(routes, config, stop);
                    running.spawn(number, move || worker.run())?;
                }
                Work::Hub(hub) => {
                    let worker = Worker::new(vec![*hub], config, stop);
                    running.spawn(number, move || worker.run())?;
                }
                Work::Router(hub) => {
                    let worker = Worker::new(vec![*hub], config, stop);
                    running.spawn(number, move || worker.run())?;
                }
            }
        }
        if let Some(table) = table.filter(|_| plan.rebalance) {
            let thread = std::thread::Builder::new().name("towpath-balance".into());
            let balance = move || {
                let mut balancer = Balancer::new(table);
                while !stop.is_stopping() {
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

/// The counters of all routes, by thread.
fn route_meters(threads: &[(Placement, Work)]) -> Vec<RouteMeter> {
    let of_thread = |(worker, (placement, work)): (usize, &(Placement, Work))| {
        let core = if let Placement::Core(core) = placement { Some(*core) } else { None };
        // A hub has ports, and no routes.
        let routes = if let Work::Routes(routes) = work { routes.as_slice() } else { &[] };
        let meters = routes.iter().map(|route| {
            let (counters, samples) = (route.counters().clone(), route.samples().clone());
            let mut meter = RouteMeter::new(route.id(), worker, counters, samples);
            (meter.core, meter.lane) = (core, route.id().pair.checked_sub(LANE_PAIRS));
            meter
        });
        meters.collect::<Vec<_>>()
    };
    threads.iter().enumerate().flat_map(of_thread).collect()
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready")
            .field("needs", &self.needs)
            .field("notes", &self.observer.notes())
            .finish_non_exhaustive()
    }
}
