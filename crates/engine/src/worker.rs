//! Workers: threads that run routes to completion.
//!
//! ```text
//!   Control (shared)  stop flag + descriptor that wakes sleepers
//!      │
//!   worker 0 (core 0)         worker 1 (core 1)
//!   loop { each route: turn } loop { each route: turn }      no route is shared, no packet waits for another thread
//! ```
//!
//! **Stopping** is bounded: from the moment that it is asked for nothing more is received; what is held gets
//! [`WorkerConfig::drain`] to leave and is then dropped as `stopped`. The queues are dropped on the worker's own thread,
//! before [`Worker::run`] returns.

use crate::idle::{Idle, Idler, Next};
use crate::route::{Route, Standing};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath_packet::port::{RxQueue, State, TxQueue};
use towpath_sys::{EventFd, affinity};

/// Tells workers when to stop.
#[derive(Debug)]
pub struct Control {
    stop: AtomicBool,
    event: EventFd,
}

impl Control {
    /// A control that lets workers run.
    ///
    /// # Errors
    /// When the process has no descriptor left for the event.
    pub fn new() -> io::Result<Arc<Control>> {
        Ok(Arc::new(Control { stop: AtomicBool::new(false), event: EventFd::new()? }))
    }

    /// Asks all workers to stop, and wakes those that sleep.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.event.signal();
    }

    /// Whether workers have been asked to stop.
    #[inline]
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// How a worker runs.
#[derive(Debug, Clone, Copy)]
pub struct WorkerConfig {
    /// The core that it is pinned to; `None` leaves it to the scheduler.
    pub core: Option<usize>,
    /// What it does when there is nothing to do.
    pub idle: Idle,
    /// How long packets that are held get to leave once it stops.
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
    /// Number of the route, in the order that the worker was given them.
    pub route: usize,
    /// Why: the port was done, or is gone; [`State::Up`] when it was stopped.
    pub state: State,
}

/// A set of routes for one thread.
pub struct Worker<R, T> {
    routes: Vec<Route<R, T>>,
    config: WorkerConfig,
    control: Arc<Control>,
}

impl<R: RxQueue, T: TxQueue> Worker<R, T> {
    /// A worker for `routes`.
    pub fn new(routes: Vec<Route<R, T>>, config: WorkerConfig, control: Arc<Control>) -> Worker<R, T> {
        Worker { routes, config, control }
    }

    /// Runs until it is asked to stop, or until no route has anything to wait for. Returns how each route ended.
    ///
    /// # Errors
    /// When the thread can't be pinned to the configured core; nothing was moved then.
    pub fn run(mut self) -> io::Result<Vec<Ending>> {
        if let Some(core) = self.config.core {
            affinity::pin(core)?;
        }
        let mut idler = Idler::new(self.config.idle, self.routes.len());
        let mut deadline = None;
        let mut about_to_sleep = false;
        loop {
            let stopping = self.control.is_stopping();
            let mut moved = 0;
            for route in &mut self.routes {
                moved += route.turn(stopping);
            }
            if self.routes.iter_mut().any(|route| !route.turned().is_empty()) {
                self.turn_back();
                moved += 1;
            }
            if moved > 0 && !stopping {
                idler.busy();
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
                idler.sleep(self.control.event.fd());
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
            endings.push(Ending { route: number, state: route.ended().cloned().unwrap_or(State::Up) });
        }
        Ok(endings)
    }
}

impl<R: RxQueue, T: TxQueue> Worker<R, T> {
    /// Gives what verdicts turned back to the routes of the other direction.
    #[cold]
    fn turn_back(&mut self) {
        for i in 0..self.routes.len() {
            let Standing { side, pair } = self.routes[i].standing();
            let back = Standing { side: side.other(), pair };
            let mut turned = std::mem::take(self.routes[i].turned());
            match self.routes.iter_mut().find(|route| route.standing() == back) {
                Some(other) => {
                    other.take_turned(&mut turned);
                    *self.routes[i].turned() = turned;
                }
                None => {
                    *self.routes[i].turned() = turned;
                    self.routes[i].refuse_turned();
                }
            }
        }
    }
}

/// The processors that workers may be pinned to.
pub fn cores() -> Vec<usize> {
    affinity::allowed_cores()
}

#[cfg(test)]
mod tests;
