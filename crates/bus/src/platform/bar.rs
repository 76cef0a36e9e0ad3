//! Registers, in the windows that the kernel module maps.

use super::cdev::Shim;
use crate::barrier::{dma_rmb, dma_wmb};
use crate::mmio::Mmio;
use std::sync::Arc;
use towpath_sys::Mmap;

/// A part of a region, from byte `start` of it on.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) start: usize,
    pub(super) map: Mmap,
}

/// A region of registers. Outside of its windows it reads as all ones, and writes do nothing.
///
/// A clone is another handle; the device stays open as long as one exists.
#[derive(Debug, Clone)]
pub struct PlatformBar {
    // Dropped before the device, so that it is unmapped first.
    windows: Arc<[Window]>,
    len: usize,
    _device: Arc<dyn Shim>,
}

impl PlatformBar {
    pub(super) fn new(device: Arc<dyn Shim>, windows: Vec<Window>) -> PlatformBar {
        let len = windows.iter().map(|window| window.start + window.map.len()).max().unwrap_or(0);
        PlatformBar { windows: windows.into(), len, _device: device }
    }

    /// The address of `bytes` at byte offset `at`, if they lie in a window and are aligned.
    #[inline]
    fn register(&self, at: usize, bytes: usize) -> Option<*mut u8> {
        if !at.is_multiple_of(bytes) {
            return None;
        }
        // A region has one window or two.
        self.windows.iter().find_map(|window| {
            let place = window.map.at(at.checked_sub(window.start)?, bytes)?;
            Some(place.as_ptr())
        })
    }
}

impl Mmio for PlatformBar {
    /// A load or store of eight bytes to device memory is one access on arm64.
    const WIDE: bool = cfg!(target_pointer_width = "64");

    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn r32(&self, at: usize) -> u32 {
        let Some(register) = self.register(at, 4) else { return u32::MAX };
        // SAFETY: `register` checked place and alignment in a mapping that `self` holds; registers
        // are read with one access.
        let value = u32::from_le(unsafe { register.cast::<u32>().read_volatile() });
        dma_rmb();
        value
    }

    #[inline]
    fn w32(&self, at: usize, value: u32) {
        let Some(register) = self.register(at, 4) else { return };
        dma_wmb();
        // SAFETY: as in `r32`, for a write.
        unsafe { register.cast::<u32>().write_volatile(value.to_le()) };
    }

    #[inline]
    fn r64(&self, at: usize) -> u64 {
        let Some(register) = self.register(at, 8) else { return u64::MAX };
        // SAFETY: as in `r32`, for eight bytes.
        let value = u64::from_le(unsafe { register.cast::<u64>().read_volatile() });
        dma_rmb();
        value
    }

    #[inline]
    fn w64(&self, at: usize, value: u64) {
        let Some(register) = self.register(at, 8) else { return };
        dma_wmb();
        // SAFETY: as in `r64`, for a write.
        unsafe { register.cast::<u64>().write_volatile(value.to_le()) };
    }
}
