//! TI's CPSW Ethernet switches (`am65-cpsw-nuss` in Linux) behind the DMA engines of K3 processors.
//!
//! ```text
//!   open(bus, firmware) ──► CpswPort …, one per MAC        start ──► CpswRx …, CpswTx …
//!                           Control: batch size, how channels stopped
//!
//!   CpswTx ─ ChannelRef ─► TxChannel: descriptors │ submission ring │ completions ─┐ doorbells
//!                                                                                  ├─► 1…127
//!   CpswRx ─ FlowRef ────► RxFlow:    descriptors │ free queue      │ completions ─┘
//!
//!   Host: bring-up, teardown, firmware calls; the switch: up to 8 MACs, one host port
//! ```
//!
//! | file | content |
//! |---|---|
//! | `config` | configuration |
//! | `soc` | what is fixed in each SoC, and the channels, flows and rings that firmware granted |
//! | `regs` | registers |
//! | `descriptors` | CPPI5 host descriptors |
//! | `desc_pool` | descriptors of a channel or flow: free, or with what is in flight behind them |
//! | `ring` | rings of descriptor pointers, and the only place that writes doorbells |
//! | `error` | what keeps the device from being opened or started |
//! | `host` | bring-up and teardown of the switch, the transmit channels and the receive channel |
//! | `mac` | the MAC of one port: reset, start, link up and down, stop |
//! | `mdio` | the management bus of the PHYs |
//! | `link` | the link of a port: its source, and what a change does to its MAC |
//! | `losses` | frames that a port has counted and that nothing else accounts for |
//! | `device` | the MAC ports, and the handle of the whole device |
//! | `tx/` | a transmit channel, what is shared of it, and the transmit queue |
//! | `rx/` | a receive flow, what is shared of it, and the receive queue |
//!
//! The same code drives both DMA families: PKTDMA with two-sided rings, in which an element
//! completes at its own index, and UDMA with a ring accelerator, where it completes on another
//! ring.
//!
//! Invariants:
//!
//! * **A descriptor is in one place**: free in its pool, or in flight with a packet or buffer that
//!   its slot holds. It has one owner, so that it needs no atomics. After the teardown of a channel
//!   all its descriptors are free; [`ChannelStop`] reports the numbers.
//! * **The driver counts credits itself.** A ring slot is free after its completion was popped. The
//!   device's counters only bound how many completions can be popped.
//! * **No staged packet is stranded.** Staged packets are announced when a batch is full, at the
//!   end of a burst, when the ring is full, before completions are polled, and before a channel
//!   stops.
//! * **The driver bounds and looks up every word that the device writes.** A completed element is a
//!   descriptor in flight, or it is counted as a stray. The driver walks chains in its own slots.
//!   It cuts a length to its buffer.
//! * **Register reads are rare**: one for all completions of a batch, none per packet.
//!
//! A transmitted frame is *directed*: its descriptor names the MAC port, and the switch looks up no
//! address. A received frame names the MAC port of its arrival. A port with a slow or paused link
//! delays no other port: with enough channels each port has its own, and ports that share a
//! channel may each have only as many frames in it as their FIFO takes.

mod config;
mod desc_pool;
mod descriptors;
mod device;
mod error;
mod host;
mod link;
mod losses;
mod mac;
mod mdio;
mod regs;
mod ring;
mod rx;
mod soc;
mod tx;

pub use crate::batching::{BatchSize, Batching};
pub use crate::common::link::LinkStatus;
pub use crate::common::phy::FlowControl;
pub use config::{Config, ConfigError, DescAlloc, Interface, LinkSource};
pub use device::{Control, CpswPort, open};
pub use error::CpswError;
pub use host::ChannelStop;
pub use mdio::MdioAccess;
pub use rx::{CpswRx, RxCounts};
pub use soc::{DeviceIds, Family, FreeRing, Numbers, Soc};
pub use tx::{Burst, CpswTx, TxCounts};
