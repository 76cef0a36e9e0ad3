//! The ports. Each is a module with a `Config` (plain, with `Default`, and `from_uri`), an `open`, and the queues.

pub mod generator;
pub mod null;
mod kernel;
mod random;
pub mod tun;
