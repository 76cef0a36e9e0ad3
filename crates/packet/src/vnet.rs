//! The virtio-net header of a [`Packet`]: [`towpath_wire::virtio_net`] applied to its metadata.
//!
//! TUN and AF_PACKET use the host's byte order, virtio 1 and vhost little-endian.

use crate::{Checksum, DropReason, Packet};
use towpath_wire::virtio_net::Undescribable;
pub use towpath_wire::virtio_net::{DATA_VALID, Malformed, NEEDS_CSUM, VnetHeader};

/// Sets the metadata of a received packet from its header. The packet has all its bytes, and no
/// checksum state or segmentation.
///
/// # Errors
/// [`Malformed`] if the header contradicts itself or the packet; the packet is unchanged.
#[inline]
pub fn apply(header: VnetHeader, packet: &mut Packet) -> Result<(), Malformed> {
    if header.is_plain() {
        return Ok(());
    }
    let (csum, gso) = header.offload(packet.len())?;
    packet.set_csum(csum);
    packet.set_gso(gso);
    Ok(())
}

/// The header that describes the packet's metadata.
///
/// # Errors
/// [`DropReason::Malformed`] if the metadata contradicts the packet's bytes;
/// [`DropReason::Offload`] if the header cannot express it: a tag beside the packet, or
/// [`Undescribable::Unsupported`].
#[inline]
pub fn header_of(packet: &Packet) -> Result<VnetHeader, DropReason> {
    let csum = packet.csum();
    if !packet.wants_offload() {
        let flags = if csum == Checksum::Verified { DATA_VALID } else { 0 };
        return Ok(VnetHeader { flags, ..VnetHeader::default() });
    }
    if packet.vlan().is_some() {
        return Err(DropReason::Offload);
    }
    VnetHeader::new(csum, packet.gso(), packet.len()).map_err(|error| match error {
        Undescribable::Unsupported => DropReason::Offload,
        _ => DropReason::Malformed,
    })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
