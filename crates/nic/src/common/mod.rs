//! Mechanisms that drivers share, each independent of any device.
//!
//! | file | mechanism |
//! |---|---|
//! | `ring` | a descriptor ring in DMA memory, its words atomic; what is in flight behind each descriptor |
//! | `copybreak` | a receive buffer: copied and left mapped, or unmapped and taken; counts |
//! | `reset` | the reset that all queues of a device agree on, and the end of the last queue |
//! | `faults` | faults that a driver survives, counted by name |
//! | `end` | the end of a port: what its rings hold is freed, or leaked |
//! | `watch` | the watchdog's clock, and frames that hang |
//! | `phy` | a copper PHY behind its management bus: power, negotiation, pause frames |
//! | `link` | the state of the link, noted by one thread and read by all |
//! | `filter` | which frames are received, as text and as the tables of Intel's MACs |
//! | `settings` | settings that a device follows while it runs |
//! | `option` | the error for an option's value that breaks a rule |
//! | `batching` | how many packets one doorbell announces |
//! | `memory` | packet memory in the device's reach |
//! | `error` | why a port can't be opened or started |

pub mod batching;
pub(crate) mod copybreak;
pub(crate) mod end;
pub(crate) mod error;
pub(crate) mod faults;
pub(crate) mod filter;
pub(crate) mod link;
pub(crate) mod memory;
pub(crate) mod option;
pub(crate) mod phy;
pub(crate) mod reset;
pub(crate) mod ring;
pub(crate) mod settings;
pub(crate) mod watch;
