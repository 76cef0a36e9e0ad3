//! Reception.
//!
//! | file | content |
//! |---|---|
//! | `queue` | [`CpswRx`], the receive queue of one MAC port |
//! | `flow` | a receive flow: refill, and the poll of one burst |
//! | `burst` | from the descriptors of a burst to its frames |
//! | `buffers` | descriptors with their buffers |
//! | `free_queue` | the ring on which a flow hands free descriptors to the engine |
//! | `flow_ref` | access to a flow: a queue has its own, or ports share one |
//! | `demux` | one source, from which each of several receivers takes what is its own |

mod buffers;
mod burst;
mod demux;
mod flow;
mod flow_ref;
mod free_queue;
mod queue;

pub(super) use flow::RxFlow;
pub(super) use flow_ref::{FlowRef, SharedFlow};
pub use queue::CpswRx;

/// Counters of one receive flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RxCounts {
    /// Free elements handed to the device.
    pub posted: u64,
    /// Frames received.
    pub received: u64,
    /// Doorbells, or element writes, that handed over free descriptors.
    pub free_writes: u64,
    /// Doorbells that popped completions.
    pub completion_doorbells: u64,
    /// Reads of the number of completions.
    pub occupancy_reads: u64,
    /// Frames that the switch marked as damaged, or with an impossible description: longer than
    /// their buffers, or with a chain that is broken or endless.
    pub broken: u64,
    /// Completed elements that were no descriptor in flight.
    pub strays: u64,
}
