//! A standalone GRO/GSO engine: coalescing and segmentation of TCP, UDP and tunnels.
//!
//! ```text
//!  packets ──▶ Gro ──▶ super-packets + Offload ──▶ TAP, vhost, a virtio-net device
//!  packets ◀── Split ◀── super-packets + Offload ◀── the same
//! ```
//!
//! [`Gro`] holds one packet of each flow and appends to it what follows. [`Split`] is its inverse,
//! and so the oracle of its tests: `split(gro(packets))` are the same packets, per flow in the same
//! order. [`Segment`] is the packet they work on: a handle that chains, or [`Linear`] buffers that
//! copy. [`Offload`] is what travels beside a packet, in and out.
//!
//! # Invariants
//!
//! * A packet leaves after everything of its flow that came before it.
//! * Every packet that is pushed leaves once, through the sink: alone, as it came, or as a part of
//!   an aggregate, in which case an empty rest may come back as spent.
//! * An aggregate is a legal super-packet: what a virtio-net device demands.
//! * No panic, whatever the bytes are. No allocation after [`Gro::new`], no `unsafe`, no clock.
//! * Work per packet does not depend on how many flows are held.
//!
//! # How it is fast
//!
//! What a packet should be is known before it comes: the next of a flow that is held. Its hash is one
//! multiplication, its flow two lines of a table. There its header is written down as it is expected, and it joins if it is
//! equal: no header is parsed on the way, and of the packet that is held none is read. What is not as predicted goes
//! through the rules. Headers are fixed once, when the aggregate leaves.

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
mod predict;
mod rules;
mod segment;
mod shape;
mod stats;
mod table;

pub use auto::Auto;
pub use config::GroConfig;
pub use gro::Gro;
pub use gso::{Checksums, Cuts, GsoError, MIN_TCP_SIZE, Split, complete};
pub use linear::Linear;
pub use offload::{Offload, Tunnel, TunnelKind};
pub use segment::{Appended, Segment, Sink};
pub use stats::{Flush, Stats};
pub use towpath_wire::offload::{Checksum, Gso, GsoKind, LinkKind, MAX_UDP_SEGMENTS};
