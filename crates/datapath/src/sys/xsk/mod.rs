//! AF_XDP sockets: their memory, their rings, their options (`include/uapi/linux/if_xdp.h`, `net/xdp/xsk.c`).
//!
//! ```text
//!   Socket ── register(memory) ── rings(sizes) ──► Rings { fill, completion, rx, tx }, each a mapping of its own
//!      └───── bind(interface, queue) ───► works
//! ```
//!
//! The memory that is registered must outlive the socket; that is the callers' affair, who hold both, because the kernel
//! pins the pages by itself: what it writes after the memory was unmapped here hits nobody.

use super::check;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use towpath_packet::Region;
use towpath_packet::xsk_ring::{Consumer, Desc, Entry, Layout, Mapped, Memory, Producer};

/// Bytes that the kernel leaves free in front of a received frame (`XDP_PACKET_HEADROOM`).
pub(crate) const KERNEL_HEADROOM: usize = 256;

/// Options of `SOL_XDP`.
mod option {
    pub(super) const MMAP_OFFSETS: libc::c_int = 1;
    pub(super) const RX_RING: libc::c_int = 2;
    pub(super) const TX_RING: libc::c_int = 3;
    pub(super) const UMEM_REG: libc::c_int = 4;
    pub(super) const FILL_RING: libc::c_int = 5;
    pub(super) const COMPLETION_RING: libc::c_int = 6;
    pub(super) const STATISTICS: libc::c_int = 7;
    pub(super) const MAX_TX_SKB_BUDGET: libc::c_int = 9;
}

/// Where the rings are mapped from.
mod offset {
    pub(super) const RX: i64 = 0;
    pub(super) const TX: i64 = 0x8000_0000;
    pub(super) const FILL: i64 = 0x1_0000_0000;
    pub(super) const COMPLETION: i64 = 0x1_8000_0000;
}

/// Flags of `sockaddr_xdp`.
pub(crate) mod bind {
    /// The memory is that of another socket.
    pub(crate) const SHARED_UMEM: u16 = 1;
    /// Frames are copied between memory and driver.
    pub(crate) const COPY: u16 = 2;
    /// The driver uses the memory itself, or binding fails.
    pub(crate) const ZEROCOPY: u16 = 4;
    /// The rings say when the kernel must be told of new entries.
    pub(crate) const NEED_WAKEUP: u16 = 8;
    /// Packets may be in several pieces.
    pub(crate) const SG: u16 = 16;
}

/// Memory for frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Umem {
    /// Bytes from the region's first on.
    pub(crate) len: u64,
    /// Bytes of a chunk.
    pub(crate) chunk: u32,
    /// Bytes that stay free in front of a received frame, besides [`KERNEL_HEADROOM`].
    pub(crate) headroom: u32,
    /// Chunks are no power of two, or begin anywhere.
    pub(crate) unaligned: bool,
    /// Bytes of metadata in front of a sent frame; 0 for none.
    pub(crate) tx_metadata: u32,
}

/// What the kernel counts for a socket (`xdp_statistics`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub(crate) struct Statistics {
    /// Received frames that found no room in the memory: too long for a chunk, or no chunk.
    pub(crate) rx_dropped: u64,
    /// Entries of the fill ring that made no sense.
    pub(crate) rx_invalid: u64,
    /// Entries of the TX ring that made no sense.
    pub(crate) tx_invalid: u64,
    /// Received frames that found the RX ring full.
    pub(crate) rx_ring_full: u64,
    /// Times that the fill ring was empty.
    pub(crate) fill_empty: u64,
    /// Times that the TX ring was empty.
    pub(crate) tx_empty: u64,
}

/// An AF_XDP socket.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> libc::c_int {
        self.0.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `xdp_umem_reg`.
#[repr(C)]
struct Registration {
    addr: u64,
    len: u64,
    chunk_size: u32,
    headroom: u32,
    flags: u32,
    tx_metadata_len: u32,
}

