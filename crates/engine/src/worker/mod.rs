//! Workers: threads that run routes to completion.
//!
//! ```text
//!   StopSignal (shared): stop flag, and an eventfd that wakes sleepers
//!      │
//!   worker 0 (core 0)         worker 1 (core 1)
//!   loop { each route: turn } loop { each route: turn }      routes are not shared between threads
//! ```
//!
//! **Stopping** is bounded. After a stop nothing is received; held packets get
//! [`WorkerConfig::drain`] to leave and are then dropped as `stopped`. The queues are dropped on
//! the worker's own thread before [`Worker::run`] returns.

use crate::core_sharing::CoreSharing;
use crate::idle::{Idle, Idler, Next};
use crate::route::{Route, RouteId};
use crate::rules::PortSide;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath_packet::port::{RxQueue, State, TxQueue};
use towpath_sys::{EventFd, affinity};

/// Stops workers.
#[derive(Debug)]
pub struct StopSignal {
    stop: AtomicBool,
    event: EventFd,
}

impl StopSignal {
    /// A signal that is not set.
    ///
    /// # Errors
    /// Fails if the process has no descriptor left for the eventfd.
    pub fn new() -> io::Result<Arc<StopSignal>> {
        Ok(Arc::new(StopSignal { stop: AtomicBool::new(false), event: EventFd::new()? }))
    }

    /// Stops all workers and wakes those that sleep.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.event.signal();
    }

    /// Whether the workers are to stop.
    #[inline]
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// Configuration of a worker.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// The core to pin the thread to; `None` leaves it to the scheduler.
    pub core: Option<usize>,
    /// What the worker does while no packet moves. With [`Idle::SPIN`] it does not offer its core to
    /// other threads while it is busy either.
    pub idle: Idle,
    /// How long held packets get to leave after a stop.
    pub drain: Duration,
}

impl Default for WorkerConfig {
    /// Not pinned, sleeps when idle, drains for a second.
    fn default() -> WorkerConfig {
        WorkerConfig { core: None, idle: Idle::default(), drain: Duration::from_secs(1) }
    }
}

/// How a route ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Index of the route in the worker's list.
    pub route: usize,
    /// The state of the port that ended it; [`State::Up`] after a stop.
    pub state: State,
    /// Ports that are gone, if that ended the route, or were down at the end, each with its state.
    pub faults: Vec<(PortSide, State)>,
}

/// A set of routes for one thread.
pub struct Worker<R, T> {
    routes: Vec<Route<R, T>>,
    config: WorkerConfig,
    stop: Arc<StopSignal>,
}

impl<R: RxQueue, T: TxQueue> Worker<R, T> {
    /// A worker for `routes`.
    pub fn new(routes: Vec<Route<R, T>>, config: WorkerConfig, stop: Arc<StopSignal>) -> Worker<R, T> {
        Worker { routes, config, stop }
    }

    /// Runs until the stop signal, or until no route has anything to wait for. Returns how each
    /// route ended.
    ///
    /// # Errors
    /// Fails if the thread can't be pinned to the configured core; nothing is moved then.
    pub fn run(mut self) -> io::Result<Vec<Ending>> {
        if let Some(core) = self.config.core {
            affinity::pin(core)?;
        }
        let mut idler = Idler::new(self.config.idle, self.routes.len());
        let shares = self.config.idle != Idle::SPIN;
        let mut sharing = CoreSharing::new(Instant::now());
        let mut deadline = None;
        let mut about_to_sleep = false;
        loop {
            let stopping = self.stop.is_stopping();
            let mut moved = 0;
            for route in &mut self.routes {
                moved += route.turn(stopping);
            }
            if self.routes.iter_mut().any(|route| !route.reflected().is_empty()) {
                self.exchange_reflected();
                moved += 1;
            }
            if moved > 0 && !stopping {
                idler.busy();
                if shares {
                    sharing.busy();
                }
                about_to_sleep = false;
                continue;
            }
            let exhausted = self.routes.iter().all(Route::is_exhausted);
            if stopping || exhausted {
                let draining = self.routes.iter().any(Route::is_draining);
                let until = *deadline.get_or_insert_with(|| Instant::now() + self.config.drain);
                if !draining || Instant::now() >= until {
                    break;
                }
                std::thread::yield_now();
                continue;
            }
            if about_to_sleep {
                idler.sleep(self.stop.event.fd());
                about_to_sleep = false;
            } else if idler.step() == Next::Sleep {
                for (wake, sending) in self.routes.iter().flat_map(Route::wakes) {
                    idler.wait_for(wake, sending);
                }
                about_to_sleep = true;
            }
        }
        let mut endings = Vec::new();
        for (number, route) in self.routes.iter_mut().enumerate() {
            route.abandon();
            let state = route.ended().cloned().unwrap_or(State::Up);
            endings.push(Ending { route: number, state, faults: route.faults() });
        }
        Ok(endings)
    }
}

impl<R: RxQueue, T: TxQueue> Worker<R, T> {
    /// Passes reflected packets to the routes of the other direction.
    #[cold]
    fn exchange_reflected(&mut self) {
        for i in 0..self.routes.len() {
            let RouteId { side, pair } = self.routes[i].id();
            let back = RouteId { side: side.other(), pair };
            let mut reflected = std::mem::take(self.routes[i].reflected());
            match self.routes.iter_mut().find(|route| route.id() == back) {
                Some(other) => {
                    other.take_reflected(&mut reflected);
                    *self.routes[i].reflected() = reflected;
                }
                None => {
                    *self.routes[i].reflected() = reflected;
                    self.routes[i].drop_reflected();
                }
            }
        }
    }
}

/// The cores that workers may be pinned to.
pub fn cores() -> Vec<usize> {
    affinity::allowed_cores()
}

#[cfg(test)]
mod tests;
