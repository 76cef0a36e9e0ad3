//! Ports while they are joined, and the summary.

use super::failure::{Failure, PortEnd};
use super::{BridgeControl, Observer, StartError};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;
use towpath_engine::bridge::fdb::FdbStats;
use towpath_engine::lane::LaneTable;
use towpath_engine::report::{Meter, Reading};
use towpath_engine::worker::{Ending, StopSignal};
use towpath_packet::port::{Info, Pacing, PortControl, State, Usage, Verified};

/// Joined ports. Dropping it stops the workers and waits for them.
#[derive(Debug)]
pub struct Running {
    pub(super) stop: Arc<StopSignal>,
    pub(super) threads: Vec<JoinHandle<std::io::Result<Vec<Ending>>>>,
    /// Runs as long as the workers do.
    pub(super) balancer: Option<JoinHandle<()>>,
    pub(super) observer: Observer,
    pub(super) table: Option<Arc<LaneTable>>,
    pub(super) ends: PortEnds,
}

/// The ports by their numbers, for the report of their failures: A and B, the port of an echo, or
/// the ports of a bridge.
#[derive(Debug, Clone, Default)]
pub(super) struct PortEnds(Arc<Mutex<Vec<PortEnd>>>);

impl PortEnds {
    pub(super) fn new(ends: Vec<PortEnd>) -> PortEnds {
        PortEnds(Arc::new(Mutex::new(ends)))
    }

    /// Sets the port of a number: the next one, or one that was used before.
    pub(super) fn set(&self, number: usize, end: PortEnd) {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match ends.get_mut(number) {
            Some(known) => *known = end,
            None => ends.push(end),
        }
    }

    fn failure(&self, number: usize, state: State) -> Option<Failure> {
        let ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ends.get(number).or(ends.first())?.failure(state)
    }
}

/// Settings and events of ports while they run. A clone refers to the same ports, with those that
/// are attached later.
#[derive(Clone, Default)]
pub struct PortControls(Arc<RwLock<Vec<Control>>>);

/// A port by its name.
type Control = (String, Arc<dyn PortControl>);

impl PortControls {
    pub(super) fn new(controls: Vec<Control>) -> PortControls {
        PortControls(Arc::new(RwLock::new(controls)))
    }

    /// Adds a port, in the place of one of the same name.
    pub(super) fn attach(&self, name: &str, control: Option<Arc<dyn PortControl>>) {
        let mut controls = self.0.write().unwrap_or_else(PoisonError::into_inner);
        controls.retain(|(known, _)| known != name);
        controls.extend(control.map(|control| (name.to_owned(), control)));
    }

    /// The ports with settings, by name.
    pub fn iter(&self) -> impl Iterator<Item = (String, Arc<dyn PortControl>)> + use<> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone().into_iter()
    }

    /// Events of the ports: port, name, count.
    pub fn events(&self) -> Vec<(String, &'static str, u64)> {
        let of = |(port, control): Control| control.events().into_iter().map(move |(name, n)| (port.clone(), name, n));
        self.iter().flat_map(of).filter(|(_, _, n)| *n > 0).collect()
    }

    /// How paced sources keep their rates until `until`, by port.
    pub fn pacing(&self, until: Instant) -> Vec<(String, Pacing)> {
        self.iter().filter_map(|(port, control)| Some((port, control.pacing(until)?))).collect()
    }

    /// What ports found in sequence numbers, by port.
    pub fn verified(&self) -> Vec<(String, Verified)> {
        self.iter().filter_map(|(port, control)| Some((port, control.verified()?))).collect()
    }

    /// The log of sessions, as far as ports keep one.
    pub fn session_log(&self) -> Vec<(String, String)> {
        let of = |(port, control): Control| control.session_log().into_iter().map(move |line| (port.clone(), line));
        self.iter().flat_map(of).collect()
    }

    /// What users have of the resources that ports bound, by port.
    pub fn usage(&self) -> Vec<(String, Usage)> {
        let of = |(port, control): Control| control.usage().into_iter().map(move |usage| (port.clone(), usage));
        self.iter().flat_map(of).collect()
    }

    /// The settings of a port.
    pub fn port(&self, name: &str) -> Option<Arc<dyn PortControl>> {
        self.iter().find(|(port, _)| port == name).map(|(_, control)| control)
    }
}

impl FromIterator<PortControls> for PortControls {
    /// The ports of all of them.
    fn from_iter<I: IntoIterator<Item = PortControls>>(all: I) -> PortControls {
        PortControls::new(all.into_iter().flat_map(|controls| controls.iter().collect::<Vec<_>>()).collect())
    }
}

impl std::fmt::Debug for PortControls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, control)| (name, control.settings()))).finish()
    }
}

