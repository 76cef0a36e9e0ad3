//! What a strict model says about a driver that breaks a rule.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A rule that was broken, and where. Indices are those of descriptors in a ring.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A tail was moved to a descriptor that the ring does not have.
    #[error("{ring}: tail {tail} is beyond a ring of {len} descriptors")]
    TailBeyondRing {
        /// The ring.
        ring: Ring,
        /// What was written.
        tail: u32,
        /// Descriptors in the ring.
        len: u32,
    },
    /// A tail was moved over descriptors that the device still owns, or up to its head: no descriptor was left free.
    #[error("{ring}: tail moved from {from} to {tail} while the head is {head}: no descriptor of {len} is left free")]
    RingOverrun {
        /// The ring.
        ring: Ring,
        /// The tail before.
        from: u32,
        /// What was written.
        tail: u32,
        /// The head.
        head: u32,
        /// Descriptors in the ring.
        len: u32,
    },
    /// A descriptor that the device owned was changed.
    #[error("{ring}: descriptor {index} was changed from {was:x?} to {is:x?} while the device owned it")]
    OwnedDescriptorWritten {
        /// The ring.
        ring: Ring,
        /// The descriptor.
        index: u32,
        /// As it was fetched.
        was: [u64; 2],
        /// As it is.
        is: [u64; 2],
    },
    /// A descriptor below the tail has address 0.
    #[error("{ring}: descriptor {index} is below the tail with address 0")]
    AddressZero {
        /// The ring.
        ring: Ring,
        /// The descriptor.
        index: u32,
    },
    /// Reserved bits are set.
    #[error("{ring}: descriptor {index}: reserved bits {bits:#x} are set")]
    ReservedBits {
        /// The ring.
        ring: Ring,
        /// The descriptor.
        index: u32,
        /// Those of the second word that must not be set.
        bits: u64,
    },
    /// A rule of transmission was broken.
    #[error("{ring}: descriptor {index}: {rule}")]
    Transmit {
        /// The ring.
        ring: Ring,
        /// The descriptor.
        index: u32,
        /// The rule.
        rule: &'static str,
    },
    /// A register was written with what it must not hold, or when it must not be written.
    #[error("register {at:#06x} = {value:#010x}: {rule}")]
    Register {
        /// Its byte offset.
        at: u32,
        /// What was written.
        value: u32,
        /// The rule.
        rule: &'static str,
    },
    /// A buffer was given to the device that is mapped to nothing, or not for this access.
    #[error("{access} of {len} bytes at {iova:#x}: not mapped for it")]
    NotMapped {
        /// What the device did.
        access: &'static str,
        /// Where.
        iova: u64,
        /// Bytes.
        len: usize,
    },
    /// The device used an address after it was unmapped: the driver unmapped what it had not got back.
    #[error("{access} of {len} bytes at {iova:#x}: unmapped before")]
    UseAfterUnmap {
        /// What the device did.
        access: &'static str,
        /// Where.
        iova: u64,
        /// Bytes.
        len: usize,
    },
    /// A buffer was unmapped while a descriptor that the device owns points to it.
    #[error("unmapped at {iova:#x} while the device owns a descriptor for it")]
    UnmappedWhileOwned {
        /// A page of it.
        iova: u64,
    },
    /// A buffer was mapped while it is mapped already: it went home, or was handed on, without having been unmapped.
    #[error("the buffer at {iova:#x} was used again without having been unmapped, and is mapped at {again:#x} now")]
    ReturnedWhileMapped {
        /// Where it is mapped.
        iova: u64,
        /// Where it is mapped besides.
        again: u64,
    },
    /// Mappings were left behind.
    #[error("{count} buffers were still mapped when their window was dropped")]
    MappingsLeft {
        /// How many.
        count: u32,
    },
    /// The processor wrote to a buffer after it was last synchronised for the device, which is about to read it.
    #[error("the device reads {len} bytes at {iova:#x} that were changed and never synchronised for it")]
    MissingSync {
        /// Where.
        iova: u64,
        /// Bytes.
        len: usize,
    },
    /// Something was synchronised that is not mapped.
    #[error("sync of {len} bytes at {iova:#x}, which is not mapped")]
    SyncOfUnmapped {
        /// Where.
        iova: u64,
        /// Bytes.
        len: usize,
    },
}

/// A descriptor ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ring {
    /// A receive ring.
    Rx(u8),
    /// A transmit ring.
    Tx(u8),
}

impl std::fmt::Display for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ring::Rx(n) => write!(f, "rx{n}"),
            Ring::Tx(n) => write!(f, "tx{n}"),
        }
    }
}

/// Remembers the first violation: what follows it is often only its consequence.
#[derive(Debug, Default)]
pub struct Violations {
    strict: bool,
    first: OnceLock<Violation>,
    count: AtomicU64,
}

impl Violations {
    /// Without `strict` nothing is looked for.
    pub fn new(strict: bool) -> Violations {
        Violations { strict, ..Violations::default() }
    }

    /// Whether rules are checked.
    #[inline]
    pub fn strict(&self) -> bool {
        self.strict
    }

    /// The first.
    pub fn first(&self) -> Option<&Violation> {
        self.first.get()
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn report(&self, violation: Violation) {
        if self.strict {
            self.count.fetch_add(1, Ordering::Relaxed);
            let _ = self.first.set(violation);
        }
    }
}
