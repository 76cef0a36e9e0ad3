//! What a device tried in vain.

/// Why an access was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultReason {
    /// The address has more than 39 bits.
    Width,
    /// No page is mapped there, and none was.
    NotMapped,
    /// The page that was mapped there has been unmapped.
    Unmapped,
    /// The page may not be accessed this way.
    Permission,
    /// A table could not be read.
    Entry,
}

impl FaultReason {
    /// As VT-d numbers it (VT-d specification §7.2.3).
    pub fn code(self, write: bool) -> u8 {
        match self {
            FaultReason::Width => 4,
            FaultReason::NotMapped | FaultReason::Unmapped | FaultReason::Permission => 6 - u8::from(write),
            FaultReason::Entry => 7,
        }
    }
}

/// An access that was refused: reads gave nothing, writes went nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fault {
    /// The address.
    pub iova: u64,
    /// Bytes of the access from there on.
    pub len: usize,
    /// Whether it was a write.
    pub write: bool,
    /// Why.
    pub reason: FaultReason,
}

impl Fault {
    pub(crate) fn access(&self) -> &'static str {
        if self.write { "write" } else { "read" }
    }
}
