#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | `batch` | [`UdpBatch`]: a socket, opened or taken over, and its two halves |
//! | `config` | [`UdpConfig`]: how it works, [`UdpInfo`]: what the kernel granted |
//! | `sender` | [`UdpSender`]: sends a queue, and what it does with each error |
//! | `queue` | datagrams that wait to be sent, by destination |
//! | `refusals` | the segment sizes that the kernel refused |
//! | `receiver` | [`UdpReceiver`]: receives messages, [`Datagrams`]: one of them |
//!
//! The system calls, and all `unsafe`, are those of `towpath_sys::udp`.

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

mod batch;
mod config;
mod queue;
mod receiver;
mod refusals;
mod sender;

pub use batch::{OpenError, UdpBatch};
pub use config::{UdpConfig, UdpInfo};
pub use queue::PushError;
pub use receiver::{Datagrams, ReceiveStats, UdpReceiver};
pub use sender::{SendStats, UdpSender};
#[doc(inline)]
pub use towpath_sys::udp::{Ecn, Path, TrafficClass};
