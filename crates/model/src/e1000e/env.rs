//! The state of a model that needs no lock on the device.

use super::filter::WriteOrder;
use super::irq::{Accesses, Irqs};
use super::register_file::RegisterFile;
use crate::iommu::ModelDma;
use crate::violation::Violations;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Env {
    pub(crate) registers: RegisterFile,
    pub(crate) irqs: Mutex<Irqs>,
    pub(crate) dma: ModelDma,
    pub(crate) violations: Arc<Violations>,
    pub(crate) accesses: Accesses,
    /// PCI Command: bus mastering is enabled.
    pub(crate) master: AtomicBool,
    /// PCI Command: memory decoding is enabled; also off after the device was closed.
    pub(crate) decodes: AtomicBool,
    pub(crate) order: WriteOrder,
    /// Strict, and no injected fault writes to descriptors.
    pub(crate) checks_owned: bool,
}

impl Env {
    pub(crate) fn irqs(&self) -> MutexGuard<'_, Irqs> {
        self.irqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn may_master(&self) -> bool {
        self.master.load(Ordering::Acquire)
    }
}
