//! AF_XDP sockets: their UMEM, their rings, their options (`include/uapi/linux/if_xdp.h`,
//! `net/xdp/xsk.c`).
//!
//! ```text
//!   Socket ── register_umem(memory) ── create_rings(sizes) ──► Rings { fill, completion, rx, tx }
//!      └───── bind(interface, queue)                            each a mapping of its own
//! ```
//!
//! The kernel pins the pages of the UMEM. If the memory is unmapped before the socket is closed,
//! the kernel's writes reach only the pinned pages.

use super::check;
use super::mmap::Mmap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

/// Bytes that the kernel leaves free in front of a received frame (`XDP_PACKET_HEADROOM`).
pub const KERNEL_HEADROOM: usize = 256;

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

/// The offsets from which the rings are mapped.
mod offset {
    pub(super) const RX: u64 = 0;
    pub(super) const TX: u64 = 0x8000_0000;
    pub(super) const FILL: u64 = 0x1_0000_0000;
    pub(super) const COMPLETION: u64 = 0x1_8000_0000;
}

/// Flags of `sockaddr_xdp`.
pub mod bind {
    /// The UMEM is that of another socket.
    pub const SHARED_UMEM: u16 = 1;
    /// Frames are copied between UMEM and driver.
    pub const COPY: u16 = 2;
    /// The driver uses the UMEM itself; otherwise the bind fails.
    pub const ZEROCOPY: u16 = 4;
    /// The rings have a flag that says when the kernel needs a wakeup.
    pub const NEED_WAKEUP: u16 = 8;
    /// Packets may have several fragments.
    pub const SG: u16 = 16;
}

/// Layout of a UMEM (`xdp_umem_reg`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UmemConfig {
    /// Bytes from the mapping's first on.
    pub len: u64,
    /// Bytes of a chunk.
    pub chunk: u32,
    /// Bytes that stay free in front of a received frame, in addition to [`KERNEL_HEADROOM`].
    pub headroom: u32,
    /// Chunks need not be a power of two, nor begin at a multiple of their size.
    pub unaligned: bool,
    /// Bytes of metadata in front of a sent frame; 0 for none.
    pub tx_metadata: u32,
}

impl UmemConfig {
    /// Aligned chunks without headroom and metadata.
    pub const fn new(len: u64, chunk: u32) -> UmemConfig {
        UmemConfig { len, chunk, headroom: 0, unaligned: false, tx_metadata: 0 }
    }
}

/// The kernel's counters of a socket (`xdp_statistics`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Statistics {
    /// Received frames that were dropped because they exceed a chunk, or the fill ring had none.
    pub rx_dropped: u64,
    /// Invalid entries of the fill ring.
    pub rx_invalid: u64,
    /// Invalid entries of the TX ring.
    pub tx_invalid: u64,
    /// Received frames that were dropped because the RX ring was full.
    pub rx_ring_full: u64,
    /// Times that the fill ring was empty.
    pub fill_empty: u64,
    /// Times that the TX ring was empty.
    pub tx_empty: u64,
}

/// An AF_XDP socket.
#[derive(Debug)]
pub struct Socket(OwnedFd);

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
    rx: RingOffsets,
    tx: RingOffsets,
    fill: RingOffsets,
    completion: RingOffsets,
}

/// Entries of each ring, powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSizes {
    /// Of the fill ring.
    pub fill: u32,
    /// Of the completion ring.
    pub completion: u32,
    /// Of the RX ring; `None` for a socket that only sends.
    pub rx: Option<u32>,
    /// Of the TX ring.
    pub tx: u32,
}

/// Offsets of a ring's parts in its mapping (`xdp_ring_offset`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RingOffsets {
    /// The producer's counter.
    pub producer: u64,
    /// The consumer's counter.
    pub consumer: u64,
    /// The first entry.
    pub desc: u64,
    /// The flags.
    pub flags: u64,
}

/// A ring in a mapping of its own.
#[derive(Debug)]
pub struct RingMap {
    memory: Mmap,
    offsets: RingOffsets,
    size: u32,
}

