//! An array of packets: the argument of every call that moves packets.

use crate::packet::Packet;
use std::mem::MaybeUninit;

/// Up to `N` owned packets in a row; no allocation, moved by pointer.
///
/// Dropping a batch drops its packets. Hot paths give them to a [`Cache`](crate::Cache) instead.
pub struct Batch<const N: usize = 64> {
    len: usize,
    slots: [MaybeUninit<Packet>; N],
}

impl<const N: usize> Batch<N> {
    /// Packets that fit.
    pub const CAPACITY: usize = N;

    /// An empty batch.
    #[inline]
    pub const fn new() -> Batch<N> {
        Batch { len: 0, slots: [const { MaybeUninit::uninit() }; N] }
    }

    /// Number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no packets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of packets that can be added.
    #[inline]
    pub fn room(&self) -> usize {
        N - self.len
    }

    /// Adds a packet at the end.
    ///
    /// # Errors
    /// Returns the packet if the batch is full.
    #[inline]
    pub fn push(&mut self, packet: Packet) -> Result<(), Packet> {
        if self.len == N {
            return Err(packet);
        }
        // SAFETY: there is room for one more.
        unsafe { self.push_unchecked(packet) };
        Ok(())
    }

    /// # Safety
    /// The batch is not full.
    #[inline]
    pub(crate) unsafe fn push_unchecked(&mut self, packet: Packet) {
        // SAFETY: len < N by contract.
        unsafe { self.slots.get_unchecked_mut(self.len) }.write(packet);
        self.len += 1;
    }

    /// # Safety
    /// The iterator yields at most as many packets as there is room for.
    #[inline]
    pub(crate) unsafe fn extend_unchecked(&mut self, packets: impl Iterator<Item = Packet>) {
        let mut len = self.len;
        for packet in packets {
            // SAFETY: len < N by contract.
            unsafe { self.slots.get_unchecked_mut(len) }.write(packet);
            len += 1;
        }
        self.len = len;
    }

    /// Adds packets of an iterator at the end, as many as there is room for.
    #[inline]
    pub fn fill(&mut self, packets: &mut impl Iterator<Item = Packet>) {
        let room = self.room();
        // SAFETY: at most as many as there is room for.
        unsafe { self.extend_unchecked(packets.take(room)) };
    }

    /// Puts a packet back in front of all others.
    ///
    /// # Errors
    /// Returns the packet if the batch is full.
    pub fn push_front(&mut self, packet: Packet) -> Result<(), Packet> {
        self.push(packet)?;
        self.as_mut_slice().rotate_right(1);
        Ok(())
    }

    /// Removes and returns the last packet.
    #[inline]
    pub fn pop(&mut self) -> Option<Packet> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the slot at the old last position was initialised, and is now outside the length.
        Some(unsafe { self.slots[self.len].assume_init_read() })
    }

    /// The packets in order.
    #[inline]
    pub fn as_slice(&self) -> &[Packet] {
        // SAFETY: the first `len` slots are initialised, and MaybeUninit<Packet> has the layout of
        // Packet.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast(), self.len) }
    }

    /// The packets in order, mutable.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [Packet] {
        // SAFETY: as in `as_slice`, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.slots.as_mut_ptr().cast(), self.len) }
    }

    /// The packets in order.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, Packet> {
        self.as_slice().iter()
    }

    /// Removes the first `n` packets (all, if there are fewer). Dropping the iterator drops those
    /// that it did not yield and moves the rest to the front.
    #[inline]
    pub fn drain_front(&mut self, n: usize) -> DrainFront<'_, N> {
        let n = n.min(self.len);
        let total = std::mem::replace(&mut self.len, 0);
        DrainFront { batch: self, at: 0, end: n, total }
    }

    /// Takes packets from the front one by one, each after a look at it.
    #[inline]
    pub fn front(&mut self) -> Front<'_, N> {
        let total = std::mem::replace(&mut self.len, 0);
        Front { batch: self, at: 0, total }
    }

    /// Moves the packets of slots `from..to` to the front: the batch has these, and no others.
    ///
    /// # Safety
    /// They are initialised, and the batch's length covers none of them: `from <= to <= N`.
    #[inline]
    unsafe fn keep(&mut self, from: usize, to: usize) {
        let rest = to - from;
        if rest > 0 && from > 0 {
            let slots = self.slots.as_mut_ptr();
            // SAFETY: both ranges are inside the array, by the caller's promise.
            unsafe { std::ptr::copy(slots.add(from), slots, rest) };
        }
        self.len = rest;
    }

    /// Moves packets from the front of `other` to the end of this batch, as many as it has room
    /// for; returns their number.
    #[inline]
    pub fn take_from<const M: usize>(&mut self, other: &mut Batch<M>) -> usize {
        let n = other.len().min(self.room());
        for packet in other.drain_front(n) {
            // SAFETY: n is at most the room.
            unsafe { self.push_unchecked(packet) };
        }
        n
    }
}

