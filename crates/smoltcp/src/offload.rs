//! What a sent packet asks for, and whether a received one is sound.

use std::num::NonZeroU16;
use towpath_client::protocol::{HEADER, MAX_SEGMENTS};
use towpath_client::{GsoKind, Segmentation};
use towpath_wire::checksum::{pseudo_v4, pseudo_v6};
use towpath_wire::dissect::{Dissected, Stop, dissect};
use towpath_wire::ip::protocol::TCP;
use towpath_wire::offload::LinkKind;
use towpath_wire::verify::verify;
use towpath_wire::virtio_net::{DATA_VALID, NEEDS_CSUM, VnetHeader};
use towpath_wire::{Ipv4, Ipv6};

/// Place of the checksum in a TCP header ([RFC 9293 section 3.1]), and that of its flags.
///
/// [RFC 9293 section 3.1]: https://www.rfc-editor.org/rfc/rfc9293#section-3.1
pub(crate) const CHECKSUM: usize = 16;
const FLAGS: usize = 13;
/// FIN and PSH, which belong to the last byte of a super-packet.
const OF_THE_LAST: u8 = 0x01 | 0x08;

/// What a packet asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Nothing: it is no TCP segment, and its checksums are complete.
    None,
    /// The checksum of TCP, from this byte on.
    Checksum(u16),
    /// Segments.
    Segments(Segmentation),
}

/// Writes the sum of the pseudo-header into a TCP segment. Returns what the packet asks for, with
/// payloads of `size` bytes if it is a super-packet, and the length of what is sent of it.
///
/// A super-packet of more segments than one may ask for, which takes a peer that announces an MSS
/// of some 50 bytes, is cut: the peer asks for the rest as for any lost segment.
pub(crate) fn request(frame: &mut [u8], size: Option<NonZeroU16>) -> (Request, usize) {
    let found = dissect(frame, LinkKind::Ethernet);
    if found.stop != Stop::Complete || found.flow.protocol != TCP {
        return (Request::None, frame.len());
    }
    let len = match size {
        Some(size) => cut(frame, &found, usize::from(size.get())),
        None => frame.len(),
    };
    let Some(sum) = frame.get(..len).and_then(|frame| pseudo_sum(frame, &found)) else {
        return (Request::None, len);
    };
    let at = usize::from(found.l4) + CHECKSUM;
    if let Some(field) = frame.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut()) {
        *field = sum.to_be_bytes();
    }
    let kind = if found.is_ipv4() { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
    let request = match size {
        Some(size) => Request::Segments(Segmentation { kind, size: size.get(), transport: found.l4 }),
        None => Request::Checksum(found.l4),
    };
    (request, len)
}

/// Cuts a super-packet to the most segments that one may ask for. Returns its length.
fn cut(frame: &mut [u8], found: &Dissected, size: usize) -> usize {
    let longest = usize::from(found.payload) + size * MAX_SEGMENTS;
    if frame.len() <= longest {
        return frame.len();
    }
    if let Some(flags) = frame.get_mut(usize::from(found.l4) + FLAGS) {
        *flags &= !OF_THE_LAST;
    }
    // No overflow: the frame is longer, and has less than 64 KiB.
    let (l3, l4) = (usize::from(found.l3), usize::from(found.l4));
    let (at, value) = if found.is_ipv4() { (l3 + 2, longest - l3) } else { (l3 + 4, longest - l3 - 40) };
    if let Some(field) = frame.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut()) {
        *field = (value as u16).to_be_bytes();
    }
    if let Some(header) = frame.get_mut(l3..l4).filter(|_| found.is_ipv4()) {
        write_ipv4_checksum(header);
    }
    longest
}

/// Completes the checksum of an IPv4 header.
fn write_ipv4_checksum(header: &mut [u8]) {
    if let Some(field) = header.get_mut(10..12) {
        field.fill(0);
    }
    // The field is inside: the header was dissected.
    let _ = towpath_wire::checksum::complete_partial(header, 0, 10);
}

/// The sum of a segment's pseudo-header; `None` if the packet has no IP header.
fn pseudo_sum(frame: &[u8], found: &Dissected) -> Option<u16> {
    let packet = frame.get(usize::from(found.l3)..)?;
    let len = u32::try_from(frame.len()).ok()?.checked_sub(u32::from(found.l4))?;
    if found.is_ipv4() {
        let ip = Ipv4::parse(packet).ok()?;
        Some(pseudo_v4(ip.src(), ip.dst(), TCP, len))
    } else {
        let ip = Ipv6::parse(packet).ok()?;
        Some(pseudo_v6(ip.src(), ip.dst(), TCP, len))
    }
}

