//! QEMU's devices and remapping unit, driven by register writes of the tests themselves: a driver's
//! defect cannot hide here, and cannot be mistaken for one of the bus.

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
