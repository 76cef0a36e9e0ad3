//! The virtio-net header of a [`Packet`](towpath_packet::Packet), from
//! [`towpath_packet::vnet`]: drivers of virtio devices use it as well.

pub use towpath_packet::vnet::*;
