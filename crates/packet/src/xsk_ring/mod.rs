//! Rings in memory shared by two sides that do not trust each other: the kernel's AF_XDP rings, and
//! those of application sockets.
//!
//! ```text
//!   consumer                    producer       free-running 32-bit counters with one writer each
//!      │ ── filled entries ──► │ ── free entries ──► consumer + size
//!
//!   producer:  read consumer (Acquire) ─ write entries ─ store producer (Release)
//!   consumer:  read producer (Acquire) ─ read entries  ─ store consumer (Release)
//! ```
//!
//! Of the four rings of a socket the application produces FILL and TX and consumes COMPLETION and
//! RX; the kernel, or the datapath, does the opposite. [`Producer`] and [`Consumer`] are one side's
//! end of any of them. Each keeps a copy of the other side's counter and loads the shared word, a
//! cache line that the other core writes, only if the copy shows too few entries.
//!
//! The place of counters and entries is behind [`RingMemory`]; [`Mapped`] is a ring in a region of
//! [untrusted memory](crate::UntrustedMem) (`mapped.rs`). The flag need_wakeup is in `wakeup.rs`.
//!
//! **Trust.** A side's own counter is never read back from shared memory. The other side's counter
//! is limited by the size of the ring: [`peek`](Consumer::peek) and [`reserve`](Producer::reserve)
//! clamp it, [`try_peek`](Consumer::try_peek) and [`try_reserve`](Producer::try_reserve) report
//! [`RingCorrupt`]. Entries are read once, and the caller checks them.
//!
//! Source: `include/uapi/linux/if_xdp.h` and `net/xdp/xsk_queue.h` in Linux.

use std::sync::atomic::Ordering;

mod mapped;
mod wakeup;

pub use mapped::{Entry, Layout, Mapped};

/// The other side's counter claims more entries than the ring has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the counter of a ring is ahead by more than the ring's size")]
pub struct RingCorrupt;

/// An entry of the RX and TX rings (`xdp_desc`): a piece of the shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Desc {
    /// Offset of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// [`CONTINUED`](Desc::CONTINUED), [`METADATA`](Desc::METADATA).
    pub options: u32,
}

impl Desc {
    /// The packet continues in the next entry (`XDP_PKT_CONTD`).
    pub const CONTINUED: u32 = 1;
    /// There is metadata in front of the frame (`XDP_TX_METADATA`).
    pub const METADATA: u32 = 2;
}

/// A shared counter.
pub trait RingCounter {
    /// Reads it.
    fn load(&self, order: Ordering) -> u32;
    /// Writes it.
    fn store(&self, value: u32, order: Ordering);
}

impl RingCounter for std::sync::atomic::AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }
    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }
}

/// The counters and entries of a ring.
pub trait RingMemory {
    /// The type of an entry.
    type Entry: Copy;
    /// The type of a counter.
    type RingCounter: RingCounter;
    /// Entries, a power of two.
    fn size(&self) -> u32;
    /// The producer's counter.
    fn producer(&self) -> &Self::RingCounter;
    /// The consumer's counter.
    fn consumer(&self) -> &Self::RingCounter;
    /// Reads the entry of a counter, whose low bits are its index.
    fn read(&self, at: u32) -> Self::Entry;
    /// Writes it.
    fn write(&self, at: u32, entry: Self::Entry);
}

/// The side that writes entries.
#[derive(Debug)]
pub struct Producer<S> {
    ring: S,
    /// Written up to here, perhaps not submitted yet.
    at: u32,
    /// The consumer's counter as last loaded, plus the size.
    limit: u32,
}

impl<S: RingMemory> Producer<S> {
    /// The producer of a new ring.
    pub fn new(ring: S) -> Producer<S> {
        let limit = ring.size();
        Producer { ring, at: 0, limit }
    }

    /// Entries that can be written; loads the shared counter only if there are fewer than `want`.
    #[inline]
    pub fn reserve(&mut self, want: u32) -> u32 {
        let free = self.limit.wrapping_sub(self.at);
        if free >= want {
            return free;
        }
        let free = self.ring.size().saturating_sub(self.outstanding());
        self.limit = self.at.wrapping_add(free);
        free
    }

    /// As [`reserve`](Producer::reserve), for a consumer that must be correct.
    ///
    /// # Errors
    /// [`RingCorrupt`] if it counts entries that were never written, or that it counted before.
    #[inline]
    pub fn try_reserve(&mut self, want: u32) -> Result<u32, RingCorrupt> {
        let free = self.limit.wrapping_sub(self.at);
        if free >= want {
            return Ok(free);
        }
        let free = self.ring.size().checked_sub(self.outstanding()).ok_or(RingCorrupt)?;
        self.limit = self.at.wrapping_add(free);
        Ok(free)
    }

