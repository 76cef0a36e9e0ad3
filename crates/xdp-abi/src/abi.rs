//! The structures and constants of `<xdp/xsk.h>` and `<linux/if_xdp.h>`.

use libc::c_void;

/// `struct xsk_ring_prod` and `struct xsk_ring_cons`: one side's end of a ring. The header's inline
/// helpers work on it directly.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Ring {
    /// Entries that were reserved (producer), or the last value read of the producer's counter
    /// (consumer).
    pub cached_prod: u32,
    /// The last value read of the consumer's counter, plus the size (producer), or entries that
    /// were peeked (consumer).
    pub cached_cons: u32,
    /// The size minus one.
    pub mask: u32,
    /// Entries.
    pub size: u32,
    /// The shared counter of the producer.
    pub producer: *mut u32,
    /// The shared counter of the consumer.
    pub consumer: *mut u32,
    /// The first entry.
    pub ring: *mut c_void,
    /// The shared flags.
    pub flags: *mut u32,
}

/// `struct xdp_desc`.
pub type Desc = towpath_packet::xsk_ring::Desc;

/// `struct xsk_umem_config`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UmemConfig {
    /// Entries of the FILL ring.
    pub fill_size: u32,
    /// Entries of the COMPLETION ring.
    pub comp_size: u32,
    /// Bytes of a chunk.
    pub frame_size: u32,
    /// Bytes that stay free in front of a received frame, on top of [`PACKET_HEADROOM`].
    pub frame_headroom: u32,
    /// `XDP_UMEM_…`.
    pub flags: u32,
}

impl Default for UmemConfig {
    /// libxdp's defaults, for a null pointer.
    fn default() -> UmemConfig {
        UmemConfig { fill_size: 2048, comp_size: 2048, frame_size: 4096, frame_headroom: 0, flags: 0 }
    }
}

/// `struct xsk_socket_config`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct SocketConfig {
    /// Entries of the RX ring.
    pub rx_size: u32,
    /// Entries of the TX ring.
    pub tx_size: u32,
    /// `XSK_LIBXDP_FLAGS__…`.
    pub libxdp_flags: u32,
    /// Flags for the program that libxdp would attach.
    pub xdp_flags: u32,
    /// `XDP_…` of `sockaddr_xdp`.
    pub bind_flags: u16,
}

impl Default for SocketConfig {
    /// libxdp's defaults, for a null pointer.
    fn default() -> SocketConfig {
        SocketConfig { rx_size: 2048, tx_size: 2048, libxdp_flags: 0, xdp_flags: 0, bind_flags: 0 }
    }
}

/// `XDP_PACKET_HEADROOM`: bytes that the kernel leaves free in front of every received frame.
pub const PACKET_HEADROOM: u32 = 256;
/// `XDP_UMEM_UNALIGNED_CHUNK_FLAG`.
pub const UMEM_UNALIGNED: u32 = 1;
/// `XDP_UMEM_TX_SW_CSUM`.
pub const UMEM_TX_SW_CSUM: u32 = 1 << 1;
/// `XDP_UMEM_TX_METADATA_LEN`.
pub const UMEM_TX_METADATA_LEN: u32 = 1 << 2;
/// `XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD`, the only flag.
pub const INHIBIT_PROG_LOAD: u32 = 1;
/// `XDP_COPY`.
pub const BIND_COPY: u16 = 1 << 1;
/// `XDP_ZEROCOPY`.
pub const BIND_ZEROCOPY: u16 = 1 << 2;
/// `XDP_USE_NEED_WAKEUP`.
pub const BIND_NEED_WAKEUP: u16 = 1 << 3;
/// `XDP_USE_SG`.
pub const BIND_SG: u16 = 1 << 4;
/// `IF_NAMESIZE`: bytes of the longest interface name with its terminating zero.
pub const NAME_SIZE: usize = 16;
