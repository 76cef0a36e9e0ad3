//! The structures of options of libxdp 1.5, which begin with their size.

use crate::abi::{Ring, SocketConfig, UmemConfig};
use crate::failure::{Failure, failure};
use libc::{c_int, size_t};

/// `struct xsk_umem_opts`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct UmemOpts {
    /// Bytes of the structure, as the program knows it.
    pub sz: size_t,
    /// A socket for the UMEM, or 0.
    pub fd: c_int,
    /// Bytes of the memory.
    pub size: u64,
    /// Entries of the FILL ring.
    pub fill_size: u32,
    /// Entries of the COMPLETION ring.
    pub comp_size: u32,
    /// Bytes of a chunk.
    pub frame_size: u32,
    /// As in [`UmemConfig`].
    pub frame_headroom: u32,
    /// `XDP_UMEM_…`.
    pub flags: u32,
    /// Bytes of metadata in front of sent frames.
    pub tx_metadata_len: u32,
}

/// `struct xsk_socket_opts`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct SocketOpts {
    /// Bytes of the structure, as the program knows it.
    pub sz: size_t,
    /// The rings; null for those that are not used.
    pub rx: *mut Ring,
    /// As `rx`.
    pub tx: *mut Ring,
    /// FILL and COMPLETION of the socket's own; null for those of the UMEM.
    pub fill: *mut Ring,
    /// As `fill`.
    pub comp: *mut Ring,
    /// As in [`SocketConfig`].
    pub rx_size: u32,
    /// As in [`SocketConfig`].
    pub tx_size: u32,
    /// As in [`SocketConfig`].
    pub libxdp_flags: u32,
    /// As in [`SocketConfig`].
    pub xdp_flags: u32,
    /// As in [`SocketConfig`].
    pub bind_flags: u16,
}

/// A structure of options: plain numbers and pointers, for which zeroes stand for the default.
///
/// # Safety
/// `#[repr(C)]`, begins with its size as a `size_t`, and all zeroes are a value.
pub(crate) unsafe trait Opts: Copy {}

// SAFETY: as required.
unsafe impl Opts for UmemOpts {}
// SAFETY: as required.
unsafe impl Opts for SocketOpts {}

/// Bytes of the longest structure of a later version.
const LONGEST: usize = 4096;

/// Reads a structure of an earlier or later version; zeroes for null.
///
/// # Errors
/// `EINVAL` for a size that can't be, and for fields of later versions that are not zero.
///
/// # Safety
/// The pointer is null, or points to as many bytes as its first field says.
pub(crate) unsafe fn read<T: Opts>(opts: *const T) -> Result<T, Failure> {
    // SAFETY: all zeroes are a value.
    let mut known: T = unsafe { std::mem::zeroed() };
    if opts.is_null() {
        return Ok(known);
    }
    // SAFETY: it begins with its size, as the caller promises.
    let len = unsafe { opts.cast::<size_t>().read() };
    if !(size_of::<size_t>()..=LONGEST).contains(&len) {
        return Err(failure(libc::EINVAL, format!("options of {len} bytes: they begin with their size")));
    }
    // SAFETY: that many bytes, as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts(opts.cast::<u8>(), len) };
    if bytes.iter().skip(size_of::<T>()).any(|byte| *byte != 0) {
        return Err(failure(libc::EINVAL, "options of a later version that this library does not know"));
    }
    // SAFETY: no more bytes than either has; a field that is cut off stays zero.
    unsafe { std::ptr::copy_nonoverlapping(opts.cast::<u8>(), (&raw mut known).cast(), len.min(size_of::<T>())) };
    Ok(known)
}

/// A number, or its default in place of 0.
fn or(number: u32, default: u32) -> u32 {
    if number == 0 { default } else { number }
}

impl UmemOpts {
    /// The configuration in it.
    pub(crate) fn config(&self) -> UmemConfig {
        let default = UmemConfig::default();
        UmemConfig {
            fill_size: or(self.fill_size, default.fill_size),
            comp_size: or(self.comp_size, default.comp_size),
            frame_size: or(self.frame_size, default.frame_size),
            frame_headroom: self.frame_headroom,
            flags: self.flags,
        }
    }
}

impl SocketOpts {
    /// The configuration in it.
    pub(crate) fn config(&self) -> SocketConfig {
        let default = SocketConfig::default();
        SocketConfig {
            rx_size: or(self.rx_size, default.rx_size),
            tx_size: or(self.tx_size, default.tx_size),
            libxdp_flags: self.libxdp_flags,
            xdp_flags: self.xdp_flags,
            bind_flags: self.bind_flags,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A structure of a later version.
    #[repr(C)]
    struct Later {
        known: UmemOpts,
        more: u64,
    }

    fn later(sz: usize, more: u64) -> Result<UmemOpts, i32> {
        // SAFETY: all zeroes are a value.
        let zeroes: UmemOpts = unsafe { std::mem::zeroed() };
        let opts = Later { known: UmemOpts { sz, fill_size: 64, tx_metadata_len: 24, ..zeroes }, more };
        // SAFETY: a structure of that many bytes.
        unsafe { read(&raw const opts.known) }.map_err(|failure| failure.errno)
    }

    #[test]
    fn structures_of_other_versions_are_read_by_their_size() {
        let now = later(size_of::<UmemOpts>(), 7).unwrap();
        assert_eq!((now.fill_size, now.tx_metadata_len), (64, 24));
        let before = later(std::mem::offset_of!(UmemOpts, tx_metadata_len), 7).unwrap();
        assert_eq!((before.config().fill_size, before.config().comp_size, before.tx_metadata_len), (64, 2048, 0));
        assert_eq!(later(size_of::<Later>(), 0).unwrap().tx_metadata_len, 24);
        for (sz, more) in [(0, 0), (7, 0), (size_of::<Later>(), 1), (usize::MAX, 0)] {
            assert_eq!(later(sz, more).err(), Some(libc::EINVAL), "{sz} {more}");
        }
    }

    #[test]
    fn no_options_are_the_defaults() {
        // SAFETY: null.
        let (umem, socket) = unsafe { (read::<UmemOpts>(std::ptr::null()), read::<SocketOpts>(std::ptr::null())) };
        assert_eq!(umem.unwrap().config(), UmemConfig::default());
        assert_eq!(socket.unwrap().config(), SocketConfig::default());
    }
}
