//! Pools: equal chunks of a region, allocated and freed in bulk, from any core.
//!
//! ```text
//!   core 0                      shared                            core 1
//!   Cache ── loaded ──┐   ┌──────────────── Depot ────────────┐   ┌── loaded ── Cache
//!         └─ spare  ──┼──►│ full ○─○─○   empty ○─○            │◄──┼── spare  ─┘
//!    (arrays, no      │   │  one compare-and-swap a magazine  │   │
//!     atomics)        │   └───────────────────────────────────┘   │
//!                     └──► returned ○─○─○─○  ◄────────────────────┘
//!                          whatever was dropped without a cache, or by a cache of another pool
//! ```
//!
//! A [`Cache`] belongs to one thread at a time and holds two *magazines* of up to 64 chunks. Allocation and freeing move
//! pointers in and out of them; only when both are empty (or full) one magazine is exchanged with the depot: a lock-free
//! stack, its head tagged against ABA. Freed chunks are reused last-in-first-out, so that the bytes are still in this
//! core's cache.
//!
//! Dropping a [`Packet`](crate::Packet) anywhere at all, on any thread, with or without a cache, pushes it on the lock-free
//! list `returned`, from which caches refill when the depot runs dry.
//!
//! **Life.** The memory outlives its last buffer: when the last [`Pool`] and [`Cache`] handle goes while packets are still
//! away, the pool becomes an orphan that counts them home, and the last of them frees it. Ordinary allocation and
//! freeing pay nothing for that.

mod cache;
mod depot;
mod return_list;
mod shared;

pub use cache::Cache;
pub(crate) use shared::{Handle, Kind, PoolShared};

use crate::region::{Backing, Region, RegionError};
use std::sync::Arc;

/// Chunks per magazine at most; also the natural burst.
pub(crate) const MAGAZINE: usize = 64;

/// Which way the packets of a cache go; each has its own floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Buffers that a port fills.
    Rx,
    /// Buffers that are filled to be sent: generators, copies, segments.
    Tx,
}

/// Chunks that one direction always leaves to the other.
///
/// Receiving alone could take every buffer and leave transmission none to finish with (or the reverse). An allocation
/// for `Rx` leaves at least `tx` chunks in the depot, one for `Tx` at least `rx`, rounded up to whole magazines. Set the
/// floor of the direction that must never starve; with both set, the smaller of them can be used by neither when
/// the pool is that far down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Floors {
    /// Chunks kept for [`Direction::Rx`].
    pub rx: usize,
    /// Chunks kept for [`Direction::Tx`].
    pub tx: usize,
}

/// What a pool is made like.
#[derive(Debug, Clone, Copy)]
pub struct PoolConfig {
    /// Number of chunks, 1 to 2^24.
    pub capacity: usize,
    /// Bytes in a chunk, headroom and tailroom included: a multiple of 64 from 64 to 65472.
    pub chunk: usize,
    /// Bytes left free in front of the data of a new packet, at most `chunk`.
    pub headroom: usize,
    /// What the memory is made of.
    pub backing: Backing,
    /// Chunks that one direction leaves to the other.
    pub floors: Floors,
    /// Caches that may exist at the same time, 1 to 1024.
    pub max_caches: usize,
}

impl Default for PoolConfig {
    /// 16384 chunks of 2048 bytes with 128 bytes of headroom: room for an Ethernet frame of 1920 bytes, and in front of it
    /// for any set of tunnel headers. Huge pages if there are some.
    fn default() -> PoolConfig {
        PoolConfig {
            capacity: 16384,
            chunk: 2048,
            headroom: 128,
            backing: Backing::HugePreferred,
            floors: Floors::default(),
            max_caches: 64,
        }
    }
}

