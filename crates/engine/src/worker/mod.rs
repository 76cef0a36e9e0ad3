//! Workers: threads that run routes or hubs to completion.
//!
//! ```text
//!   StopSignal (shared): stop flag, and an eventfd that wakes sleepers
//!      │
//!   worker 0 (core 0)         worker 1 (core 1)
//!   loop { each task: turn }  loop { each task: turn }       tasks are not shared between threads
//! ```
//!
//! **Stopping** is bounded. After a stop nothing is received; held packets get
//! [`WorkerConfig::drain`] to leave and are then dropped as `stopped`. The queues are dropped on
//! the worker's own thread before [`Worker::run`] returns.

use crate::core_sharing::CoreSharing;
use crate::idle::{Idle, Idler, Next};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath_packet::port::{State, Wake};
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
    /// What the worker does while no packet moves. With [`Idle::SPIN`] it does not offer its core
    /// to other threads while it is busy either.
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

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ending {
    /// Index of the task in the worker's list.
    pub task: usize,
    /// The state of the port that ended it; [`State::Up`] after a stop.
    pub state: State,
    /// Ports that are gone, or were down at the end, each by its number and with its state. The
    /// ends of a route are numbered as [`PortSide`](crate::rules::PortSide): A is 0, B is 1.
    pub faults: Vec<(usize, State)>,
}

/// What a worker runs: a [`Route`](crate::route::Route), or a [`Hub`](crate::hub::Hub).
pub trait Task: Sized {
    /// Moves one burst; returns how many packets were received or sent. With `stopping`, nothing is
    /// received.
    fn turn(&mut self, stopping: bool) -> usize;

    /// Passes packets between tasks of the same worker, after each round of turns; returns 0 if
    /// there were none.
    #[inline]
    fn exchange(tasks: &mut [Self]) -> usize {
        let _ = tasks;
        0
    }

    /// Whether it has nothing to wait for: it has ended, or its ingresses never receive.
    fn is_exhausted(&self) -> bool;

    /// Whether packets are still on their way: held in it, or pending in an egress.
    fn is_draining(&self) -> bool;

    /// Calls `wait_for` with each wake-up condition of an idle worker; `true` marks a sending side.
    fn wakes(&self, wait_for: impl FnMut(Wake, bool));

    /// The drain time is over: drops all held packets, closes the egresses, and returns how it
    /// ended. `number`: its index in the worker's list.
    fn end(&mut self, number: usize) -> Ending;
}

/// A set of tasks for one thread.
pub struct Worker<K> {
    tasks: Vec<K>,
    config: WorkerConfig,
    stop: Arc<StopSignal>,
}

impl<K: Task> Worker<K> {
    /// A worker for `tasks`.
    pub fn new(tasks: Vec<K>, config: WorkerConfig, stop: Arc<StopSignal>) -> Worker<K> {
        Worker { tasks, config, stop }
    }

    /// Runs until the stop signal, or until no task has anything to wait for. Returns how each
    /// task ended.
    ///
    /// # Errors
    /// Fails if the thread can't be pinned to the configured core; nothing is moved then.
    pub fn run(mut self) -> io::Result<Vec<Ending>> {
        if let Some(core) = self.config.core {
            affinity::pin(core)?;
        }
        let mut idler = Idler::new(self.config.idle, self.tasks.len());
        let shares = self.config.idle != Idle::SPIN;
        let mut sharing = CoreSharing::new(Instant::now());
        let mut deadline = None;
        let mut about_to_sleep = false;
        loop {
            let stopping = self.stop.is_stopping();
            let mut moved = 0;
            for task in &mut self.tasks {
                moved += task.turn(stopping);
            }
            moved += K::exchange(&mut self.tasks);
            if moved > 0 && !stopping {
                idler.busy(moved);
                if shares {
                    sharing.busy();
                }
                about_to_sleep = false;
                continue;
            }
            let exhausted = self.tasks.iter().all(K::is_exhausted);
            if stopping || exhausted {
                let draining = self.tasks.iter().any(K::is_draining);
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
                for task in &self.tasks {
                    task.wakes(|wake, sending| idler.wait_for(wake, sending));
                }
                about_to_sleep = true;
            }
        }
        Ok(self.tasks.iter_mut().enumerate().map(|(number, task)| task.end(number)).collect())
    }
}

/// The cores that workers may be pinned to.
pub fn cores() -> Vec<usize> {
    affinity::allowed_cores()
}

#[cfg(test)]
mod tests;
