//! Registers mapped into the process.

use super::device::{BarMapping, VfioDevice};
use crate::barrier::{dma_rmb, dma_wmb};
use crate::mmio::Mmio;
use std::sync::Arc;
use towpath_sys::Mmap;

/// The registers of a BAR. A clone is another handle; the device stays open as long as one exists.
///
/// If the kernel does not allow the BAR to be mapped (it is smaller than a page and shares it with
/// other devices, or consists of I/O ports), every access is a system call.
///
/// A mapped register of a device that was unplugged reads as all ones. If memory decoding is off,
/// an access ends the process with SIGBUS: the kernel removes the mapping then, and has no other
/// way to report it (Linux: `vfio_pci_mmap_huge_fault`). Nothing in this crate switches it off
/// while a BAR is mapped, nor does the kernel for a device that is in use; a write to the
/// function's configuration space by other programs goes past VFIO and leaves the mapping. During a
/// reset through VFIO accesses wait.
#[derive(Debug, Clone)]
pub struct VfioBar {
    // Dropped before the device, so that it is unmapped first.
    map: Option<Arc<Mmap>>,
    device: Arc<VfioDevice>,
    /// The offset of the BAR in the device's file.
    offset: u64,
    len: usize,
}

impl VfioBar {
    pub(super) fn new(device: Arc<VfioDevice>, bar: BarMapping) -> VfioBar {
        VfioBar { map: bar.map.map(Arc::new), device, offset: bar.offset, len: bar.len }
    }

    /// The address of the register, if it lies inside. `T` is an integer.
    #[inline]
    fn register<T>(&self, at: usize) -> Option<*mut T> {
        let (map, width) = (self.map.as_ref()?, size_of::<T>());
        let inside = at.is_multiple_of(width) && at < map.len() && map.len() - at >= width;
        // The mapping is page-aligned, so a multiple of the width in it is aligned.
        inside.then(|| map.base().as_ptr().wrapping_add(at).cast())
    }

    #[cold]
    fn pread(&self, at: usize) -> u32 {
        let inside = self.map.is_none() && at.is_multiple_of(4) && at < self.len && self.len - at >= 4;
        if inside { self.device.read(self.offset + at as u64) } else { u32::MAX }
    }

    #[cold]
    fn pwrite(&self, at: usize, value: u32) {
        if self.map.is_none() && at.is_multiple_of(4) && at < self.len && self.len - at >= 4 {
            self.device.write(self.offset + at as u64, value);
        }
    }
}

impl Mmio for VfioBar {
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn r32(&self, at: usize) -> u32 {
        let Some(register) = self.register::<u32>(at) else { return self.pread(at) };
        // SAFETY: `register` checked the address against the mapping, which `self` holds; registers
        // are read with one access.
        let value = u32::from_le(unsafe { register.read_volatile() });
        dma_rmb();
        value
    }

    #[inline]
    fn w32(&self, at: usize, value: u32) {
        let Some(register) = self.register::<u32>(at) else { return self.pwrite(at, value) };
        dma_wmb();
        // SAFETY: `register` checked the address against the mapping, which `self` holds; registers
        // are written with one access.
        unsafe { register.write_volatile(value.to_le()) };
    }

    /// Of mapped registers; others read as all ones, and are not written.
    const NARROW: bool = true;

    fn r8(&self, at: usize) -> u8 {
        let Some(register) = self.register::<u8>(at) else { return u8::MAX };
        // SAFETY: as in `r32`.
        let value = unsafe { register.read_volatile() };
        dma_rmb();
        value
    }

    fn r16(&self, at: usize) -> u16 {
        let Some(register) = self.register::<u16>(at) else { return u16::MAX };
        // SAFETY: as in `r32`.
        let value = u16::from_le(unsafe { register.read_volatile() });
        dma_rmb();
        value
    }

    fn w8(&self, at: usize, value: u8) {
        let Some(register) = self.register::<u8>(at) else { return };
        dma_wmb();
        // SAFETY: as in `w32`.
        unsafe { register.write_volatile(value) };
    }

    #[inline]
    fn w16(&self, at: usize, value: u16) {
        let Some(register) = self.register::<u16>(at) else { return };
        dma_wmb();
        // SAFETY: as in `w32`.
        unsafe { register.write_volatile(value.to_le()) };
    }
}
