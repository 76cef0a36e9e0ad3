//! Hashes over the flow of a packet, and a sequence of hashes: [`SplitMix64`].
//!
//! | hash | use | both directions equal | cost |
//! |---|---|---|---|
//! | [`FlowKey::symmetric_hash`] | choosing a lane or worker | yes | three multiplications deep |
//! | [`FlowKey::directed_hash`] | tables of flows | no | the same |
//! | [`Toeplitz`] | a NIC's hash | with [`Toeplitz::SYMMETRIC_KEY`] | two look-ups a byte |

mod flow;
mod split_mix;
mod toeplitz;

pub use flow::FlowKey;
pub use split_mix::SplitMix64;
pub use toeplitz::{RssInput, Toeplitz};
