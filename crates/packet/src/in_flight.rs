//! Buffers in a device's hands: they have an address, but no bytes.
//!
//! ```text
//!   Packet ── lend ──► InFlight<FromDevice>   the device writes    ── filled(n) ──► Packet with n bytes
//!                                                                ── copy_to ────► bytes elsewhere, still lent
//!   Packet ── lend ──► InFlight<ToDevice>     the device reads     ── done ───────► Packet
//! ```
//!
//! While a packet is lent nothing else of the process can reach its bytes: there is no other handle, and this one gives no
//! reference. A driver calls `filled` or `done` when the device has said that it is through with the buffer, or has been
//! stopped. **A loan that is dropped leaks its packet**: giving a buffer home that a device may still write to would
//! be worse. The pool's balance then shows it as missing.

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

/// A packet in a device's hands.
#[must_use = "a loan that is dropped leaks its packet"]
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
    /// Lends the free room behind the head of an empty packet.
    ///
    /// # Errors
    /// Hands the packet back if it has bytes, or no room.
    #[inline]
    pub fn post(packet: Packet) -> Result<InFlight<FromDevice>, Packet> {
        if packet.len() == 0 && packet.tailroom() > 0 { Ok(InFlight::new(packet)) } else { Err(packet) }
    }

    /// Where the device may write.
    #[inline]
    pub fn at(&self) -> NonNull<u8> {
        self.packet.spare()
    }

    /// Bytes that it may write.
    #[inline]
    pub fn room(&self) -> usize {
        self.packet.tailroom()
    }

    /// The device is through and wrote `len` bytes; more than there is room for count as all of it.
    #[inline]
    pub fn complete(self, len: usize) -> Packet {
        let mut packet = self.take();
        let len = len.min(packet.tailroom());
        // It cannot fail: an empty packet without fragments has room for what was just bounded.
        let _ = packet.push_back(len);
        packet
    }

    /// Appends the first `len` bytes (at most those there is room for) to `to`, each read once, without taking the buffer
    /// back: the device has said that it wrote them, and gets the buffer again.
    ///
    /// # Errors
    /// [`NoRoom`](crate::NoRoom) when `to` has less room.
    #[inline]
    pub fn copy_to(&self, len: usize, to: &mut Packet) -> Result<(), crate::NoRoom> {
        // SAFETY: the room behind the head is memory of the pool, lent to the device and to nobody else, and is only named by
        // address: the chunk is foreign.
        let chunk = unsafe { Chunk::new(self.at().as_ptr(), self.room(), true) };
        let len = len.min(self.room());
        chunk.copy_to(0, to.push_back(len)?);
        Ok(())
    }
}

impl InFlight<ToDevice> {
    /// Lends the bytes of a packet.
    #[inline]
    pub fn post(packet: Packet) -> InFlight<ToDevice> {
        InFlight::new(packet)
    }

    /// The pieces that the device is to read.
    #[inline]
    pub fn chunks(&self) -> Chunks<'_> {
        self.packet.chunks()
    }

    /// The device is through.
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
        Pool::new(PoolConfig {
            capacity: 4,
            chunk: 256,
            headroom: 64,
            backing: Backing::Anonymous,
            ..Default::default()
        })
        .unwrap()
    }

    /// What a device does.
    fn dma_write(at: NonNull<u8>, bytes: &[u8]) {
        // SAFETY: the tests write fewer bytes than were lent.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
    }

    #[test]
    fn what_the_device_wrote_is_the_packet_when_it_comes_back() {
        let mut cache = pool().cache(Direction::Rx).unwrap();
        let lent = InFlight::<FromDevice>::post(cache.alloc().unwrap()).unwrap();
        assert_eq!(lent.room(), 192);
        dma_write(lent.at(), b"frame");
        assert_eq!(lent.complete(5).linear(), b"frame");
    }

    #[test]
    fn a_length_beyond_the_buffer_is_cut_to_it() {
        let mut cache = pool().cache(Direction::Rx).unwrap();
        let lent = InFlight::<FromDevice>::post(cache.alloc().unwrap()).unwrap();
        assert_eq!(lent.complete(usize::MAX).len(), 192);
    }

    #[test]
    fn bytes_can_be_copied_out_while_the_buffer_stays_lent() {
        let mut cache = pool().cache(Direction::Rx).unwrap();
        let lent = InFlight::<FromDevice>::post(cache.alloc().unwrap()).unwrap();
        dma_write(lent.at(), b"small");
        let mut copy = cache.alloc().unwrap();
        lent.copy_to(5, &mut copy).unwrap();
        dma_write(lent.at(), b"other");
        assert_eq!(copy.linear(), b"small");
        assert_eq!(lent.copy_to(192, &mut copy), Err(crate::NoRoom), "192 bytes more do not fit behind five");
        drop(lent.complete(0));
    }

    #[test]
    fn a_packet_with_bytes_can_not_be_lent_to_be_written() {
        let mut cache = pool().cache(Direction::Rx).unwrap();
        let full = Packet::copy_from(&mut cache, b"x").unwrap();
        assert_eq!(InFlight::<FromDevice>::post(full).unwrap_err().linear(), b"x");
    }

    #[test]
    fn a_loan_that_is_dropped_is_missing_from_the_pool() {
        let pool = pool();
        let packet = pool.cache(Direction::Tx).unwrap().alloc().unwrap();
        drop(InFlight::<ToDevice>::post(packet));
        assert_eq!(pool.stats().free, 3);
    }
}
