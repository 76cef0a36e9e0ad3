//! A software IOMMU: between a device of this crate and the memory of this process.
//!
//! ```text
//!  driver's side                                            device's side
//!  ModelDma.map ───────┐                                    read, write of an I/O virtual address
//!  ModelWindow.map ────┼──► page tables (in memory) ◄─walk── │ IOTLB: 2 × 1024 translations
//!  …unmap ─────────────┘          and  │                     │   stale ones stay until they are invalidated
//!  …flush ──► invalidation queue ══════╧════════════════════►│ forgets; DMA in flight ends; status ──► flush returns
//! ```
//!
//! * **On** ([`Config::on`]): addresses are translated by tables of VT-d's second-level format (the root and context tables, which
//!   choose them by requester, are left out: a unit serves one device). Nothing is reachable that is not mapped. Clearing an entry
//!   does not end the device's access: only an invalidation does, as in silicon.
//! * **Off**: an address is that of the memory. What is not mapped is refused all the same, so that a stray access
//!   never damages the process; that is the one thing that a machine without an IOMMU would not do.
//!
//! **Who processes the queue.** The unit is an agent of its own. A device with a thread takes care of it between bursts; where the
//! device is stepped, and where its thread lets somebody wait, whoever waits does it. Both hold the engine's lock, under which also every DMA
//! is done: so that when it is processed no DMA is in flight that used an older translation.
//!
//! **Bounce** ([`Config::bounce`]): the device works on a copy of each buffer. Only `sync_for_device` and `sync_for_cpu` copy between
//! them; mapping and unmapping do not (a buffer that is mapped for good is not, either, when it is given to the device). A sync that is
//! missing shows as wrong bytes. Memory from [`Dma::alloc`](towpath_bus::Dma::alloc) is coherent: it never bounces.
//!
//! **Faults** are recorded with address, access and [reason](FaultReason). With a strict model they are
//! [violations](crate::Violation) as well; what was unmapped before is told from what never was mapped.

mod bounce;
mod dma;
mod engine;
mod fault;
mod queue;
mod refuse;
mod space;
mod tables;
#[cfg(test)]
mod tests;
mod tlb;
mod unit;
mod window;

pub use dma::ModelDma;
pub(crate) use engine::Transfer;
pub use fault::{Fault, FaultReason};
pub use refuse::Refuse;
pub use unit::Counts;
pub use window::ModelWindow;

use std::ops::RangeInclusive;

/// How an IOMMU is.
#[derive(Debug, Clone)]
pub struct Config {
    /// Whether it translates.
    pub on: bool,
    /// Whether the device works on copies of buffers.
    pub bounce: bool,
    /// Mappings that can exist, if that is bounded: regions, and buffers of windows.
    pub mappings: Option<u64>,
    /// Bytes of regions that can be mapped, if that is bounded.
    pub locked: Option<u64>,
    /// Addresses that can be mapped, within 39 bits; only when it is on.
    pub ranges: Vec<RangeInclusive<u64>>,
    /// Mappings that fail on demand.
    pub refuse: Refuse,
}

impl Default for Config {
    /// On; unbounded; all addresses but those of interrupts. Addresses are handed out from 4 GiB on, so that a driver which forgets the
    /// upper halves of registers is found out.
    fn default() -> Config {
        Config {
            on: true,
            bounce: false,
            mappings: None,
            locked: None,
            ranges: vec![0x1000..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1],
            refuse: Refuse::Never,
        }
    }
}

impl Config {
    /// No translation.
    pub fn off() -> Config {
        Config { on: false, ..Config::default() }
    }
}
