//! Events on the rings of a port, for the port's control.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::ExtBufGauge;

/// Counts of all rings of a port. A queue adds to them once a burst at most.
#[derive(Debug, Default)]
pub(super) struct RingEvents {
    /// Frames of the guest that were dropped: a header that contradicts its frame, or a frame that
    /// is too short or too long.
    pub(super) malformed: AtomicU64,
    /// Rings that stopped because the guest broke the rules.
    pub(super) broken: AtomicU64,
    /// Chains that were returned to the guest while packets still referred to their buffers.
    pub(super) abandoned: AtomicU64,
    /// Chains that a back end before this one had in flight, and that are taken again.
    pub(super) again: AtomicU64,
    /// Announcements of used chains.
    pub(super) calls: AtomicU64,
    /// Packets of the guest of which bytes were copied, and these bytes.
    pub(super) copies: AtomicU64,
    pub(super) copied_bytes: AtomicU64,
    /// Buffers of the guest in packets.
    pub(super) ext_bufs: Arc<ExtBufGauge>,
}

/// Adds to a count, unless there is nothing to add: other threads write the same line.
#[inline]
pub(super) fn add(count: &AtomicU64, n: u64) {
    if n > 0 {
        count.fetch_add(n, Relaxed);
    }
}
