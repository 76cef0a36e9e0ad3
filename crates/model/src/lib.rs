#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | [`e1000e`] | the Intel 82574L, by its datasheet |
//! | [`cpsw`] | TI's CPSW switch with both of its DMA engines |
//! | [`virtio`] | the network device of virtio 1.2, a PCI function |
//! | [`iommu`] | an IOMMU: page tables in memory, and an IOTLB that keeps stale translations |
//! | [`wire`] | the network at a device's far end: loopback, cable, file descriptor |
//! | `violation` | [`Violation`]: a rule that a driver broke, found by a strict model |
//! | `memory` | access to memory on behalf of a device |
//! | `runner` | a device that several threads share, and its own thread |
//! | `seed` | reproducible random numbers |
//!
//! ```text
//!   driver ── ModelBus ──┬── registers ──► e1000e ──► Wire      loopback, cable, descriptor
//!                        ├── Dma, Window ──► page tables, invalidation queue
//!                        └── Irq ◄─────────── one eventfd per vector       │
//!                                          e1000e ── every access ──► iommu ┘ ──► memory
//! ```
//!
//! A device is either *stepped* by the caller, one unit of work at a time in an order that a seed
//! determines, or has a thread. Both execute the same code.
//!
//! `unsafe` is confined to `memory` (access to memory on behalf of a device), the functions that
//! the bus traits declare unsafe, and system calls on descriptors.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

pub mod cpsw;
pub mod e1000e;
pub mod iommu;
mod memory;
mod runner;
mod seed;
mod violation;
pub mod virtio;
pub mod wire;

pub use violation::{Ring, Violation, Violations};
