//! The three areas of a queue, as words that both sides access.
//!
//! Words are little-endian (virtio 1.2, 2.6 and 2.8) and atomic, because the other side may write
//! them at any moment. An index counts words of the accessed width from the first byte of the area:
//! alignment follows from that of the area, and one comparison keeps every access inside.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use towpath_packet::{RegionHandle, UntrustedMem};

/// The words of an area.
///
/// A word that does not lie inside reads as zero, and a store to it does nothing. The queues check
/// the lengths of their areas when they are made, so that this is a second line of defence.
pub trait RingWords {
    /// Number of bytes that are accessible as words of `width` bytes (2, 4 or 8).
    fn bytes(&self, width: usize) -> usize;
    /// Loads the 16-bit word `index`.
    fn load16(&self, index: usize, order: Ordering) -> u16;
    /// Loads the 32-bit word `index`.
    fn load32(&self, index: usize, order: Ordering) -> u32;
    /// Loads the 64-bit word `index`.
    fn load64(&self, index: usize, order: Ordering) -> u64;
    /// Stores the 16-bit word `index`.
    fn store16(&self, index: usize, value: u16, order: Ordering);
    /// Stores the 32-bit word `index`.
    fn store32(&self, index: usize, value: u32, order: Ordering);
    /// Stores the 64-bit word `index`.
    fn store64(&self, index: usize, value: u64, order: Ordering);
}

/// A piece of mapped memory that the other side of a queue may read and write. A clone is another
/// handle of the same bytes.
#[derive(Debug, Clone)]
pub struct Area {
    base: NonNull<u8>,
    len: usize,
    /// Words of each width; none of a width to which the first byte is not aligned.
    words16: usize,
    words32: usize,
    words64: usize,
    _memory: RegionHandle,
}

// SAFETY: the words are only accessed as atomics, and the memory that they lie in is kept alive.
unsafe impl Send for Area {}
// SAFETY: as for Send.
unsafe impl Sync for Area {}

impl Area {
    /// The `len` bytes at `offset` of `memory`; `None` if they do not lie inside.
    pub fn new(memory: &UntrustedMem, offset: usize, len: usize) -> Option<Area> {
        // SAFETY: no reference to bytes of untrusted memory is ever made.
        unsafe { Area::in_region(memory.handle(), offset, len) }
    }

    /// The `len` bytes at `offset` of a region, which a bus gave for a queue; `None` if they do not
    /// lie inside.
    ///
    /// # Safety
    /// As long as the area lives, this process accesses the bytes as atomic words only. In
    /// particular, no pool has chunks there.
    pub unsafe fn in_region(region: &RegionHandle, offset: usize, len: usize) -> Option<Area> {
        let base = region.at(offset, len)?;
        let words = |width: usize| if base.addr().get().is_multiple_of(width) { len / width } else { 0 };
        Some(Area { base, len, words16: words(2), words32: words(4), words64: words(8), _memory: region.clone() })
    }

    /// Sets bits of byte `index` without a loss of others that are set at the same time; returns
    /// false if it does not lie inside. Writes before it are visible to the side that sees the
    /// bits.
    pub fn set_bits(&self, index: usize, bits: u8) -> bool {
        if index >= self.len {
            return false;
        }
        // SAFETY: inside of the area, and alive as long as `self`; accessed as an atomic.
        unsafe { self.base.cast::<AtomicU8>().add(index).as_ref() }.fetch_or(bits, Ordering::Release);
        true
    }

    #[inline]
    fn word16<R>(&self, index: usize, outside: R, access: impl FnOnce(&AtomicU16) -> R) -> R {
        if index >= self.words16 {
            return outside;
        }
        // SAFETY: inside of the area, aligned, and alive as long as `self`; accessed as an atomic.
        access(unsafe { self.base.cast::<AtomicU16>().add(index).as_ref() })
    }

    #[inline]
    fn word32<R>(&self, index: usize, outside: R, access: impl FnOnce(&AtomicU32) -> R) -> R {
        if index >= self.words32 {
            return outside;
        }
        // SAFETY: as in `word16`.
        access(unsafe { self.base.cast::<AtomicU32>().add(index).as_ref() })
    }

    #[inline]
    fn word64<R>(&self, index: usize, outside: R, access: impl FnOnce(&AtomicU64) -> R) -> R {
        if index >= self.words64 {
            return outside;
        }
        // SAFETY: as in `word16`.
        access(unsafe { self.base.cast::<AtomicU64>().add(index).as_ref() })
    }
}

