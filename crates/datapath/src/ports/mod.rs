//! The ports. Each is a module with a `Config` (plain, with `Default`, and `from_uri`), an `open`, and the queues.

pub mod fault;
pub mod generator;
mod kernel;
pub mod null;
pub mod packet;
pub mod pcap;
mod random;
pub mod tun;
pub mod veth;
pub mod xdp;
