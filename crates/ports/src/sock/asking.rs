//! What applications ask for in front of a frame: that its checksum be completed, or that it be cut into segments.
//!
//! ```text
//!   virtio-net header   10 bytes, as in front of received packets: checksum, segmentation if the session may
//!   AF_XDP's metadata   16 bytes and more: checksum
//! ```
//!
//! It is read once, and checked when its packet is complete. The headers of a super-packet are copied into the head, and checked there, by
//! the engine that would cut it: the application can't change any more what an egress or a device relies on.

use super::events::Fault;
use super::memory::Memory;
use super::sending::Tally;
use crate::kernel::rx_buffers::LONGEST;
use crate::vnet::{self};
use crate::vnet::{DATA_VALID, NEEDS_CSUM, VnetHeader};
use towpath_client::protocol::{HEADER, Hello, MAX_SEGMENTS, MAX_SUPER_HEADERS, REQUEST_CHECKSUM};
use towpath_gro as gro;
use towpath_packet::{Checksum, Gso, Packet};

/// What a session may ask for, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metadata {
    /// Nothing.
    None,
    /// By so many bytes as AF_XDP has them.
    Xdp(u32),
    /// By a virtio-net header.
    Header {
        /// Also for segmentation.
        segmentation: bool,
    },
}

impl Metadata {
    pub(super) fn of(hello: &Hello) -> Metadata {
        match hello.tx_metadata {
            0 => Metadata::None,
            n if n as usize == HEADER => Metadata::Header { segmentation: hello.segmentation },
            n => Metadata::Xdp(n),
        }
    }

    /// Whether super-packets may be asked for.
    pub(super) fn segmentation(self) -> bool {
        self == Metadata::Header { segmentation: true }
    }

    /// Reads what lies in front of a frame; `None` if it asks for nothing.
    pub(super) fn read(self, memory: &Memory, addr: u64) -> Result<Option<VnetHeader>, Fault> {
        let header = match self {
            Metadata::None => None,
            Metadata::Xdp(len) => memory.in_front(addr, len).and_then(checksum),
            Metadata::Header { segmentation } => memory.in_front(addr, HEADER as u32).and_then(|bytes| {
                let header = VnetHeader::from_ne_bytes(&bytes);
                let known = header.flags & !(NEEDS_CSUM | DATA_VALID) == 0;
                (known && (segmentation || header.gso_type == 0)).then_some(header)
            }),
        };
        let header = header.ok_or(Fault::Descriptor)?;
        // That a checksum is right nobody believes an application.
        let header = VnetHeader { flags: header.flags & NEEDS_CSUM, ..header };
        Ok((header.flags != 0 || header.gso_type != 0).then_some(header))
    }
}

/// AF_XDP's metadata, as a header.
fn checksum([a, b, c, d, e, f, g, h, s0, s1, o0, o1, ..]: [u8; 16]) -> Option<VnetHeader> {
    let flags = match u64::from_ne_bytes([a, b, c, d, e, f, g, h]) {
        0 => 0,
        REQUEST_CHECKSUM => NEEDS_CSUM,
        _ => return None,
    };
    let (csum_start, csum_offset) = (u16::from_ne_bytes([s0, s1]), u16::from_ne_bytes([o0, o1]));
    Some(VnetHeader { flags, csum_start, csum_offset, ..VnetHeader::default() })
}

/// Notes on a packet that is complete what its header asks for. Returns its length, or that of its segments.
#[cold]
pub(super) fn grant(header: VnetHeader, packet: &mut Packet, tally: &mut Tally) -> Result<usize, Fault> {
    vnet::apply(header, packet).map_err(|_| Fault::Descriptor)?;
    let len = packet.len();
    let Some(gso) = packet.gso() else {
        return Ok(len);
    };
    let linear = packet.linear().len();
    if len > LONGEST || packet.make_linear(len.min(MAX_SUPER_HEADERS)).is_err() {
        return Ok(len.max(LONGEST + 1));
    }
    let copied = packet.linear().len() - linear;
    tally.copies += u64::from(copied > 0);
    tally.copied_bytes += copied as u64;
    let start = packet.linear().get(..len.min(MAX_SUPER_HEADERS)).unwrap_or_default();
    let asked = gro::Offload::new(packet.csum(), Some(gso));
    let cuts = gro::Cuts::of(start, len, gro::LinkKind::Ethernet, &asked).map_err(|_| Fault::Descriptor)?;
    if cuts.tunneled || cuts.packets > MAX_SEGMENTS || !matches!(packet.csum(), Checksum::Partial { .. }) {
        return Err(Fault::Descriptor);
    }
    // One segment is no super-packet, but a packet that wants its checksum.
    packet.set_gso((cuts.packets > 1).then_some(Gso { hdr_len: cuts.header as u16, ..gso }));
    Ok(len.min(cuts.header + usize::from(gso.size)))
}
