//! What befell a port, for people.

use super::visitors::Visitors;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towpath_packet::port::ExtBufGauge;

/// How an application broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A counter that is ahead of its ring.
    Counter,
    /// A descriptor that is empty, leaves its chunk or the memory, or has options that do not exist; a packet of too many pieces.
    Descriptor,
    /// A chunk that the datapath has already.
    Chunk,
}

impl Fault {
    /// What it is called.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Fault::Counter => "bad-counter",
            Fault::Descriptor => "bad-descriptor",
            Fault::Chunk => "bad-chunk",
        }
    }
}

/// Figures of a port.
#[derive(Debug, Default)]
pub(super) struct Events {
    pub(super) sessions: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) ended: AtomicU64,
    pub(super) counter: AtomicU64,
    pub(super) descriptor: AtomicU64,
    pub(super) chunk: AtomicU64,
    /// Descriptors that lenient sessions lost.
    pub(super) skipped: AtomicU64,
    pub(super) too_long: AtomicU64,
    /// Descriptors of which bytes were copied, and how many bytes.
    pub(super) copies: AtomicU64,
    pub(super) copied_bytes: AtomicU64,
    /// ExtBufPool on their way, counted burst by burst.
    pub(super) lent: Arc<ExtBufGauge>,
    /// Who was here.
    pub(super) visitors: Visitors,
    /// Halves of sessions that queues still have, or will have.
    pub(super) halves: AtomicU64,
    /// Goes up whenever a session has come or gone.
    changes: AtomicU64,
}

impl Events {
    pub(super) fn count(&self, fault: Fault) {
        let counter = match fault {
            Fault::Counter => &self.counter,
            Fault::Descriptor => &self.descriptor,
            Fault::Chunk => &self.chunk,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// A session has come or gone: the queues are to look.
    pub(super) fn change(&self) {
        // Release: what changed is seen by whoever sees the number.
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Goes up with every change.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// What there is to tell.
    pub(super) fn each(&self) -> Vec<(&'static str, u64)> {
        let each = [
            ("sessions", &self.sessions),
            ("sessions-ended", &self.ended),
            ("sessions-refused", &self.refused),
            (Fault::Counter.name(), &self.counter),
            (Fault::Descriptor.name(), &self.descriptor),
            (Fault::Chunk.name(), &self.chunk),
            ("descriptors-skipped", &self.skipped),
            ("frame-length", &self.too_long),
            ("copies", &self.copies),
            ("copied-bytes", &self.copied_bytes),
        ];
        each.into_iter().map(|(name, n)| (name, n.load(Ordering::Relaxed))).collect()
    }
}
