//! The UMEM: the pool's own region if its chunks fit.
//!
//! ```text
//!   Region of Start::pool = UMEM         a received frame is a packet of the pool, and a packet of
//!   ├ chunk 0 ┼ chunk 1 ┼ chunk 2 ┼ …    the pool is sent from where it lies: nothing is copied
//!                                        between process and kernel
//!
//!   chunk, received:  │ 256 + headroom │ frame … │          aligned: 2048 or 4096 bytes
//!   chunk, sent:      │ … │ metadata │ frame … │            unaligned: anything between the two
//! ```
//!
//! If the pool's chunks do not fit, the port has a pool of its own: frames are received into it,
//! and transmitted packets are copied to it first.

use super::config::Config;
use towpath_packet::port::PortError;
use towpath_packet::{Chunk, Pool, PoolConfig, RegionHandle};
use towpath_sys::xsk::{KERNEL_HEADROOM, UmemConfig};

/// Smallest and largest chunk (`XDP_UMEM_MIN_CHUNK_SIZE`, and a page).
const CHUNKS: std::ops::RangeInclusive<usize> = 2048..=4096;
/// Bits of the chunk's address in a descriptor of unaligned chunks; the higher bits are the offset
/// (`XSK_UNALIGNED_BUF_OFFSET_SHIFT`).
const OFFSET_SHIFT: u32 = 48;

/// Longest packet that fits into a chunk, without its link header and two tags.
pub(super) const MAX_LEN: u32 = (*CHUNKS.end() - KERNEL_HEADROOM) as u32 - 22;

/// The memory, and the arithmetic of its chunks.
#[derive(Debug)]
pub(super) struct Umem {
    /// The pool of received frames and of copies.
    pub(super) pool: Pool,
    pub(super) region: RegionHandle,
    pub(super) config: UmemConfig,
    /// The pool is the port's own.
    pub(super) own: bool,
    base: usize,
    shift: Option<u32>,
}

/// Whether the region of a pool can be a UMEM.
fn fits(pool: &Pool) -> bool {
    CHUNKS.contains(&pool.chunk()) && pool.region().is_some()
}

impl Umem {
    /// The UMEM of `pool`, or of a new pool. The kernel reads `metadata` bytes in front of
    /// transmitted frames.
    pub(super) fn new(config: &Config, pool: &Pool, mtu: u32, metadata: u32) -> Result<Umem, PortError> {
        let failed = |source| PortError::Pool { port: config.port(), source };
        let own = !fits(pool);
        let pool = if own {
            // A frame fits into one chunk, if that is possible at all.
            let chunk = if mtu as usize + 18 + KERNEL_HEADROOM <= 2048 { 2048 } else { 4096 };
            let capacity = usize::from(config.queues) * usize::from(config.ring) * 4;
            let max_caches = 2 * usize::from(config.queues) + 2;
            let floors = towpath_packet::Floors { rx: 0, tx: capacity / 4 };
            Pool::new(PoolConfig::default().capacity(capacity).chunk(chunk).max_caches(max_caches).floors(floors))
                .map_err(failed)?
        } else {
            pool.clone()
        };
        let Some(region) = pool.region().cloned() else {
            return Err(PortError::Input { port: config.port(), what: "the pool has no memory".to_owned() });
        };
        let chunk = pool.chunk();
        let mut layout = UmemConfig::new((pool.stats().capacity * chunk) as u64, chunk as u32);
        // A received frame has at least the headroom of the pool's packets.
        layout.headroom = pool.headroom().saturating_sub(KERNEL_HEADROOM) as u32;
        layout.unaligned = !chunk.is_power_of_two();
        layout.tx_metadata = metadata;
        let shift = chunk.is_power_of_two().then(|| chunk.trailing_zeros());
        let base = region.base().as_ptr().addr();
        Ok(Umem { pool, region, config: layout, own, base, shift })
    }

    /// The number of chunks.
    pub(super) fn capacity(&self) -> usize {
        (self.config.len / u64::from(self.config.chunk)) as usize
    }

    #[inline]
    fn split(&self, at: usize) -> (usize, usize) {
        match self.shift {
            Some(shift) => (at >> shift, at & ((1 << shift) - 1)),
            None => (at / self.config.chunk as usize, at % self.config.chunk as usize),
        }
    }

