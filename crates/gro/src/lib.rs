#![doc = include_str!("../README.md")]
//!
//! # Overview
//!
//! ```text
//!  packets ──▶ Gro ──▶ super-packets + Offload ──▶ TAP, vhost, a virtio-net device
//!  packets ◀── Split ◀── super-packets + Offload ◀── the same
//! ```
//!
//! | you look for | item |
//! |---|---|
//! | coalescing: push, flush, hold time | [`Gro`], [`GroConfig`] |
//! | segmentation, checksum completion | [`Split`], [`Cuts`], [`complete_checksum`] |
//! | a packet type of your own | [`Segment`], [`Sink`]; [`Linear`] for byte buffers |
//! | metadata beside a packet | [`Offload`]: [`Checksum`], [`Gso`], [`Tunnel`] |
//! | why packets did not merge | [`Stats`], [`Flush`] |
//! | switching it off while nothing merges | [`GroConfig::auto`], [`Auto`] |
//!
//! [`Gro`] holds one packet of each flow and appends the following ones. [`Split`] is its inverse,
//! and so the oracle of its tests: `split(gro(packets))` are the same packets, per flow in the same
//! order.
//!
//! # Invariants
//!
//! * A packet leaves after everything of its flow that came before it.
//! * Every packet leaves once, through the sink: unchanged, or as a part of an aggregate, in which
//!   case its buffer may be recycled.
//! * An aggregate is a legal super-packet, as a virtio-net device demands it.
//! * No panic on any bytes. No allocation after [`Gro::new`], no `unsafe`, no clock.
//! * Work per packet does not depend on the number of held flows.
//!
//! # How it is fast
//!
//! Header prediction: most packets are the next of a held flow. A packet's hash is one
//! multiplication, its flow two cache lines of a table, which hold the predicted header. A packet
//! with that header joins: no header is parsed, and the held packet is not read. Other packets go
//! through the rules. Headers are rewritten once, when the aggregate leaves.
//!
//! Flows often come in the order in which they came before. Where packets are handles, each flow
//! therefore names the one that is expected next, whose header is compared without a hash. Where
//! expectations are mostly wrong there are none. A flow that goes on after everything was flushed
//! begins its next aggregate with the predicted packet. Bursts in which nothing would merge need
//! not be moved at all ([`Gro::pass_unmatched`]).
//!
//! # Files
//!
//! | file | |
//! |---|---|
//! | `config`, `offload`, `segment`, `stats` | [`GroConfig`]; [`Offload`]; [`Segment`] and [`Sink`]; [`Stats`] |
//! | `gro/` | [`Gro`]: the paths of a packet (`paths`), bursts without merges (`unmatched`) |
//! | `table/` | held flows; the flow of the next packet (`expect`); flows opened again (`again`) |
//! | `layout`, `key` | the offsets of a packet's headers; the hash of its flow |
//! | `mask`, `shape`, `predict` | headers compared: of any layout; of common ones; with the prediction |
//! | `rules`, `join`, `finish` | what begins and joins an aggregate; how; its headers at the end |
//! | `burst`, `auto` | packets without a partner in their burst; the bypass |
//! | `gso`, `payload` | [`Split`], [`Slices`]: segmentation; the bytes of pieces in their order |
//! | `fixup`, `bytes` | lengths and checksums written; big-endian accesses |
//! | `linear` | [`Linear`]: packets in byte buffers |
//!
//! # Features
//!
//! `std` (default): a random [`GroConfig::seed`], and checksums by the instruction sets that the
//! CPU has at run time. Without it the crate is `no_std` with `alloc`.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![forbid(unsafe_code)]
#![cfg_attr(not(any(feature = "std", test)), no_std)]

extern crate alloc;

mod auto;
mod burst;
mod bytes;
mod config;
mod finish;
mod fixup;
mod gro;
mod gso;
mod join;
mod key;
mod layout;
mod linear;
mod mask;
mod offload;
mod payload;
mod predict;
mod rules;
mod segment;
mod shape;
mod stats;
mod table;

pub use auto::Auto;
pub use config::GroConfig;
pub use gro::Gro;
pub use gso::{Cuts, GsoError, MAX_HEADERS, MIN_TCP_SIZE, Slices, Split, SplitWhole, complete_checksum};
pub use linear::Linear;
pub use offload::{Offload, Tunnel, TunnelKind};
pub use segment::{Appended, Segment, Sink};
pub use stats::{Flush, Stats};
pub use towpath_wire::offload::{Checksum, Checksums, Gso, GsoKind, LinkKind, MAX_UDP_SEGMENTS};
