//! Counters of a port's exceptional events, shown in the summary and while it runs.

use super::tx_metadata::{Delays, Percentile};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::port::PortControl;

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// No frame was completed for the time `stall`.
    Stalled,
    /// A queue got a new socket.
    Reopened,
    /// A queue changed from zero copy to copy mode.
    FellBackToCopy,
    /// The program moved from the driver to the stack.
    FellBackToGeneric,
    /// The kernel reported that the driver dropped a frame (`EBUSY`).
    DroppedByDriver,
    /// The kernel found a descriptor of the TX ring invalid.
    TxInvalid,
    /// The kernel found a descriptor of the FILL ring invalid.
    FillInvalid,
    /// A received frame was dropped: longer than a buffer, or no buffer.
    RxNoRoom,
    /// A received frame was dropped because the RX ring was full.
    RxRingFull,
    /// The kernel found the FILL ring empty.
    FillEmpty,
    /// The kernel completed a frame that was not in flight.
    UnknownCompletion,
}

/// Names of all events, by discriminant.
const NAMES: [&str; 11] = [
    "stalled",
    "made-anew",
    "fell-back-to-copy",
    "fell-back-to-generic",
    "dropped-by-driver",
    "tx-invalid",
    "fill-invalid",
    "rx-no-room",
    "rx-ring-full",
    "fill-ring-empty",
    "unknown-completion",
];

/// Counts of each event, over all queues of a port.
#[derive(Debug, Default)]
pub(super) struct Events {
    counts: [AtomicU64; NAMES.len()],
    pub(super) delays: Delays,
}

impl Events {
    #[inline]
    pub(super) fn count(&self, event: Event, n: u64) {
        if n > 0 {
            self.counts[event as usize].fetch_add(n, Relaxed);
        }
    }
}

/// The port's control: it has events and no settings.
pub(super) struct EventControl(pub(super) Arc<Events>);

impl PortControl for EventControl {
    fn events(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.counts.iter().map(|n| n.load(Relaxed));
        let delays = [
            ("tx-timestamps", self.0.delays.count()),
            ("tx-delay-ns-p50", self.0.delays.percentile(Percentile::P50)),
            ("tx-delay-ns-p99", self.0.delays.percentile(Percentile::P99)),
        ];
        NAMES.into_iter().zip(counts).chain(delays).collect()
    }
}
