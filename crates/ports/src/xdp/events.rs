//! What befell a port's queues and was survived: for the summary, and for whoever watches.

use super::timing::{Delays, Percentile};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use towpath_packet::port::{ControlError, PortControl, Setting};

/// What can happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// Nothing of what was sent was completed for too long.
    Stalled,
    /// A queue got a new socket.
    MadeAnew,
    /// A queue has its frames copied from now on.
    FellBackToCopy,
    /// The program runs in the stack from now on.
    FellBackToGeneric,
    /// The kernel took a frame, completed it, and said that the driver dropped it.
    DroppedByDriver,
    /// The kernel found a descriptor of the TX ring invalid.
    TxInvalid,
    /// Likewise, of the FILL ring.
    FillInvalid,
    /// A received frame found no room in a buffer, or no buffer.
    RxNoRoom,
    /// A received frame found the RX ring full.
    RxRingFull,
    /// The kernel found no buffer in the FILL ring.
    FillEmpty,
    /// The kernel completed what had not been sent.
    UnknownCompletion,
}

/// Names of all events, in the order of their numbers.
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

/// How often each event has happened, on all queues of a port.
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

/// A handle for those who watch the port.
pub(super) struct Watch(pub(super) Arc<Events>);

impl PortControl for Watch {
    fn settings(&self) -> Vec<Setting> {
        Vec::new()
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.counts.iter().map(|n| n.load(Relaxed));
        let delays = [
            ("tx-timestamps", self.0.delays.count()),
            ("tx-delay-ns-p50", self.0.delays.percentile(Percentile::P50)),
            ("tx-delay-ns-p99", self.0.delays.percentile(Percentile::P99)),
        ];
        NAMES.into_iter().zip(counts).chain(delays).collect()
    }

    fn set(&self, name: &str, _: u64) -> Result<(), ControlError> {
        Err(ControlError::unknown(name, self))
    }
}
