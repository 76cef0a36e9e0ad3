//! Blocked accesses.

/// Why an access was blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultReason {
    /// The address has more than 39 bits.
    Width,
    /// The page was never mapped.
    NotMapped,
    /// The page was mapped and is unmapped.
    Unmapped,
    /// The page is not mapped for this access.
    Permission,
    /// A table could not be read.
    Entry,
}

impl FaultReason {
    /// The fault reason of VT-d (VT-d specification §7.2.3).
    pub fn code(self, write: bool) -> u8 {
        match self {
            FaultReason::Width => 4,
            FaultReason::NotMapped | FaultReason::Unmapped | FaultReason::Permission => 6 - u8::from(write),
            FaultReason::Entry => 7,
        }
    }
}

/// A blocked access: a read returns nothing, a write has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Fault {
    /// The IOVA.
    pub iova: u64,
    /// The remaining bytes of the access.
    pub len: usize,
    /// Whether it was a write.
    pub write: bool,
    /// The reason.
    pub reason: FaultReason,
}

impl Fault {
    pub(crate) fn access(&self) -> &'static str {
        if self.write { "write" } else { "read" }
    }
}
