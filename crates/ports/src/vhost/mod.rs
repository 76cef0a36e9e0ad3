//! `vhost:PATH`: a virtual machine's network device, or any other vhost-user front end.
//!
//! | file | |
//! |---|---|
//! | `ring` | `RingSlot`: one ring, between the control thread and a worker |
//! | `pages` | the guest's buffers that packets refer to |
//! | `rx` | [`VhostRx`]: the guest's transmit ring |
//! | `frame` | a chain of it, as a packet |
//! | `tx` | [`VhostTx`]: the guest's receive ring |
//! | `events` | counts of all rings |
//! | `local` | queues of rings in the same process, without a front end: for measurements |

#[allow(dead_code, reason = "the control plane uses the other half")]
mod events;
#[allow(dead_code, reason = "the control plane uses the other half")]
mod frame;
#[doc(hidden)]
pub mod local;
#[allow(dead_code, reason = "the control plane uses the other half")]
mod pages;
#[allow(dead_code, reason = "the control plane uses the other half")]
mod ring;
#[allow(dead_code, reason = "the control plane uses the other half")]
mod rx;
#[cfg(test)]
mod tests;
#[allow(dead_code, reason = "the control plane uses the other half")]
mod tx;

pub use rx::VhostRx;
pub use tx::VhostTx;

/// Why no packet moves: no ring was started.
const NO_GUEST: &str = "no guest drives the device";
