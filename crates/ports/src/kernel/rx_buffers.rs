//! Receive buffers for packets whose length is known only after the read.
//!
//! ```text
//!   head   one chunk of the datapath's pool       suffices for most packets
//!   tail   one chunk of 64 KiB, the port's own    stays for the next packet if it is not used
//! ```
//!
//! A frame of ordinary size uses one head only. The rest of a super-packet goes to one large chunk
//! instead of 32 small ones. The kernel copies a list of up to 8 addresses to its stack, and
//! allocates for a longer one. The packet has two fragments instead of 33.
//!
//! The port has few tails, so that they are reused while they are in the processor's cache. If all
//! are in use the port reads nothing, and the kernel queues the packets.

use towpath_packet::port::PortError;
use towpath_packet::{Backing, Cache, Direction, Packet, Pool, PoolConfig};
use towpath_wire::ethernet::MAX_PACKET;

/// Bytes of a tail: the largest chunk that a pool makes.
const TAIL: usize = 65472;
/// Tails of a queue: 2 MiB, a burst of super-packets that stays in the second-level cache until it
/// is sent.
const TAILS: usize = 32;
/// Least room of a head: head and tail together hold the longest packet.
const HEAD: usize = MAX_PACKET - TAIL;

/// One queue's heads and tails.
#[derive(Debug)]
pub(crate) struct RxBuffers {
    heads: Cache,
    tails: Cache,
}

impl RxBuffers {
    /// Heads from `pool`, and tails of its own.
    ///
    /// # Errors
    /// [`PortError::Pool`] without memory; [`PortError::Input`] if the pool's chunks are too small.
    pub(crate) fn new(port: &str, pool: &Pool) -> Result<RxBuffers, PortError> {
        let room = pool.chunk().saturating_sub(pool.headroom());
        if room < HEAD {
            let what = format!("chunks with room for {room} bytes: it needs {HEAD}");
            return Err(PortError::Input { port: port.to_owned(), what });
        }
        let own =
            PoolConfig::default().capacity(TAILS).chunk(TAIL).headroom(0).backing(Backing::HugePreferred).max_caches(1);
        let failed = |source| PortError::Pool { port: port.to_owned(), source };
        let tails = Pool::new(own).and_then(|pool| pool.cache(Direction::Rx)).map_err(failed)?;
        Ok(RxBuffers { heads: pool.cache(Direction::Rx).map_err(failed)?, tails })
    }

    /// The pool of the tails.
    pub(crate) fn own_pool(&self) -> Pool {
        self.tails.pool()
    }

    /// A packet with a copy of `bytes`, in one or more heads.
    #[inline]
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Option<Packet> {
        Packet::copy_from(&mut self.heads, bytes)
    }

    /// Puts the missing buffers into a slot; returns whether it is complete.
    #[inline]
    pub(crate) fn fill(&mut self, slot: &mut RxSlot) -> bool {
        if slot.head.is_none() {
            slot.head = full_length(&mut self.heads);
        }
        if slot.tail.is_none() {
            slot.tail = full_length(&mut self.tails);
        }
        slot.head.is_some() && slot.tail.is_some()
    }
}

/// A packet whose linear part is its whole room.
#[inline]
fn full_length(cache: &mut Cache) -> Option<Packet> {
    let mut packet = cache.alloc()?;
    packet.push_back(packet.tailroom()).ok()?;
    Some(packet)
}

/// Buffers for one packet.
#[derive(Debug, Default)]
pub(crate) struct RxSlot {
    head: Option<Packet>,
    tail: Option<Packet>,
}

impl RxSlot {
    /// The memory to read into, in order; empty slices for missing buffers.
    #[inline]
    pub(crate) fn buffers(&mut self) -> (&mut [u8], &mut [u8]) {
        fn of(packet: &mut Option<Packet>) -> &mut [u8] {
            packet.as_mut().map(Packet::linear_mut).unwrap_or_default()
        }
        (of(&mut self.head), of(&mut self.tail))
    }

    /// Takes the packet of the first `len` bytes. An unused tail stays.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<Packet> {
        let mut packet = self.head.take()?;
        match len.checked_sub(packet.len()) {
            None | Some(0) => packet.truncate(len),
            Some(rest) => {
                let mut tail = self.tail.take()?;
                tail.truncate(rest);
                packet.append(tail).ok()?;
            }
        }
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers() -> (Pool, RxBuffers) {
        let config = PoolConfig::default().capacity(64).backing(Backing::Anonymous);
        let pool = Pool::new(config).unwrap();
        let buffers = RxBuffers::new("test:", &pool).unwrap();
        (pool, buffers)
    }

    #[test]
    fn a_small_packet_leaves_the_tail_for_the_next() {
        let (_pool, mut buffers) = buffers();
        let mut slot = RxSlot::default();
        assert!(buffers.fill(&mut slot));
        let tail = slot.buffers().1.as_ptr();
        slot.buffers().0[..3].copy_from_slice(b"abc");
        let packet = slot.take(3).unwrap();
        assert_eq!((packet.to_vec().as_slice(), packet.frags()), (&b"abc"[..], 0));
        assert!(buffers.fill(&mut slot));
        assert_eq!(slot.buffers().1.as_ptr(), tail);
    }

    #[test]
    fn the_longest_packet_fits_in_two_pieces_and_no_byte_is_lost() {
        let (_pool, mut buffers) = buffers();
        let mut slot = RxSlot::default();
        assert!(buffers.fill(&mut slot));
        let (head, tail) = slot.buffers();
        let n = head.len();
        head.iter_mut().chain(tail).take(MAX_PACKET).enumerate().for_each(|(i, b)| *b = (i % 251) as u8);
        let packet = slot.take(MAX_PACKET).unwrap();
        assert_eq!((packet.len(), packet.frags(), packet.linear().len()), (MAX_PACKET, 1, n));
        assert!(packet.to_vec().iter().enumerate().all(|(i, &b)| b == (i % 251) as u8));
    }

    #[test]
    fn without_a_tail_nothing_is_read_until_one_is_freed() {
        let (_pool, mut buffers) = buffers();
        let mut slot = RxSlot::default();
        let mut taken = Vec::new();
        while buffers.fill(&mut slot) {
            taken.push(slot.take(MAX_PACKET).unwrap());
        }
        assert_eq!(taken.len(), TAILS);
        taken.pop();
        assert!(buffers.fill(&mut slot));
    }
}
