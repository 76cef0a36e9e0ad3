//! Bounce memory: a short frame is copied into memory that stays mapped for the device, so that it
//! costs neither a mapping nor an IOTLB flush (Linux: `swiotlb`, but chosen by length).
//!
//! ```text
//!   ring      │ 0 │ 1 │ 2 │ …                   a slot of each size for each descriptor,
//!                                               by its position: no allocator
//!   memory    ████ ████ ████ …  ██ ██ ██ …  ▌▌▌…
//!             2048 bytes        1024        64
//! ```
//!
//! A frame is copied into the smallest slot of its descriptor that it fits in. The slot is free
//! when the descriptor is. Frames of 64 bytes lie side by side, 64 of them in a page, and always in
//! the same few pages: they take little of the caches, of the CPU's TLB and of the IOTLB.
//!
//! A slot is aligned to its size. So it shares no line of the cache with another, and unless it is
//! longer than a page it crosses none: the device needs one translation for it. A frame uses more
//! than half of its slot's lines, so that no set of the cache is preferred.
//!
//! **What the device can read.** The pages hold frames that this queue was given to send, older
//! ones among them, and nothing else. A descriptor names its frame, and zeros that pad it.

use crate::dma::{Access, Dma, Iova, MapError};
use crate::domain::Domain;
use std::ptr::NonNull;
use towpath_packet::{Packet, RegionHandle};

/// Bytes of a cache line, and of the smallest slot.
const LINE: usize = 64;

/// The bounce memory of one queue.
#[derive(Debug)]
pub(crate) struct BounceMemory {
    at: NonNull<u8>,
    iova: Iova,
    /// Each has a slot of each size.
    descriptors: usize,
    /// Bytes of the largest slots: a power of two.
    largest: usize,
    /// Bytes of the largest slots, and as many for all smaller ones.
    bytes: usize,
    _region: RegionHandle,
}

// SAFETY: the memory is accessed by `fill` alone, through an exclusive reference.
unsafe impl Send for BounceMemory {}

impl BounceMemory {
    pub(crate) fn new<D: Dma>(domain: &Domain<D>, descriptors: u32, bytes: usize) -> Result<BounceMemory, MapError> {
        let (descriptors, largest) = (descriptors.max(1) as usize, bytes.max(LINE).next_power_of_two());
        let bytes = 2 * largest * descriptors;
        // Writable for the device, although it only reads: before Linux 6.2 a page that was never
        // written is pinned for reading alone as the shared page of zeros, which the CPU's first
        // write leaves behind (`mm/gup.c`).
        let (region, iova) = domain.alloc(bytes, Access::Both)?;
        // A broken bus may allocate less than was requested.
        if region.len() < bytes {
            return Err(MapError::Refused("the bus allocated less memory than was requested"));
        }
        Ok(BounceMemory { at: region.base(), iova, descriptors, largest, bytes, _region: region })
    }

    /// Copies a packet into a slot of the descriptor, with zeros behind it up to `shortest` bytes;
    /// returns the IOVA and the length.
    #[inline]
    pub(crate) fn fill(&mut self, descriptor: u32, packet: &Packet, shortest: usize) -> Option<(Iova, usize)> {
        let (descriptor, len) = (descriptor as usize, packet.len().max(shortest));
        if descriptor >= self.descriptors || len > self.largest {
            return None;
        }
        // Likewise, the slots of any size begin where twice their bytes are left.
        let size = (len.saturating_sub(1) | (LINE - 1)).ilog2() + 1;
        let offset = self.bytes - ((2 * self.descriptors - descriptor) << size);
        // SAFETY: the slot lies inside the region, which lives as long as `self` and was zeroed by
        // its allocation. Nothing else in this process accesses it, and the device, which is done
        // with the last frame of the descriptor, is given its address to read.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.at.add(offset).as_ptr(), len) };
        if !copy_short(packet.linear(), bytes) {
            copy_any(packet, bytes);
        }
        Some((self.iova.add(offset), len))
    }
}

/// Copies a frame of 32 to 64 bytes, as most short ones are, in two moves that overlap: a call of
/// the C library takes longer. Returns false for any other length, or if the lengths differ: the
/// frame has more pieces.
#[inline]
fn copy_short(from: &[u8], to: &mut [u8]) -> bool {
    const HALF: usize = 32;
    if from.len() != to.len() || from.len() > 2 * HALF {
        return false;
    }
    let (Some(head), Some(tail)) = (from.first_chunk::<HALF>(), from.last_chunk::<HALF>()) else { return false };
    if let Some(to) = to.first_chunk_mut() {
        *to = *head;
    }
    if let Some(to) = to.last_chunk_mut() {
        *to = *tail;
    }
    true
}

/// Copies a packet, with zeros behind it.
#[inline(never)]
fn copy_any(packet: &Packet, to: &mut [u8]) {
    let copied = packet.copy_to(0, to);
    if let Some(rest) = to.get_mut(copied..).filter(|rest| !rest.is_empty()) {
        rest.fill(0);
    }
}
