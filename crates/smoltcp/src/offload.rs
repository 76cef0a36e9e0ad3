//! Offloads to a datapath or a port: requests of sent packets, and whether a received packet
//! is sound.

use smoltcp::phy::{Checksum, DeviceCapabilities, Medium};
use std::num::{NonZeroU16, NonZeroUsize};
use towpath_client::protocol::MAX_SEGMENTS;
use towpath_client::{GsoKind, Segmentation};
use towpath_wire::checksum::{complete_partial, pseudo_v4};
use towpath_wire::dissect::{Dissected, Stop, dissect};
use towpath_wire::ip::protocol::TCP;
use towpath_wire::offload::LinkKind;
use towpath_wire::tcp::flags::{FIN, PSH};
use towpath_wire::verify::verify;
use towpath_wire::{Ipv4, Ipv6, ethernet, ipv4, ipv6, tcp};

/// A device of Ethernet for IP packets of `mtu` bytes, and super-packets of `longest`; 0 for none.
pub(crate) fn capabilities(mtu: usize, longest: usize) -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ethernet;
    capabilities.max_transmission_unit = mtu + ethernet::HEADER_LEN;
    // Received checksums are known or verified here; that of TCP is completed behind the device.
    capabilities.checksum.tcp = Checksum::None;
    capabilities.checksum.udp = Checksum::Tx;
    let longest = NonZeroUsize::new(longest);
    capabilities.segmentation.tcpv4 = longest;
    capabilities.segmentation.tcpv6 = longest;
    capabilities
}

/// The request of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// None: it is no TCP segment, and its checksums are complete.
    None,
    /// The checksum of TCP, from this byte on.
    Checksum(u16),
    /// Segments.
    Segments(Segmentation),
}

/// Writes the sum of the pseudo-header into a TCP segment. Returns the packet's request, with
/// payloads of `size` bytes if it is a super-packet, and the length of what is sent of it.
///
/// A super-packet of more segments than a request may have, which takes a peer that announces an
/// MSS of some 50 bytes, is cut: the rest is sent again, as any lost segment.
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
    let at = usize::from(found.l4) + tcp::offset::CHECKSUM;
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

/// Cuts a super-packet to the most segments of a request. Returns its length.
fn cut(frame: &mut [u8], found: &Dissected, size: usize) -> usize {
    let longest = usize::from(found.payload) + size * MAX_SEGMENTS;
    if frame.len() <= longest {
        return frame.len();
    }
    if let Some(flags) = frame.get_mut(usize::from(found.l4) + tcp::offset::FLAGS) {
        // They belong to the last byte.
        *flags &= !(FIN | PSH);
    }
    // No overflow: the frame is longer, and has less than 64 KiB.
    let (l3, l4) = (usize::from(found.l3), usize::from(found.l4));
    let (at, value) = if found.is_ipv4() {
        (l3 + ipv4::offset::TOTAL_LEN, longest - l3)
    } else {
        (l3 + ipv6::offset::PAYLOAD_LEN, longest - l3 - ipv6::HEADER_LEN)
    };
    if let Some(field) = frame.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut()) {
        *field = (value as u16).to_be_bytes();
    }
    if let Some(header) = frame.get_mut(l3..l4).filter(|_| found.is_ipv4()) {
        let at = ipv4::offset::CHECKSUM;
        if let Some(field) = header.get_mut(at..at + 2) {
            field.fill(0);
        }
        // The field is inside: the header was dissected.
        let _ = complete_partial(header, 0, at);
    }
    longest
}

/// The sum of a segment's pseudo-header; `None` if the packet has no IP header.
fn pseudo_sum(frame: &[u8], found: &Dissected) -> Option<u16> {
    let packet = frame.get(usize::from(found.l3)..)?;
    let len = u32::try_from(frame.len()).ok()?.checked_sub(u32::from(found.l4))?;
    if found.is_ipv4() {
        let ip = Ipv4::parse(packet).ok()?;
        Some(pseudo_v4(ip.src(), ip.dst(), TCP, len))
    } else {
        Some(Ipv6::parse(packet).ok()?.pseudo_sum(TCP, len))
    }
}

/// Whether the checksums of a received packet are right, or need not be: a packet of this machine
/// has none until it leaves. `is_known`: the datapath or the port vouches for them.
pub(crate) fn is_sound(frame: &[u8], is_known: bool) -> bool {
    is_known || verify(frame, LinkKind::Ethernet).is_sound()
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, Udp};
    use towpath_wire::tcp::offset::CHECKSUM;

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
            let mut frame = packet(ip, tcp(0x10), 100, Checksums::Complete);
            let len = frame.len();
            frame[usize::from(l4) + CHECKSUM..][..2].fill(0);
            assert_eq!(request(&mut frame, None), (Request::Checksum(l4), len));
            assert_eq!(frame, expected);
        }
    }

    #[test]
    fn other_packets_ask_for_nothing_and_stay_as_they_are() {
        let udp = Transport::Udp(Udp { src_port: 1, dst_port: 2 });
        for before in [packet(V4(), udp, 50, Checksums::Complete), vec![0; 60], vec![1; 5]] {
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
    fn a_wrong_checksum_is_found_unless_it_is_known_to_be_right() {
        let mut frame = packet(V4(), tcp(0x10), 100, Checksums::Complete);
        assert!(is_sound(&frame, false));
        frame[60] ^= 1;
        assert!(!is_sound(&frame, false) && is_sound(&frame, true));
    }
}
