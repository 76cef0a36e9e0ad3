//! The structures of `towpath_gro.h`.

use std::ffi::c_void;
use towpath_wire::virtio_net::VnetHeader;

/// `struct towpath_gro_offload`: a virtio-net header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "the header describes them")]
pub struct Offload {
    pub flags: u8,
    pub gso_type: u8,
    pub hdr_len: u16,
    pub gso_size: u16,
    pub csum_start: u16,
    pub csum_offset: u16,
}

impl From<VnetHeader> for Offload {
    fn from(header: VnetHeader) -> Offload {
        let VnetHeader { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset } = header;
        Offload { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset }
    }
}

impl From<Offload> for VnetHeader {
    fn from(offload: Offload) -> VnetHeader {
        let Offload { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset } = offload;
        VnetHeader { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset }
    }
}

/// `struct towpath_gro_config`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs, reason = "the header describes them")]
pub struct Config {
    pub flows: u32,
    pub max_size: u32,
    pub max_packets: u16,
    pub link: u8,
    pub udp: u8,
    pub auto_bypass: u8,
}

/// `struct towpath_gro_packet`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header describes them")]
pub struct Packet {
    pub data: *mut u8,
    pub len: usize,
    pub capacity: usize,
    pub offload: Offload,
    pub user: *mut c_void,
}

/// A function that takes a packet.
pub type TakePacket = unsafe extern "C" fn(context: *mut c_void, packet: *const Packet);

/// A function that takes a segment.
pub type TakeSegment =
    unsafe extern "C" fn(context: *mut c_void, bytes: *const u8, len: usize, offload: *const Offload);

/// `struct towpath_gro_sink`. The functions may be null in a program that breaks the rules.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header describes them")]
pub struct Sink {
    pub packet: Option<TakePacket>,
    pub spent: Option<TakePacket>,
    pub context: *mut c_void,
}

/// `struct towpath_gro_stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "the header describes them")]
pub struct Stats {
    pub packets: u64,
    pub merged: u64,
    pub bypassed: u64,
}