/// Iterator that [`Batch::drain_front`] returns.
pub struct DrainFront<'a, const N: usize> {
    batch: &'a mut Batch<N>,
    at: usize,
    end: usize,
    total: usize,
}

impl<const N: usize> DrainFront<'_, N> {
    /// The packets that were not yielded yet; `None` if there are none.
    #[inline]
    pub(crate) fn peek(&self) -> Option<&[Packet]> {
        let slots = &self.batch.slots[self.at..self.end];
        // SAFETY: slots at..end are initialised and not yielded yet.
        (!slots.is_empty()).then(|| unsafe { std::slice::from_raw_parts(slots.as_ptr().cast(), slots.len()) })
    }

    /// # Safety
    /// The first `n` of the packets that `peek` returns are no longer owned by the batch.
    #[inline]
    pub(crate) unsafe fn forget(&mut self, n: usize) {
        self.at += n;
    }
}

impl<const N: usize> Iterator for DrainFront<'_, N> {
    type Item = Packet;

    #[inline]
    fn next(&mut self) -> Option<Packet> {
        if self.at == self.end {
            return None;
        }
        // SAFETY: slots below the old length are initialised; `at` moves past each exactly once.
        let packet = unsafe { self.batch.slots.get_unchecked(self.at).assume_init_read() };
        self.at += 1;
        Some(packet)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.at, Some(self.end - self.at))
    }
}

impl<const N: usize> ExactSizeIterator for DrainFront<'_, N> {}

impl<const N: usize> Drop for DrainFront<'_, N> {
    #[inline]
    fn drop(&mut self) {
        for packet in self.by_ref() {
            drop(packet);
        }
        // SAFETY: slots end..total are initialised and were not moved.
        unsafe { self.batch.keep(self.end, self.total) };
    }
}

/// The packets of a batch, of which the first ones are taken: [`Batch::front`] returns it. Dropping
/// it moves the rest to the front.
pub struct Front<'a, const N: usize> {
    batch: &'a mut Batch<N>,
    at: usize,
    total: usize,
}

impl<const N: usize> Front<'_, N> {
    /// The first packet that was not taken.
    #[inline]
    pub fn peek(&mut self) -> Option<&mut Packet> {
        if self.at == self.total {
            return None;
        }
        // SAFETY: slots from `at` up to the old length are initialised.
        Some(unsafe { self.batch.slots.get_unchecked_mut(self.at).assume_init_mut() })
    }

    /// Takes that packet.
    #[inline]
    pub fn take(&mut self) -> Option<Packet> {
        if self.at == self.total {
            return None;
        }
        // SAFETY: as in `peek`; `at` moves past each slot exactly once.
        let packet = unsafe { self.batch.slots.get_unchecked(self.at).assume_init_read() };
        self.at += 1;
        Some(packet)
    }
}

