//! The memory of a record ring: bytes that one side has at a time, by the ring's indices.

#[cfg(loom)]
use super::UNIT;
use std::cell::UnsafeCell;

/// A cache line: where records of a multiple of 64 bytes begin and end.
#[repr(C, align(64))]
struct Line(UnsafeCell<[u8; 64]>);

pub(super) struct Memory {
    lines: Box<[Line]>,
    /// One cell per unit, by which loom sees accesses that are not ordered.
    #[cfg(loom)]
    units: Box<[loom::cell::UnsafeCell<()>]>,
}

// SAFETY: the producer has the bytes behind its published index, the consumer those in front of
// it; the indices transfer them with release and acquire.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl Memory {
    /// `bytes`, a power of two of at least two lines, touched.
    pub(super) fn new(bytes: usize) -> Memory {
        let lines: Box<[Line]> = (0..bytes / size_of::<Line>()).map(|_| Line(UnsafeCell::new([0; 64]))).collect();
        Memory {
            lines,
            #[cfg(loom)]
            units: (0..bytes / UNIT).map(|_| loom::cell::UnsafeCell::new(())).collect(),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// The address of a byte, for a prefetch.
    #[inline]
    pub(super) fn address(&self, at: usize) -> *const u8 {
        self.at(at)
    }

    #[inline]
    fn at(&self, at: usize) -> *mut u8 {
        UnsafeCell::raw_get(self.lines.as_ptr().cast::<UnsafeCell<u8>>()).wrapping_add(at)
    }

    /// # Safety
    /// The caller has the unit at `at`, a multiple of a unit inside the memory.
    #[inline]
    pub(super) unsafe fn write_header(&self, at: usize, words: [u64; 4]) {
        #[cfg(loom)]
        self.units[at / UNIT].with_mut(|_| ());
        // SAFETY: by contract; lines are aligned to 64 bytes, so units to 32.
        unsafe { self.at(at).cast::<[u64; 4]>().write(words) };
    }

    /// # Safety
    /// As for [`write_header`](Memory::write_header), and a header was written.
    #[inline]
    pub(super) unsafe fn read_header(&self, at: usize) -> [u64; 4] {
        #[cfg(loom)]
        self.units[at / UNIT].with(|_| ());
        // SAFETY: by contract.
        unsafe { self.at(at).cast::<[u64; 4]>().read() }
    }

    /// # Safety
    /// The caller has the `len` bytes at `at`, inside the memory, until the slice ends, and makes
    /// no other one of them.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the contract of the caller")]
    pub(super) unsafe fn slice_mut(&self, at: usize, len: usize) -> &mut [u8] {
        #[cfg(loom)]
        (at / UNIT..(at + len).div_ceil(UNIT)).for_each(|unit| self.units[unit].with_mut(|_| ()));
        // SAFETY: by contract; the bytes are initialised since the memory was made.
        unsafe { std::slice::from_raw_parts_mut(self.at(at), len) }
    }

    /// # Safety
    /// The caller has the `len` bytes at `at`, inside the memory, until the slice ends.
    #[inline]
    pub(super) unsafe fn slice(&self, at: usize, len: usize) -> &[u8] {
        #[cfg(loom)]
        (at / UNIT..(at + len).div_ceil(UNIT)).for_each(|unit| self.units[unit].with(|_| ()));
        // SAFETY: by contract; the bytes are initialised since the memory was made.
        unsafe { std::slice::from_raw_parts(self.at(at), len) }
    }
}
