//! A driver of Intel's IOMMU ([VT-d]): legacy mode, second-level tables, queued invalidation.
//!
//! ```text
//!   root table ── bus ──► context table ── device, function ──► second-level tables, 3 or 4 levels
//!                                          domain id              │
//!      device's IOVA ────────────────────────────────────────────►│──► 4 KiB, 2 MiB or 1 GiB page
//!
//!   Unit          the remapping unit: `new` enables it, the last handle disables it
//!    └ AddressSpace      the address space of one device (one domain id), for persistent mappings
//!       └ SlotWindow   IOVAs for buffers. The upper table levels exist beforehand: mapping stores
//!                      one entry per page, unmapping stores zeros; `flush_iotlb` submits one
//!                      batch of invalidations, with one doorbell and one wait
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `registers` | register offsets, [`Capabilities`] |
//! | `unit` | [`Unit`]: root and context tables, enable and disable, attach and detach |
//! | `phys_memory` | [`PhysMemory`]: memory with physical addresses |
//! | `queue` | the invalidation queue |
//! | `tables` | second-level page tables |
//! | `table_pages` | the memory of tables and queue, as atomic words |
//! | `address_space` | [`AddressSpace`]: map, unmap |
//! | `window` | [`SlotWindow`]: the [`Window`](crate::Window) of one queue |
//! | `fault` | fault records |
//!
//! The IOTLB holds translations until it is invalidated: **the device can reach unmapped memory
//! until the invalidation has completed**. Every function here that unmaps waits for that.
//!
//! Registers are an [`Mmio`](crate::Mmio), memory is a [`PhysMemory`]. QEMU's unit and a machine's
//! memory ([`qtest`](crate::qtest)) implement them. Tables are written with ordinary stores. A unit
//! that does not snoop the CPU's caches (ECAP.C = 0) would need cache flushes as well; QEMU's
//! reports C = 0 but reads memory coherently.
//!
//! Sources: [VT-d] specification rev. 4.1 §3.4, §3.7 (legacy mode), §6.5 (invalidation), §7
//! (faults), §9 (structures), §11 (registers); QEMU [`intel_iommu.c`].
//!
//! [VT-d]: https://cdrdv2.intel.com/v1/dl/getContent/671081
//! [`intel_iommu.c`]: https://gitlab.com/qemu-project/qemu/-/blob/master/hw/i386/intel_iommu.c

mod fault;
mod phys_memory;

mod address_space;
mod queue;
mod registers;
mod table_pages;
mod tables;
mod unit;
mod window;

pub use address_space::AddressSpace;
pub use fault::{Fault, FaultReason, Faults};
pub use phys_memory::{PhysMemory, PhysRange};
pub use registers::{Capabilities, SourceId};
pub use unit::{Invalidations, Unit};
pub use window::SlotWindow;
