//! The way from a driver to its device: registers, memory that the device can reach, interrupts.
//!
//! ```text
//!   driver ──► Bus ──┬── Mmio     registers of one BAR: 32-bit reads and writes, bounded
//!                    ├── Dma      what memory the device can reach, and under which addresses
//!                    └── Irq      an interrupt as a descriptor to wait on
//!
//!   Domain ── register(Region) ──►  the memory that a device may use at all
//!     └─ DmaMapper (one per queue) ──► an address for a buffer, by the DmaPolicy:
//!            Persistent             looked up: everything was mapped when it was registered
//!            PerBuffer { Strict }   mapped while the device owns it, unmapped and invalidated before anyone reads it
//!            PerBuffer { Deferred } the same, invalidated by batches: the window of exposure is stated there
//!   Coherent                        rings and descriptors: memory that both sides use as words
//! ```
//!
//! A driver is written once, over these traits: silicon through VFIO, QEMU's devices through its qtest socket, and the models
//! of `towpath-model` are three implementations, chosen at compile time of the caller; nothing is dispatched at run time.
//!
//! What a device answers is untrusted. A register that cannot be read (the device is gone, the offset lies outside) reads as all
//! ones, as on PCI.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

mod bus;
mod coherent;
mod dma;
mod dma_mapper;
mod domain;
mod mmio;
pub mod qtest;
pub mod tisci;
pub mod vfio;
pub mod vtd;

pub use bus::{Bus, BusError, Irq, Pci};
pub use coherent::Coherent;
pub use dma::{Access, Dma, DmaPolicy, Flush, Iova, Limits, MapError, Window};
pub use dma_mapper::{DmaCounts, DmaMapper, Mapped};
pub use domain::Domain;
pub use mmio::{Mmio, Reg, Timeout};
