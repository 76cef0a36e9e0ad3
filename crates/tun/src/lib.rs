#![doc = include_str!("../README.md")]
//!
//! # Overview
//!
//! ```text
//!  kernel ──▶ Queue::read ──▶ Received ──▶ Segments ──▶ buffers of the caller ──▶ tunnel
//!  kernel ◀── writev ◀── Chain ◀── Writer::push ◀── buffers of the caller ◀── tunnel
//! ```
//!
//! | you look for | item |
//! |---|---|
//! | a device by name, options, a switch for offloads | [`Device::open`], [`Config`] |
//! | a device from an open descriptor | [`Device::from_fd`] |
//! | several queues, in order | [`Device::queue`], [`Device::is_steered`] |
//! | what the kernel accepts | [`Device::report`], [`Report`], [`probe`] |
//! | super-packets from the kernel, cut | [`Queue::read`], [`Received::segments`] |
//! | small buffers merged and written | [`Writer`] |
//! | the same for an output of one's own | [`Chain`] with [`towpath_gro::Gro`] |
//! | name, MTU, queue length, and their changes | [`Device`], [`Device::changes`] |
//! | event loops | [`Queue`] (one registration), `examples/{epoll,tokio}.rs` |
//!
//! # Files
//!
//! | file | |
//! |---|---|
//! | `config.rs`, `error.rs`, `offloads.rs` | options, errors, the set of offloads |
//! | `descriptor.rs`, `device.rs`, `changes.rs` | descriptors opened or examined; the device, its settings |
//! | `probe.rs`, `steering.rs` | the kernel's offloads; the program that chooses a queue |
//! | `header.rs`, `queue.rs` | the header in front of a packet; a descriptor, reading |
//! | `chain.rs`, `writer.rs` | a packet in small buffers; merging |
//! | `output.rs`, `stats.rs` | writing to the kernel, or in software; counters |
//!
//! # Invariants
//!
//! * A packet that was pushed is written once, whole or in pieces, in the order of its flow; or it
//!   waits; or it is dropped and counted in [`WriteStats`].
//! * Every buffer is returned through `spent`, once.
//! * Nothing is allocated per packet after warm-up. No panic on any bytes, no `unsafe`.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![forbid(unsafe_code)]

mod chain;
mod changes;
mod config;
mod descriptor;
mod device;
mod error;
mod header;
mod offloads;
mod output;
pub mod probe;
mod queue;
mod stats;
pub mod steering;
mod writer;

pub use chain::{Buffers, Chain, MAX_BUFFERS, Nodes};
pub use changes::{Change, Changes};
pub use config::{Config, Kind, MAX_QUEUES, MIN_MTU};
pub use device::Device;
pub use error::Error;
pub use offloads::TunOffloads;
pub use probe::Report;
pub use queue::{Queue, READ_SIZE, ReadLosses, Received, Segments};
pub use stats::WriteStats;
pub use towpath_sys::rtnl::LinkInfo;
pub use writer::Writer;