    /// Entries that the consumer has not released, by its counter.
    #[inline]
    fn outstanding(&self) -> u32 {
        // Acquire: the consumer read the entries before it counted them.
        self.at.wrapping_sub(self.ring.consumer().load(Ordering::Acquire))
    }

    /// Writes the next of the entries that [`reserve`](Producer::reserve) returned; the other side
    /// does not see it yet.
    #[inline]
    pub fn write(&mut self, entry: S::Entry) {
        self.ring.write(self.at, entry);
        self.at = self.at.wrapping_add(1);
    }

    /// Makes the written entries visible to the other side.
    #[inline]
    pub fn submit(&mut self) {
        // Release: the entries come before the counter that covers them.
        self.ring.producer().store(self.at, Ordering::Release);
    }

    /// Entries that were written and not released by the other side.
    #[inline]
    pub fn waiting(&self) -> u32 {
        let consumed = self.ring.consumer().load(Ordering::Relaxed);
        self.at.wrapping_sub(consumed).min(self.ring.size())
    }

    /// The ring.
    #[inline]
    pub fn ring(&self) -> &S {
        &self.ring
    }
}

/// The side that reads entries.
#[derive(Debug)]
pub struct Consumer<S> {
    ring: S,
    /// Read up to here, perhaps not released yet.
    at: u32,
    /// The producer's counter as last loaded.
    limit: u32,
}

impl<S: RingMemory> Consumer<S> {
    /// The consumer of a new ring.
    pub fn new(ring: S) -> Consumer<S> {
        Consumer { ring, at: 0, limit: 0 }
    }

    /// Entries that can be read; loads the shared counter only if there are fewer than `want`.
    #[inline]
    pub fn peek(&mut self, want: u32) -> u32 {
        let ready = self.limit.wrapping_sub(self.at);
        if ready >= want {
            return ready;
        }
        let ready = self.submitted().min(self.ring.size());
        self.limit = self.at.wrapping_add(ready);
        ready
    }

    /// As [`peek`](Consumer::peek), for a producer that must be correct.
    ///
    /// # Errors
    /// [`RingCorrupt`] if it counts more entries than the ring has.
    #[inline]
    pub fn try_peek(&mut self, want: u32) -> Result<u32, RingCorrupt> {
        let ready = self.limit.wrapping_sub(self.at);
        if ready >= want {
            return Ok(ready);
        }
        let ready = self.submitted();
        if ready > self.ring.size() {
            return Err(RingCorrupt);
        }
        self.limit = self.at.wrapping_add(ready);
        Ok(ready)
    }

    /// Entries that the producer submitted and this side has not read, by its counter.
    #[inline]
    fn submitted(&self) -> u32 {
        // Acquire: the producer wrote the entries before it counted them.
        self.ring.producer().load(Ordering::Acquire).wrapping_sub(self.at)
    }

    /// Reads the next of the entries that [`peek`](Consumer::peek) returned.
    #[inline]
    pub fn read(&mut self) -> S::Entry {
        let entry = self.ring.read(self.at);
        self.at = self.at.wrapping_add(1);
        entry
    }

    /// Reads up to `n` of the entries that [`peek`](Consumer::peek) returned, as long as `take`
    /// takes them; returns how many it took. The one that it does not take stays, as if it was
    /// [cancelled](Consumer::cancel).
    #[inline]
    pub fn read_while(&mut self, n: usize, mut take: impl FnMut(S::Entry) -> bool) -> usize {
        let (first, ready) = (self.at, self.limit.wrapping_sub(self.at));
        let end = first.wrapping_add(ready.min(u32::try_from(n).unwrap_or(u32::MAX)));
        // Not in `self`, which would be written for each entry.
        let mut at = first;
        while at != end && take(self.ring.read(at)) {
            at = at.wrapping_add(1);
        }
        self.at = at;
        at.wrapping_sub(first) as usize
    }

    /// Entries to be read, by the producer's counter.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.submitted().min(self.ring.size())
    }

    /// Takes back the last read of an entry that was not [released](Consumer::release), so that it
    /// is read again. The entry may have changed then.
    #[inline]
    pub fn cancel(&mut self) {
        self.at = self.at.wrapping_sub(1);
    }

    /// Releases the entries that were read.
    #[inline]
    pub fn release(&mut self) {
        // Release: our reads of the entries come before the producer's next writes to them.
        self.ring.consumer().store(self.at, Ordering::Release);
    }

    /// The ring.
    #[inline]
    pub fn ring(&self) -> &S {
        &self.ring
    }
}

#[cfg(test)]
mod tests;
