#![doc = include_str!("../README.md")]
//!
//! # How it works
//!
//! ```text
//!   smoltcp ── 32 KiB of TCP, one header ──► TxToken: written into a frame, request in front of it
//!                                             └──► Socket::tx ──► the port or the datapath segments
//!   smoltcp ◄── packet, super-packet ◄── RxToken: read where it was received
//!                                             └──◄ Socket::rx ◄── checksum known, or verified here
//! ```
//!
//! smoltcp writes a packet into one slice. A frame is one chunk, so chunks have 32 KiB, the most
//! that they may have: a super-packet is as long, and is copied nowhere on its way to the port.
//!
//! | module | |
//! |---|---|
//! | `device` | [`Device`]: smoltcp's tokens over a session; [`Config`] |
//! | `port` | [`PortDevice`]: the same over a port of this library: `tap:`, a card |
//! | `offload` | requests of sent packets, and whether a received packet is sound |

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

mod device;
mod offload;
mod port;

pub use device::{Config, Counts, Device, RxToken, TxToken};
pub use port::{Error as PortDeviceError, PortDevice, PortRxToken, PortTxToken};
