//! Pools: equal chunks of a region, allocated and freed in bulk, from any core.
//!
//! ```text
//!   core 0                      shared                            core 1
//!   Cache ── loaded ──┐   ┌──────────────── Depot ────────────┐   ┌── loaded ── Cache
//!         └─ spare  ──┼──►│ recent 0 ○○○         recent 1 ○○○ │◄──┼── spare  ─┘
//!    (arrays, no      │   │ full ○─○─○   empty ○─○            │   │
//!     atomics)        │   └───────────────────────────────────┘   │
//!                     └──► returned ○─○─○─○  ◄────────────────────┘
//!                          chunks dropped without a cache, or by a cache of another pool
//! ```
//!
//! A [`Cache`] belongs to one thread at a time and holds two *magazines* of up to 64 chunks
//! ([`PoolConfig::magazine`](field@PoolConfig::magazine)).
//! Allocation and freeing move pointers out of and into them. When both are empty (or full), one
//! magazine is exchanged with the depot, without a lock. A core gets the chunks back that it freed
//! last: their bytes are still in its cache. Another core gets chunks after which many others were
//! freed: to write those that were freed last, it would have to take each line out of the first
//! core's cache.
//!
//! Dropping a [`Packet`](crate::Packet) on any thread, with or without a cache, pushes it on the
//! lock-free list `returned`, from which caches refill when the depot is empty.
//!
//! | file | |
//! |---|---|
//! | `mod` | [`Pool`], [`PoolConfig`] |
//! | `cache`, `depot` | [`Cache`]: two magazines; all other magazines |
//! | `recent` | the magazines that a core has filled last |
//! | `return_list` | `returned`, and chunks freed together |
//! | `shared` | what a pool's handles share; its end |
//!
//! **Life.** The memory outlives its last buffer: when the last [`Pool`] and [`Cache`] handle is
//! dropped while packets are still in use, the pool becomes an orphan that counts them, and the
//! last of them frees it. Ordinary allocation and freeing pay nothing for that.

mod cache;
mod depot;
mod recent;
mod return_list;
mod shared;

pub use cache::Cache;
pub(crate) use shared::{Handle, Kind, PoolShared};

use crate::region::{Backing, Region, RegionError, RegionHandle};
use crate::setters;
use std::sync::Arc;

/// Chunks in a magazine at most; also the natural burst.
pub(crate) const MAGAZINE: usize = 64;
/// The index of no magazine.
const NONE: u32 = u32::MAX;

/// The direction of a cache's packets; each has its own floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Buffers that a port fills.
    Rx,
    /// Buffers for packets to be sent: of generators, copies, segments.
    Tx,
}

/// Chunks that each direction leaves to the other.
///
/// Reception alone could take every buffer and leave transmission none to finish with, or the
/// reverse. An allocation for `Rx` leaves at least `tx` chunks in the depot, one for `Tx` at least
/// `rx`, rounded up to whole magazines. Set the floor of the direction that must never starve. If
/// both are set, neither direction can use the smaller of them when the pool is that far down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Floors {
    /// Chunks kept for [`Direction::Rx`].
    pub rx: usize,
    /// Chunks kept for [`Direction::Tx`].
    pub tx: usize,
}

setters! {
    /// The configuration of a pool. Each field has a setter of its name.
    #[derive(Debug, Clone, Copy)]
    #[non_exhaustive]
    pub struct PoolConfig {
        /// Number of chunks, 1 to 2^24.
        pub capacity: usize,
        /// Bytes in a chunk, headroom and tailroom included: a multiple of 64 from 64 to 65472.
        pub chunk: usize,
        /// Bytes of headroom in a new packet, at most `chunk`.
        pub headroom: usize,
        /// The kind of memory.
        pub backing: Backing,
        /// Chunks that each direction leaves to the other.
        pub floors: Floors,
        /// Caches that may exist at the same time, 1 to 1024.
        pub max_caches: usize,
        /// Chunks in a magazine, 1 to 64; a small pool has smaller ones. With 1 every allocation
        /// and every free is an exchange with the depot: to measure what bulk is worth.
        pub magazine: usize,
    }
}

