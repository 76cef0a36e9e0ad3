//! The e1000e driver with QEMU's device on the other side, without a guest: nothing here was written with the driver in mind.
//!
//! Every test runs under each way of protecting memory that makes a difference to it ([`rig::ways`]); what is asserted is bytes,
//! balances, and numbers of register accesses, never time.

use towpath_testing as support;

mod cost;
mod end;
mod frames;
mod full;
mod offloads;
mod pieces;
mod protection;
mod rig;
mod segments;
mod spy;

/// Ends the test here, by name, if the machine can't run it.
#[macro_export]
macro_rules! require {
    ($name:literal $(, $need:expr)*) => {
        if !$crate::support::needs($name, &[$crate::support::Need::Program("qemu-system-x86_64") $(, $need)*]) {
            return;
        }
    };
}
