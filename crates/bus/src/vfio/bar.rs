//! Registers in our address space.

use super::device::Device;
use super::sys::Mapping;
use crate::mmio::Mmio;
use std::sync::Arc;

/// The registers of a BAR. A clone is another handle of the same; the device stays open for as long as there is one.
///
/// Where the kernel does not let the BAR be mapped (it is smaller than a page and shares it with other devices, or is made of I/O
/// ports) every access is a system call. A mapped register of a device that was pulled out of its slot, or whose memory
/// decoding was turned off, ends the process with SIGBUS: the kernel can say it no other way.
#[derive(Debug, Clone)]
pub struct VfioBar {
    // Before the device: it is unmapped first.
    map: Option<Arc<Mapping>>,
    device: Arc<Device>,
    /// Where it begins in the device's file.
    offset: u64,
    len: usize,
}

impl VfioBar {
    pub(super) fn new(device: Arc<Device>, map: Option<Mapping>, offset: u64, len: usize) -> VfioBar {
        VfioBar { map: map.map(Arc::new), device, offset, len }
    }

    /// The register's address, if it lies inside.
    #[inline]
    fn register(&self, at: usize) -> Option<*mut u32> {
        let map = self.map.as_ref()?;
        let inside = at.is_multiple_of(4) && at < map.len() && map.len() - at >= 4;
        // The mapping begins with a page, so that what is a multiple of four in it is aligned.
        inside.then(|| map.at().as_ptr().wrapping_add(at).cast())
    }

    #[cold]
    fn read_by_call(&self, at: usize) -> u32 {
        let inside = self.map.is_none() && at.is_multiple_of(4) && at < self.len && self.len - at >= 4;
        if inside { self.device.read(self.offset + at as u64) } else { u32::MAX }
    }

    #[cold]
    fn write_by_call(&self, at: usize, value: u32) {
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
        let Some(register) = self.register(at) else { return self.read_by_call(at) };
        // SAFETY: the address was just bounded by the mapping, which `self` holds; registers are read with one access.
        let value = u32::from_le(unsafe { register.read_volatile() });
        after_read();
        value
    }

    #[inline]
    fn w32(&self, at: usize, value: u32) {
        let Some(register) = self.register(at) else { return self.write_by_call(at, value) };
        before_write();
        // SAFETY: the address was just bounded by the mapping, which `self` holds; registers are written with one access.
        unsafe { register.write_volatile(value.to_le()) };
    }
}

/// Stores to memory are seen by the device before a register write that follows. On x86 the processor keeps that order by itself
/// for uncached memory (Intel SDM 3A §11.2): the compiler must as well.
#[inline]
fn before_write() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches no memory; this one orders earlier stores before later ones, devices included.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
}

/// Loads from memory that follow see what the device wrote before it answered.
#[inline]
fn after_read() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above, for loads.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
}
