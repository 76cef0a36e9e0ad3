//! The structures of `towpath_gro.h`.

use std::ffi::c_void;

/// `struct towpath_gro_offload`.
pub use towpath_wire::virtio_net::VnetHeader as Offload;

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
