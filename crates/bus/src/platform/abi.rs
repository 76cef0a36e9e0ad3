//! The character device of the kernel module, as both sides see it.
//!
//! Requests are `_IOWR(0xc5, number, structure)`. Each structure begins with its length in bytes,
//! as in VFIO: a module that knows a shorter one reads only that, and one that needs a longer one
//! fails with `EINVAL`. Integers have the byte order of the machine, which is little-endian on K3.
//!
//! | number | request | in | out |
//! |---|---|---|---|
//! | 0 | `INFO` | | version, name of the SoC, number of interrupts |
//! | 1 | `REGION` | region, window | place in the region, length, offset for `mmap(2)`, number of windows |
//! | 2 | `CALL` | a TISCI message, header included | the answer, in its place |
//! | 3 | `MAP` | address and length in this process, whole pages | the DMA address |
//! | 4 | `UNMAP` | DMA address and length | |
//! | 5 | `IRQS` | eventfds, in order; none disables interrupts | |
//! | 6 | `ENABLE` | interrupt, which its handler has disabled | |
//!
//! | error | of | meaning |
//! |---|---|---|
//! | `EBUSY` | `open(2)` | another process has the device |
//! | `EPERM` | `CALL` | a channel, flow, ring or address that was not granted or mapped |
//! | `EREMOTEIO` | `CALL` | firmware did not acknowledge the message |
//! | `ENXIO` | `MAP` | the pages are not contiguous in physical memory |

use libc::Ioctl;

/// The version of this interface.
pub const VERSION: u32 = 1;

/// The type of the requests.
const TYPE: u32 = 0xc5;

/// `_IOWR` of `asm-generic/ioctl.h`.
const fn request(number: u32, len: usize) -> Ioctl {
    (3 << 30 | (len as u32) << 16 | TYPE << 8 | number) as Ioctl
}

/// `INFO`
pub const INFO: Ioctl = request(0, size_of::<Info>());
/// `REGION`
pub const REGION: Ioctl = request(1, size_of::<RegionWindow>());
/// `CALL`
pub const CALL: Ioctl = request(2, size_of::<Call>());
/// `MAP`
pub const MAP: Ioctl = request(3, size_of::<Map>());
/// `UNMAP`
pub const UNMAP: Ioctl = request(4, size_of::<Map>());
/// `IRQS`
pub const IRQS: Ioctl = request(5, size_of::<Irqs>());

/// `ENABLE`
pub const ENABLE: Ioctl = request(6, size_of::<Enable>());

/// What the device is.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Info {
    /// Length of this structure.
    pub size: u32,
    /// [`VERSION`]
    pub version: u32,
    /// Name of the SoC, as in `soc=`, padded by zeros.
    pub soc: [u8; 16],
    /// Number of interrupts.
    pub irqs: u32,
    /// Zero.
    pub pad: u32,
}

/// A part of a region that can be mapped: a region of registers is not mapped as a whole, but only
/// where its rings and channels were granted.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct RegionWindow {
    /// Length of this structure.
    pub size: u32,
    /// The region: 0 switch, 1 rings, 2 transmit channels, 3 receive channels, 4 FIFO windows.
    pub region: u32,
    /// The window, 0 and up.
    pub window: u32,
    /// Number of windows of the region.
    pub windows: u32,
    /// Byte offset of the window in its region.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset for `mmap(2)`.
    pub offset: u64,
}

/// A message to system firmware, or its answer.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Length of this structure.
    pub size: u32,
    /// Bytes of the message.
    pub len: u32,
    /// The message.
    pub message: [u8; 64],
}

impl Default for Call {
    fn default() -> Call {
        Call { size: 0, len: 0, message: [0; 64] }
    }
}

/// Memory of this process for the device.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Map {
    /// Length of this structure.
    pub size: u32,
    /// Zero.
    pub pad: u32,
    /// The address in this process.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// The DMA address, without an address space tag.
    pub dma: u64,
}

/// Eventfds for interrupts.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Irqs {
    /// Length of this structure.
    pub size: u32,
    /// Number of eventfds.
    pub count: u32,
    /// The eventfds: of the transmit channels 0 to 7, then of the receive flows 0 to 7.
    pub fds: [i32; 16],
}

/// An interrupt that is enabled again.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Enable {
    /// Length of this structure.
    pub size: u32,
    /// The interrupt.
    pub irq: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The layouts that a C compiler makes of the same structures (LP64).
    #[test]
    fn structures_and_requests_are_those_of_the_interface() {
        assert_eq!([size_of::<Info>(), size_of::<RegionWindow>(), size_of::<Call>()], [32, 40, 72]);
        assert_eq!([size_of::<Map>(), size_of::<Irqs>()], [32, 72]);
        assert_eq!([offset_of!(Info, soc), offset_of!(Info, irqs)], [8, 24]);
        assert_eq!([offset_of!(RegionWindow, windows), offset_of!(RegionWindow, offset)], [12, 32]);
        assert_eq!([offset_of!(Call, message), offset_of!(Map, address), offset_of!(Map, dma)], [8, 8, 24]);
        let requests = [INFO, REGION, CALL, MAP, UNMAP, IRQS, ENABLE].map(|request| request & 0xffff_ffff);
        assert_eq!(
            requests,
            [0xc020_c500, 0xc028_c501, 0xc048_c502, 0xc020_c503, 0xc020_c504, 0xc048_c505, 0xc008_c506]
        );
    }
}
