//! Errors: what can be wrong with a queue, and with what the other side wrote.

use crate::layout::Format;

/// Why a queue can't be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The number of descriptors.
    #[error("queue of {size} descriptors: 1 to 32768 are needed, for a split queue a power of two ({format:?})")]
    Size {
        /// The format of the queue.
        format: Format,
        /// The number.
        size: u16,
    },
    /// An area is too short, or not aligned.
    #[error("the {name} area has {actual} bytes of words of {width} bytes, {needed} are needed")]
    Area {
        /// `descriptor`, `driver`, `device`, `indirect` or `in-flight`.
        name: &'static str,
        /// Width of its words.
        width: usize,
        /// Bytes that a queue of that size needs.
        needed: usize,
        /// Bytes that are there, aligned.
        actual: usize,
    },
    /// A position at which no queue of that size can be.
    #[error("a queue of {size} descriptors can't continue at {avail:#x} (available), {used:#x} (used)")]
    Base {
        /// Number of descriptors.
        size: u16,
        /// The position of the next available entry.
        avail: u16,
        /// The position of the next used entry.
        used: u16,
    },
    /// The [record](crate::InFlightRecord) of chains in flight is of another queue, or damaged.
    #[error("the record of chains in flight: {0}")]
    Record(&'static str),
}

/// The other side broke the rules of the queue.
///
/// A side that returned it accesses the queue no more, and returns the same error from then on:
/// a driver resets its device, a device sets `DEVICE_NEEDS_RESET` or, with vhost-user, signals the
/// error descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// More chains are available than the queue has descriptors.
    #[error("the available index is ahead by more than the queue's size")]
    AvailIndex,
    /// More chains are used than were made available.
    #[error("the used index is ahead of the chains in flight")]
    UsedIndex,
    /// A chain is used that is not in flight.
    #[error("id {0} of a used chain is not in flight")]
    UsedId(u32),
    /// A descriptor that the queue does not have.
    #[error("descriptor {0} is not one of the queue's, or of its table's")]
    Index(u16),
    /// A chain of more descriptors than the queue, its table or the receiver of the chain has: a
    /// loop, perhaps.
    #[error("a chain loops, or is longer than the queue allows")]
    ChainLength,
    /// The sum of a chain's lengths does not fit into 32 bits.
    #[error("the buffers of a chain have 4 GiB or more")]
    ChainBytes,
    /// A buffer, or a table, that does not lie in the memory of the driver.
    #[error("{len} bytes at {addr:#x} are not in the driver's memory")]
    Address {
        /// The address.
        addr: u64,
        /// The length.
        len: u32,
    },
    /// A buffer for the device to read behind one to write.
    #[error("a readable buffer lies behind a writable one")]
    Order,
    /// An indirect descriptor without the feature, or in a table, or with one behind it.
    #[error("an indirect descriptor where none may be")]
    Indirect,
    /// A table whose length is not a multiple of 16, or zero.
    #[error("an indirect table of {0} bytes: must be a multiple of 16 and not empty")]
    IndirectLength(u32),
}

/// Why a chain was not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// Descriptors are missing; there are more after chains were used.
    #[error("the queue is full")]
    Full,
    /// A chain that the queue never takes: without buffers, with more of them than the queue or a
    /// table has descriptors, with a readable one behind a writable one, or of 4 GiB.
    #[error("a chain without buffers, with too many of them, in wrong order, or of 4 GiB or more")]
    Invalid,
}
