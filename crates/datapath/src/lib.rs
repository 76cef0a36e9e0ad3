//! Ports, workers and counters: the part of towpath that moves packets.
//!
//! ```text
//!   ports    what packets come from and go to: the kernel's interfaces, files, generators, memory
//!   sock     applications as a port: their own pages, rings in shared memory
//!   uri      how a port is named and configured in one line
//!   vnet     the virtio-net header in front of a packet, as TUN/TAP and AF_PACKET read and write it
//!   route    one direction: a receive queue, a transmit queue, and what lies between
//!   coalesce GRO: packets of a flow that follow each other leave as one
//!   rules    what becomes of a packet: verdicts by rules in words, or by a closure
//!   finish   software for what an egress cannot do
//!   fit      bytes in one piece, and room around them, for an egress that wants that
//!   worker   a thread that runs routes to completion, sleeps when there is nothing to do, and stops in bounded time
//!   lane     a thread that takes the packets of its flows from every receiving worker
//!   report   the counters of all, for people and machines, and the balance
//! ```

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

mod bell;
pub mod coalesce;
pub mod finish;
pub mod fit;
pub mod idle;
mod landing;
pub mod lane;
pub mod mirror;
pub mod ports;
pub mod report;
pub mod route;
pub mod rules;
pub mod sock;
mod sync;
mod sys;
pub mod uri;
pub mod vnet;
pub mod worker;
