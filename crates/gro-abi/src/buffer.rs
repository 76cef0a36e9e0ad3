//! Buffers of the program in the engine.

use crate::abi::{self, Offload, Packet, TakePacket};
use std::ffi::c_void;
use towpath_gro::{Linear, Segment, Sink};

/// The buffer of a packet, which is the engine's until the packet comes back.
#[derive(Debug)]
pub(crate) struct Buffer {
    data: *mut u8,
    capacity: usize,
    user: *mut c_void,
}

impl AsRef<[u8]> for Buffer {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the caller of `read` ensures that the bytes are memory that only the engine uses.
        unsafe { std::slice::from_raw_parts(self.data, self.capacity) }
    }
}

impl AsMut<[u8]> for Buffer {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.capacity) }
    }
}

/// Whether a packet may be read: it has bytes, no more than its buffer, and an offload that can be
/// true of it.
pub(crate) fn check(packet: &Packet) -> bool {
    let is_buffer = !packet.data.is_null() && packet.capacity <= isize::MAX as usize;
    is_buffer && (1..=packet.capacity).contains(&packet.len) && offload(packet.offload, packet.len).is_some()
}

/// The engine's form of an offload of a packet of `len` bytes; `None` if it cannot be true.
pub(crate) fn offload(offload: Offload, len: usize) -> Option<towpath_gro::Offload> {
    towpath_gro::Offload::from_virtio(&offload, len).ok()
}

/// The engine's form of a packet that was [checked](check).
///
/// # Safety
/// The packet's buffer is memory of `capacity` bytes, which nothing else uses until the packet
/// comes back.
#[inline]
pub(crate) unsafe fn read(packet: &Packet) -> Linear<Buffer> {
    let buffer = Buffer { data: packet.data, capacity: packet.capacity, user: packet.user };
    Linear::new(buffer, packet.len, offload(packet.offload, packet.len).unwrap_or_default())
}

/// The program's functions as the engine's sink.
pub(crate) struct ToProgram {
    packet: TakePacket,
    spent: TakePacket,
    context: *mut c_void,
}

impl ToProgram {
    /// `None` if a function is null.
    ///
    /// # Safety
    /// The functions are those of the header.
    pub(crate) unsafe fn new(sink: &abi::Sink) -> Option<ToProgram> {
        Some(ToProgram { packet: sink.packet?, spent: sink.spent?, context: sink.context })
    }

    #[inline]
    fn pass(&self, to: TakePacket, packet: Linear<Buffer>) {
        let len = packet.packet_len();
        // An aggregate outside of tunnels, which the engine does not enter here, has a header.
        let offload = packet.offload().to_virtio(len).unwrap_or_default();
        let Buffer { data, capacity, user } = packet.into_buffer();
        let packet = Packet { data, len, capacity, offload, user };
        // SAFETY: the function is the program's, for a packet that lives across the call.
        unsafe { to(self.context, &packet) };
    }
}

impl Sink<Linear<Buffer>> for ToProgram {
    #[inline]
    fn packet(&mut self, packet: Linear<Buffer>) {
        self.pass(self.packet, packet);
    }

    #[inline]
    fn recycle(&mut self, spent: Linear<Buffer>) {
        self.pass(self.spent, spent);
    }
}
