//! A ring between two threads: one producer, one consumer, reserve and submit in bulk.
//!
//! ```text
//!          head (consumer's)                 tail (producer's)
//!            ▼                                 ▼
//!   [ free | full | full | full | full | full | free | free ]   indices only grow; slot: & mask
//! ```
//!
//! Each side keeps its own index and a copy of the other's in its own handle. It loads the shared
//! one only if the copy shows too little room or too few items. So at most one cache line of the
//! other core moves per batch, not per item. The two shared indices lie 128 bytes apart, because
//! processors fetch lines in pairs.
//!
//! The operations are those of libxdp's rings, and of [`xsk_ring`](crate::xsk_ring):
//!
//! | operation | side | |
//! |---|---|---|
//! | [`reserve`](Producer::reserve) | producer | slots to be filled: a [`Reservation`] |
//! | [`submit`](Reservation::submit) | producer | makes them visible to the consumer |
//! | [`peek`](Consumer::peek) | consumer | items to be taken, by [`drain`](Consumer::drain) |
//! | release: the [`Drain`] is dropped | consumer | gives the slots of taken items to the producer |
//!
//! A producer may also fill [`Vacant`] slots one by one and [`submit`](Producer::submit) at the end
//! of a burst, which may go to several rings.
//!
//! Closing: each side sees that the other was dropped ([`Producer::is_closed`],
//! [`Consumer::is_closed`]). Items that are still in the ring can be taken out first, and items
//! that are left when both are gone are dropped.

use crate::batch::Batch;
use crate::packet::Packet;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering};
use std::mem::MaybeUninit;

#[cfg(not(loom))]
struct Slot<T>(std::cell::UnsafeCell<MaybeUninit<T>>);

#[cfg(not(loom))]
impl<T> Slot<T> {
    fn new() -> Slot<T> {
        Slot(std::cell::UnsafeCell::new(MaybeUninit::uninit()))
    }
    /// # Safety
    /// The slot is free and belongs to the caller, the producer.
    #[inline]
    unsafe fn write(&self, item: T) {
        // SAFETY: by contract nothing else touches the slot.
        unsafe { (*self.0.get()).write(item) };
    }
    /// # Safety
    /// The slot holds an item and belongs to the caller, the consumer, which never reads it again.
    #[inline]
    unsafe fn read(&self) -> T {
        // SAFETY: by contract initialised, and nothing else touches the slot.
        unsafe { (*self.0.get()).assume_init_read() }
    }
}

#[cfg(loom)]
struct Slot<T>(loom::cell::UnsafeCell<MaybeUninit<T>>);

#[cfg(loom)]
impl<T> Slot<T> {
    fn new() -> Slot<T> {
        Slot(loom::cell::UnsafeCell::new(MaybeUninit::uninit()))
    }
    unsafe fn write(&self, item: T) {
        // SAFETY: as for the other Slot; loom checks that nothing else touches it.
        self.0.with_mut(|p| unsafe { (*p).write(item) });
    }
    unsafe fn read(&self) -> T {
        // SAFETY: as for the other Slot; loom checks that nothing else touches it.
        self.0.with(|p| unsafe { (*p).assume_init_read() })
    }
}

#[repr(align(128))]
struct Index(AtomicUsize);

struct SpscShared<T> {
    head: Index,
    tail: Index,
    producer_gone: AtomicBool,
    consumer_gone: AtomicBool,
    mask: usize,
    slots: Box<[Slot<T>]>,
}

// SAFETY: a slot is touched by the producer while its index is in tail..head + capacity, by the
// consumer while it is in head..tail, and by the last of the two when the ring is dropped. The
// indices transfer it with release and acquire.
unsafe impl<T: Send> Send for SpscShared<T> {}
// SAFETY: as for Send.
unsafe impl<T: Send> Sync for SpscShared<T> {}

/// The sending side.
pub struct Producer<T> {
    shared: Arc<SpscShared<T>>,
    tail: usize,
    /// The tail that the consumer sees.
    submitted: usize,
    head_seen: usize,
}

/// The receiving side.
pub struct Consumer<T> {
    shared: Arc<SpscShared<T>>,
    head: usize,
    tail_seen: usize,
}

/// A ring for `capacity` items, rounded up to a power of two (at least 2).
pub fn ring<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.clamp(2, 1 << 30).next_power_of_two();
    let shared = Arc::new(SpscShared {
        head: Index(AtomicUsize::new(0)),
        tail: Index(AtomicUsize::new(0)),
        producer_gone: AtomicBool::new(false),
        consumer_gone: AtomicBool::new(false),
        mask: capacity - 1,
        slots: (0..capacity).map(|_| Slot::new()).collect(),
    });
    let producer = Producer { shared: shared.clone(), tail: 0, submitted: 0, head_seen: 0 };
    (producer, Consumer { shared, head: 0, tail_seen: 0 })
}

