//! vhost-net: a thread of the kernel that moves packets between two virtqueues and a tap (Linux
//! `include/uapi/linux/vhost.h`, `drivers/vhost/net.c`).
//!
//! ```text
//!   ring 0, receive    tap ──► the kernel's thread ──► buffers of this process
//!   ring 1, transmit   tap ◄── the kernel's thread ◄── buffers of this process
//! ```

use super::check;
use super::event::EventFd;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// The device: each open file is a pair of virtqueues.
pub const DEVICE: &str = "/dev/vhost-net";

// Requests of type `VHOST_VIRTIO`, by the direction and the size of their argument.
const SET_OWNER: libc::Ioctl = request(0, 0, 0x01);
const GET_FEATURES: libc::Ioctl = request(2, 8, 0x00);
const SET_FEATURES: libc::Ioctl = request(1, 8, 0x00);
// The size is that of the header, without its regions.
const SET_MEM_TABLE: libc::Ioctl = request(1, 8, 0x03);
const SET_VRING_NUM: libc::Ioctl = request(1, 8, 0x10);
const SET_VRING_ADDR: libc::Ioctl = request(1, 40, 0x11);
const SET_VRING_BASE: libc::Ioctl = request(1, 8, 0x12);
const SET_VRING_KICK: libc::Ioctl = request(1, 8, 0x20);
const SET_VRING_CALL: libc::Ioctl = request(1, 8, 0x21);
const SET_VRING_ERR: libc::Ioctl = request(1, 8, 0x22);
const NET_SET_BACKEND: libc::Ioctl = request(1, 8, 0x30);

const fn request(direction: u32, size: u32, number: u32) -> libc::Ioctl {
    (direction << 30 | size << 16 | 0xaf << 8 | number) as libc::Ioctl
}

/// Memory that the kernel's thread may access. Descriptors have addresses of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VhostMemory {
    /// Its address.
    pub address: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// Where a virtqueue lies in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VhostRing {
    /// Number of its descriptors, a power of two.
    pub size: u16,
    /// Address of the descriptors.
    pub desc: u64,
    /// Address of the driver area: the available ring.
    pub avail: u64,
    /// Address of the device area: the used ring.
    pub used: u64,
}

/// `struct vhost_vring_state`, or `struct vhost_vring_file`, whose number is a descriptor.
#[repr(C)]
struct VringNumber {
    index: u32,
    number: i32,
}

/// `struct vhost_vring_addr`.
#[repr(C)]
struct VringAddr {
    index: u32,
    flags: u32,
    desc: u64,
    used: u64,
    avail: u64,
    log: u64,
}

/// The descriptors of events of a ring.
#[derive(Debug, Clone, Copy)]
pub struct VhostEvents<'a> {
    /// This process has new chains.
    pub kick: &'a EventFd,
    /// The kernel has used chains.
    pub call: &'a EventFd,
    /// The kernel found the ring broken, and has stopped.
    pub error: &'a EventFd,
}

/// A pair of virtqueues, of which this process is the owner. Closing it stops both.
#[derive(Debug)]
pub struct VhostNet(File);

impl VhostNet {
    /// Opens [`DEVICE`] and becomes the owner; the kernel makes its thread.
    ///
    /// # Errors
    /// The error of `open(2)`: `ENOENT` without the kernel's module, `EACCES` without the right to
    /// use it; or of the ioctl.
    pub fn open() -> io::Result<VhostNet> {
        let file = OpenOptions::new().read(true).write(true).open(DEVICE)?;
        // SAFETY: VHOST_SET_OWNER takes no argument.
        check(unsafe { libc::ioctl(file.as_raw_fd(), SET_OWNER) })?;
        Ok(VhostNet(file))
    }

    /// The features that the kernel offers: those of rings, and `VIRTIO_NET_F_MRG_RXBUF`. Offloads
    /// are the tap's.
    ///
    /// # Errors
    /// The error of the ioctl.
    pub fn features(&self) -> io::Result<u64> {
        let mut bits = 0u64;
        // SAFETY: VHOST_GET_FEATURES fills one u64, which is borrowed exclusively.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), GET_FEATURES, &mut bits) })?;
        Ok(bits)
    }

    /// Sets the features.
    ///
    /// # Errors
    /// The error of the ioctl: `EOPNOTSUPP` for a feature that is not offered.
    pub fn set_features(&self, bits: u64) -> io::Result<()> {
        // SAFETY: VHOST_SET_FEATURES reads one u64.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), SET_FEATURES, &bits) }).map(drop)
    }

