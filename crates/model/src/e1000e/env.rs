//! The state of a model that needs no lock on the device.

use super::filter::WriteOrder;
use super::irq::{Accesses, Irqs};
use super::register_file::RegisterFile;
use crate::iommu::ModelDma;
use crate::violation::Violations;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What became of a device that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// It was removed: registers and configuration space read as all ones, as on a real bus.
    Removed,
    /// It was removed from a QEMU: registers read as zeros, configuration space as all ones.
    RemovedInQemu,
    /// The bus has contained an error: registers read as all ones, and the device accesses no
    /// memory, until a reset of the function.
    Contained,
    /// The same, but no reset of the function succeeds.
    ContainedForGood,
}

impl Absence {
    fn of(word: u8) -> Option<Absence> {
        [Absence::Removed, Absence::RemovedInQemu, Absence::Contained, Absence::ContainedForGood]
            .into_iter()
            .find(|absence| *absence as u8 + 1 == word)
    }

    /// What a register reads as.
    pub(crate) fn register(self) -> u32 {
        if self == Absence::RemovedInQemu { 0 } else { u32::MAX }
    }

    /// Whether the function is not even in the configuration space.
    pub(crate) fn is_removal(self) -> bool {
        matches!(self, Absence::Removed | Absence::RemovedInQemu)
    }
}

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
    /// [`Absence`], plus one.
    pub(crate) absence: AtomicU8,
    /// Strict, and no injected fault writes to descriptors.
    pub(crate) checks_owned: bool,
}

impl Env {
    pub(crate) fn irqs(&self) -> MutexGuard<'_, Irqs> {
        self.irqs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn may_master(&self) -> bool {
        self.master.load(Ordering::Acquire) && self.absence().is_none()
    }

    /// Why the device does not answer.
    #[inline]
    pub(crate) fn absence(&self) -> Option<Absence> {
        match self.absence.load(Ordering::Acquire) {
            0 => None,
            word => Absence::of(word),
        }
    }

    pub(crate) fn set_absence(&self, absence: Option<Absence>) {
        self.absence.store(absence.map_or(0, |absence| absence as u8 + 1), Ordering::Release);
    }
}
