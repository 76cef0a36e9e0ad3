//! A standalone GRO/GSO engine: coalescing and splitting of TCP, UDP and tunnels.
#![forbid(unsafe_code)]

mod bytes;
mod fixup;
mod gso;
mod layout;
mod offload;

pub use gso::{Checksums, GsoError, MAX_UDP_SEGMENTS, MIN_TCP_SIZE, Split, complete};
pub use layout::Link;
pub use offload::{Checksum, Gso, GsoKind, Offload, Tunnel, TunnelKind};