impl Default for PoolConfig {
    /// 16384 chunks of 2048 bytes with 128 bytes of headroom: an Ethernet frame of 1920 bytes fits,
    /// and any set of tunnel headers in front of it. Huge pages if there are some.
    fn default() -> PoolConfig {
        PoolConfig {
            capacity: 16384,
            chunk: 2048,
            headroom: 128,
            backing: Backing::HugePreferred,
            floors: Floors::default(),
            max_caches: 64,
            magazine: MAGAZINE,
        }
    }
}

impl PoolConfig {
    fn check(&self) -> Result<(), PoolError> {
        let PoolConfig { capacity, chunk, headroom, floors, max_caches, magazine, .. } = *self;
        let check =
            |ok: bool, field, value, rule| if ok { Ok(()) } else { Err(PoolError::Config { field, value, rule }) };
        check((1..=1 << 24).contains(&capacity), "capacity", capacity, "from 1 to 2^24")?;
        let sized = (64..=65472).contains(&chunk) && chunk % 64 == 0;
        check(sized, "chunk", chunk, "a multiple of 64 from 64 to 65472")?;
        check(headroom <= chunk, "headroom", headroom, "at most the chunk size")?;
        check((1..=1024).contains(&max_caches), "max_caches", max_caches, "from 1 to 1024")?;
        check((1..=MAGAZINE).contains(&magazine), "magazine", magazine, "from 1 to 64")?;
        check(floors.rx <= capacity / 2, "floors.rx", floors.rx, "at most half of the capacity")?;
        check(floors.tx <= capacity / 2, "floors.tx", floors.tx, "at most half of the capacity")
    }
}

/// Why a pool or a cache could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A field of [`PoolConfig`] is outside its range.
    #[error("pool: {field}={value}: must be {rule}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// The kernel refused the memory.
    #[error("pool: {0}")]
    Region(#[from] RegionError),
    /// As many caches as [`PoolConfig::max_caches`] exist already.
    #[error("pool: max_caches={0}: all of them are in use")]
    Caches(usize),
}

/// Numbers of a pool at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Chunks of the pool.
    pub capacity: usize,
    /// Chunks in the depot or on the returned list. Those inside caches count as in use, so the
    /// number is `capacity` exactly when every packet and every cache is gone.
    pub free: usize,
    /// Allocations that got fewer chunks than requested.
    pub shortages: u64,
}

/// A set of equal chunks. The handle can be cloned and sent; the memory lives until the last chunk
/// is free.
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

impl Pool {
    /// Makes a pool.
    ///
    /// # Errors
    /// [`PoolError::Config`] names the field that is out of range; [`PoolError::Region`] if the
    /// kernel refuses the memory.
    pub fn new(config: PoolConfig) -> Result<Pool, PoolError> {
        config.check()?;
        let len = config.capacity.saturating_mul(config.chunk);
        Pool::build(config, Region::new(len, config.backing)?)
    }

    /// Makes a pool of existing memory, such as that of a DMA domain; [`PoolConfig::backing`] is
    /// ignored.
    ///
    /// # Errors
    /// As [`new`](Pool::new); a region with fewer bytes than the chunks need is refused by the name
    /// of `capacity`.
    ///
    /// # Safety
    /// From now on the region's bytes are accessed only through the pool's packets, and by devices
    /// while a chunk is in flight: the region is mapped nowhere else, or only where such a device
    /// lives.
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
        let shared = PoolShared::new(&config, Kind::Direct, Some(region.into()))?;
        Ok(Pool(Arc::new(Handle::new(shared))))
    }

    pub(crate) fn from_handle(handle: Arc<Handle>) -> Pool {
        Pool(handle)
    }

    /// A cache for the calling thread, or for the thread that it is sent to.
    ///
    /// # Errors
    /// [`PoolError::Caches`] if as many exist as the configuration allows.
    pub fn cache(&self, direction: Direction) -> Result<Cache, PoolError> {
        Cache::new(self.0.clone(), direction)
    }

    /// Free and missing chunks. Exact if no other thread allocates or frees at this moment; not for
    /// hot paths.
    pub fn stats(&self) -> PoolStats {
        self.0.shared().stats()
    }

    /// The memory of the chunks, for a driver that maps it for a device or the kernel.
    pub fn region(&self) -> Option<&RegionHandle> {
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
