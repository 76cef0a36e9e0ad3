//! The ports: what packets come from and go to.
//!
//! ```text
//!   tun        TAP and TUN interfaces
//!   packet     AF_PACKET: an interface of the host
//!   xdp        AF_XDP: queues of an interface, and frames without an sk_buff
//!   sock       applications: their own pages, rings in shared memory
//!   veth       a pair of ports in memory
//!   pcap       capture files
//!   generator  made packets
//!   null       counts and drops
//!   fault      a port around a port that loses, delays and corrupts
//!   uri        how a port is named and configured in one line
//!   vnet       the virtio-net header in front of a packet, as TUN/TAP and AF_PACKET read and write it
//! ```
//!
//! Each port is a module with its configuration (plain, with `Default`, and `from_uri`), an `open`, and the queues.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

pub mod fault;
pub mod generator;
mod kernel;
pub mod null;
pub mod packet;
pub mod pcap;
mod random;
pub mod sock;
pub mod tun;
pub mod uri;
pub mod veth;
pub mod vnet;
pub mod xdp;
