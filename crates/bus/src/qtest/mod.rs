//! QEMU's devices without a guest, over its *qtest* socket.
//!
//! ```text
//!   driver ── QtestBus ──► Channel ── "writel 0xe0083818 0x20" ──► QEMU: q35, processor halted
//!                │                                                   │ e1000e ── netdev ── Cable, TAP or hub
//!                ├── Registers  (counted)                            │
//!                ├── QtestDma ── Space ── Unit ◄── registers ────────┤ intel-iommu, if wanted
//!                │      └── Ram: memfd ◄───── one memory ──────────► │
//!                └── QtestIrq: words in that memory
//! ```
//!
//! A register access is a line of text to another process: 15 to 50 µs when an answer is waited for. Memory is shared, so
//! descriptors and packets cost nothing. Drivers therefore see here what they see on silicon, exaggerated: registers are dear.
//! [`Accesses`] counts them.
//!
//! * [`Machine`] starts a QEMU, which ends with its last handle, or with this process, and leaves no file behind.
//! * [`Qemu::attach`] takes over one that is running.
//! * Register writes are posted; reads wait for all writes before them, as on PCI. A frame that is sent into the cable can overtake the
//!   write that enables reception, and is lost then: a driver ends its bring-up with a read.
//! * A machine that ends, or does not answer in time, is [`gone`](Qemu::gone): registers read as all ones from then on, nothing
//!   hangs. Memory stays readable. An invalidation that can't be confirmed is an error, and what it was for is leaked.
//! * Interrupts can't be waited for: [`Irq::fd`](crate::Irq::fd) is `None`.
//!
//! Sources: QEMU `softmmu/qtest.c` (the protocol), `hw/pci-host/q35.c`.

mod attach;
mod bus;
mod channel;
mod dma;
mod irq;
mod machine;
mod netdev;
mod process;
mod qemu;
mod ram;
mod registers;

pub use bus::QtestBus;
pub use dma::QtestDma;
pub use irq::QtestIrq;
pub use machine::{Device, Machine, Width};
pub use netdev::{Cable, Netdev};
pub use qemu::Qemu;
pub use ram::Ram;
pub use registers::{Accesses, Count, Registers};
