//! The counters of a queue, and the reasons for which packets are dropped.
//!
//! One writer (the thread that runs the queue), any number of readers (the live display, the
//! summary). An addition is a plain load and store, without a locked instruction. A reader may see
//! a batch late, never twice.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a packet that was received or generated did not leave again.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $variant,)* }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &[DropReason] = &[$(DropReason::$variant,)*];

            /// Name as it is printed.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// No buffer for a copy, a header or a segment.
    NoBuffer = "no-buffer",
    /// The egress was full for longer than the datapath waits.
    EgressFull = "egress-full",
    /// Longer than the egress can send.
    TooLong = "too-long",
    /// The packet contradicts itself or its metadata: truncated, lengths beyond its end, an illegal
    /// virtio-net header.
    Malformed = "malformed",
    /// The packet requests work (segmentation, a checksum, a tag) that neither the egress nor
    /// software can do.
    Offload = "offload",
    /// The egress has no link, or is not up.
    LinkDown = "link-down",
    /// The kernel or the device refused the packet.
    Refused = "refused",
    /// The port is gone: its interface was deleted, its peer has closed.
    PortGone = "port-gone",
    /// A rule drops it.
    Filtered = "filtered",
    /// The lane of its flow had no room.
    LaneFull = "lane-full",
    /// Still held when the time for draining ended.
    Stopped = "stopped",
    /// A requested fault, see the `fault` port.
    Fault = "fault",
}

const REASONS: usize = DropReason::ALL.len();

/// Counters of one direction of one queue.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    calls: AtomicU64,
    retries: AtomicU64,
    errors: AtomicU64,
    missed: AtomicU64,
    split: AtomicU64,
    merged: AtomicU64,
    copied: AtomicU64,
    copied_bytes: AtomicU64,
    drops: [AtomicU64; REASONS],
}

#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Counters {
    /// `packets` with `bytes` together were received or sent.
    #[inline]
    pub fn moved(&self, packets: u64, bytes: u64) {
        add(&self.packets, packets);
        add(&self.bytes, bytes);
    }

    /// `n` system calls, or doorbells.
    #[inline]
    pub fn called(&self, n: u64) {
        add(&self.calls, n);
    }

    /// `n` retries, because the other side was busy.
    #[inline]
    pub fn retried(&self, n: u64) {
        add(&self.retries, n);
    }

    /// `n` errors of the port itself (not of one packet): link lost, a call refused.
    #[inline]
    pub fn failed(&self, n: u64) {
        add(&self.errors, n);
    }

    /// `n` packets were lost before the port received them, as the kernel or the device reports.
    #[inline]
    pub fn missed(&self, n: u64) {
        add(&self.missed, n);
    }

    /// A packet was cut into `segments`.
    #[inline]
    pub fn split(&self, segments: u64) {
        add(&self.split, segments.saturating_sub(1));
    }

    /// `n` packets were merged into others.
    #[inline]
    pub fn merged(&self, n: u64) {
        add(&self.merged, n);
    }

    /// `packets` were copied because they could not be passed on in place, `bytes` of them.
    #[inline]
    pub fn copied(&self, packets: u64, bytes: u64) {
        add(&self.copied, packets);
        add(&self.copied_bytes, bytes);
    }

    /// `n` packets were dropped.
    #[inline]
    pub fn dropped(&self, reason: DropReason, n: u64) {
        add(&self.drops[reason as usize], n);
    }

    /// The values now.
    pub fn snapshot(&self) -> Snapshot {
        let get = |c: &AtomicU64| c.load(Relaxed);
        Snapshot {
            packets: get(&self.packets),
            bytes: get(&self.bytes),
            calls: get(&self.calls),
            retries: get(&self.retries),
            errors: get(&self.errors),
            missed: get(&self.missed),
            split: get(&self.split),
            merged: get(&self.merged),
            copied: get(&self.copied),
            copied_bytes: get(&self.copied_bytes),
            drops: std::array::from_fn(|i| get(&self.drops[i])),
        }
    }
}

/// Values of [`Counters`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Packets that came in or went out.
    pub packets: u64,
    /// Their bytes, without the preamble and check sequence of a wire.
    pub bytes: u64,
    /// System calls or doorbells.
    pub calls: u64,
    /// Times the other side was busy.
    pub retries: u64,
    /// Errors of the port.
    pub errors: u64,
    /// `n` packets were lost before the port received them, as the kernel or the device reports.
    pub missed: u64,
    /// Packets that segmentation added: segments − 1 for each packet that was cut.
    pub split: u64,
    /// Packets that became part of others.
    pub merged: u64,
    /// Packets that could not be handed on as they lay.
    pub copied: u64,
    /// Bytes of them that were copied.
    pub copied_bytes: u64,
    drops: [u64; REASONS],
}

impl Snapshot {
    /// Packets dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Packets dropped for any reason.
    pub fn all_drops(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// The reasons for which packets were dropped, with their numbers.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.iter().copied().zip(self.drops).filter(|&(_, n)| n > 0)
    }

    /// Sums, member by member.
    #[must_use]
    pub fn plus(&self, other: &Snapshot) -> Snapshot {
        self.zip(other, u64::wrapping_add)
    }

    /// Differences since `earlier`, member by member.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        self.zip(earlier, u64::wrapping_sub)
    }

    fn zip(&self, other: &Snapshot, f: fn(u64, u64) -> u64) -> Snapshot {
        Snapshot {
            packets: f(self.packets, other.packets),
            bytes: f(self.bytes, other.bytes),
            calls: f(self.calls, other.calls),
            retries: f(self.retries, other.retries),
            errors: f(self.errors, other.errors),
            missed: f(self.missed, other.missed),
            split: f(self.split, other.split),
            merged: f(self.merged, other.merged),
            copied: f(self.copied, other.copied),
            copied_bytes: f(self.copied_bytes, other.copied_bytes),
            drops: std::array::from_fn(|i| f(self.drops[i], other.drops[i])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_told_apart_by_reason() {
        let c = Counters::default();
        c.dropped(DropReason::TooLong, 2);
        c.dropped(DropReason::NoBuffer, 1);
        let s = c.snapshot();
        assert_eq!(s.drops().collect::<Vec<_>>(), [(DropReason::NoBuffer, 1), (DropReason::TooLong, 2)]);
        assert_eq!(s.all_drops(), 3);
        assert_eq!(s.plus(&s).since(&s), s);
    }
}
