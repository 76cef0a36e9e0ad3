//! Ports while they are forwarded between, and what came of it.

use super::StartError;
use std::sync::Arc;
use std::thread::JoinHandle;
use towpath_engine::lane::Table;
use towpath_engine::report::{Meter, Reading};
use towpath_engine::worker::{Control, Ending};
use towpath_packet::port::{PortControl, State};

/// Ports that are being forwarded between. Dropping it stops the workers and waits for them.
#[derive(Debug)]
pub struct Running {
    pub(super) control: Arc<Control>,
    pub(super) threads: Vec<JoinHandle<std::io::Result<Vec<Ending>>>>,
    /// Runs for as long as the workers do.
    pub(super) balancer: Option<JoinHandle<()>>,
    pub(super) meter: Meter,
    pub(super) notes: Vec<String>,
    pub(super) table: Option<Arc<Table>>,
    pub(super) tuners: Tuners,
}

/// Handles to what can be changed about ports while they run. A clone is another handle of the same.
#[derive(Clone, Default)]
pub struct Tuners(pub(super) Vec<(String, Arc<dyn PortControl>)>);

impl Tuners {
    /// The ports that have settings, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &dyn PortControl)> {
        self.0.iter().map(|(name, tuner)| (name.as_str(), &**tuner))
    }

    /// What has happened to the ports that is worth to be known: port, name, how often.
    pub fn events(&self) -> Vec<(String, &'static str, u64)> {
        let of = |(port, tuner): (&str, &dyn PortControl)| {
            let port = port.to_owned();
            tuner.events().into_iter().map(move |(name, n)| (port.clone(), name, n))
        };
        self.iter().flat_map(of).filter(|(_, _, n)| *n > 0).collect()
    }

    /// Who used the ports, as far as that is remembered.
    pub fn session_log(&self) -> Vec<(String, String)> {
        let of = |(port, tuner): (&str, &dyn PortControl)| {
            let port = port.to_owned();
            tuner.session_log().into_iter().map(move |line| (port.clone(), line))
        };
        self.iter().flat_map(of).collect()
    }

    /// The settings of a port.
    pub fn port(&self, name: &str) -> Option<&dyn PortControl> {
        self.iter().find(|(port, _)| *port == name).map(|(_, tuner)| tuner)
    }
}

impl std::fmt::Debug for Tuners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, tuner)| (name, tuner.settings()))).finish()
    }
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Summary {
    /// All counters, at the end.
    pub reading: Reading,
    /// Buffers that are not home: 0, or something is leaked.
    pub buffers_away: usize,
    /// Pieces of applications' memory that were put into packets.
    pub pages: u64,
    /// Those that are not home: 0, or something is leaked.
    pub pages_away: u64,
    /// Times that the pool was dry.
    pub shortages: u64,
    /// What should not happen and was survived: port, name, how often.
    pub events: Vec<(String, &'static str, u64)>,
    /// Who used the ports: port, and a line each.
    pub visitors: Vec<(String, String)>,
    /// Ports that are gone, as their queues said it.
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

    /// What can be changed about the ports while they run.
    pub fn tuners(&self) -> &Tuners {
        &self.tuners
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
            pages: self.meter.pages(),
            pages_away: self.meter.pages_away(),
            shortages: self.meter.shortages(),
            events: self.tuners.events(),
            visitors: self.tuners.session_log(),
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