impl<const N: usize> Drop for Front<'_, N> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: slots at..total are initialised and were not taken.
        unsafe { self.batch.keep(self.at, self.total) };
    }
}

impl<const N: usize> Default for Batch<N> {
    fn default() -> Batch<N> {
        Batch::new()
    }
}

impl<const N: usize> Drop for Batch<N> {
    #[inline]
    fn drop(&mut self) {
        while let Some(packet) = self.pop() {
            drop(packet);
        }
    }
}

impl<'a, const N: usize> IntoIterator for &'a Batch<N> {
    type Item = &'a Packet;
    type IntoIter = std::slice::Iter<'a, Packet>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<const N: usize> std::fmt::Debug for Batch<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::{Backing, Direction, Pool, PoolConfig};

    #[test]
    fn packets_that_are_not_drained_stay_in_order_and_drained_ones_that_are_not_taken_are_freed() {
        let pool = Pool::new(PoolConfig::default().capacity(32).backing(Backing::Anonymous)).unwrap();
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let mut batch = Batch::<8>::new();
        for n in 0..8 {
            batch.push(Packet::copy_from(&mut cache, &[n]).unwrap()).unwrap();
        }
        let numbers = |batch: &Batch<8>| batch.iter().map(|packet| packet.linear()[0]).collect::<Vec<_>>();
        let first = batch.drain_front(3).next().unwrap();
        assert_eq!((first.linear(), numbers(&batch)), (&[0][..], vec![3, 4, 5, 6, 7]));
        batch.push_front(first).unwrap();
        assert_eq!(numbers(&batch), [0, 3, 4, 5, 6, 7]);
        drop((batch.drain_front(9).count(), batch, cache));
        assert_eq!(pool.stats().free, 32);
    }

    #[test]
    fn a_batch_is_filled_from_an_iterator_that_keeps_what_has_no_room() {
        let pool = Pool::new(PoolConfig::default().capacity(32).backing(Backing::Anonymous)).unwrap();
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let mut batch = Batch::<4>::new();
        batch.push(Packet::copy_from(&mut cache, &[0]).unwrap()).unwrap();
        let mut packets = (1..7).map(|n| Packet::copy_from(&mut cache, &[n]).unwrap());
        let mut numbers = || {
            batch.fill(&mut packets);
            let numbers = batch.iter().map(|packet| packet.linear()[0]).collect::<Vec<_>>();
            batch.drain_front(4);
            numbers
        };
        assert_eq!([numbers(), numbers(), numbers()], [vec![0, 1, 2, 3], vec![4, 5, 6], vec![]]);
        drop(cache);
        assert_eq!(pool.stats().free, 32);
    }

    #[test]
    fn packets_that_are_not_taken_from_the_front_stay_in_order() {
        let pool = Pool::new(PoolConfig::default().capacity(32).backing(Backing::Anonymous)).unwrap();
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let mut batch = Batch::<8>::new();
        for n in 0..6 {
            batch.push(Packet::copy_from(&mut cache, &[n]).unwrap()).unwrap();
        }
        let numbers = |batch: &Batch<8>| batch.iter().map(|packet| packet.linear()[0]).collect::<Vec<_>>();
        let mut front = batch.front();
        assert_eq!(front.peek().unwrap().linear(), [0]);
        assert_eq!((front.take().unwrap().linear(), front.take().unwrap().linear()), (&[0][..], &[1][..]));
        assert_eq!(front.peek().unwrap().linear(), [2]);
        drop(front);
        assert_eq!(numbers(&batch), [2, 3, 4, 5]);
        drop(batch.front());
        assert_eq!(numbers(&batch), [2, 3, 4, 5]);
        let mut front = batch.front();
        drop((front.take(), front.take(), front.take(), front.take(), front.take()));
        assert!(front.peek().is_none());
        drop(front);
        assert!(batch.is_empty());
        drop((batch, cache));
        assert_eq!(pool.stats().free, 32);
    }
}
