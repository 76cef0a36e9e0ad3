//! The e1000e driver over QEMU's device, without a guest: an independent implementation of the
//! device.
//!
//! Every test runs with each protection of memory that makes a difference to it
//! ([`rig::protections`]). Tests assert bytes, balances and numbers of register accesses, never
//! time.
//!
//! | module | what |
//! |---|---|
//! | `frames`, `full`, `pieces` | frames in order; full rings, empty pools; many pieces |
//! | `offloads`, `segments` | checksums and tags; TSO, cut by the kernel behind a tap |
//! | `filter` | addresses, groups, VLANs and MTU, changed while the port runs |
//! | `protection` | what the IOMMU keeps the device from |
//! | `cost` | register accesses per frame |
//! | `end` | the end of a port, orderly and in mid-traffic |
//! | `rig`, `spy` | a running port and its cable; a bus that records mappings |

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