impl<T: Send> Producer<T> {
    /// Slots in the ring.
    pub fn capacity(&self) -> usize {
        self.shared.mask + 1
    }

    /// Free slots, at least `want` of them if there are as many. The consumer's index is loaded
    /// only if the last load showed fewer.
    #[inline]
    pub fn free(&mut self, want: usize) -> usize {
        let capacity = self.shared.mask + 1;
        let room = capacity - self.tail.wrapping_sub(self.head_seen);
        if room >= want {
            return room;
        }
        // Acquire: the consumer has read the slots that its index has passed.
        self.head_seen = self.shared.head.0.load(Ordering::Acquire);
        capacity - self.tail.wrapping_sub(self.head_seen)
    }

    /// The next slot; `None` if the ring is full. What is written to it the consumer sees with the
    /// next [`submit`](Producer::submit).
    #[inline]
    pub fn vacant(&mut self) -> Option<Vacant<'_, T>> {
        if self.free(1) > 0 { Some(Vacant(self)) } else { None }
    }

    /// Makes all written slots visible to the consumer at once; returns their number.
    #[inline]
    pub fn submit(&mut self) -> usize {
        let n = self.tail.wrapping_sub(self.submitted);
        if n > 0 {
            self.submit_written();
        }
        n
    }

    /// Reserves up to `n` slots, to be filled and then submitted together; fewer if the ring has no
    /// more.
    #[inline]
    pub fn reserve(&mut self, n: usize) -> Reservation<'_, T> {
        let n = n.min(self.free(n));
        Reservation { producer: self, room: n, written: 0 }
    }

    /// Sends one item.
    ///
    /// # Errors
    /// Returns the item if the ring is full.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        let mut slot = self.reserve(1);
        slot.push(item)?;
        slot.submit();
        Ok(())
    }

    /// Whether the consumer is gone, so that nothing receives further items.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.shared.consumer_gone.load(Ordering::Acquire)
    }
}

impl<T> Producer<T> {
    #[inline]
    fn submit_written(&mut self) {
        self.submitted = self.tail;
        // Release: the items are written before the consumer can see the index.
        self.shared.tail.0.store(self.tail, Ordering::Release);
    }
}

impl Producer<Packet> {
    /// Sends packets from the front of a batch, as many as there is room for; returns their number.
    /// The rest stays.
    #[inline]
    pub fn push_batch<const N: usize>(&mut self, batch: &mut Batch<N>) -> usize {
        let n = batch.len();
        let mut slots = self.reserve(n);
        for packet in batch.drain_front(slots.room()) {
            // The reservation has room for every packet that was drained.
            let _ = slots.push(packet);
        }
        slots.submit()
    }
}

/// A free slot: [`Producer::vacant`] returns it.
pub struct Vacant<'a, T>(&'a mut Producer<T>);

impl<T> Vacant<'_, T> {
    /// Fills the slot.
    #[inline]
    pub fn write(self, item: T) {
        let Vacant(producer) = self;
        let at = producer.tail & producer.shared.mask;
        // SAFETY: `vacant` saw that the consumer has left the slot at the tail, and the producer is
        // borrowed since then; masked, so in bounds.
        unsafe { producer.shared.slots.get_unchecked(at).write(item) };
        producer.tail = producer.tail.wrapping_add(1);
    }
}

/// Slots that are being filled. Dropped without [`submit`](Reservation::submit), it drops their
/// items.
pub struct Reservation<'a, T> {
    producer: &'a mut Producer<T>,
    room: usize,
    written: usize,
}

impl<T> Reservation<'_, T> {
    /// Slots that can still be filled.
    #[inline]
    pub fn room(&self) -> usize {
        self.room - self.written
    }

    /// Fills the next slot; the consumer does not see it yet.
    ///
    /// # Errors
    /// Returns the item if every reserved slot is filled.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.written == self.room {
            return Err(item);
        }
        let shared = &self.producer.shared;
        let at = self.producer.tail.wrapping_add(self.written) & shared.mask;
        // SAFETY: the slot lies in the reserved range behind the tail, which the consumer has left;
        // masked, so in bounds.
        unsafe { shared.slots.get_unchecked(at).write(item) };
        self.written += 1;
        Ok(())
    }

    /// Makes all filled slots visible to the consumer at once; returns their number.
    #[inline]
    pub fn submit(mut self) -> usize {
        let n = std::mem::take(&mut self.written);
        self.producer.tail = self.producer.tail.wrapping_add(n);
        self.producer.submit_written();
        n
    }
}