impl RingWords for Area {
    fn bytes(&self, width: usize) -> usize {
        match width {
            2 => self.words16 * 2,
            4 => self.words32 * 4,
            8 => self.words64 * 8,
            _ => 0,
        }
    }

    #[inline]
    fn load16(&self, index: usize, order: Ordering) -> u16 {
        self.word16(index, 0, |word| u16::from_le(word.load(order)))
    }

    #[inline]
    fn load32(&self, index: usize, order: Ordering) -> u32 {
        self.word32(index, 0, |word| u32::from_le(word.load(order)))
    }

    #[inline]
    fn load64(&self, index: usize, order: Ordering) -> u64 {
        self.word64(index, 0, |word| u64::from_le(word.load(order)))
    }

    #[inline]
    fn store16(&self, index: usize, value: u16, order: Ordering) {
        self.word16(index, (), |word| word.store(value.to_le(), order));
    }

    #[inline]
    fn store32(&self, index: usize, value: u32, order: Ordering) {
        self.word32(index, (), |word| word.store(value.to_le(), order));
    }

    #[inline]
    fn store64(&self, index: usize, value: u64, order: Ordering) {
        self.word64(index, (), |word| word.store(value.to_le(), order));
    }
}

/// The areas of one queue (virtio 1.2, 2.6).
#[derive(Debug)]
pub struct Areas<W = Area> {
    /// Descriptor Area: the descriptor table, or the descriptor ring.
    pub desc: W,
    /// Driver Area, written by the driver: the available ring, or the driver's event suppression.
    pub driver: W,
    /// Device Area, written by the device: the used ring, or the device's event suppression.
    pub device: W,
}

impl Areas {
    /// The areas that lie one behind the other from `offset` of `memory` on, as `layout` has them;
    /// `None` if they do not lie inside.
    pub fn new(memory: &UntrustedMem, offset: usize, layout: &crate::Layout) -> Option<Areas> {
        let at = |part: usize, len| Area::new(memory, offset.checked_add(part)?, len);
        Some(Areas {
            desc: at(layout.desc, layout.desc_len)?,
            driver: at(layout.driver, layout.driver_len)?,
            device: at(layout.device, layout.device_len)?,
        })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use Ordering::Relaxed;
    use towpath_packet::{Backing, Region};

    #[test]
    fn words_are_little_endian_and_outside_of_the_area_there_are_none() {
        let memory = UntrustedMem::new(Region::new(4096, Backing::Memfd).unwrap());
        let area = Area::new(&memory, 64, 16).unwrap();
        area.store64(1, 0x0102_0304_0506_0708, Relaxed);
        assert_eq!(memory.get::<8>(72), Some([8, 7, 6, 5, 4, 3, 2, 1]));
        assert_eq!((area.load16(4, Relaxed), area.load32(3, Relaxed)), (0x0708, 0x0102_0304));
        area.store64(2, u64::MAX, Relaxed);
        area.store16(8, u16::MAX, Relaxed);
        area.store32(usize::MAX, u32::MAX, Relaxed);
        assert_eq!(memory.get::<8>(80), Some([0; 8]));
        assert_eq!((area.load64(2, Relaxed), area.load16(8, Relaxed)), (0, 0));
    }

    #[test]
    fn bits_of_a_byte_are_added_to_those_that_are_set() {
        let memory = UntrustedMem::new(Region::new(4096, Backing::Memfd).unwrap());
        let area = Area::new(&memory, 3, 5).unwrap();
        assert!(area.set_bits(4, 1) && area.set_bits(4, 0x80) && !area.set_bits(5, 1) && !area.set_bits(usize::MAX, 1));
        assert_eq!(memory.get::<3>(6), Some([0, 0x81, 0]));
    }

    #[test]
    fn an_area_has_no_words_to_which_it_is_not_aligned() {
        let memory = UntrustedMem::new(Region::new(4096, Backing::Memfd).unwrap());
        let bytes = |offset| Area::new(&memory, offset, 16).map(|area| [2, 4, 8].map(|width| area.bytes(width)));
        assert_eq!(bytes(8), Some([16, 16, 16]));
        assert_eq!(bytes(4), Some([16, 16, 0]));
        assert_eq!(bytes(2), Some([16, 0, 0]));
        assert_eq!(bytes(1), Some([0, 0, 0]));
        assert_eq!((bytes(4081), bytes(usize::MAX)), (None, None));
    }
}
