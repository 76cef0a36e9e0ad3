//! Where packets land: buffers for a packet whose length is known only when it has been read.
//!
//! ```text
//!   head   one chunk of the datapath's pool       most packets need nothing else
//!   tail   one chunk of 64 KiB, the port's own    stays for the next packet when it was not needed
//! ```
//!
//! A frame of ordinary size takes one head and no more memory than that. The rest of a super-packet goes to one large chunk
//! instead of 32 small ones: the kernel copies a list of up to 8 addresses to its stack, a longer one costs it an allocation, and
//! whoever cuts or sends the packet handles two pieces instead of 33.
//!
//! The port has few tails, on purpose: they are used again while their bytes are still in the processor's cache. When all
//! are under way the port reads nothing, and the kernel queues what arrives.

use towpath_packet::port::PortError;
use towpath_packet::{Backing, Cache, Direction, Packet, Pool, PoolConfig};

/// Bytes of the longest packet that Linux hands over: 65535 of IP, an Ethernet header, two tags.
pub(crate) const LONGEST: usize = 65535 + 14 + 8;
/// Bytes of a tail: the largest chunk that a pool makes.
const TAIL: usize = 65472;
/// Tails that a queue owns: 2 MiB, a burst of super-packets that is still in the second-level cache when it is sent.
const TAILS: usize = 32;
/// Bytes that a head must have room for, so that head and tail together hold the longest packet.
const HEAD: usize = LONGEST - TAIL;

/// One thread's stock of heads and tails.
#[derive(Debug)]
pub(crate) struct Landing {
    heads: Cache,
    tails: Cache,
}

impl Landing {
    /// Heads from `pool`, and tails of its own.
    ///
    /// # Errors
    /// [`PortError::Pool`] when memory can't be had, [`PortError::Input`] when the pool's chunks are too small.
    pub(crate) fn new(port: &str, pool: &Pool) -> Result<Landing, PortError> {
        let room = pool.chunk().saturating_sub(pool.headroom());
        if room < HEAD {
            let what = format!("chunks with room for {room} bytes: it needs {HEAD}");
            return Err(PortError::Input { port: port.to_owned(), what });
        }
        let own = PoolConfig {
            capacity: TAILS,
            chunk: TAIL,
            headroom: 0,
            backing: Backing::HugePreferred,
            max_caches: 1,
            ..PoolConfig::default()
        };
        let failed = |source| PortError::Pool { port: port.to_owned(), source };
        let tails = Pool::new(own).and_then(|pool| pool.cache(Direction::Rx)).map_err(failed)?;
        Ok(Landing { heads: pool.cache(Direction::Rx).map_err(failed)?, tails })
    }

    /// The pool of the tails.
    pub(crate) fn own_pool(&self) -> Pool {
        self.tails.pool()
    }

    /// A packet with a copy of `bytes`, in as many heads as it takes.
    #[inline]
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Option<Packet> {
        Packet::copy_from(&mut self.heads, bytes)
    }

    /// Puts what is missing into a place; whether it is complete.
    #[inline]
    pub(crate) fn fill(&mut self, place: &mut Place) -> bool {
        if place.head.is_none() {
            place.head = stretched(&mut self.heads);
        }
        if place.tail.is_none() {
            place.tail = stretched(&mut self.tails);
        }
        place.head.is_some() && place.tail.is_some()
    }
}

/// A packet whose linear part is all the room it has.
#[inline]
fn stretched(cache: &mut Cache) -> Option<Packet> {
    let mut packet = cache.alloc()?;
    packet.push_back(packet.tailroom()).ok()?;
    Some(packet)
}

/// Room for one packet.
#[derive(Debug, Default)]
pub(crate) struct Place {
    head: Option<Packet>,
    tail: Option<Packet>,
}

impl Place {
    /// The memory to be filled, in order; empty slices where it is missing.
    #[inline]
    pub(crate) fn room(&mut self) -> (&mut [u8], &mut [u8]) {
        fn of(packet: &mut Option<Packet>) -> &mut [u8] {
            packet.as_mut().map(Packet::linear_mut).unwrap_or_default()
        }
        (of(&mut self.head), of(&mut self.tail))
    }

    /// The packet that the first `len` bytes are. What was not used stays.
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

    fn landing() -> (Pool, Landing) {
        let config = PoolConfig { capacity: 64, backing: Backing::Anonymous, ..PoolConfig::default() };
        let pool = Pool::new(config).unwrap();
        let landing = Landing::new("test:", &pool).unwrap();
        (pool, landing)
    }

    #[test]
    fn a_small_packet_leaves_the_tail_for_the_next() {
        let (_pool, mut landing) = landing();
        let mut place = Place::default();
        assert!(landing.fill(&mut place));
        let tail = place.room().1.as_ptr();
        place.room().0[..3].copy_from_slice(b"abc");
        let packet = place.take(3).unwrap();
        assert_eq!((packet.to_vec().as_slice(), packet.frags()), (&b"abc"[..], 0));
        assert!(landing.fill(&mut place));
        assert_eq!(place.room().1.as_ptr(), tail);
    }

    #[test]
    fn the_longest_packet_fits_in_two_pieces_and_no_byte_is_lost() {
        let (_pool, mut landing) = landing();
        let mut place = Place::default();
        assert!(landing.fill(&mut place));
        let (head, tail) = place.room();
        let n = head.len();
        head.iter_mut().chain(tail).take(LONGEST).enumerate().for_each(|(i, b)| *b = (i % 251) as u8);
        let packet = place.take(LONGEST).unwrap();
        assert_eq!((packet.len(), packet.frags(), packet.linear().len()), (LONGEST, 1, n));
        assert!(packet.to_vec().iter().enumerate().all(|(i, &b)| b == (i % 251) as u8));
    }

    #[test]
    fn without_a_tail_nothing_is_read_until_one_comes_home() {
        let (_pool, mut landing) = landing();
        let mut place = Place::default();
        let mut away = Vec::new();
        while landing.fill(&mut place) {
            away.push(place.take(LONGEST).unwrap());
        }
        assert_eq!(away.len(), TAILS);
        away.pop();
        assert!(landing.fill(&mut place));
    }
}
