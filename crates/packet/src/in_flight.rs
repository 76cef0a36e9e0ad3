//! Buffers in flight: a device owns them, so they have an address but no bytes.
//!
//! ```text
//!   Packet ── post ──► InFlight<FromDevice>  device writes ── complete(n) ──► Packet with n bytes
//!                                                          ── copy_to ──────► bytes elsewhere
//!   Packet ── post ──► InFlight<ToDevice>    device reads  ── complete ─────► Packet
//! ```
//!
//! No other handle to a packet in flight exists, and this one gives no reference to its bytes. A
//! driver calls `complete` when the device has written the descriptor back, or has been stopped.
//! **An `InFlight` that is dropped leaks its packet**: a device may still write to the buffer, so
//! the pool must not reuse it. The pool's balance shows the packet as missing.

use crate::buf::Chunk;
use crate::packet::{Chunks, Packet};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// The device reads the buffer.
#[derive(Debug)]
pub enum ToDevice {}

/// The device writes the buffer.
#[derive(Debug)]
pub enum FromDevice {}

/// A packet that a device owns.
#[must_use = "dropping a packet in flight leaks it"]
pub struct InFlight<D> {
    packet: ManuallyDrop<Packet>,
    direction: PhantomData<D>,
}

impl<D> InFlight<D> {
    fn new(packet: Packet) -> InFlight<D> {
        InFlight { packet: ManuallyDrop::new(packet), direction: PhantomData }
    }

    #[inline]
    fn take(self) -> Packet {
        ManuallyDrop::into_inner(self.packet)
    }
}

impl InFlight<FromDevice> {
    /// Posts the free room behind the head of an empty packet.
    ///
    /// # Errors
    /// Returns the packet if it has bytes, or no room.
    #[inline]
    pub fn post(packet: Packet) -> Result<InFlight<FromDevice>, Packet> {
        if packet.len() == 0 && packet.tailroom() > 0 { Ok(InFlight::new(packet)) } else { Err(packet) }
    }

    /// The first byte that the device may write.
    #[inline]
    pub fn at(&self) -> NonNull<u8> {
        self.packet.spare()
    }

    /// Number of bytes that the device may write.
    #[inline]
    pub fn room(&self) -> usize {
        self.packet.tailroom()
    }

    /// The device wrote `len` bytes and is done. A larger `len` than the room counts as all of it.
    #[inline]
    pub fn complete(self, len: usize) -> Packet {
        let mut packet = self.take();
        let len = len.min(packet.tailroom());
        // This cannot fail: an empty packet without fragments has room for the bounded length.
        let _ = packet.push_back(len);
        packet
    }

    /// Appends the first `len` bytes (at most the room) to `to`, each read once. The buffer stays
    /// in flight: the device wrote those bytes and receives the buffer again.
    ///
    /// # Errors
    /// [`NoRoom`](crate::NoRoom) if `to` has less room.
    #[inline]
    pub fn copy_to(&self, len: usize, to: &mut Packet) -> Result<(), crate::NoRoom> {
        // SAFETY: the room behind the head is memory of the pool that only the device uses. It is
        // only named by address, because the chunk is untrusted.
        let chunk = unsafe { Chunk::new(self.at().as_ptr(), self.room(), true) };
        let len = len.min(self.room());
        chunk.copy_to(0, to.push_back(len)?);
        Ok(())
    }
}

impl InFlight<ToDevice> {
    /// Posts the bytes of a packet.
    #[inline]
    pub fn post(packet: Packet) -> InFlight<ToDevice> {
        InFlight::new(packet)
    }

    /// The pieces that the device reads.
    #[inline]
    pub fn chunks(&self) -> Chunks<'_> {
        self.packet.chunks()
    }

    /// The device is done.
    #[inline]
    pub fn complete(self) -> Packet {
        self.take()
    }
}

impl<D> std::fmt::Debug for InFlight<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InFlight").field("len", &self.packet.len()).finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::{Backing, Direction, Pool, PoolConfig};

    fn pool() -> Pool {
        Pool::new(PoolConfig::default().capacity(4).chunk(256).headroom(64).backing(Backing::Anonymous)).unwrap()
    }

    /// Writes as a device does.
    fn dma_write(at: NonNull<u8>, bytes: &[u8]) {
        // SAFETY: the tests write fewer bytes than were posted.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
    }

    #[test]
    fn the_completed_packet_has_the_bytes_that_the_device_wrote() {
        let mut cache = pool().cache(Direction::Rx).unwrap();
        let posted = InFlight::<FromDevice>::post(cache.alloc().unwrap()).unwrap();
        assert_eq!(posted.room(), 192);
        dma_write(posted.at(), b"frame");
        assert_eq!(posted.complete(5).linear(), b"frame");
    }

    #[test]
    fn a_length_beyond_the_buffer_is_cut_to_it() {
        let mut cache = pool().cache(Direction::Rx).unwrap();
        let posted = InFlight::<FromDevice>::post(cache.alloc().unwrap()).unwrap();
        assert_eq!(posted.complete(usize::MAX).len(), 192);
    }

    #[test]
    fn bytes_can_be_copied_out_while_the_buffer_stays_in_flight() {
        let mut cache = pool().cache(Direction::Rx).unwrap();
        let posted = InFlight::<FromDevice>::post(cache.alloc().unwrap()).unwrap();
        dma_write(posted.at(), b"small");
        let mut copy = cache.alloc().unwrap();
        posted.copy_to(5, &mut copy).unwrap();
        dma_write(posted.at(), b"other");
        assert_eq!(copy.linear(), b"small");
        assert_eq!(posted.copy_to(192, &mut copy), Err(crate::NoRoom), "192 bytes more do not fit behind five");
        drop(posted.complete(0));
    }

    #[test]
    fn a_packet_with_bytes_cannot_be_posted_to_be_written() {
        let mut cache = pool().cache(Direction::Rx).unwrap();
        let full = Packet::copy_from(&mut cache, b"x").unwrap();
        assert_eq!(InFlight::<FromDevice>::post(full).unwrap_err().linear(), b"x");
    }

    #[test]
    fn a_packet_that_is_dropped_in_flight_is_missing_from_the_pool() {
        let pool = pool();
        let packet = pool.cache(Direction::Tx).unwrap().alloc().unwrap();
        drop(InFlight::<ToDevice>::post(packet));
        assert_eq!(pool.stats().free, 3);
    }
}