/// Whether the checksums of a received packet are right, or need not be: a packet of this machine
/// has none until it leaves. `header` is what the datapath knows of it.
pub(crate) fn is_sound(frame: &[u8], header: Option<[u8; HEADER]>) -> bool {
    let flags = header.map_or(0, |header| VnetHeader::from_ne_bytes(&header).flags);
    flags & (NEEDS_CSUM | DATA_VALID) != 0 || verify(frame, LinkKind::Ethernet).is_sound()
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, Udp};

    /// A packet as the stack writes it: without a checksum of TCP, unless it is complete.
    fn packet(ip: Ip, transport: Transport<'_>, payload: usize, checksums: Checksums) -> Vec<u8> {
        let headers = Headers { link: Some(Link::default()), network: Network::Ip(ip, transport) };
        let mut frame = vec![0; headers.len() + payload];
        headers.emit(&mut frame, &vec![7; payload], checksums).unwrap();
        frame
    }

    fn tcp(flags: u8) -> Transport<'static> {
        Transport::Tcp(Tcp { src_port: 80, dst_port: 5000, flags, ..Tcp::default() })
    }

    const V4: fn() -> Ip = || Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]);
    const V6: fn() -> Ip = || Ip::v6(0xfd00_u128.to_be_bytes(), 1u128.to_be_bytes());

    #[test]
    fn a_segment_asks_for_its_checksum_over_the_sum_of_its_pseudo_header() {
        for (ip, l4) in [(V4(), 34), (V6(), 54)] {
            let expected = packet(ip, tcp(0x10), 100, Checksums::Partial);
            let mut frame = packet(ip, tcp(0x10), 100, Checksums::Full);
            let len = frame.len();
            frame[usize::from(l4) + CHECKSUM..][..2].fill(0);
            assert_eq!(request(&mut frame, None), (Request::Checksum(l4), len));
            assert_eq!(frame, expected);
        }
    }

    #[test]
    fn other_packets_ask_for_nothing_and_stay_as_they_are() {
        let udp = Transport::Udp(Udp { src_port: 1, dst_port: 2 });
        for before in [packet(V4(), udp, 50, Checksums::Full), vec![0; 60], vec![1; 5]] {
            let mut frame = before.clone();
            assert_eq!(request(&mut frame, None), (Request::None, before.len()));
            assert_eq!(frame, before);
        }
    }

    #[test]
    fn a_super_packet_of_too_many_segments_is_cut_and_is_not_the_last_of_its_stream() {
        for (ip, l4, kind) in [(V4(), 34, GsoKind::Tcp4), (V6(), 54, GsoKind::Tcp6)] {
            // ACK, PSH, FIN.
            let mut frame = packet(ip, tcp(0x19), 30_000, Checksums::Partial);
            let size = NonZeroU16::new(36).unwrap();
            let (asked, len) = request(&mut frame, Some(size));
            assert_eq!(asked, Request::Segments(Segmentation { kind, size: 36, transport: l4 }));
            let expected = packet(ip, tcp(0x10), 36 * MAX_SEGMENTS, Checksums::Partial);
            assert_eq!((len, &frame[..len]), (expected.len(), &expected[..]));
            // As many as it may ask for.
            let before = packet(ip, tcp(0x19), 36 * MAX_SEGMENTS, Checksums::Partial);
            let mut frame = before.clone();
            assert_eq!(request(&mut frame, Some(size)).1, before.len());
            assert_eq!(frame, before);
        }
    }

    #[test]
    fn a_wrong_checksum_is_found_unless_the_datapath_knows_better() {
        let mut frame = packet(V4(), tcp(0x10), 100, Checksums::Full);
        assert!(is_sound(&frame, None));
        frame[60] ^= 1;
        assert!(!is_sound(&frame, None));
        let header = |flags| VnetHeader { flags, ..VnetHeader::default() }.to_ne_bytes();
        assert!(!is_sound(&frame, Some(header(0))));
        for known in [NEEDS_CSUM, DATA_VALID] {
            assert!(is_sound(&frame, Some(header(known))));
        }
    }
}
