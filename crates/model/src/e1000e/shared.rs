//! The state that the driver's side and the device's side of a model share.

use super::env::{Absence, Env};
use super::machine::Machine;
use super::pci::ConfigSpace;
use crate::runner::Runner;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// The state that both sides and the device's thread share.
pub(crate) struct DeviceShared {
    pub(super) name: String,
    pub(super) env: Env,
    pub(super) pci: ConfigSpace,
    pub(super) runner: Runner<Machine>,
    /// Nanoseconds by which the device's clock is ahead of the system's.
    pub(super) ahead: AtomicU64,
}

impl DeviceShared {
    /// Locks the machine, for every thread except the device's.
    pub(super) fn machine(&self) -> MutexGuard<'_, Machine> {
        self.runner.machine()
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
}

impl std::fmt::Debug for DeviceShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("e1000e model").field("name", &self.name).finish_non_exhaustive()
    }
}

pub(super) fn spawn(shared: &Arc<DeviceShared>) -> io::Result<JoinHandle<()>> {
    let shared = shared.clone();
    std::thread::Builder::new().name("e1000e model".into()).spawn(move || {
        shared.runner.run(
            &shared.env.dma,
            |machine| machine.turn(&shared.env),
            |machine| machine.wire_wake(&shared.env),
        );
    })
}