/// `sockaddr_xdp`.
#[repr(C)]
struct Address {
    family: u16,
    flags: u16,
    ifindex: u32,
    queue: u32,
    shared_umem_fd: u32,
}

/// `xdp_mmap_offsets`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct AllOffsets {
    rx: Layout,
    tx: Layout,
    fill: Layout,
    completion: Layout,
}

/// Entries of each ring, powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) fill: u32,
    pub(crate) completion: u32,
    pub(crate) rx: u32,
    pub(crate) tx: u32,
}

/// The rings of a socket.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) fill: Producer<Mapped<u64>>,
    pub(crate) completion: Consumer<Mapped<u64>>,
    pub(crate) rx: Consumer<Mapped<Desc>>,
    pub(crate) tx: Producer<Mapped<Desc>>,
}

impl Socket {
    /// A socket that is bound to nothing yet.
    pub(crate) fn new() -> io::Result<Socket> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: a descriptor that was just opened and that nobody else knows of.
        Ok(Socket(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T, len: usize) -> io::Result<()> {
        let (at, len) = ((value as *const T).cast(), len.min(size_of::<T>()) as libc::socklen_t);
        // SAFETY: address and length describe the borrowed value, which the kernel only reads.
        check(unsafe { libc::setsockopt(self.as_raw_fd(), level, option, at, len) }).map(drop)
    }

    /// Returns the value, and how many bytes the kernel has of it.
    ///
    /// # Safety
    /// `T` is plain data of which every bit pattern is a value.
    unsafe fn get<T>(&self, option: libc::c_int, mut value: T) -> io::Result<(T, usize)> {
        let mut len = size_of::<T>() as libc::socklen_t;
        let at = (&raw mut value).cast();
        // SAFETY: address and length describe `value`; whatever the kernel writes there is a T.
        check(unsafe { libc::getsockopt(self.as_raw_fd(), libc::SOL_XDP, option, at, &mut len) })?;
        Ok((value, len as usize))
    }

    /// Registers the memory that frames lie in.
    pub(crate) fn register(&self, region: &Region, umem: &Umem) -> io::Result<()> {
        if umem.len > region.len() as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = u32::from(umem.unaligned) | if umem.tx_metadata > 0 { 4 } else { 0 };
        let registration = Registration {
            addr: region.base().as_ptr().expose_provenance() as u64,
            len: umem.len,
            chunk_size: umem.chunk,
            headroom: umem.headroom,
            flags,
            tx_metadata_len: umem.tx_metadata,
        };
        // Kernels before 6.8 know only the first 28 bytes, and 24 of them are what every kernel takes.
        let len = if flags == 0 { 24 } else { size_of::<Registration>() };
        self.set(libc::SOL_XDP, option::UMEM_REG, &registration, len)
    }

    /// Makes the rings and maps them.
    pub(crate) fn rings(&self, sizes: &Sizes) -> io::Result<Rings> {
        let each = [
            (option::FILL_RING, sizes.fill),
            (option::COMPLETION_RING, sizes.completion),
            (option::RX_RING, sizes.rx),
            (option::TX_RING, sizes.tx),
        ];
        for (ring, size) in each {
            self.set(libc::SOL_XDP, ring, &size, 4)?;
        }
        // SAFETY: integers, for which every pattern of bits is a value.
        let (at, len) = unsafe { self.get(option::MMAP_OFFSETS, AllOffsets::default()) }?;
        if len != size_of::<AllOffsets>() {
            // Before Linux 5.4 the answer is shorter, and there are no flags.
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Rings {
            fill: Producer::new(ring(self, offset::FILL, &at.fill, sizes.fill)?),
            completion: Consumer::new(ring(self, offset::COMPLETION, &at.completion, sizes.completion)?),
            rx: Consumer::new(ring(self, offset::RX, &at.rx, sizes.rx)?),
            tx: Producer::new(ring(self, offset::TX, &at.tx, sizes.tx)?),
        })
    }

    /// Binds to a queue of an interface of the namespace that the socket was made in; `shared` is the socket whose memory is used.
    pub(crate) fn bind(&self, index: i32, queue: u32, flags: u16, shared: Option<&Socket>) -> io::Result<()> {
        let address = Address {
            family: libc::AF_XDP as u16,
            flags: flags | if shared.is_some() { bind::SHARED_UMEM } else { 0 },
            ifindex: index as u32,
            queue,
            shared_umem_fd: shared.map_or(0, |s| s.as_raw_fd() as u32),
        };
        let len = size_of::<Address>() as libc::socklen_t;
        // SAFETY: the address and its length describe one sockaddr_xdp that lives until the call returns.
        check(unsafe { libc::bind(self.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
    }

    /// What the kernel counted since the socket was made.
    pub(crate) fn statistics(&self) -> io::Result<Statistics> {
        // SAFETY: integers, for which every pattern of bits is a value.
        unsafe { self.get(option::STATISTICS, Statistics::default()) }.map(|(statistics, _)| statistics)
    }

    /// Frames that one wake-up may send in copy mode, 32 to the size of the TX ring.
    pub(crate) fn set_tx_budget(&self, frames: u32) -> io::Result<()> {
        self.set(libc::SOL_XDP, option::MAX_TX_SKB_BUDGET, &frames, 4)
    }

    /// Bytes of frames that may be on their way out in copy mode.
    pub(crate) fn set_send_buffer(&self, bytes: libc::c_int) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes, 4)
            .or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes, 4))
    }

