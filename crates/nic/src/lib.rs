//! Drivers for network devices.
//!
//! A driver is written over the traits of `towpath-bus` and does not know whether it drives silicon, QEMU's device or a model;
//! it offers the port traits of `towpath-packet`.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

pub mod batching;
pub mod cpsw;
pub mod e1000e;
mod sync;
