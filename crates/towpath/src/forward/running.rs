//! Ports while they are joined, and the summary.

use super::StartError;
use std::sync::Arc;
use std::thread::JoinHandle;
use towpath_engine::lane::LaneTable;
use towpath_engine::report::{Meter, Reading};
use towpath_engine::worker::{Ending, StopSignal};
use towpath_packet::port::{PortControl, State};

/// Joined ports. Dropping it stops the workers and waits for them.
#[derive(Debug)]
pub struct Running {
    pub(super) stop: Arc<StopSignal>,
    pub(super) threads: Vec<JoinHandle<std::io::Result<Vec<Ending>>>>,
    /// Runs as long as the workers do.
    pub(super) balancer: Option<JoinHandle<()>>,
    pub(super) meter: Meter,
    pub(super) notes: Vec<String>,
    pub(super) table: Option<Arc<LaneTable>>,
    pub(super) controls: PortControls,
}

/// Settings and events of ports while they run. A clone refers to the same ports.
#[derive(Clone, Default)]
pub struct PortControls(pub(super) Vec<(String, Arc<dyn PortControl>)>);

impl PortControls {
    /// The ports with settings, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &dyn PortControl)> {
        self.0.iter().map(|(name, control)| (name.as_str(), &**control))
    }

    /// Events of the ports: port, name, count.
    pub fn events(&self) -> Vec<(String, &'static str, u64)> {
        let of = |(port, control): (&str, &dyn PortControl)| {
            let port = port.to_owned();
            control.events().into_iter().map(move |(name, n)| (port.clone(), name, n))
        };
        self.iter().flat_map(of).filter(|(_, _, n)| *n > 0).collect()
    }

    /// The log of sessions, as far as ports keep one.
    pub fn session_log(&self) -> Vec<(String, String)> {
        let of = |(port, control): (&str, &dyn PortControl)| {
            let port = port.to_owned();
            control.session_log().into_iter().map(move |line| (port.clone(), line))
        };
        self.iter().flat_map(of).collect()
    }

    /// The settings of a port.
    pub fn port(&self, name: &str) -> Option<&dyn PortControl> {
        self.iter().find(|(port, _)| *port == name).map(|(_, control)| control)
    }
}

impl std::fmt::Debug for PortControls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, control)| (name, control.settings()))).finish()
    }
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Summary {
    /// All counters, at the end.
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
    /// Ports that are gone, and why.
    pub gone: Vec<String>,
    /// Workers that failed.
    pub failed: Vec<String>,
}

impl Running {
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
        &self.meter
    }

    /// Notes for the user: disabled abilities, packets that can't pass.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Settings and events of the ports.
    pub fn port_controls(&self) -> &PortControls {
        &self.controls
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
        self.finish()
    }

    /// Waits until the workers end by themselves.
    pub fn join(mut self) -> Summary {
        self.finish()
    }

    /// Stops the balancer after the workers have ended.
    fn end_balancer(&mut self) {
        self.stop.stop();
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
            pages: self.meter.pages(),
            pages_away: self.meter.pages_away(),
            shortages: self.meter.shortages(),
            events: self.controls.events(),
            session_log: self.controls.session_log(),
            gone,
            failed,
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