    /// Sets all memory that the kernel's thread may access. When this returns, it accesses none
    /// that was set before and is not in `memory`.
    ///
    /// # Safety
    /// The memory stays mapped until a call without it has returned, or until this value was
    /// dropped. While a ring [runs](VhostNet::start), this process does not rely on bytes that a
    /// descriptor lets the kernel write.
    ///
    /// # Errors
    /// The error of the ioctl: `E2BIG` for more regions than the parameter `max_mem_regions` of the
    /// module `vhost`, `EFAULT` for memory that lacks a ring which runs.
    pub unsafe fn set_memory(&self, memory: &[VhostMemory]) -> io::Result<()> {
        // `struct vhost_memory`: the number, padding; for each region its two addresses, which are
        // the same, its length between them, and flags.
        let [a, b, c, d] = u32::try_from(memory.len()).unwrap_or(u32::MAX).to_ne_bytes();
        let header = [u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])];
        let regions = memory.iter().flat_map(|m| [m.address, m.len, m.address, 0]);
        let table: Vec<u64> = header.into_iter().chain(regions).collect();
        // SAFETY: VHOST_SET_MEM_TABLE reads the header and as many regions as that says. The caller
        // vouches for the memory.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), SET_MEM_TABLE, table.as_ptr()) }).map(drop)
    }

    /// Sets up ring `index`, which does not run: it begins with its first entry.
    ///
    /// # Safety
    /// The ring lies in memory of [`set_memory`](VhostNet::set_memory). While it runs, this process
    /// accesses it by atomic operations alone.
    ///
    /// # Errors
    /// The error of the ioctl: `EBUSY` if it runs, `EINVAL` for a size or an alignment that the
    /// kernel refuses.
    pub unsafe fn set_ring(&self, index: u32, ring: VhostRing, events: VhostEvents) -> io::Result<()> {
        self.set_number(SET_VRING_NUM, index, ring.size.into())?;
        self.set_number(SET_VRING_BASE, index, 0)?;
        let VhostRing { desc, used, avail, .. } = ring;
        let addresses = VringAddr { index, flags: 0, desc, used, avail, log: 0 };
        // SAFETY: VHOST_SET_VRING_ADDR reads the structure. The caller vouches for the ring.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), SET_VRING_ADDR, &addresses) })?;
        self.set_number(SET_VRING_KICK, index, events.kick.fd())?;
        self.set_number(SET_VRING_CALL, index, events.call.fd())?;
        self.set_number(SET_VRING_ERR, index, events.error.fd())
    }

    /// Lets ring `index` run between this process and a queue of a tap.
    ///
    /// # Errors
    /// The error of the ioctl: `ENOTSOCK` or `EINVAL` if `tap` is none, `EFAULT` if the ring is not
    /// set up or lies outside the memory.
    pub fn start(&self, index: u32, tap: BorrowedFd) -> io::Result<()> {
        self.set_number(NET_SET_BACKEND, index, tap.as_raw_fd())
    }

    /// Stops a ring that was set up. When this returns, the kernel accesses neither the ring nor
    /// its buffers.
    ///
    /// # Errors
    /// The error of the ioctl.
    pub fn stop(&self, index: u32) -> io::Result<()> {
        self.set_number(NET_SET_BACKEND, index, -1)
    }

    /// A request whose argument is a number for a ring.
    fn set_number(&self, request: libc::Ioctl, index: u32, number: RawFd) -> io::Result<()> {
        let argument = VringNumber { index, number };
        // SAFETY: these requests read one structure, and take references to files.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), request, &argument) }).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of Debian's `linux/vhost.h`, as its macros expand.
    #[test]
    fn requests_have_the_numbers_of_the_kernel() {
        let all = [SET_OWNER, GET_FEATURES, SET_FEATURES, SET_MEM_TABLE, SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE];
        let expected = [0xaf01, 0x8008_af00, 0x4008_af00, 0x4008_af03, 0x4008_af10, 0x4028_af11, 0x4008_af12];
        assert_eq!(all.map(|request| request as u32), expected);
        let files = [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR, NET_SET_BACKEND];
        assert_eq!(files.map(|request| request as u32), [0x4008_af20, 0x4008_af21, 0x4008_af22, 0x4008_af30]);
    }
}
