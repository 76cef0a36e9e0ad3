//! Ports, workers and counters: the part of towpath that moves packets.
//!
//! ```text
//!   ports    what packets come from and go to: the kernel's interfaces, files, generators, memory
//!   uri      how a port is named and configured in one line
//!   vnet     the virtio-net header in front of a packet, as TUN/TAP and AF_PACKET read and write it
//! ```

#![warn(missing_docs)]

pub mod ports;
pub mod uri;