impl PoolConfig {
    fn check(&self) -> Result<(), PoolError> {
        let PoolConfig { capacity, chunk, headroom, floors, max_caches, .. } = *self;
        let check =
            |ok: bool, field, value, rule| if ok { Ok(()) } else { Err(PoolError::Config { field, value, rule }) };
        check((1..=1 << 24).contains(&capacity), "capacity", capacity, "from 1 to 2^24")?;
        let sized = (64..=65472).contains(&chunk) && chunk % 64 == 0;
        check(sized, "chunk", chunk, "a multiple of 64 from 64 to 65472")?;
        check(headroom <= chunk, "headroom", headroom, "at most the chunk size")?;
        check((1..=1024).contains(&max_caches), "max_caches", max_caches, "from 1 to 1024")?;
        check(floors.rx <= capacity / 2, "floors.rx", floors.rx, "at most half of the capacity")?;
        check(floors.tx <= capacity / 2, "floors.tx", floors.tx, "at most half of the capacity")
    }
}

/// Why a pool or a cache could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A field of [`PoolConfig`] is outside its range.
    #[error("pool: {field} = {value}: must be {rule}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// The memory could not be had.
    #[error("pool: {0}")]
    Region(#[from] RegionError),
    /// As many caches as [`PoolConfig::max_caches`] exist already.
    #[error("pool: max_caches = {0}: all of them are in use")]
    Caches(usize),
}

/// A moment's view of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStats {
    /// Chunks that the pool was made with.
    pub capacity: usize,
    /// Chunks that are home: in the depot or on the returned list. Those inside caches count as away, so the number is
    /// `capacity` exactly when every packet and every cache is gone.
    pub free: usize,
    /// Times that a cache asked for chunks and got fewer than it asked for.
    pub shortages: u64,
}

/// A set of equal chunks; the handle can be cloned and sent, the memory lives until the last chunk is home.
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

impl Pool {
    /// Makes a pool.
    ///
    /// # Errors
    /// [`PoolError::Config`] names the field that is out of range; [`PoolError::Region`] when memory can't be had.
    pub fn new(config: PoolConfig) -> Result<Pool, PoolError> {
        config.check()?;
        Pool::build(config, Region::new(config.capacity * config.chunk, config.backing)?)
    }

    /// Makes a pool of memory that was had elsewhere, such as from a DMA domain; [`PoolConfig::backing`] is not looked at.
    ///
    /// # Errors
    /// As [`new`](Pool::new); a region with fewer bytes than the chunks need is refused by the name of `capacity`.
    ///
    /// # Safety
    /// From now on nobody reads or writes the region's bytes but through the pool's packets, and devices while a chunk is
    /// lent to them: the region is mapped nowhere else, or only where such a device lives.
    pub unsafe fn in_region(config: PoolConfig, region: Region) -> Result<Pool, PoolError> {
        config.check()?;
        let fits = region.len() / config.chunk;
        if config.capacity > fits {
            let (field, value, rule) = ("capacity", config.capacity, "at most what the region has room for");
            return Err(PoolError::Config { field, value, rule });
        }
        Pool::build(config, region)
    }

    fn build(config: PoolConfig, region: Region) -> Result<Pool, PoolError> {
        let shared = PoolShared::new(&config, Kind::Data, Some(Arc::new(region)))?;
        Ok(Pool(Arc::new(Handle::new(shared))))
    }

    pub(crate) fn from_handle(handle: Arc<Handle>) -> Pool {
        Pool(handle)
    }

    /// A cache for the calling thread (or for the one that it is sent to).
    ///
    /// # Errors
    /// [`PoolError::Caches`] when as many exist as the configuration allows.
    pub fn cache(&self, direction: Direction) -> Result<Cache, PoolError> {
        Cache::new(self.0.clone(), direction)
    }

    /// What is home, what is missing. Exact when no other thread allocates or frees at this moment; not for hot paths.
    pub fn stats(&self) -> PoolStats {
        self.0.shared().stats()
    }

    /// The memory that the chunks are cut from: what a driver maps for DMA, or shares.
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.0.shared().region()
    }

    /// Bytes in a chunk.
    pub fn chunk(&self) -> usize {
        usize::from(self.0.shared().chunk)
    }

    /// Bytes of headroom in a new packet.
    pub fn headroom(&self) -> usize {
        usize::from(self.0.shared().headroom)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("chunk", &self.chunk()).field("stats", &self.stats()).finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
