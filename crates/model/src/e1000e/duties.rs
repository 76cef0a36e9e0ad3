//! What a driver of a strict model has done since the last reset, and still has to do.

use super::regs::*;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

#[derive(Debug, Default)]
pub(crate) struct Duties {
    /// It has set CTRL_EXT.DRV_LOAD since the reset.
    loaded: AtomicBool,
    /// It has cleared RCTL.EN, which nothing but a reset may follow (Linux:
    /// `FLAG2_NO_DISABLE_RX`).
    reset: AtomicBool,
}

impl Duties {
    /// The device was reset.
    pub(crate) fn reset(&self) {
        self.loaded.store(false, Relaxed);
        self.reset.store(false, Relaxed);
    }

    /// Notes a write of a register.
    pub(crate) fn written(&self, at: usize, was: u32, value: u32) {
        if at == CTRL_EXT {
            self.loaded.store(value & CTRL_EXT_DRV_LOAD != 0, Relaxed);
        }
        if at == RCTL && was & RCTL_EN != 0 && value & RCTL_EN == 0 {
            self.reset.store(true, Relaxed);
        }
    }

    /// Whether it has taken the device from firmware since the reset.
    pub(crate) fn has_loaded(&self) -> bool {
        self.loaded.load(Relaxed)
    }

    /// Whether it must reset the device before anything else.
    pub(crate) fn must_reset(&self) -> bool {
        self.reset.load(Relaxed)
    }
}
