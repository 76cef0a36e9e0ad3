//! DMA memory that the driver and the device access as words: rings and descriptors (Linux:
//! `dma_alloc_coherent`).
//!
//! Words are atomic, because the device may write them at any moment, and little-endian, the
//! device's byte order. Loads and stores are relaxed: the code that publishes or consumes
//! descriptors names the fence at that line.

use crate::dma::{Access, Dma, Iova, MapError};
use crate::domain::Domain;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use towpath_packet::RegionHandle;

/// Memory that stays mapped for the device, accessed as 32- and 64-bit words at byte offsets.
///
/// An offset that is misaligned or out of bounds reads as all ones, and a store to it does nothing.
/// As with registers, a defect elsewhere does no harm here.
#[derive(Debug)]
pub struct Coherent {
    at: NonNull<u8>,
    len: usize,
    iova: Iova,
    _region: RegionHandle,
}

// SAFETY: every access is an atomic word.
unsafe impl Send for Coherent {}
// SAFETY: as above.
unsafe impl Sync for Coherent {}

impl Coherent {
    /// Allocates at least `len` zeroed bytes that the domain maps for the device.
    ///
    /// # Errors
    /// [`MapError`] if there is no memory, or it cannot be mapped.
    pub fn new<D: Dma>(domain: &Domain<D>, len: usize) -> Result<Coherent, MapError> {
        let (region, iova) = domain.alloc(len.max(8), Access::Both)?;
        Ok(Coherent { at: region.base(), len: region.len(), iova, _region: region })
    }

    /// The IOVA of the first byte.
    #[inline]
    pub fn iova(&self) -> Iova {
        self.iova
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn word32(&self, at: usize) -> Option<&AtomicU32> {
        if at > self.len - 4 || !at.is_multiple_of(4) {
            return None;
        }
        // SAFETY: inside the region, aligned (the region is by pages), alive as long as `self`;
        // every access is atomic.
        Some(unsafe { AtomicU32::from_ptr(self.at.add(at).cast().as_ptr()) })
    }

    #[inline]
    fn word64(&self, at: usize) -> Option<&AtomicU64> {
        if at > self.len - 8 || !at.is_multiple_of(8) {
            return None;
        }
        // SAFETY: as in `word32`.
        Some(unsafe { AtomicU64::from_ptr(self.at.add(at).cast().as_ptr()) })
    }

    /// Loads the 32-bit word at byte offset `at`.
    #[inline]
    pub fn load32(&self, at: usize) -> u32 {
        self.word32(at).map_or(u32::MAX, |word| u32::from_le(word.load(Relaxed)))
    }

    /// Stores the 32-bit word at byte offset `at`.
    #[inline]
    pub fn store32(&self, at: usize, value: u32) {
        if let Some(word) = self.word32(at) {
            word.store(value.to_le(), Relaxed);
        }
    }

    /// Stores two 64-bit words, the first one at byte offset `at`: each is one store.
    #[inline]
    pub fn store64s(&self, at: usize, [first, second]: [u64; 2]) {
        // The second word ends last. Both are aligned, or neither is.
        if let Some(last) = at.checked_add(8)
            && let Some(word) = self.word64(last)
        {
            // SAFETY: the eight bytes in front of a word of the region that is not its first are
            // one as well: inside, aligned, alive as long as `self`; every access is atomic.
            unsafe { AtomicU64::from_ptr(self.at.add(at).cast().as_ptr()) }.store(first.to_le(), Relaxed);
            word.store(second.to_le(), Relaxed);
        }
    }

    /// All whole words of 64 bits, in the device's byte order, for accesses one after another.
    #[inline]
    pub fn words64(&self) -> &[AtomicU64] {
        // SAFETY: as in `word32`, for each word of the region.
        unsafe { std::slice::from_raw_parts(self.at.cast().as_ptr(), self.len / 8) }
    }

    /// Loads the 64-bit word at byte offset `at`.
    #[inline]
    pub fn load64(&self, at: usize) -> u64 {
        self.word64(at).map_or(u64::MAX, |word| u64::from_le(word.load(Relaxed)))
    }

    /// Stores the 64-bit word at byte offset `at`.
    #[inline]
    pub fn store64(&self, at: usize, value: u64) {
        if let Some(word) = self.word64(at) {
            word.store(value.to_le(), Relaxed);
        }
    }
}
