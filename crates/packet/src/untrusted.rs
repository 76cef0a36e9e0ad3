//! Memory that another process may read and write at any moment.

use crate::packet::Packet;
use crate::region::Region;
use std::sync::Arc;

/// A region that an untrusted process shares. No reference to its bytes is ever made, so the other
/// side can cause wrong bytes and nothing worse. [`ExtBufPool`](crate::ExtBufPool) attaches pieces
/// of it to packets, [`write`](UntrustedMem::write) fills them.
#[derive(Debug)]
pub struct UntrustedMem(Arc<Region>);

impl UntrustedMem {
    /// Wraps the only handle of a region, so that no pool has chunks in it.
    pub fn new(region: Region) -> UntrustedMem {
        UntrustedMem(Arc::new(region))
    }

    /// The region, for [`ExtBufPool`](crate::ExtBufPool).
    pub fn region(&self) -> &Arc<Region> {
        &self.0
    }

    /// Another handle.
    #[must_use]
    pub fn another(&self) -> UntrustedMem {
        UntrustedMem(self.0.clone())
    }

    /// A copy of the `N` bytes at `offset`; `None` if they do not lie inside. The caller checks
    /// their meaning.
    #[inline]
    pub fn get<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let (from, mut bytes) = (self.0.at(offset, N)?, [0; N]);
        // SAFETY: the region is readable there for N bytes; no reference to it or to the copy
        // exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), N) };
        Some(bytes)
    }

    /// Copies `bytes` to `offset`; returns false, and writes nothing, if they do not lie inside.
    #[inline]
    pub fn put(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(to) = self.0.at(offset, bytes.len()) else { return false };
        // SAFETY: the bytes lie inside the region, and no reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        true
    }

    /// Copies up to `len` bytes of `packet`, from its byte `from` on, to `offset`. Returns the
    /// number of bytes, or `None`, and writes nothing, if `len` bytes do not lie inside.
    #[inline]
    pub fn write(&self, offset: usize, packet: &Packet, mut from: usize, len: usize) -> Option<usize> {
        let mut to = self.0.at(offset, len)?.as_ptr();
        let mut left = len;
        for chunk in packet.chunks() {
            let piece = chunk.skip(from);
            from = from.saturating_sub(chunk.len());
            let n = piece.len().min(left);
            // SAFETY: the piece is readable for n bytes while the packet is borrowed; `to` has at
            // least `left` bytes in a region without references. The two may overlap if the packet
            // refers to the same memory.
            unsafe { std::ptr::copy(piece.as_ptr(), to, n) };
            to = to.wrapping_add(n);
            left -= n;
            if left == 0 {
                break;
            }
        }
        Some(len - left)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::{Backing, Direction, Pool, PoolConfig};

    #[test]
    fn any_range_of_a_packet_in_pieces_is_written_and_nothing_around_it() {
        let pool = Pool::new(PoolConfig::default().capacity(32).chunk(64).headroom(0)).unwrap();
        let bytes: Vec<u8> = (1..=200).collect();
        let packet = Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &bytes).unwrap();
        assert!(packet.frags() > 2);
        for (from, len) in [(0, 200), (63, 2), (64, 64), (199, 1), (150, 100), (200, 5), (0, 0)] {
            let memory = UntrustedMem::new(Region::new(4096, Backing::Memfd).unwrap());
            let expected = &bytes[from..bytes.len().min(from + len)];
            assert_eq!(memory.write(100, &packet, from, len), Some(expected.len()));
            // SAFETY: inside of the region; the test is its only user.
            let seen = unsafe { std::slice::from_raw_parts(memory.region().base().as_ptr(), 400) };
            assert_eq!(&seen[100..100 + expected.len()], expected);
            assert!(seen[..100].iter().chain(&seen[100 + expected.len()..]).all(|&b| b == 0));
        }
    }

    #[test]
    fn bytes_outside_the_region_are_not_written() {
        let pool = Pool::new(PoolConfig::default().capacity(32).chunk(64).headroom(0)).unwrap();
        let packet = Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &[1; 10]).unwrap();
        let memory = UntrustedMem::new(Region::new(4096, Backing::Memfd).unwrap());
        assert_eq!(memory.write(4090, &packet, 0, 10), None);
        assert_eq!(memory.write(usize::MAX, &packet, 0, 10), None);
        assert_eq!(memory.write(4086, &packet, 0, 10), Some(10));
        assert_eq!((memory.get::<2>(4095), memory.get::<2>(4094)), (None, Some([1; 2])));
        assert!(!memory.put(4087, &[1; 10]) && memory.put(4086, &[1; 10]));
    }
}
