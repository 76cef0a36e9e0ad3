//! The virtio-net header of a [`Packet`]: [`towpath_packet::vnet`], and for packets whose bytes
//! another process can write.

// Also for guests: a super-packet of an untrusted owner has no longer headers.
pub(crate) use towpath_client::protocol::MAX_SUPER_HEADERS;
use towpath_gro as gro;
pub use towpath_packet::vnet::*;
use towpath_packet::{Checksum, Gso, Packet};
use towpath_wire::ethernet::MAX_PACKET;

/// What [`apply_untrusted`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Applied {
    /// Bytes of the packet, or of the longest of its segments; more than [`MAX_PACKET`] for a
    /// packet that is too long, or whose headers do not fit into its head.
    pub(crate) longest: usize,
    /// Bytes of headers that were copied into the head.
    pub(crate) copied: usize,
}

/// As [`apply`], for a packet with bytes that another process can write. The headers of a
/// super-packet are copied into the head and checked there, by the code that segments, so that the
/// other process can't change what an egress or a device relies on.
///
/// # Errors
/// [`Malformed`], or `None` for a super-packet with other headers than the header says, in a
/// tunnel, of more than `max_segments`, or without a partial checksum.
pub(crate) fn apply_untrusted(
    header: VnetHeader,
    packet: &mut Packet,
    max_segments: usize,
) -> Result<Applied, Option<Malformed>> {
    apply(header, packet)?;
    let len = packet.len();
    let Some(gso) = packet.gso() else {
        return Ok(Applied { longest: len, copied: 0 });
    };
    let linear = packet.linear().len();
    if len > MAX_PACKET || packet.make_linear(len.min(MAX_SUPER_HEADERS)).is_err() {
        return Ok(Applied { longest: len.max(MAX_PACKET + 1), copied: 0 });
    }
    let copied = packet.linear().len() - linear;
    let start = packet.linear().get(..len.min(MAX_SUPER_HEADERS)).unwrap_or_default();
    let offload = gro::Offload::new(packet.csum(), Some(gso));
    let cuts = gro::Cuts::of(start, len, gro::LinkKind::Ethernet, &offload).map_err(|_| None)?;
    if cuts.tunneled || cuts.packets > max_segments || !matches!(packet.csum(), Checksum::Partial { .. }) {
        return Err(None);
    }
    // A super-packet of one segment is a packet with a partial checksum.
    packet.set_gso((cuts.packets > 1).then_some(Gso { hdr_len: cuts.header as u16, ..gso }));
    Ok(Applied { longest: len.min(cuts.header + usize::from(gso.size)), copied })
}
