//! The state that the driver's side and the device's side of a model share, and the device's
//! thread.
//!
//! The thread works in bursts. Without work it polls some thousand times, then sleeps until the
//! wire's descriptor is readable, a register is written, or a short timeout has passed. The timeout
//! is needed because a tail is written without a fence: the driver may not see that the thread is
//! about to sleep.

use super::env::{Absence, Env};
use super::machine::Machine;
use super::pci::ConfigSpace;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use towpath_sys::EventFd;
use towpath_sys::poll::PollSet;

/// Bursts without work before the thread yields, and before it sleeps.
const SPINS: u32 = 256;
const YIELDS: u32 = 1024;
/// The longest sleep.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// The state that both sides and the device's thread share.
pub(crate) struct DeviceShared {
    pub(super) name: String,
    pub(super) env: Env,
    pub(super) pci: ConfigSpace,
    pub(super) machine: Mutex<Machine>,
    pub(super) stop: AtomicBool,
    /// The thread waits for `wakeup`.
    pub(super) asleep: AtomicBool,
    pub(super) wakeup: Option<EventFd>,
    /// Nanoseconds by which the device's clock is ahead of the system's.
    pub(super) ahead: AtomicU64,
    /// Threads that wait for the machine while the device's thread has it.
    pub(super) waiting: AtomicU32,
}

impl DeviceShared {
    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the machine, for every thread except the device's.
    pub(super) fn machine(&self) -> MutexGuard<'_, Machine> {
        if let Ok(machine) = self.machine.try_lock() {
            return machine;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let machine = self.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        machine
    }

    /// Writes a word of the configuration space.
    pub(super) fn write_config(&self, at: u16, value: u32) {
        if self.env.absence().is_some_and(Absence::is_removal) {
            return;
        }
        let enabled = self.pci.write(at, value);
        // Under the machine's lock: when the write returns, a device without bus mastering has
        // stopped DMA.
        let _machine = self.machine();
        self.env.decodes.store(enabled.memory, Ordering::Release);
        self.env.master.store(enabled.master, Ordering::Release);
    }

    /// Sets the device's clock forward.
    pub(super) fn advance(&self, time: Duration) {
        self.ahead.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Wakes the thread, if there is one.
    #[cold]
    pub(super) fn wake(&self) {
        if let Some(wakeup) = self.wakeup.as_ref().filter(|_| self.asleep.swap(false, Ordering::AcqRel)) {
            wakeup.signal();
        }
    }

    fn sleep(&self, set: &mut PollSet) {
        let Some(wakeup) = &self.wakeup else { return };
        set.clear();
        set.readable(wakeup.fd());
        if let Some(wire) = self.lock().wire_wake(&self.env) {
            set.readable(wire);
        }
        self.asleep.store(true, Ordering::SeqCst);
        // Look once more: work that arrived before `asleep` was set has not signalled.
        if self.lock().turn(&self.env) > 0 {
            self.asleep.store(false, Ordering::Relaxed);
            return;
        }
        set.wait(MAX_SLEEP);
        self.asleep.store(false, Ordering::Relaxed);
        wakeup.clear();
    }

    fn run(&self) {
        let (mut idle, mut set) = (0, PollSet::with_capacity(2));
        self.env.dma.set_threaded(true);
        while !self.stop.load(Ordering::Acquire) {
            // Locks are not fair: a driver that waits for a register of a busy device is let in
            // first.
            if self.waiting.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
                continue;
            }
            if self.lock().turn(&self.env) > 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            match idle {
                ..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => {
                    self.env.dma.set_threaded(false);
                    self.sleep(&mut set);
                    self.env.dma.set_threaded(true);
                }
            }
        }
        self.env.dma.set_threaded(false);
    }
}

impl std::fmt::Debug for DeviceShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("e1000e model").field("name", &self.name).finish_non_exhaustive()
    }
}

pub(super) fn spawn(shared: &Arc<DeviceShared>) -> io::Result<JoinHandle<()>> {
    let shared = shared.clone();
    std::thread::Builder::new().name("e1000e model".into()).spawn(move || shared.run())
}
