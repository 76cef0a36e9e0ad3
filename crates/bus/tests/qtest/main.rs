//! QEMU's devices and remapping unit, driven by register writes of the tests themselves: a driver's
//! defect cannot hide here, and cannot be mistaken for one of the bus.
//!
//! | module | what |
//! |---|---|
//! | `device` | a device without a remapping unit: frames, registers, interrupts |
//! | `remapping`, `window` | a device reaches only what is mapped; buffers mapped one by one |
//! | `memory`, `gone` | memory shared with the machine; a machine that ends |
//! | `attached` | a machine that was started by other means |
//! | `raw` | an 82574L by its least register writes |

use towpath_testing as support;

mod attached;
mod device;
mod gone;
mod memory;
mod raw;
mod remapping;
mod window;

/// Returns from the test, and reports it as skipped, if this machine cannot run it.
#[macro_export]
macro_rules! require {
    ($name:literal) => {
        if !$crate::support::needs($name, &[$crate::support::Need::Program("qemu-system-x86_64")]) {
            return;
        }
    };
}
