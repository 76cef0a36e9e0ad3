//! Offload requests of sent packets: the virtio-net header in front of a packet.

use crate::protocol::HEADER;
use towpath_packet::GsoKind;
use towpath_wire::virtio_net::{NEEDS_CSUM, VnetHeader};

/// How a super-packet is segmented. Its headers are those of one segment, except for the lengths,
/// which are those of the super-packet. The transport's checksum field holds the sum over the
/// pseudo-header.
///
/// ```no_run
/// # use towpath_client::{Config, Error, GsoKind, Segmentation, Socket, Umem};
/// # fn send(umem: &Umem, super_packet: &[u8]) -> Result<(), Error> {
/// let config = Config::default().segmentation(true);
/// let mut socket = Socket::connect(umem, "/run/towpath.sock", &config)?;
/// let n = super_packet.len().div_ceil(2032);
/// let mut frames: Vec<_> = std::iter::from_fn(|| umem.alloc()).take(n).collect();
/// for (frame, piece) in frames.iter_mut().zip(super_packet.chunks(2032)) {
///     // The request lies in front of the frame.
///     assert!(frame.set_range(16, piece.len() as u32));
///     frame.bytes_mut().copy_from_slice(piece);
///     frame.set_continues(true);
/// }
/// if let [first, ..] = &mut frames[..] {
///     let request = Segmentation { kind: GsoKind::Tcp4, size: 1460, transport: 34 };
///     assert!(first.request_segmentation(request));
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
    pub kind: GsoKind,
    /// Payload bytes of each segment but the last, which may have fewer.
    pub size: u16,
    /// Start of the transport header, in bytes from the first of the packet.
    pub transport: u16,
}

impl Segmentation {
    /// The header of the request.
    pub(crate) fn header(self) -> [u8; HEADER] {
        let csum_offset = if self.kind == GsoKind::Udp { 6 } else { 16 };
        let (gso_type, gso_size, csum_start) = (self.kind as u8, self.size, self.transport);
        // `hdr_len` is a hint, which no reader needs.
        VnetHeader { flags: NEEDS_CSUM, gso_type, hdr_len: 0, gso_size, csum_start, csum_offset }.to_ne_bytes()
    }
}

/// The header that asks for a checksum alone.
pub(crate) fn checksum(csum_start: u16, csum_offset: u16) -> [u8; HEADER] {
    VnetHeader { flags: NEEDS_CSUM, csum_start, csum_offset, ..VnetHeader::default() }.to_ne_bytes()
}

/// Whether a header asks for segmentation.
pub(crate) fn asks_for_segments(header: [u8; HEADER]) -> bool {
    VnetHeader::from_ne_bytes(&header).gso_type != 0
}