    /// Lets this thread run the driver's receive loop when it looks for frames: for up to `micros`, `budget` frames at a time.
    pub(crate) fn set_busy_poll(&self, micros: u32, budget: u32) -> io::Result<()> {
        const SO_PREFER_BUSY_POLL: libc::c_int = 69;
        const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
        self.set(libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1u32, 4)?;
        self.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, &micros, 4)?;
        self.set(libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &budget, 4)
    }

    /// Tells the kernel that there is something to send; in copy mode it sends within this call.
    #[inline]
    pub(crate) fn wake_tx(&self) -> io::Result<()> {
        // SAFETY: no bytes, no address.
        let sent =
            unsafe { libc::sendto(self.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Tells the kernel that there are buffers, or lets it look for frames.
    #[inline]
    pub(crate) fn wake_rx(&self) -> io::Result<()> {
        let fd = self.as_raw_fd();
        // SAFETY: no bytes, no address.
        let got = unsafe { libc::recvfrom(fd, null_mut(), 0, libc::MSG_DONTWAIT, null_mut(), null_mut()) };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The ring of `size` entries that the kernel made and lets be mapped from the offset `from` on.
fn ring<T: Entry>(socket: &Socket, from: i64, layout: &Layout, size: u32) -> io::Result<Mapped<T>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "offsets of a ring that cannot be");
    let entries = (size as usize).checked_mul(T::WORDS * 8);
    let len = entries.and_then(|n| n.checked_add(usize::try_from(layout.desc).ok()?)).ok_or_else(bad)?;
    let memory = Arc::new(Mapping::new(socket, from, len)?);
    // SAFETY: the mapping is the ring's own, and stays until it is dropped; nothing else is made of it.
    unsafe { Mapped::new(memory, layout, size) }.ok_or_else(bad)
}

/// Memory of the kernel; unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range that it owns until drop; it gives out nothing but addresses.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(socket: &Socket, from: i64, len: usize) -> io::Result<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let shared = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping of a ring that was just made, at an address that the kernel chooses.
        let map = unsafe { libc::mmap(null_mut(), len, access, shared, socket.as_raw_fd(), from) };
        let base = NonNull::new(map.cast::<u8>()).filter(|map| map.as_ptr().cast() != libc::MAP_FAILED);
        Ok(Mapping { base: base.ok_or_else(io::Error::last_os_error)?, len })
    }
}

impl Memory for Mapping {
    fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: offset <= end <= the mapping's length, so the address stays inside (or one past its end).
        (end <= self.len).then(|| unsafe { self.base.add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, of this length, and nothing borrowed from it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
