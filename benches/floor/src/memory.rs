//! Bytes that are in no cache.

#![allow(unsafe_code)]

use std::arch::x86_64::{_mm_clflush, _mm_mfence};

/// Bytes of a line.
const LINE: usize = 64;

/// Writes the lines of these bytes back, and takes them out of all caches.
pub fn evict(bytes: &[u8]) {
    for at in (0..bytes.len()).step_by(LINE).chain(bytes.len().checked_sub(1)) {
        // SAFETY: the address is that of a byte that exists; every x86-64 processor has the
        // instruction.
        unsafe { _mm_clflush(&raw const bytes[at]) };
    }
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { _mm_mfence() };
}
