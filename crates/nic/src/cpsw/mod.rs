//! TI's CPSW switches (`am65-cpsw-nuss` in Linux) behind the DMA engines of K3 processors.
//!
//! ```text
//!   open(bus, firmware) ──► CpswPort …, one a MAC         start ──► CpswRx …, CpswTx …
//!                           Control: batch size, how channels ended
//!
//!   CpswTx ── TxWay ──► TxChannel: recycler │ credits │ staged │ in flight ──┐  doorbell    ┌── Host: bring-up, teardown,
//!                                                                            ├─ 1…127 ──────┤   firmware
//!   CpswRx ── RxWay ──► RxFlow:    recycler │ posted │ known ────────────────┘              └── switch: up to 8 MACs, one host port
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `regs`, `descriptor` | what the device understands |
//! | `doorbell` | the one place where doorbells are rung: split at 127, masked, after a fence |
//! | `recycler` | free descriptors |
//! | `tx`, `rx` | a channel, a flow: what happens per packet |
//! | `lease` | who owns them: one queue, or ports that share |
//! | `exchange` | how ports that share a flow come to their frames |
//! | `window` | how far a port may run ahead of its wire, where a channel is shared |
//! | `switch` | the switch itself: host port, address lookup |
//! | `host` | bring-up and teardown |
//! | `port`, `queue` | the port traits |
//!
//! Both families are driven by the same code: PKTDMA's two-sided rings, where an element comes back at its index, and UDMA with a ring
//! accelerator, where it comes back on another ring.
//!
//! Invariants:
//!
//! * **A descriptor is in one place**: free in its recycler, or away with a packet or buffer that the shadow keeps for it. It has one
//!   owner, who needs no atomics. When a channel has been torn down all are free, and [`Stopped`] says so.
//! * **Credits are counted, not read.** A slot is free when its completion was popped. What the device counts only ever says how many
//!   may be popped.
//! * **Nothing is stranded.** What was staged is announced when a batch is full, at the end of a burst, when room runs out, before
//!   completions are looked at, and before a channel stops.
//! * **What the device says is bounded and looked up.** An element that comes back is one of ours that is away, or a counted stray; chains
//!   are walked in the shadow, never in the device's memory; a length is cut to its buffer.
//! * **A register read is rare**: one for all completions of a batch, none per packet.
//!
//! A frame is *directed*: it names its MAC port, and the switch looks nothing up. Received frames say where they came in. A port whose link
//! is slow, or stands still, holds up nobody else: where there are channels enough each port has its own, and where ports
//! share one, each may only have as much in it as its FIFO takes.

mod config;
mod descriptor;
mod doorbell;
mod exchange;
mod host;
mod lease;
mod port;
mod queue;
mod recycler;
mod regs;
mod rx;
mod switch;
mod tx;
mod window;

pub use crate::batching::{BatchSize, Batching};
pub use config::{Config, Discipline, Family, FreeRing, Soc};
pub use host::{CpswError, Stopped};
pub use port::{Control, CpswPort, open};
pub use queue::{Burst, CpswRx, CpswTx};
pub use rx::RxCounts;
pub use tx::TxCounts;
