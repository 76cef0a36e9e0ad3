//! Counters, and the reasons of flushes.

/// Why a held packet or aggregate was flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[non_exhaustive]
pub enum Flush {
    /// The caller asked for everything.
    End,
    /// It was held longer than the caller allows.
    Age,
    /// No further segment fits: maximum size, maximum count, or the buffer is full.
    Full,
    /// Its last segment is shorter than the others, as at the end of a message.
    Short,
    /// Its last segment has FIN or PSH.
    Push,
    /// The next packet is out of order: sequence number or IPv4 identification.
    Order,
    /// The next packet has other TCP flags, or no payload.
    Flags,
    /// The next packet differs elsewhere in its headers: TTL, TOS, options, window, acknowledgment,
    /// addresses, tags; or they forbid coalescing.
    Header,
    /// The next packet's payload is longer.
    Size,
    /// Its own checksum or that of the next packet is wrong, absent or elsewhere.
    Checksum,
    /// The next packet is a super-packet.
    Gso,
    /// A newer flow took its place.
    Evict,
    /// A packet of unknown flow came: a later fragment, or headers in pieces.
    Unknown,
}

impl Flush {
    /// Every reason, in the order of their declaration.
    pub const ALL: &[Self] = &[
        Self::End,
        Self::Age,
        Self::Full,
        Self::Short,
        Self::Push,
        Self::Order,
        Self::Flags,
        Self::Header,
        Self::Size,
        Self::Checksum,
        Self::Gso,
        Self::Evict,
        Self::Unknown,
    ];

    /// A word for tables and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Age => "age",
            Self::Full => "full",
            Self::Short => "short",
            Self::Push => "push",
            Self::Order => "order",
            Self::Flags => "flags",
            Self::Header => "header",
            Self::Size => "size",
            Self::Checksum => "checksum",
            Self::Gso => "gso",
            Self::Evict => "evict",
            Self::Unknown => "unknown",
        }
    }
}

/// Counters since the engine was made. `packets = merged + (what left) + (what is held)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Packets pushed.
    pub packets: u64,
    /// Of these, packets that became part of another.
    pub merged: u64,
    /// Of these, packets that were not held, because they can begin no aggregate, or would merge
    /// with nothing before everything leaves.
    pub passed: u64,
    /// Of these, packets that bypassed the engine (see [`crate::Auto`]).
    pub bypassed: u64,
    /// Super-packets that left.
    pub aggregates: u64,
    /// Held packets and aggregates that left, by reason.
    pub(crate) flushed: [u64; Flush::ALL.len()],
}

impl Stats {
    /// Held packets and aggregates that left for this reason.
    #[must_use]
    pub fn flushed(&self, reason: Flush) -> u64 {
        self.flushed.get(reason as usize).copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn count(&mut self, reason: Flush, n: u64) {
        if let Some(flushed) = self.flushed.get_mut(reason as usize) {
            *flushed += n;
        }
    }
}
