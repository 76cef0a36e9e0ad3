//! A ring of records of any length between two threads: one producer, which never waits, and one
//! consumer.
//!
//! ```text
//!           head (consumer's)                 published            staged (producer's)
//!             ▼                                   ▼                   ▼
//!   [ free  │ header, bytes │ header, bytes │ … │ header, bytes │ … │ free │ skip ]
//!             └─ 32 bytes, then the bytes, padded to a multiple of 32
//! ```
//!
//! A record is contiguous. One that does not fit in front of the end of the memory begins at its
//! start, behind a mark that skips the rest. Memory is allocated and touched once, when the ring is
//! made.
//!
//! The producer [stages](Producer::stage) records, then [submits](Producer::submit_to) all or the
//! first of them at once: one store per burst. Staged records that are not submitted are
//! overwritten. A record without room is refused; the producer counts it and goes on. Positions
//! only grow, as in [`spsc`](crate::spsc).

use crate::packet::prefetch_write;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering};
use memory::Memory;

mod memory;

/// Bytes of a header, and what positions are multiples of.
pub const UNIT: usize = 32;
/// The first word of the mark that skips the rest of the memory.
const SKIP: u64 = u64::MAX;

/// What the owner of the ring notes about a record, beside its bytes.
pub type Words = [u64; 3];

#[repr(align(128))]
struct Index(AtomicUsize);

struct RingShared {
    head: Index,
    tail: Index,
    producer_gone: AtomicBool,
    memory: Memory,
}

/// The sending side.
pub struct Producer {
    shared: Arc<RingShared>,
    /// What the consumer sees.
    tail: usize,
    staged: usize,
    head_seen: usize,
}

/// The receiving side.
pub struct Consumer {
    shared: Arc<RingShared>,
    head: usize,
    tail_seen: usize,
}

/// A ring of `bytes`, rounded up to a power of two (4096 at least, 1 GiB at most).
pub fn record_ring(bytes: usize) -> (Producer, Consumer) {
    // In a model the memory is small, so that it is reused.
    let least = if cfg!(loom) { 4 * UNIT } else { 4096 };
    let shared = Arc::new(RingShared {
        head: Index(AtomicUsize::new(0)),
        tail: Index(AtomicUsize::new(0)),
        producer_gone: AtomicBool::new(false),
        memory: Memory::new(bytes.clamp(least, 1 << 30).next_power_of_two()),
    });
    let producer = Producer { shared: shared.clone(), tail: 0, staged: 0, head_seen: 0 };
    (producer, Consumer { shared, head: 0, tail_seen: 0 })
}

/// Bytes of the ring that a record of `len` bytes takes.
#[inline]
const fn size(len: usize) -> usize {
    UNIT + len.next_multiple_of(UNIT)
}

impl Producer {
    /// Bytes of the ring.
    pub fn capacity(&self) -> usize {
        self.shared.memory.len()
    }

    /// Looks how far the consumer is: once per burst, so that a full ring costs one load.
    #[inline]
    pub fn refresh(&mut self) {
        // Acquire: the consumer has read the records that its index has passed.
        self.head_seen = self.shared.head.0.load(Ordering::Acquire);
    }

    /// Bytes in use, as of the last [`refresh`](Producer::refresh), staged ones included.
    #[inline]
    pub fn used(&self) -> usize {
        self.staged.wrapping_sub(self.head_seen)
    }

