//! What moves packets between ports, and knows none of them.
//!
//! ```text
//!   worker            a thread that runs routes to completion, sleeps when idle, and stops in bounded time
//!   route             one direction: a receive queue, a transmit queue, and what lies between
//!   lane              a thread that takes the packets of its flows from every receiving worker
//!   rules             verdicts by rules in words, or by a closure
//!   gro_stage         GRO: packets of a flow that follow each other leave as one
//!   software_offload  segmentation, checksums and tags for an egress that lacks them
//!   linearize         bytes in one piece, and room around them, for an egress that needs that
//!   reflect           swaps a packet's addresses, to send it back
//!   idle              spin, yield, then sleep on the descriptors of the queues
//!   report            the counters of all, and the balance
//! ```

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

pub mod gro_stage;
pub mod idle;
pub mod lane;
pub mod linearize;
pub mod reflect;
pub mod report;
pub mod route;
pub mod rules;
pub mod software_offload;
pub mod worker;
