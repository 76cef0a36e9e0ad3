#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | driver |
//! |---|---|
//! | [`e1000e`] | Intel 82574L, 82574LA and 82583V |
//! | [`virtio`] | network devices of virtio: PCI functions, and back ends of vhost-user |
//! | [`cpsw`] | TI's CPSW switches behind the DMA engines of K3 processors |
//! | [`batching`] | how many packets one doorbell announces, in every driver |
//! | `common/` | what the drivers share, one mechanism a file |
//! | `sync` | locks and atomics, from the loom switch |

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

mod common;
pub mod cpsw;
pub mod e1000e;
mod sync;
pub mod virtio;

pub use common::batching;