    /// Stages a record of `len` bytes and returns them to be written, all of them; `None` if there
    /// is no room, as of the last [`refresh`](Producer::refresh). The consumer does not see the
    /// record yet.
    #[inline]
    pub fn stage(&mut self, words: Words, len: usize) -> Option<&mut [u8]> {
        let memory = &self.shared.memory;
        let (mask, room) = (memory.len() - 1, memory.len() - self.used());
        if len > memory.len() {
            return None;
        }
        let (mut at, size) = (self.staged & mask, size(len));
        let rest = memory.len() - at;
        let skipped = if rest < size { rest } else { 0 };
        if skipped + size > room {
            return None;
        }
        if skipped > 0 {
            // SAFETY: the unit at the staged position is free: `room` is not zero, and positions
            // are multiples of a unit, as is the length of the memory.
            unsafe { memory.write_header(at, [SKIP, 0, 0, 0]) };
            at = 0;
        }
        self.staged = self.staged.wrapping_add(skipped + size);
        let [a, b, c] = words;
        prefetch_write(memory.address((self.staged & mask).wrapping_add(2 * size) & mask));
        // SAFETY: the units from `at` on are free and inside the memory, by the checks above, and
        // the consumer does not read them before they are submitted. The slice borrows the
        // producer, so no other record is staged meanwhile.
        unsafe {
            memory.write_header(at, [len as u64, a, b, c]);
            Some(memory.slice_mut(at + UNIT, len))
        }
    }

    /// The position behind the last staged record.
    #[inline]
    pub fn position(&self) -> usize {
        self.staged
    }

    /// Makes the staged records in front of `position` visible at once. Those behind it are
    /// forgotten. A position that is no longer staged changes nothing.
    #[inline]
    pub fn submit_to(&mut self, position: usize) {
        if position.wrapping_sub(self.tail) > self.staged.wrapping_sub(self.tail) {
            return;
        }
        self.staged = position;
        if position != self.tail {
            self.tail = position;
            // Release: the records are written before the consumer can see the index.
            self.shared.tail.0.store(position, Ordering::Release);
        }
    }

    /// Makes all staged records visible.
    #[inline]
    pub fn submit(&mut self) {
        self.submit_to(self.staged);
    }

    /// Forgets all staged records.
    #[inline]
    pub fn forget(&mut self) {
        self.staged = self.tail;
    }
}

impl Consumer {
    /// What is noted about the next record; `None` if there is none now.
    #[inline]
    pub fn peek(&mut self) -> Option<Words> {
        let (_, [_, a, b, c]) = self.next()?;
        Some([a, b, c])
    }

    /// The offset and the header of the next record.
    #[inline]
    fn next(&mut self) -> Option<(usize, [u64; 4])> {
        loop {
            if self.head == self.tail_seen {
                // Acquire: the records in front of the index are written.
                self.tail_seen = self.shared.tail.0.load(Ordering::Acquire);
                if self.head == self.tail_seen {
                    return None;
                }
            }
            let memory = &self.shared.memory;
            let at = self.head & (memory.len() - 1);
            // SAFETY: between head and tail lie headers and their bytes, and the head is at a
            // header.
            let header = unsafe { memory.read_header(at) };
            if header[0] != SKIP {
                return Some((at, header));
            }
            self.head = self.head.wrapping_add(memory.len() - at);
        }
    }

    /// Shows the next record to `read`, which returns whether it takes it. Returns whether it was
    /// taken; `false` also if there is none. Its memory is free after the next
    /// [`release`](Consumer::release).
    #[inline]
    pub fn take(&mut self, read: impl FnOnce(Words, &[u8]) -> bool) -> bool {
        let Some((at, [len, a, b, c])) = self.next() else { return false };
        // SAFETY: the bytes behind the header were submitted with it, and the producer does not
        // write them before the head has passed.
        let bytes = unsafe { self.shared.memory.slice(at + UNIT, len as usize) };
        let taken = read([a, b, c], bytes);
        if taken {
            self.head = self.head.wrapping_add(size(len as usize));
        }
        taken
    }

    /// Gives the memory of all taken records to the producer.
    #[inline]
    pub fn release(&mut self) {
        // Release: the records are read before the producer may write their memory again.
        self.shared.head.0.store(self.head, Ordering::Release);
    }

    /// Whether the producer is gone and every record was taken.
    pub fn is_closed(&mut self) -> bool {
        // The flag first: records that were submitted before the producer was dropped are visible
        // once the flag is.
        self.shared.producer_gone.load(Ordering::Acquire) && self.next().is_none()
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.shared.producer_gone.store(true, Ordering::Release);
    }
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").field("capacity", &self.capacity()).field("used", &self.used()).finish()
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").field("head", &self.head).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
