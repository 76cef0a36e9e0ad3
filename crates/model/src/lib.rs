//! The other side of the drivers: network devices in software, and an IOMMU.
//!
//! ```text
//!   driver ── ModelBus ──┬── registers ──► e1000e ──► Wire        loop, cable, any packet descriptor
//!                        ├── Dma, Window ──► page tables, invalidation queue
//!                        └── Irq ◄─────────── one eventfd a vector          │
//!                                          e1000e ── every access ──► iommu ┘ ──► memory of this process
//! ```
//!
//! * [`e1000e`]: the 82574L, as its datasheet has it.
//! * [`cpsw`]: TI's switch with both of its DMA engines.
//! * [`iommu`]: translation through tables in memory, with an IOTLB that keeps what was not invalidated.
//! * [`wire`]: what a device's far end is joined to.
//! * [`Violation`]: what a strict model says about a driver that breaks a rule.
//!
//! A device is either *stepped* by the caller, one unit of work at a time and in an order that a seed decides, or it has a thread of
//! its own. Both do the same things.
//!
//! `unsafe` is confined to `memory` (access to memory on behalf of a device), the calls that the bus traits declare so, and
//! system calls on descriptors.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

pub mod cpsw;
pub mod e1000e;
pub mod iommu;
mod memory;
mod seed;
mod violation;
pub mod wire;

pub use violation::{Ring, Violation, Violations};