    /// The chunk of an address in a descriptor, and the offset in it; `None` outside the UMEM.
    #[inline]
    pub(super) fn locate(&self, address: u64) -> Option<(usize, usize)> {
        if address < self.config.len {
            return Some(self.split(address as usize));
        }
        let (at, offset) = (address & ((1 << OFFSET_SHIFT) - 1), (address >> OFFSET_SHIFT) as usize);
        if !self.config.unaligned || at >= self.config.len {
            return None;
        }
        let (chunk, within) = self.split(at as usize);
        (within + offset < self.config.chunk as usize).then_some((chunk, within + offset))
    }

    /// The chunk of the byte at `at`; `None` outside the UMEM.
    #[inline]
    pub(super) fn chunk_of(&self, at: *const u8) -> Option<usize> {
        let offset = at.addr().checked_sub(self.base).filter(|&o| (o as u64) < self.config.len)?;
        Some(self.split(offset).0)
    }

    /// The address of a chunk's first byte in the UMEM.
    #[inline]
    pub(super) fn chunk_address(&self, chunk: usize) -> u64 {
        chunk as u64 * u64::from(self.config.chunk)
    }

    /// The chunk that holds a fragment, and the fragment's address in the UMEM; `None` if no chunk
    /// holds all of it.
    #[inline]
    pub(super) fn address(&self, piece: &Chunk<'_>) -> Option<(usize, u64)> {
        let offset = piece.as_ptr().addr().checked_sub(self.base).filter(|&o| (o as u64) < self.config.len)?;
        let (chunk, within) = self.split(offset);
        (within + piece.len() <= self.config.chunk as usize).then_some((chunk, offset as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::{Backing, Direction, Packet};

    fn umem_of(chunk: usize) -> (Pool, Umem) {
        let config = PoolConfig::default().capacity(64).chunk(chunk).backing(Backing::Anonymous);
        let pool = Pool::new(config).unwrap();
        let config = Config { interface: "x".to_owned(), ring: 64, ..Config::default() };
        let umem = Umem::new(&config, &pool, 1500, 0).unwrap();
        (pool, umem)
    }

    #[test]
    fn the_pool_is_the_umem_if_its_chunks_fit() {
        for (chunk, own) in [(2048, false), (4096, false), (3008, false), (1024, true), (8192, true)] {
            let (pool, umem) = umem_of(chunk);
            assert_eq!(umem.own, own, "{chunk}");
            assert_eq!(umem.region.is_same(pool.region().unwrap()), !own);
        }
    }

    #[test]
    fn a_packet_is_found_by_the_address_that_the_kernel_gets() {
        for chunk in [2048, 3008] {
            let (_pool, umem) = umem_of(chunk);
            let mut cache = umem.pool.cache(Direction::Tx).unwrap();
            for _ in 0..64 {
                let packet = Packet::copy_from(&mut cache, b"bytes").unwrap();
                let piece = packet.chunks().next().unwrap();
                let (number, address) = umem.address(&piece).unwrap();
                assert_eq!(umem.locate(address), Some((number, 128)));
                assert_eq!(umem.chunk_of(piece.as_ptr()), Some(number));
                assert_eq!(umem.locate(umem.chunk_address(number)), Some((number, 0)));
                std::mem::forget(packet);
            }
        }
    }

    #[test]
    fn addresses_outside_the_umem_have_no_chunk() {
        let (_pool, aligned) = umem_of(2048);
        assert_eq!(aligned.locate(64 * 2048), None);
        assert_eq!(aligned.locate(u64::MAX), None);
        assert_eq!(aligned.locate(1 << 48), None, "there are no offsets beside aligned chunks");
        let (_pool, unaligned) = umem_of(3008);
        assert_eq!(unaligned.locate(3008 | (256 << 48)), Some((1, 256)));
        assert_eq!(unaligned.locate(3008 | (3008 << 48)), None, "past its chunk");
        assert_eq!(unaligned.locate((64 * 3008) | (256 << 48)), None);
        assert_eq!(aligned.chunk_of(std::ptr::null()), None);
    }
}
