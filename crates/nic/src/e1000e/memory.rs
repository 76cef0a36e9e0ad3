//! Memory that the device reads and writes while we do: descriptor rings, and a pool of buffers where that of the datapath is out of its
//! reach. The only `unsafe` of the driver.

use super::descriptors::Words;
use std::sync::atomic::{Ordering::Acquire, fence};
use towpath_bus::{Coherent, Dma, Domain, Iova, MapError};
use towpath_packet::{Pool, PoolConfig, PoolError};

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;

/// A ring of descriptors. Which of them are the device's is known to its queue: all from the one that it is to use next up to the tail
/// that was announced last.
#[derive(Debug)]
pub(super) struct Ring {
    words: Coherent,
    len: u32,
}

impl Ring {
    /// `len` descriptors, all zero.
    pub(super) fn new<D: Dma>(domain: &Domain<D>, len: u32) -> Result<Ring, MapError> {
        let words = Coherent::new(domain, len as usize * DESCRIPTOR)?;
        // A bus that gave less than it was asked for would be broken; the ring then ends where its memory does.
        let len = len.min((words.len() / DESCRIPTOR) as u32);
        Ok(Ring { words, len })
    }

    /// Where the device finds it.
    pub(super) fn iova(&self) -> Iova {
        self.words.iova()
    }

    /// Number of descriptors.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Writes a descriptor that is ours. Both words are plain stores: the device looks at them only after the tail was announced, and
    /// a register write is ordered behind all stores ([`Mmio::w32`](towpath_bus::Mmio::w32)).
    #[inline]
    pub(super) fn store(&self, index: u32, [first, second]: Words) {
        let at = index as usize * DESCRIPTOR;
        self.words.store64(at, first);
        self.words.store64(at + 8, second);
    }

    /// The second word, where the device reports. What it wrote before it reported is visible after this load: acquire.
    #[inline]
    pub(super) fn report(&self, index: u32) -> u64 {
        let word = self.words.load64(index as usize * DESCRIPTOR + 8);
        fence(Acquire);
        word
    }

    /// The first word, to be loaded after [`report`](Ring::report).
    #[inline]
    pub(super) fn first(&self, index: u32) -> u64 {
        self.words.load64(index as usize * DESCRIPTOR)
    }

    /// Makes all descriptors zero. The device has been stopped.
    pub(super) fn clear(&self) {
        (0..self.len).for_each(|index| self.store(index, [0, 0]));
    }
}

/// Why there is no pool in memory that the device reaches.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnPoolError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// A pool in memory that the bus gave us for the device.
pub(super) fn own_pool<D: Dma>(domain: &Domain<D>, config: PoolConfig) -> Result<Pool, OwnPoolError> {
    let region = domain.dma().alloc(config.capacity * config.chunk)?;
    // SAFETY: the region was just made for us, and nothing else of this process has its address; the device writes only to chunks that
    // are lent to it.
    let pool = unsafe { Pool::in_region(config, region) }?;
    if let Some(region) = pool.region() {
        domain.register(region)?;
    }
    Ok(pool)
}
