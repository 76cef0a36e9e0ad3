//! A software IOMMU between a device of this crate and the memory of this process.
//!
//! ```text
//!  driver's side                                            device's side
//!  ModelDma.map ───────┐                                    read or write of an IOVA
//!  ModelWindow.map ────┼──► page tables (in memory) ◄─walk── │ IOTLB: 2 × 1024 translations
//!  …unmap ─────────────┘                                     │   stale ones stay until invalidated
//!  …flush ──► invalidation queue ═══════════════════════════►│ invalidates; DMA in flight ends;
//!                                                            │   status ──► flush returns
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `unit` | the state that both sides share, [`Counts`] |
//! | `dma`, `window` | the driver's side: [`ModelDma`], [`ModelWindow`] |
//! | `engine` | the device's side: `Transfer` |
//! | `tables` | page tables |
//! | `iotlb` | the IOTLB |
//! | `queue` | the invalidation queue |
//! | `iova_alloc` | the IOVA allocator |
//! | `bounce` | bounce buffers |
//! | `refuse` | [`Refuse`]: injected failures of mappings and invalidations |
//! | `late` | [`LateWrite`]: DMA to buffers after they were unmapped |
//! | `fault` | [`Fault`], [`FaultReason`] |
//!
//! * **On** ([`Config::on`]): tables of [VT-d]'s second-level format translate addresses. The root
//!   and context tables, which select them by requester, are left out: a unit serves one device.
//!   Only mapped memory is reachable. Clearing an entry does not end the device's access: only an
//!   invalidation does, as on silicon.
//! * **Off**: the IOVA is the address of the memory. Access to unmapped memory is blocked all the
//!   same, so that a stray access never damages the process. This is the only difference to a
//!   machine without an IOMMU.
//!
//! **Processing of the queue.** The unit processes its queue in a thread that is available: the
//! device's thread between bursts, or the waiting thread if the device is stepped or its thread is
//! busy. Both hold the engine's lock, under which every DMA runs too. When a descriptor is
//! processed, no DMA with an older translation is in flight.
//!
//! **Bounce** ([`Config::bounce`]): the device works on a copy of each buffer. Only
//! `sync_for_device` and `sync_for_cpu` copy between them; mapping and unmapping do not, and
//! neither does posting a persistently mapped buffer. A missing sync shows as wrong bytes. Memory
//! from [`Dma::alloc`](towpath_bus::Dma::alloc) is coherent: it never bounces.
//!
//! **Faults** are recorded with address, access and [reason](FaultReason). With a strict model they
//! are [violations](crate::Violation) as well. Unmapped addresses are distinct from those that were
//! never mapped.
//!
//! [VT-d]: https://cdrdv2.intel.com/v1/dl/getContent/671081

mod bounce;
mod dma;
mod engine;
mod fault;
mod iotlb;
mod iova_alloc;
mod late;
mod queue;
mod refuse;
mod tables;
#[cfg(test)]
mod tests;
mod unit;
mod window;

pub use dma::ModelDma;
pub(crate) use engine::Transfer;
pub use fault::{Fault, FaultReason};
pub use late::{LateCounts, LateWrite};
pub use refuse::Refuse;
pub use unit::Counts;
pub use window::ModelWindow;

use std::ops::RangeInclusive;
use std::time::Duration;
use towpath_packet::setters;

setters! {
    /// The configuration of an IOMMU. Each field has a setter of its name.
    #[derive(Debug, Clone)]
    #[non_exhaustive]
    pub struct Config {
        /// Whether it translates.
        pub on: bool,
        /// Whether the device works on bounce buffers.
        pub bounce: bool,
        /// The maximum of mappings (regions, and buffers of windows), if limited.
        pub mappings: Option<u64>,
        /// The maximum of mapped bytes of regions, if limited.
        pub locked: Option<u64>,
        /// The usable IOVAs, within 39 bits; only if it translates.
        pub ranges: Vec<RangeInclusive<u64>>,
        /// Injected failures of mappings.
        pub refuse: Refuse,
        /// How long the unit takes for a wait descriptor, in addition to its own work: the latency
        /// of an invalidation, for which the model has no value of its own. Zero unless set.
        pub wait: Duration,
    }
}

impl Default for Config {
    /// On; unlimited; all addresses except the MSI range. IOVAs are allocated from 4 GiB on, to
    /// detect a driver that omits the upper halves of address registers.
    fn default() -> Config {
        Config {
            on: true,
            bounce: false,
            mappings: None,
            locked: None,
            ranges: vec![0x1000..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1],
            refuse: Refuse::Never,
            wait: Duration::ZERO,
        }
    }
}

impl Config {
    /// Without translation.
    pub fn off() -> Config {
        Config { on: false, ..Config::default() }
    }
}
