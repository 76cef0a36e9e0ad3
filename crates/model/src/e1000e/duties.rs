//! What a driver of a strict model still has to do, by what it has written.

use super::regs::*;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// What the driver still has to do.
#[derive(Debug, Default)]
pub(crate) struct Duties {
    /// It has set CTRL_EXT.DRV_LOAD, and gives it back by a write of its own: firmware waits for it.
    give_back: AtomicBool,
    /// It has cleared RCTL.EN, which nothing but a reset may follow (Linux:
    /// `FLAG2_NO_DISABLE_RX`).
    reset: AtomicBool,
}

impl Duties {
    /// The device was reset.
    pub(crate) fn reset(&self) {
        self.reset.store(false, Relaxed);
    }

    /// Notes a write of a register.
    pub(crate) fn written(&self, at: usize, was: u32, value: u32) {
        if at == CTRL_EXT {
            self.give_back.store(value & CTRL_EXT_DRV_LOAD != 0, Relaxed);
        }
        if at == RCTL && was & RCTL_EN != 0 && value & RCTL_EN == 0 {
            self.reset.store(true, Relaxed);
        }
    }

    /// It has the device, and must give it back.
    pub(crate) fn gives_back(&self) -> bool {
        self.give_back.load(Relaxed)
    }

    /// It must reset the device.
    pub(crate) fn resets(&self) -> bool {
        self.reset.load(Relaxed)
    }
}