/// The result of a run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Summary {
    /// All counters, at the end. What the kernel lost around a port is
    /// [`missed`](towpath_packet::Snapshot::missed) of its `rx` and `tx`.
    pub reading: Reading,
    /// Buffers that are not returned: 0, or there is a leak.
    pub buffers_away: usize,
    /// Pages of applications' memory that were taken into packets.
    pub pages: u64,
    /// Pages that are not returned: 0, or there is a leak.
    pub pages_away: u64,
    /// Times that the pool was exhausted.
    pub shortages: u64,
    /// Events that ports survived: port, name, count.
    pub events: Vec<(String, &'static str, u64)>,
    /// The log of sessions: port, line.
    pub session_log: Vec<(String, String)>,
    /// What users had of the resources that ports bound, by port; see [`PortControls::usage`].
    pub usage: Vec<(String, Usage)>,
    /// Rates that were asked for and reached, by port.
    pub pacing: Vec<(String, Pacing)>,
    /// What was found in sequence numbers, by port.
    pub verified: Vec<(String, Verified)>,
    /// Ports that are gone or down, and why; see [`failures`](Summary::failures) for everything.
    pub port_failures: Vec<Failure>,
    /// Workers that failed.
    pub failed: Vec<String>,
    /// How many packets each rule decided on: the rules at the ingress, then those in lanes, each
    /// list with its default as the last.
    pub rule_hits: Vec<(String, u64)>,
    /// What a bridge did with addresses; `None` if there was none.
    pub fdb: Option<FdbStats>,
}

impl Running {
    /// What the ports are, as they were opened: A and B, the port of an echo, or those that a
    /// bridge began with.
    pub fn infos(&self) -> &[Info] {
        self.observer.infos()
    }

    /// What can be seen of the ports, also after they have ended.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    pub(super) fn spawn(
        &mut self,
        number: usize,
        f: impl FnOnce() -> std::io::Result<Vec<Ending>> + Send + 'static,
    ) -> Result<(), StartError> {
        let thread = std::thread::Builder::new().name(format!("towpath-{number}")).spawn(f);
        self.threads.push(thread.map_err(|source| StartError::Thread { worker: number as u16, source })?);
        Ok(())
    }

    /// The lane table, which can be changed while the lanes run; `None` without lanes.
    pub fn lane_table(&self) -> Option<&Arc<LaneTable>> {
        self.table.as_ref()
    }

    /// The counters.
    pub fn meter(&self) -> &Meter {
        self.observer.meter()
    }

    /// Notes for the user: disabled abilities, packets that can't pass.
    pub fn notes(&self) -> &[String] {
        self.observer.notes()
    }

    /// Settings and events of the ports.
    pub fn port_controls(&self) -> &PortControls {
        self.observer.port_controls()
    }

    /// The routes and neighbours of a router; `None` if no router runs.
    pub fn router(&self) -> Option<&super::RouterControl> {
        self.observer.router()
    }

    /// The ports and addresses of a bridge; `None` if no bridge runs.
    pub fn bridge(&self) -> Option<&BridgeControl> {
        self.observer.bridge()
    }

    /// The signal that stops the workers without waiting for them; usable from any thread.
    pub fn stop_signal(&self) -> &Arc<StopSignal> {
        &self.stop
    }

    /// Whether all workers have ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Stops the workers and waits for them, at most for the drain time.
    pub fn stop(mut self) -> Summary {
        self.stop.stop();
        self.finish(Some(Instant::now()))
    }

    /// Waits until the workers end by themselves.
    pub fn join(mut self) -> Summary {
        self.finish(None)
    }

    /// Stops the balancer after the workers have ended.
    fn end_balancer(&mut self) {
        self.stop.stop();
        if let Some(balancer) = self.balancer.take() {
            balancer.thread().unpark();
            let _ = balancer.join();
        }
    }

    /// `until`: when packets ceased to be due, if not when the workers ended.
    fn finish(&mut self, until: Option<Instant>) -> Summary {
        let (mut port_failures, mut failed) = (Vec::<Failure>::new(), Vec::new());
        for (number, thread) in self.threads.drain(..).enumerate() {
            match thread.join() {
                Ok(Ok(endings)) => {
                    for (number, state) in endings.into_iter().flat_map(|ending| ending.faults) {
                        if let Some(failure) = self.ends.failure(number, state)
                            && !port_failures.contains(&failure)
                        {
                            port_failures.push(failure);
                        }
                    }
                }
                Ok(Err(error)) => failed.push(format!("worker {number}: {error}")),
                Err(_) => failed.push(format!("worker {number} panicked")),
            }
        }
        self.end_balancer();
        let (meter, controls) = (self.observer.meter(), self.observer.port_controls());
        let reading = meter.read();
        port_failures.retain(|failure| !failure.is_harmless(&reading));
        Summary {
            reading,
            buffers_away: meter.buffers_away(),
            pages: meter.pages(),
            pages_away: meter.pages_away(),
            shortages: meter.shortages(),
            events: controls.events(),
            session_log: controls.session_log(),
            usage: controls.usage(),
            pacing: controls.pacing(until.unwrap_or_else(Instant::now)),
            verified: controls.verified(),
            port_failures,
            failed,
            rule_hits: self.observer.rule_hits(),
            fdb: self.bridge().map(BridgeControl::stats),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.end_balancer();
    }
}
