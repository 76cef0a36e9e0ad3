//! The rules that a driver can break, as a strict model reports them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A broken rule and its place. An `index` is that of a descriptor in its ring.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The tail was set to an index outside the ring.
    #[error("{ring}: tail {tail} is outside a ring of {len} descriptors")]
    TailOutsideRing {
        /// The ring.
        ring: Ring,
        /// The written value.
        tail: u32,
        /// Descriptors in the ring.
        len: u32,
    },
    /// The tail passed descriptors that the device still owns, or reached its head: no descriptor
    /// was left free.
    #[error("{ring}: tail moved from {from} to {tail} while the head is {head}: no descriptor of {len} is left free")]
    RingOverrun {
        /// The ring.
        ring: Ring,
        /// The previous tail.
        from: u32,
        /// The written value.
        tail: u32,
        /// The head.
        head: u32,
        /// Descriptors in the ring.
        len: u32,
    },
    /// The driver changed a descriptor that the device owned.
    #[error("{ring}: descriptor {index} was changed from {was:x?} to {is:x?} while the device owned it")]
    OwnedDescriptorWritten {
        /// The ring.
        ring: Ring,
        /// The descriptor.
        index: u32,
        /// Its words when it was fetched.
        was: [u64; 2],
        /// Its words now.
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
        /// The reserved bits that are set in the second word.
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
    /// A register was written with an invalid value or at an invalid time.
    #[error("register {at:#06x} = {value:#010x}: {rule}")]
    Register {
        /// The register's byte offset.
        at: u32,
        /// The written value.
        value: u32,
        /// The rule.
        rule: &'static str,
    },
    /// The device accessed a posted buffer that is not mapped, or not for this access.
    #[error("{access} of {len} bytes at {iova:#x}: not mapped for it")]
    NotMapped {
        /// The access.
        access: &'static str,
        /// The IOVA.
        iova: u64,
        /// The length in bytes.
        len: usize,
    },
    /// The device accessed an address after it was unmapped: the driver unmapped a buffer that the
    /// device still owned.
    #[error("{access} of {len} bytes at {iova:#x}: unmapped before")]
    UseAfterUnmap {
        /// The access.
        access: &'static str,
        /// The IOVA.
        iova: u64,
        /// The length in bytes.
        len: usize,
    },
    /// A buffer was unmapped while the device owns a descriptor for it.
    #[error("unmapped at {iova:#x} while the device owns a descriptor for it")]
    UnmappedWhileOwned {
        /// A page of the buffer.
        iova: u64,
    },
    /// A buffer was mapped a second time: it was freed or handed on without being unmapped.
    #[error("the buffer at {iova:#x} was used again without having been unmapped, and is mapped at {again:#x} now")]
    ReturnedWhileMapped {
        /// The first IOVA.
        iova: u64,
        /// The second IOVA.
        again: u64,
    },
    /// A window was dropped with mappings.
    #[error("{count} buffers were still mapped when their window was dropped")]
    MappingsLeft {
        /// The number of mappings.
        count: u32,
    },
    /// The CPU wrote to a buffer after its last sync for the device, which reads it now.
    #[error("the device reads {len} bytes at {iova:#x} that were changed and never synchronised for it")]
    MissingSync {
        /// The IOVA.
        iova: u64,
        /// The length in bytes.
        len: usize,
    },
    /// A sync of an address that is not mapped.
    #[error("sync of {len} bytes at {iova:#x}, which is not mapped")]
    SyncOfUnmapped {
        /// The IOVA.
        iova: u64,
        /// The length in bytes.
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

/// Stores the first violation; later ones are often only its consequences.
#[derive(Debug, Default)]
pub struct Violations {
    strict: bool,
    first: OnceLock<Violation>,
    count: AtomicU64,
}

impl Violations {
    /// With `strict` unset, no rule is checked.
    pub fn new(strict: bool) -> Violations {
        Violations { strict, ..Violations::default() }
    }

    /// Whether rules are checked.
    #[inline]
    pub fn strict(&self) -> bool {
        self.strict
    }

    /// The first violation.
    pub fn first(&self) -> Option<&Violation> {
        self.first.get()
    }

    /// The number of violations.
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
