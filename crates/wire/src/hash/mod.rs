//! Hashes over the flow a packet belongs to.
//!
//! | hash | what for | both directions equal | cost |
//! |---|---|---|---|
//! | [`FlowKey::symmetric_hash`] | choosing a lane or worker | yes | three multiplications deep |
//! | [`FlowKey::directed_hash`] | tables of flows | no | the same |
//! | [`Toeplitz`] | what a NIC with that key would say | with [`Toeplitz::SYMMETRIC_KEY`] | two table look-ups a byte |

mod flow;
mod toeplitz;

pub use flow::FlowKey;
pub use toeplitz::{RssInput, Toeplitz};
