//! The counters of a writer.

/// Counters of a [`Writer`](crate::Writer), which balance:
///
/// ```text
/// packets + split = writes + merged + dropped + held
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WriteStats {
    /// Packets pushed.
    pub packets: u64,
    /// Packets that became part of others.
    pub merged: u64,
    /// Calls that the kernel took: one for each packet or super-packet.
    pub writes: u64,
    /// Bytes that it took, without the headers in front of packets.
    pub bytes: u64,
    /// Super-packets that it took.
    pub super_packets: u64,
    /// Packets that were cut because the kernel lacks the offload, or refused them.
    pub cut: u64,
    /// Pieces that cutting made beyond the first one of each packet.
    pub split: u64,
    /// Calls that the kernel refused (`EINVAL`, `ENOMEM`) before the packet was cut.
    pub refused: u64,
    /// Dropped because the interface is not up (`EIO`).
    pub dropped_down: u64,
    /// Dropped because it is no IP packet or frame, or contradicts its metadata.
    pub dropped_invalid: u64,
    /// Dropped by another error.
    pub dropped_error: u64,
}

impl WriteStats {
    /// Packets, super-packets or pieces that were dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_down + self.dropped_invalid + self.dropped_error
    }
}
