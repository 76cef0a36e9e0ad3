//! What an application asks for when it sends: the virtio-net header in front of a packet.

use crate::protocol::HEADER;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CSUM: u8 = 1;

/// Protocol of a super-packet's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segments {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP, each segment a datagram of its own.
    Udp,
}

/// How a super-packet is to be cut. Its headers are those of one segment, but for their lengths, which are those of the super-packet; the
/// transport's checksum field has the sum over the pseudo-header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segmentation {
    /// Of what protocol it is.
    pub segments: Segments,
    /// Payload bytes of each segment but the last, which may have fewer.
    pub size: u16,
    /// Where the transport header begins, in bytes from the first of the packet.
    pub transport: u16,
}

impl Segmentation {
    /// The header that says this.
    pub(crate) fn header(self) -> [u8; HEADER] {
        let (kind, offset) = match self.segments {
            Segments::Tcp4 => (1, 16),
            Segments::Tcp6 => (4, 16),
            Segments::Udp => (5, 6),
        };
        header(kind, self.size, self.transport, offset)
    }
}

/// The header that asks for a checksum alone.
pub(crate) fn checksum(start: u16, offset: u16) -> [u8; HEADER] {
    header(0, 0, start, offset)
}

/// Whether a header asks for segmentation.
pub(crate) fn asks_for_segments(header: [u8; HEADER]) -> bool {
    let [_, kind, ..] = header;
    kind != 0
}

fn header(kind: u8, size: u16, start: u16, offset: u16) -> [u8; HEADER] {
    let [[a, b], [c, d], [e, f]] = [size, start, offset].map(u16::to_ne_bytes);
    // How long all headers are is a hint, which nobody needs.
    [NEEDS_CSUM, kind, 0, 0, a, b, c, d, e, f]
}
