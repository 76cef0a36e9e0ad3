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

/// How a super-packet is segmented. Its headers are those of one segment, except for the lengths,
/// which are those of the super-packet. The transport's checksum field holds the sum over the
/// pseudo-header.
///
/// ```no_run
/// # use towpath_client::{Config, Error, Segmentation, Segments, Socket, Umem};
/// # fn send(umem: &Umem, super_packet: &[u8]) -> Result<(), Error> {
/// let config = Config { segmentation: true, ..Config::default() };
/// let mut socket = Socket::connect(umem, "/run/towpath.sock", &config)?;
/// let mut frames: Vec<_> = std::iter::from_fn(|| umem.alloc()).take(super_packet.len().div_ceil(2032)).collect();
/// for (frame, piece) in frames.iter_mut().zip(super_packet.chunks(2032)) {
///     // The request lies in front of the frame.
///     assert!(frame.set_range(16, piece.len() as u32));
///     frame.bytes_mut().copy_from_slice(piece);
///     frame.set_continues(true);
/// }
/// if let [first, ..] = &mut frames[..] {
///     assert!(first.request_segmentation(Segmentation { segments: Segments::Tcp4, size: 1460, transport: 34 }));
/// }
/// if let [.., last] = &mut frames[..] {
///     last.set_continues(false);
/// }
/// socket.tx(&mut frames)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segmentation {
    /// The protocol.
    pub segments: Segments,
    /// Payload bytes of each segment but the last, which may have fewer.
    pub size: u16,
    /// Start of the transport header, in bytes from the first of the packet.
    pub transport: u16,
}

impl Segmentation {
    /// The header of the request.
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
    // `hdr_len` is a hint, which no reader needs.
    [NEEDS_CSUM, kind, 0, 0, a, b, c, d, e, f]
}
