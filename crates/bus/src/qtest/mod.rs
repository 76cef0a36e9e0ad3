//! QEMU's devices without a guest, over its [qtest] socket.
//!
//! ```text
//! driver ── QtestBus ──► Channel ── "writel 0xe0083818 0x20" ──► QEMU: q35, CPU halted
//!              │                                                  │ e1000e ── netdev ── Cable, TAP
//!              ├── Registers  (counted)                           │
//!              ├── QtestDma ── AddressSpace ── Unit ◄─ registers ─┤ intel-iommu, optional
//!              │      └── Ram: memfd ◄──── shared memory ───────► │
//!              └── QtestIrq: words in that memory
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `machine` | [`Machine`]: the command line, the start |
//! | `attach` | attaches to a running QEMU |
//! | `process` | the child process |
//! | `channel` | the qtest protocol |
//! | `qemu` | [`Qemu`]: a running machine |
//! | `ram` | [`Ram`]: its memory |
//! | `bus`, `registers`, `dma`, `irq` | the types of [`Bus`](crate::Bus) |
//! | `netdev` | [`Netdev`], [`Cable`]: the network of a device |
//!
//! A register access is a line of text to another process: 15 to 50 µs with a result. Memory is
//! shared, so descriptors and packets cost nothing. As on silicon, registers are expensive and
//! memory is cheap, only more so. [`Accesses`] counts register accesses.
//!
//! * [`Machine`] starts a QEMU. It ends with its last handle or with this process, and leaves no
//!   file behind.
//! * [`Qemu::attach`] attaches to a running one.
//! * Register writes are posted; reads wait for all earlier writes, as on PCI. A frame that is sent
//!   into the cable can overtake the write that enables reception, and is lost then. A driver
//!   therefore ends its bring-up with a read.
//! * A machine that has ended, or does not answer in time, is [`gone`](Qemu::gone): registers read
//!   as all ones from then on, and nothing hangs. Memory stays readable. An invalidation that is
//!   not confirmed is an error, and its memory is leaked.
//! * Interrupts cannot be waited for: [`Irq::fd`](crate::Irq::fd) is `None`.
//!
//! Sources: QEMU `softmmu/qtest.c` (the protocol), `hw/pci-host/q35.c`.
//!
//! [qtest]: https://www.qemu.org/docs/master/devel/testing/qtest.html

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
