//! The e1000e driver over QEMU's device, without a guest: an independent implementation of the
//! device.
//!
//! Every test runs with each protection of memory that makes a difference to it
//! ([`rig::protections`]). Tests assert bytes, balances and numbers of register accesses, never
//! time.

use towpath_testing as support;

mod cost;
mod end;
mod filter;
mod frames;
mod full;
mod offloads;
mod pieces;
mod protection;
mod rig;
mod segments;
mod spy;

/// Skips the test, by name, if the machine can't run it.
#[macro_export]
macro_rules! require {
    ($name:literal $(, $need:expr)*) => {
        if !$crate::support::needs($name, &[$crate::support::Need::Program("qemu-system-x86_64") $(, $need)*]) {
            return;
        }
    };
}
