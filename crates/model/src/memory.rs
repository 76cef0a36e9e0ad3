//! Memory of this process, accessed on behalf of a device.
//!
//! An address comes from a page table, or a list of ranges, that `iommu` filled from calls whose safety contract keeps the
//! memory in place; it is used while the lock is held without which no such memory is let go.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// A place in memory that a translation gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place(usize);

impl Place {
    pub(crate) fn new(address: u64) -> Place {
        Place(address as usize)
    }

    /// What a page table stores.
    pub(crate) fn expose(at: NonNull<u8>) -> u64 {
        at.as_ptr().expose_provenance() as u64
    }

    /// As a number.
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// The place `bytes` further on.
    pub(crate) fn offset(self, bytes: usize) -> Place {
        Place(self.0.wrapping_add(bytes))
    }

    /// Copies memory out.
    ///
    /// # Safety
    /// `into.len()` bytes from here on are mapped for the device, and stay so until the call returns.
    pub(crate) unsafe fn read(self, into: &mut [u8]) {
        let from = ptr::with_exposed_provenance::<u8>(self.0);
        // SAFETY: the caller vouches for the source; the destination is a slice of ours, which no device address leads to.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies bytes in.
    ///
    /// # Safety
    /// As [`read`](Place::read).
    pub(crate) unsafe fn write(self, from: &[u8]) {
        let to = ptr::with_exposed_provenance_mut::<u8>(self.0);
        // SAFETY: the caller vouches for the destination, on whose bytes nobody relies while it is mapped for writing.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// An aligned word, as drivers and devices share them in descriptors; `None` if it is not aligned.
    ///
    /// # Safety
    /// Eight bytes from here on are mapped for the device, and stay so while the reference lives.
    pub(crate) unsafe fn word<'a>(self) -> Option<&'a AtomicU64> {
        if !self.0.is_multiple_of(8) {
            return None;
        }
        // SAFETY: aligned as just checked; alive as the caller says; a descriptor's words are only accessed atomically.
        Some(unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(self.0)) })
    }

    /// Loads a word: what the driver stored before it moved the tail is seen.
    ///
    /// # Safety
    /// As [`word`](Place::word).
    pub(crate) unsafe fn load(self) -> Option<u64> {
        // SAFETY: the same contract.
        unsafe { self.word() }.map(|word| u64::from_le(word.load(Ordering::Relaxed)))
    }

    /// Stores a word; whatever was written before it is seen by whoever sees it.
    ///
    /// # Safety
    /// As [`word`](Place::word).
    pub(crate) unsafe fn store(self, value: u64) {
        // SAFETY: the same contract.
        if let Some(word) = unsafe { self.word() } {
            word.store(value.to_le(), Ordering::Release);
        }
    }
}
