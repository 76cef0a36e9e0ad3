//! The memory that the kernel and we exchange frames in: the pool's own region where its chunks fit.
//!
//! ```text
//!   Region of Start::pool = UMEM                     a received frame is a packet of the pool, a packet of the pool is sent
//!   ├ chunk 0 ┼ chunk 1 ┼ chunk 2 ┼ …                from where it lies: between process and kernel nothing is copied
//!
//!   chunk, received:  │ 256 + headroom │ frame … │          aligned: 2048 or 4096 bytes
//!   chunk, sent:      │ … │ metadata │ frame … │            unaligned: anything between the two
//! ```
//!
//! Where the pool's chunks do not fit the port has a pool of its own: its frames are received into that, and what is sent is
//! copied there first.

use super::config::Config;
use std::sync::Arc;
use towpath_packet::port::PortError;
use towpath_packet::{Chunk, Pool, PoolConfig, Region};
use towpath_sys::xsk::{KERNEL_HEADROOM, Umem};

/// Smallest and largest chunk (`XDP_UMEM_MIN_CHUNK_SIZE`, and a page).
const CHUNKS: std::ops::RangeInclusive<usize> = 2048..=4096;
/// Bytes in an address of unaligned chunks that say where the chunk is; the rest is the offset (`XSK_UNALIGNED_BUF_OFFSET_SHIFT`).
const OFFSET_SHIFT: u32 = 48;

/// Longest packet, without its link header and two tags, that a chunk has room for.
pub(super) const LONGEST: u32 = (*CHUNKS.end() - KERNEL_HEADROOM) as u32 - 22;

/// The memory, and how its chunks are found.
#[derive(Debug)]
pub(super) struct Frames {
    /// What frames are received into, and copies are made in.
    pub(super) pool: Pool,
    pub(super) region: Arc<Region>,
    pub(super) umem: Umem,
    /// Whether the pool is the port's own.
    pub(super) own: bool,
    base: usize,
    shift: Option<u32>,
}

/// Whether the chunks of a pool can be a UMEM as they are.
fn fits(pool: &Pool) -> bool {
    CHUNKS.contains(&pool.chunk()) && pool.region().is_some()
}

impl Frames {
    /// The memory for `pool`, or for one of our own beside it. `metadata` bytes in front of sent frames are the kernel's to read.
    pub(super) fn new(config: &Config, pool: &Pool, mtu: u32, metadata: u32) -> Result<Frames, PortError> {
        let failed = |source| PortError::Pool { port: config.port(), source };
        let own = !fits(pool);
        let pool = if own {
            // A frame whole in one chunk, where that is possible at all.
            let chunk = if mtu as usize + 18 + KERNEL_HEADROOM <= 2048 { 2048 } else { 4096 };
            let capacity = usize::from(config.queues) * usize::from(config.ring) * 4;
            let max_caches = 2 * usize::from(config.queues) + 2;
            let floors = towpath_packet::Floors { rx: 0, tx: capacity / 4 };
            Pool::new(PoolConfig { capacity, chunk, max_caches, floors, ..PoolConfig::default() }).map_err(failed)?
        } else {
            pool.clone()
        };
        let Some(region) = pool.region().cloned() else {
            return Err(PortError::Input { port: config.port(), what: "the pool has no memory".to_owned() });
        };
        let chunk = pool.chunk();
        let umem = Umem {
            len: (pool.stats().capacity * chunk) as u64,
            chunk: chunk as u32,
            // What is received begins no earlier than a packet of the pool does.
            headroom: pool.headroom().saturating_sub(KERNEL_HEADROOM) as u32,
            unaligned: !chunk.is_power_of_two(),
            tx_metadata: metadata,
        };
        let shift = chunk.is_power_of_two().then(|| chunk.trailing_zeros());
        let base = region.base().as_ptr().addr();
        Ok(Frames { pool, region, umem, own, base, shift })
    }

    /// Chunks in all.
    pub(super) fn capacity(&self) -> usize {
        (self.umem.len / u64::from(self.umem.chunk)) as usize
    }

    #[inline]
    fn split(&self, at: usize) -> (usize, usize) {
        match self.shift {
            Some(shift) => (at >> shift, at & ((1 << shift) - 1)),
            None => (at / self.umem.chunk as usize, at % self.umem.chunk as usize),
        }
    }

