//! The way to QEMU's devices, and the remapping unit before them, with nothing in between but register writes of the tests' own:
//! a driver's mistakes can't hide here, and none can be mistaken for one of the bus.

use towpath_testing as support;

mod attached;
mod device;
mod gone;
mod memory;
mod raw;
mod remapping;
mod window;

/// Ends the test here, by name, if the machine can't run it.
#[macro_export]
macro_rules! require {
    ($name:literal) => {
        if !$crate::support::needs($name, &[$crate::support::Need::Program("qemu-system-x86_64")]) {
            return;
        }
    };
}
