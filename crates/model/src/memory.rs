//! Memory of this process, accessed on behalf of a device.
//!
//! An address comes from a page table or a list of ranges. `iommu` fills both from calls whose
//! safety contract keeps the memory in place. The address is used under a lock that every unmapping
//! takes too.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// A translated address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostAddr(usize);

impl HostAddr {
    pub(crate) fn new(address: u64) -> HostAddr {
        HostAddr(address as usize)
    }

    /// The form that a page table stores.
    pub(crate) fn expose(at: NonNull<u8>) -> u64 {
        at.as_ptr().expose_provenance() as u64
    }

    /// The address as a number.
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// The address `bytes` higher.
    pub(crate) fn offset(self, bytes: usize) -> HostAddr {
        HostAddr(self.0.wrapping_add(bytes))
    }

    /// Copies memory out.
    ///
    /// # Safety
    /// `into.len()` bytes from this address on are mapped for the device until the call returns.
    pub(crate) unsafe fn read(self, into: &mut [u8]) {
        let from = ptr::with_exposed_provenance::<u8>(self.0);
        // SAFETY: the caller guarantees the source. The destination is a slice of this process,
        // which no device address translates to.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies bytes in.
    ///
    /// # Safety
    /// As [`read`](HostAddr::read).
    pub(crate) unsafe fn write(self, from: &[u8]) {
        let to = ptr::with_exposed_provenance_mut::<u8>(self.0);
        // SAFETY: the caller guarantees the destination. No code relies on its bytes while it is
        // mapped for writing.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// The aligned word at this address, as drivers and devices share them in descriptors; `None`
    /// if it is misaligned.
    ///
    /// # Safety
    /// Eight bytes from this address on are mapped for the device while the reference lives.
    pub(crate) unsafe fn word<'a>(self) -> Option<&'a AtomicU64> {
        if !self.0.is_multiple_of(8) {
            return None;
        }
        // SAFETY: the alignment is checked; the caller guarantees the lifetime; the words of a
        // descriptor are only accessed atomically.
        Some(unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(self.0)) })
    }

    /// Loads a word. Stores of the driver before its tail write are visible.
    ///
    /// # Safety
    /// As [`word`](HostAddr::word).
    pub(crate) unsafe fn load(self) -> Option<u64> {
        // SAFETY: the same contract.
        unsafe { self.word() }.map(|word| u64::from_le(word.load(Ordering::Relaxed)))
    }

    /// Stores a word. Earlier writes are visible to a reader of the word.
    ///
    /// # Safety
    /// As [`word`](HostAddr::word).
    pub(crate) unsafe fn store(self, value: u64) {
        // SAFETY: the same contract.
        if let Some(word) = unsafe { self.word() } {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// The aligned half word at this address; `None` if it is misaligned.
    ///
    /// # Safety
    /// As [`word`](HostAddr::word), for two bytes.
    pub(crate) unsafe fn half<'a>(self) -> Option<&'a AtomicU16> {
        if !self.0.is_multiple_of(2) {
            return None;
        }
        // SAFETY: as in `word`.
        Some(unsafe { AtomicU16::from_ptr(ptr::with_exposed_provenance_mut(self.0)) })
    }
}