    /// The chunk that an address of the kernel's is in, and where in it; `None` for one outside of the memory.
    #[inline]
    pub(super) fn locate(&self, address: u64) -> Option<(usize, usize)> {
        if address < self.umem.len {
            return Some(self.split(address as usize));
        }
        let (at, offset) = (address & ((1 << OFFSET_SHIFT) - 1), (address >> OFFSET_SHIFT) as usize);
        if !self.umem.unaligned || at >= self.umem.len {
            return None;
        }
        let (chunk, within) = self.split(at as usize);
        (within + offset < self.umem.chunk as usize).then_some((chunk, within + offset))
    }

    /// The chunk that the byte at `at` is in; `None` for one outside of the memory.
    #[inline]
    pub(super) fn chunk_of(&self, at: *const u8) -> Option<usize> {
        let offset = at.addr().checked_sub(self.base).filter(|&o| (o as u64) < self.umem.len)?;
        Some(self.split(offset).0)
    }

    /// Where a chunk begins, as the kernel says it.
    #[inline]
    pub(super) fn start(&self, chunk: usize) -> u64 {
        chunk as u64 * u64::from(self.umem.chunk)
    }

    /// The chunk that a piece of a packet lies in, whole, and its address as the kernel says it; `None` if it lies elsewhere.
    #[inline]
    pub(super) fn address(&self, piece: &Chunk<'_>) -> Option<(usize, u64)> {
        let offset = piece.as_ptr().addr().checked_sub(self.base).filter(|&o| (o as u64) < self.umem.len)?;
        let (chunk, within) = self.split(offset);
        (within + piece.len() <= self.umem.chunk as usize).then_some((chunk, offset as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::{Backing, Direction, Packet};

    fn frames(chunk: usize) -> (Pool, Frames) {
        let config = PoolConfig { capacity: 64, chunk, backing: Backing::Anonymous, ..PoolConfig::default() };
        let pool = Pool::new(config).unwrap();
        let config = Config { interface: "x".to_owned(), ring: 64, ..Config::default() };
        let frames = Frames::new(&config, &pool, 1500, 0).unwrap();
        (pool, frames)
    }

    #[test]
    fn the_pool_is_the_memory_where_its_chunks_fit() {
        for (chunk, own) in [(2048, false), (4096, false), (3008, false), (1024, true), (8192, true)] {
            let (pool, frames) = frames(chunk);
            assert_eq!(frames.own, own, "{chunk}");
            assert_eq!(Arc::ptr_eq(&frames.region, pool.region().unwrap()), !own);
        }
    }

    #[test]
    fn a_packet_is_found_by_the_address_that_the_kernel_gets() {
        for chunk in [2048, 3008] {
            let (_pool, frames) = frames(chunk);
            let mut cache = frames.pool.cache(Direction::Tx).unwrap();
            for _ in 0..64 {
                let packet = Packet::copy_from(&mut cache, b"bytes").unwrap();
                let piece = packet.chunks().next().unwrap();
                let (number, address) = frames.address(&piece).unwrap();
                assert_eq!(frames.locate(address), Some((number, 128)));
                assert_eq!(frames.chunk_of(piece.as_ptr()), Some(number));
                assert_eq!(frames.locate(frames.start(number)), Some((number, 0)));
                std::mem::forget(packet);
            }
        }
    }

    #[test]
    fn addresses_outside_of_the_memory_are_nowhere() {
        let (_pool, aligned) = frames(2048);
        assert_eq!(aligned.locate(64 * 2048), None);
        assert_eq!(aligned.locate(u64::MAX), None);
        assert_eq!(aligned.locate(1 << 48), None, "there are no offsets beside aligned chunks");
        let (_pool, unaligned) = frames(3008);
        assert_eq!(unaligned.locate(3008 | (256 << 48)), Some((1, 256)));
        assert_eq!(unaligned.locate(3008 | (3008 << 48)), None, "beyond its chunk");
        assert_eq!(unaligned.locate((64 * 3008) | (256 << 48)), None);
        assert_eq!(aligned.chunk_of(std::ptr::null()), None);
    }
}
