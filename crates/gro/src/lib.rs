//! A standalone GRO/GSO engine: coalescing and splitting of TCP, UDP and tunnels.
#![forbid(unsafe_code)]

mod auto;
mod bytes;
mod finish;
mod fixup;
mod gro;
mod gso;
mod key;
mod layout;
mod linear;
mod mask;
mod offload;
mod predict;
mod rules;
mod segment;
mod stats;
mod table;

pub use auto::Auto;
pub use gro::{Config, Gro};
pub use gso::{Checksums, GsoError, MAX_UDP_SEGMENTS, MIN_TCP_SIZE, Split, complete};
pub use layout::Link;
pub use linear::Linear;
pub use offload::{Checksum, Gso, GsoKind, Offload, Tunnel, TunnelKind};
pub use segment::{Appended, Segment, Sink};
pub use stats::{Flush, Stats};
