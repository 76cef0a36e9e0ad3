//! Bounce memory: a short frame is copied into memory that stays mapped for the device, so that it
//! costs neither a mapping nor an IOTLB flush (Linux: `swiotlb`, but chosen by length).
//!
//! ```text
//!   ring      │ 0 │ 1 │ 2 │ …      a slot for each descriptor, by its position: no allocator
//!   memory    ██▒▒██▒▒██▒▒         mapped once, for reading
//! ```
//!
//! A slot is free when its descriptor is. The distance of slots is an odd number of cache lines, so
//! that the first lines of short frames lie in different sets of the cache.

use crate::dma::{Access, Dma, Iova, MapError};
use crate::domain::Domain;
use std::ptr::NonNull;
use towpath_packet::{Packet, RegionHandle};

/// Bytes of a cache line.
const LINE: usize = 64;

/// The bounce memory of one queue.
#[derive(Debug)]
pub(crate) struct BounceMemory {
    at: NonNull<u8>,
    iova: Iova,
    slots: u32,
    /// Bytes of a slot, and from one slot to the next.
    bytes: usize,
    stride: usize,
    _region: RegionHandle,
}

// SAFETY: the memory is accessed by `fill` alone, through an exclusive reference.
unsafe impl Send for BounceMemory {}

impl BounceMemory {
    pub(crate) fn new<D: Dma>(domain: &Domain<D>, slots: u32, bytes: usize) -> Result<BounceMemory, MapError> {
        let stride = (bytes.div_ceil(LINE) | 1) * LINE;
        let (region, iova) = domain.alloc(stride * slots.max(1) as usize, Access::Read)?;
        // A broken bus may allocate less than was requested.
        if region.len() / stride < slots as usize {
            return Err(MapError::Refused("the bus allocated less memory than was requested"));
        }
        Ok(BounceMemory { at: region.base(), iova, slots, bytes, stride, _region: region })
    }

    /// Copies a packet into a slot, with zeros behind it up to `shortest` bytes; returns the IOVA and
    /// the length.
    #[inline]
    pub(crate) fn fill(&mut self, slot: u32, packet: &Packet, shortest: usize) -> Option<(Iova, usize)> {
        let len = packet.len().max(shortest);
        if slot >= self.slots || len > self.bytes {
            return None;
        }
        let offset = slot as usize * self.stride;
        // SAFETY: the slot lies inside the region, which lives as long as `self` and was zeroed by
        // its allocation. Nothing else in this process accesses it, and the device, which is done
        // with the slot's last frame, only reads.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.at.add(offset).as_ptr(), len) };
        let copied = packet.copy_to(0, bytes);
        if copied < len {
            bytes.get_mut(copied..)?.fill(0);
        }
        Some((self.iova.add(offset), len))
    }
}