impl RingMap {
    /// Offsets of the ring's parts.
    pub fn offsets(&self) -> RingOffsets {
        self.offsets
    }

    /// Entries.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The mapping of this ring alone.
    pub fn into_memory(self) -> Mmap {
        self.memory
    }
}

/// The rings of a socket. Entries of FILL and COMPLETION are 8 bytes, those of RX and TX 16
/// (`xdp_desc`).
#[derive(Debug)]
pub struct Rings {
    /// Buffers for received frames; user space produces.
    pub fill: RingMap,
    /// Sent buffers; user space consumes.
    pub completion: RingMap,
    /// Received frames, if there is such a ring; user space consumes.
    pub rx: Option<RingMap>,
    /// Frames to send; user space produces.
    pub tx: RingMap,
}

impl Socket {
    /// An unbound socket.
    ///
    /// # Errors
    /// The error of `socket(2)`.
    pub fn new() -> io::Result<Socket> {
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: the kernel just returned this descriptor; it has no other owner.
        Ok(Socket(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T, len: usize) -> io::Result<()> {
        let (at, len) = ((value as *const T).cast(), len.min(size_of::<T>()) as libc::socklen_t);
        // SAFETY: address and length describe the borrowed value, which the kernel only reads.
        check(unsafe { libc::setsockopt(self.as_raw_fd(), level, option, at, len) }).map(drop)
    }

    /// Returns the value, and how many bytes of it the kernel wrote.
    ///
    /// # Safety
    /// `T` is plain data of which every bit pattern is a value.
    unsafe fn get<T>(&self, option: libc::c_int, mut value: T) -> io::Result<(T, usize)> {
        let mut len = size_of::<T>() as libc::socklen_t;
        let at = (&raw mut value).cast();
        // SAFETY: address and length describe `value`; any bytes that the kernel writes there are a
        // T.
        check(unsafe { libc::getsockopt(self.as_raw_fd(), libc::SOL_XDP, option, at, &mut len) })?;
        Ok((value, len as usize))
    }

    /// Registers the memory at `base` as the socket's UMEM.
    ///
    /// # Safety
    /// `umem.len` bytes at `base` are mapped. From now on the kernel writes to the chunks whose
    /// addresses are in the fill ring: the caller puts no chunk there to whose bytes there is a
    /// reference.
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub unsafe fn register_umem(&self, base: NonNull<u8>, umem: &UmemConfig) -> io::Result<()> {
        let flags = u32::from(umem.unaligned) | if umem.tx_metadata > 0 { 4 } else { 0 };
        let registration = Registration {
            addr: base.as_ptr().expose_provenance() as u64,
            len: umem.len,
            chunk_size: umem.chunk,
            headroom: umem.headroom,
            flags,
            tx_metadata_len: umem.tx_metadata,
        };
        // Kernels before 6.8 take 28 bytes at most; every kernel takes the first 24.
        let len = if flags == 0 { 24 } else { size_of::<Registration>() };
        self.set(libc::SOL_XDP, option::UMEM_REG, &registration, len)
    }

    /// Makes the rings and maps them.
    ///
    /// # Errors
    /// The error of `setsockopt(2)` or `mmap(2)`; `Unsupported` before Linux 5.4.
    pub fn create_rings(&self, sizes: &RingSizes) -> io::Result<Rings> {
        let each = [
            (option::FILL_RING, Some(sizes.fill)),
            (option::COMPLETION_RING, Some(sizes.completion)),
            (option::RX_RING, sizes.rx),
            (option::TX_RING, Some(sizes.tx)),
        ];
        for (ring, size) in each {
            let Some(size) = size else { continue };
            self.set(libc::SOL_XDP, ring, &size, 4)?;
        }
        // SAFETY: integers, for which every pattern of bits is a value.
        let (at, len) = unsafe { self.get(option::MMAP_OFFSETS, AllOffsets::default()) }?;
        if len != size_of::<AllOffsets>() {
            // Before Linux 5.4 the structure is shorter and has no flags.
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Rings {
            fill: map_ring(self, offset::FILL, &at.fill, sizes.fill, 8)?,
            completion: map_ring(self, offset::COMPLETION, &at.completion, sizes.completion, 8)?,
            rx: sizes.rx.map(|size| map_ring(self, offset::RX, &at.rx, size, 16)).transpose()?,
            tx: map_ring(self, offset::TX, &at.tx, sizes.tx, 16)?,
        })
    }

    /// Binds to a queue of an interface of the socket's namespace. With `shared` the socket uses
    /// the UMEM of that socket.
    ///
    /// # Errors
    /// The error of `bind(2)`.
    pub fn bind(&self, index: i32, queue: u32, flags: u16, shared: Option<&Socket>) -> io::Result<()> {
        let address = Address {
            family: libc::AF_XDP as u16,
            flags: flags | if shared.is_some() { bind::SHARED_UMEM } else { 0 },
            ifindex: index as u32,
            queue,
            shared_umem_fd: shared.map_or(0, |s| s.as_raw_fd() as u32),
        };
        let len = size_of::<Address>() as libc::socklen_t;
        // SAFETY: the address and its length describe one sockaddr_xdp that lives until the call
        // returns.
        check(unsafe { libc::bind(self.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
    }

    /// The kernel's counters since the socket was made.
    ///
    /// # Errors
    /// The error of `getsockopt(2)`.
    pub fn statistics(&self) -> io::Result<Statistics> {
        // SAFETY: integers, for which every pattern of bits is a value.
        unsafe { self.get(option::STATISTICS, Statistics::default()) }.map(|(statistics, _)| statistics)
    }

    /// Sets the frames that one wakeup sends in copy mode, 32 to the size of the TX ring.
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub fn set_tx_budget(&self, frames: u32) -> io::Result<()> {
        self.set(libc::SOL_XDP, option::MAX_TX_SKB_BUDGET, &frames, 4)
    }

    /// Sets the bytes of frames that may wait to be transmitted in copy mode.
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub fn set_send_buffer(&self, bytes: libc::c_int) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes, 4)
            .or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes, 4))
    }

    /// Lets [`wake_rx`](Socket::wake_rx) run the driver's receive loop: for up to `micros`
    /// microseconds, with `budget` frames at a time (`SO_PREFER_BUSY_POLL`).
    ///
    /// # Errors
    /// The error of `setsockopt(2)`.
    pub fn set_busy_poll(&self, micros: u32, budget: u32) -> io::Result<()> {
        const SO_PREFER_BUSY_POLL: libc::c_int = 69;
        const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
        self.set(libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1u32, 4)?;
        self.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, &micros, 4)?;
        self.set(libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &budget, 4)
    }

