//! Transmission.
//!
//! | file | content |
//! |---|---|
//! | `queue` | [`CpswTx`], the transmit queue of one MAC port |
//! | `channel` | a transmit channel: staging, doorbells, completions |
//! | `descs` | from a packet to its chain of descriptors and back |
//! | `channel_ref` | access to a channel: a queue has its own, or ports share one |
//! | `credits` | the number of frames that a port may have in a shared channel |

mod channel;
mod channel_ref;
mod credits;
mod descs;
mod queue;

pub(super) use channel::TxChannel;
pub(super) use channel_ref::{ChannelRef, LiveChannel};
pub(super) use credits::TxCredits;
pub(super) use descs::MAX_DESCS;
pub use queue::{Burst, CpswTx};

/// Counters of one transmit channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TxCounts {
    /// Packets announced to the device.
    pub announced: u64,
    /// Packets that completed.
    pub completed: u64,
    /// Doorbells that announced packets.
    pub submit_doorbells: u64,
    /// Doorbells that popped completions.
    pub completion_doorbells: u64,
    /// Reads of the number of completions.
    pub occupancy_reads: u64,
    /// Completed elements that were no descriptor in flight.
    pub strays: u64,
}
