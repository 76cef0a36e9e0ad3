//! Transmit metadata in front of a frame: a request to complete a checksum, or to segment.
//!
//! ```text
//!   virtio-net header   10 bytes, as in front of received packets: checksum, segmentation
//!   AF_XDP's metadata   16 bytes and more: checksum
//! ```
//!
//! The metadata is read once, and checked when its packet is complete. The headers of a
//! super-packet are copied into the head and checked there, by the code that segments. The
//! application can therefore not change what an egress or a device relies on.

use super::stats::{Fault, RxTotals};
use super::umem::AppUmem;
use crate::vnet::{self, DATA_VALID, NEEDS_CSUM, VnetHeader};
use towpath_client::protocol::{HEADER, Hello, MAX_SEGMENTS, REQUEST_CHECKSUM};
use towpath_packet::Packet;

/// The metadata that a session may put in front of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TxMetadata {
    None,
    /// AF_XDP's, of this length.
    Xdp(u32),
    /// A virtio-net header.
    Header {
        /// It may ask for segmentation.
        segmentation: bool,
    },
}

impl TxMetadata {
    pub(super) fn of(hello: &Hello) -> TxMetadata {
        match hello.tx_metadata {
            0 => TxMetadata::None,
            n if n as usize == HEADER => TxMetadata::Header { segmentation: hello.segmentation },
            n => TxMetadata::Xdp(n),
        }
    }

    /// Whether it may ask for segmentation.
    pub(super) fn segmentation(self) -> bool {
        self == TxMetadata::Header { segmentation: true }
    }

    /// Reads the metadata in front of a frame; `None` if it asks for nothing.
    pub(super) fn read(self, umem: &AppUmem, addr: u64) -> Result<Option<VnetHeader>, Fault> {
        let header = match self {
            TxMetadata::None => None,
            TxMetadata::Xdp(len) => umem.metadata(addr, len).and_then(from_xdp),
            TxMetadata::Header { segmentation } => umem.metadata(addr, HEADER as u32).and_then(|bytes| {
                let header = VnetHeader::from_ne_bytes(&bytes);
                let known = header.flags & !(NEEDS_CSUM | DATA_VALID) == 0;
                (known && (segmentation || header.gso_type == 0)).then_some(header)
            }),
        };
        let header = header.ok_or(Fault::Descriptor)?;
        // An application's claim that a checksum is right is ignored.
        let header = VnetHeader { flags: header.flags & NEEDS_CSUM, ..header };
        Ok((header.flags != 0 || header.gso_type != 0).then_some(header))
    }
}

/// AF_XDP's metadata as a virtio-net header.
fn from_xdp([a, b, c, d, e, f, g, h, s0, s1, o0, o1, ..]: [u8; 16]) -> Option<VnetHeader> {
    let flags = match u64::from_ne_bytes([a, b, c, d, e, f, g, h]) {
        0 => 0,
        REQUEST_CHECKSUM => NEEDS_CSUM,
        _ => return None,
    };
    let (csum_start, csum_offset) = (u16::from_ne_bytes([s0, s1]), u16::from_ne_bytes([o0, o1]));
    Some(VnetHeader { flags, csum_start, csum_offset, ..VnetHeader::default() })
}

/// Sets what the header asks for on a complete packet. Returns the packet's length, or that of its
/// segments.
#[cold]
pub(super) fn apply(header: VnetHeader, packet: &mut Packet, totals: &mut RxTotals) -> Result<usize, Fault> {
    let applied = vnet::apply_untrusted(header, packet, MAX_SEGMENTS).map_err(|_| Fault::Descriptor)?;
    totals.copies += u64::from(applied.copied > 0);
    totals.copied_bytes += applied.copied as u64;
    Ok(applied.longest)
}
