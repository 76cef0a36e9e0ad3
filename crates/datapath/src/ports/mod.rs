//! The ports. Each is a module with a `Config` (plain, with `Default`, and `from_uri`), an `open`, and the queues.

pub mod generator;
pub mod null;
mod kernel;
pub mod packet;
mod random;
pub mod veth;
pub mod tun;