    /// Makes the kernel process the TX ring. In copy mode it transmits within this call.
    ///
    /// # Errors
    /// The error of `sendto(2)`.
    #[inline]
    pub fn wake_tx(&self) -> io::Result<()> {
        // SAFETY: no bytes, no address.
        let sent =
            unsafe { libc::sendto(self.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes the kernel read the fill ring, or poll the driver for frames.
    ///
    /// # Errors
    /// The error of `recvfrom(2)`.
    #[inline]
    pub fn wake_rx(&self) -> io::Result<()> {
        let fd = self.as_raw_fd();
        // SAFETY: no bytes, no address.
        let got = unsafe { libc::recvfrom(fd, null_mut(), 0, libc::MSG_DONTWAIT, null_mut(), null_mut()) };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Maps a ring of `size` entries of `entry` bytes, from the offset `from` on.
fn map_ring(socket: &Socket, from: u64, layout: &RingOffsets, size: u32, entry: usize) -> io::Result<RingMap> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's ring offsets overflow");
    let entries = (size as usize).checked_mul(entry);
    let len = entries.and_then(|n| n.checked_add(usize::try_from(layout.desc).ok()?)).ok_or_else(bad)?;
    Ok(RingMap { memory: Mmap::populated(socket.as_fd(), from, len)?, offsets: *layout, size })
}
