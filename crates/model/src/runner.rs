//! A device that its driver's threads share, and the thread that it may have.
//!
//! The thread works in bursts. Without work it polls some thousand times, then sleeps until the
//! wire's descriptor is readable, a register is written, or a short timeout has passed. The timeout
//! is needed because a doorbell is written without a fence: the driver may not see that the thread
//! is about to sleep.

use crate::iommu::ModelDma;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use towpath_sys::EventFd;
use towpath_sys::poll::PollSet;

/// Bursts without work before the thread yields, and before it sleeps.
const SPINS: u32 = 256;
const YIELDS: u32 = 1024;
/// The longest sleep.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// A device, which one thread at a time uses.
pub(crate) struct Runner<M> {
    machine: Mutex<M>,
    stop: AtomicBool,
    /// The thread waits for `wakeup`.
    asleep: AtomicBool,
    /// Without a thread there is none.
    wakeup: Option<EventFd>,
    /// Threads that wait for the machine while the device's thread has it.
    waiting: AtomicU32,
}

impl<M> Runner<M> {
    /// A device that is stepped, or that is to have a thread, which calls [`run`](Runner::run).
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(machine: M, threaded: bool) -> io::Result<Runner<M>> {
        let wakeup = if threaded { Some(EventFd::new()?) } else { None };
        let (stop, asleep, waiting) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU32::new(0));
        Ok(Runner { machine: Mutex::new(machine), stop, asleep, wakeup, waiting })
    }

    /// Whether it is to have a thread.
    pub(crate) fn is_threaded(&self) -> bool {
        self.wakeup.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, M> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the machine, for every thread except the device's.
    pub(crate) fn machine(&self) -> MutexGuard<'_, M> {
        if let Ok(machine) = self.machine.try_lock() {
            return machine;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let machine = self.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        machine
    }

    /// Whether the thread sleeps, or is about to.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Wakes the thread, if there is one.
    #[cold]
    pub(crate) fn wake(&self) {
        if let Some(wakeup) = self.wakeup.as_ref().filter(|_| self.asleep.swap(false, Ordering::AcqRel)) {
            wakeup.signal();
        }
    }

    /// Has the thread end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// The thread: `turn` does a burst, in which it begins a transfer of `dma` in any case, and
    /// returns how much there was to do; `wire` is the descriptor that announces frames.
    pub(crate) fn run(&self, dma: &ModelDma, turn: impl Fn(&mut M) -> usize, wire: impl Fn(&mut M) -> Option<RawFd>) {
        let (mut idle, mut set) = (0, PollSet::with_capacity(2));
        dma.set_threaded(true);
        while !self.stop.load(Ordering::Acquire) {
            // Locks are not fair: a driver that waits for a register of a busy device is let in
            // first.
            if self.waiting.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
                continue;
            }
            if turn(&mut self.lock()) > 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            match idle {
                ..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => {
                    dma.set_threaded(false);
                    self.sleep(&mut set, &turn, &wire);
                    dma.set_threaded(true);
                }
            }
        }
        dma.set_threaded(false);
    }

    fn sleep(&self, set: &mut PollSet, turn: impl Fn(&mut M) -> usize, wire: impl Fn(&mut M) -> Option<RawFd>) {
        let Some(wakeup) = &self.wakeup else { return };
        set.clear();
        set.readable(wakeup.fd());
        if let Some(wire) = wire(&mut self.lock()) {
            set.readable(wire);
        }
        self.asleep.store(true, Ordering::SeqCst);
        // Look once more: work that arrived before `asleep` was set has not signalled.
        if turn(&mut self.lock()) > 0 {
            self.asleep.store(false, Ordering::Relaxed);
            return;
        }
        set.wait(MAX_SLEEP);
        self.asleep.store(false, Ordering::Relaxed);
        wakeup.clear();
    }
}
