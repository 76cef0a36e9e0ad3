#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | [`barrier`] | what orders a driver's accesses to memory for a device |
//! | [`coherence`] | whether caches see what a device writes |
//! | `bus` | [`Bus`], [`Pci`], [`Irq`]: a device, opened for one driver |
//! | `mmio` | [`Mmio`], [`Reg`]: the registers of one BAR |
//! | `dma` | [`Dma`], [`Iova`], [`DmaPolicy`]: what a bus implements to map memory |
//! | `domain` | [`Domain`]: the memory that one device may reach |
//! | `dma_mapper` | [`DmaMapper`]: maps and unmaps the buffers of one queue |
//! | `iova` | the allocator of IOVAs of one address space |
//! | `bounce` | memory that stays mapped, for copies of short frames |
//! | `coherent` | [`Coherent`]: descriptor rings, accessed as atomic words |
//! | [`vfio`] | devices on silicon, through VFIO |
//! | [`vtd`] | a driver of Intel's IOMMU |
//! | [`qtest`] | QEMU's devices and IOMMU, through its qtest socket |
//! | [`platform`] | devices that are no PCI functions, by a kernel module: TI's CPSW |
//! | [`tisci`] | the calls of TI's system firmware that a K3 driver needs |
//!
//! # How they fit together
//!
//! ```text
//!   driver ──► Bus ──┬── Mmio     registers of one BAR: 32-bit reads and writes, bounds-checked
//!                    ├── Dma      memory that the device can reach, and its IOVAs
//!                    └── Irq      an interrupt as a descriptor to wait on
//!
//!   Domain ── register(Region) ──►  all memory that a device may use
//!     └─ DmaMapper (one per queue) ──► an IOVA for a buffer, by the DmaPolicy:
//!            Persistent             looked up: register() has mapped the whole region
//!            PerBuffer { Strict }   mapped while the device owns the buffer; unmapped, and the
//!                                   IOTLB invalidated, before the CPU reads it
//!            PerBuffer { Deferred } the same, but the IOTLB is invalidated by batches
//!   Coherent                        rings and descriptors: memory that both sides use as words
//! ```
//!
//! A driver is written once, over these traits. VFIO, QEMU's qtest socket and the models of
//! `towpath-model` implement them. The caller chooses one at compile time; nothing is dispatched at
//! run time.
//!
//! All answers of a device are untrusted. A register that cannot be read (the device is gone, or
//! the offset is out of bounds) reads as all ones, as on PCI.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

pub mod barrier;
mod bounce;
mod bus;
pub mod coherence;
mod coherent;
mod dma;
mod dma_mapper;
mod domain;
mod iova;
mod mmio;
pub mod platform;
pub mod qtest;
pub mod tisci;
pub mod vfio;
pub mod vtd;

pub use bus::{Bus, BusError, Events, Irq, IrqKind, Pci};
pub use coherent::Coherent;
pub use dma::{Access, Dma, DmaPolicy, Flush, Iova, Limits, MapError, NoWindow, Window};
pub use dma_mapper::{DmaCounts, DmaMapper, Mapped, MappedRun};
pub use domain::Domain;
pub use mmio::{Mmio, Reg, Timeout};