impl<T> Drop for Reservation<'_, T> {
    #[inline]
    fn drop(&mut self) {
        for i in 0..self.written {
            let at = self.producer.tail.wrapping_add(i) & self.producer.shared.mask;
            // SAFETY: written by this reservation and never submitted.
            drop(unsafe { self.producer.shared.slots[at].read() });
        }
    }
}

impl<T: Send> Consumer<T> {
    /// Items in the ring, at least `want` of them if there are as many. The producer's index is
    /// loaded only if the last load showed fewer.
    #[inline]
    pub fn peek(&mut self, want: usize) -> usize {
        let ready = self.tail_seen.wrapping_sub(self.head);
        if ready >= want {
            return ready;
        }
        // Acquire: the items that the producer's index has passed are written.
        self.tail_seen = self.shared.tail.0.load(Ordering::Acquire);
        self.tail_seen.wrapping_sub(self.head)
    }

    /// Drains up to `n` items. Their slots are released together, when the iterator is dropped.
    #[inline]
    pub fn drain(&mut self, n: usize) -> Drain<'_, T> {
        let n = n.min(self.peek(n));
        let at = self.head;
        // Before any item leaves, so that an iterator that is forgotten loses items and never
        // yields one twice.
        self.head = at.wrapping_add(n);
        Drain { at, end: self.head, any: n > 0, consumer: self }
    }

    /// Takes one item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.drain(1).next()
    }

    /// Whether the producer is gone and everything that it sent has been taken.
    #[inline]
    pub fn is_closed(&mut self) -> bool {
        // The flag first: items that the producer sent before it was dropped are visible once the
        // flag is.
        self.shared.producer_gone.load(Ordering::Acquire) && self.peek(1) == 0
    }
}

impl Consumer<Packet> {
    /// Appends packets to a batch, as many as there are and it has room for; returns their number.
    #[inline]
    pub fn pop_batch<const N: usize>(&mut self, batch: &mut Batch<N>) -> usize {
        let items = self.drain(batch.room());
        let n = items.len();
        for packet in items {
            // SAFETY: the drain yields no more packets than the batch's room.
            unsafe { batch.push_unchecked(packet) };
        }
        n
    }
}

/// Items that are being taken. When it is dropped, items that were not taken are dropped, and the
/// slots of all are released to the producer.
pub struct Drain<'a, T: Send> {
    consumer: &'a mut Consumer<T>,
    at: usize,
    end: usize,
    any: bool,
}

impl<T: Send> Iterator for Drain<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.at == self.end {
            return None;
        }
        let shared = &self.consumer.shared;
        let slot = self.at & shared.mask;
        self.at = self.at.wrapping_add(1);
        // SAFETY: the slot lies between the old head and the tail that was loaded, so it holds an
        // item, and `at` passes it once; masked, so in bounds.
        Some(unsafe { shared.slots.get_unchecked(slot).read() })
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end.wrapping_sub(self.at), Some(self.end.wrapping_sub(self.at)))
    }
}

impl<T: Send> ExactSizeIterator for Drain<'_, T> {}

impl<T: Send> Drop for Drain<'_, T> {
    #[inline]
    fn drop(&mut self) {
        for item in self.by_ref() {
            drop(item);
        }
        if self.any {
            self.consumer.release();
        }
    }
}

impl<T> Consumer<T> {
    /// Gives the slots of all items that were taken to the producer.
    #[inline]
    fn release(&self) {
        // Release: the items are read before the producer may write the slots again.
        self.shared.head.0.store(self.head, Ordering::Release);
    }
}

impl<T> std::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").field("capacity", &(self.shared.mask + 1)).field("tail", &self.tail).finish()
    }
}

impl<T> std::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").field("capacity", &(self.shared.mask + 1)).field("head", &self.head).finish()
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // Items that are written and not submitted are the ring's already.
        self.submit_written();
        self.shared.producer_gone.store(true, Ordering::Release);
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // The items of a forgotten iterator are not the ring's any more.
        self.release();
        self.shared.consumer_gone.store(true, Ordering::Release);
    }
}

impl<T> Drop for SpscShared<T> {
    fn drop(&mut self) {
        let tail = self.tail.0.load(Ordering::Acquire);
        let mut head = self.head.0.load(Ordering::Acquire);
        while head != tail {
            // SAFETY: both sides are gone; the items between the indices were sent and never taken.
            drop(unsafe { self.slots[head & self.mask].read() });
            head = head.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests;
