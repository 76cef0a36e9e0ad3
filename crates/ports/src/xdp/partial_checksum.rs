//! Detects partial checksums and TSO packets on a virtual device.
//!
//! A veth hands over frames as the peer's stack made them: with partial checksums (the field holds
//! the sum of the pseudo-header only), and, if the program runs in the stack, as TSO packets. A
//! real device would have completed both; AF_XDP reports neither. So the frame is examined:
//!
//! * The checksum is partial if the field equals the sum of the pseudo-header. A complete checksum
//!   may have the same value by chance. To complete it again gives the same value: with `P` the sum
//!   of the pseudo-header and `R` the sum of the rest, a complete checksum is `~(P + R)`, and so is
//!   a completed one.
//! * A TCP packet with a partial checksum that exceeds the interface's MTU is a TSO packet. Its
//!   segment size is lost; the MTU gives a new one.

use towpath_packet::{Checksum, Gso, GsoKind, Packet};
use towpath_wire::dissect::Stop;
use towpath_wire::ip::protocol;
use towpath_wire::{LinkKind, checksum, dissect};

/// Sets the packet's checksum and GSO metadata from its headers. `mtu` is that of the interface.
#[inline]
pub(super) fn detect(packet: &mut Packet, mtu: usize) {
    let frame = packet.linear();
    let found = dissect(frame, LinkKind::Ethernet);
    let offset = match (found.stop, found.flow.protocol) {
        (Stop::Complete, protocol::TCP) => 16,
        (Stop::Complete, protocol::UDP) => 6,
        // A fragment does not end where the packet ends.
        _ => return,
    };
    let (l3, l4) = (usize::from(found.l3), usize::from(found.l4));
    let Some(&[a, b]) = frame.get(l4 + offset..l4 + offset + 2) else { return };
    let field = u16::from_be_bytes([a, b]);
    let Some(pseudo) = pseudo(frame, l3, l4, found.flow.protocol) else { return };
    if field != pseudo {
        return;
    }
    let headers = usize::from(found.payload);
    let v6 = found.is_ipv6();
    packet.set_csum(Checksum::Partial { start: l4 as u16, offset: offset as u8 });
    if packet.len() - l3 > mtu && found.flow.protocol == protocol::TCP {
        let kind = if v6 { GsoKind::Tcp6 } else { GsoKind::Tcp4 };
        let size = (mtu + l3).saturating_sub(headers).max(1) as u16;
        let segs = (packet.len() - headers).div_ceil(usize::from(size)) as u16;
        packet.set_gso(Some(Gso { kind, ecn: false, size, segs, hdr_len: headers as u16 }));
    }
}

/// The folded sum of the pseudo-header, as a stack leaves it in the field.
#[inline]
fn pseudo(frame: &[u8], l3: usize, l4: usize, protocol: u8) -> Option<u16> {
    let first = frame.get(l3)? >> 4;
    if first == 4 {
        let ip = frame.get(l3..)?.first_chunk::<20>()?;
        let len = u32::from(u16::from_be_bytes([ip[2], ip[3]])).checked_sub((l4 - l3) as u32)?;
        let (src, dst) = ([ip[12], ip[13], ip[14], ip[15]], [ip[16], ip[17], ip[18], ip[19]]);
        return Some(checksum::pseudo_v4(src.into(), dst.into(), protocol, len));
    }
    let ip = frame.get(l3..)?.first_chunk::<40>()?;
    let len = (u32::from(u16::from_be_bytes([ip[4], ip[5]])) + 40).checked_sub((l4 - l3) as u32)?;
    let address = |at: usize| ip[at..at + 16].first_chunk().map(|octets: &[u8; 16]| (*octets).into());
    Some(checksum::pseudo_v6(address(8)?, address(24)?, protocol, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use towpath_packet::{Backing, Direction, Pool, PoolConfig};
    use towpath_wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, Udp};

    fn frame(v6: bool, tcp: bool, payload: &[u8], checksums: Checksums) -> (Vec<u8>, usize) {
        let ip = if v6 { Ip::v6([1; 16], [2; 16]) } else { Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]) };
        let transport = if tcp {
            Transport::Tcp(Tcp { src_port: 1, dst_port: 2, ..Tcp::default() })
        } else {
            Transport::Udp(Udp { src_port: 1, dst_port: 2 })
        };
        let headers = Headers { link: Some(Link::default()), network: Network::Ip(ip, transport) };
        let mut frame = vec![0; headers.len() + payload.len()];
        headers.emit(&mut frame, payload, checksums).unwrap();
        (frame, headers.transport_offset())
    }

    fn detected(bytes: &[u8], mtu: usize) -> Packet {
        let config = PoolConfig::default().capacity(64).backing(Backing::Anonymous);
        let mut cache = Pool::new(config).unwrap().cache(Direction::Rx).unwrap();
        let mut packet = Packet::copy_from(&mut cache, bytes).unwrap();
        detect(&mut packet, mtu);
        packet
    }

    proptest! {
        #[test]
        fn a_partial_checksum_is_detected(v6: bool, tcp: bool, payload in proptest::collection::vec(any::<u8>(), 0..900)) {
            let (bytes, start) = frame(v6, tcp, &payload, Checksums::Partial);
            let offset = if tcp { 16 } else { 6 };
            prop_assert_eq!(detected(&bytes, 1500).csum(), Checksum::Partial { start: start as u16, offset });
        }

        #[test]
        fn completing_a_complete_checksum_that_looks_partial_changes_nothing(v6: bool, tcp: bool, mut payload in proptest::collection::vec(any::<u8>(), 2..99)) {
            // A payload that makes the complete checksum equal to the sum of the pseudo-header.
            payload[..2].fill(0);
            let (partial, start) = frame(v6, tcp, &payload, Checksums::Partial);
            let offset = start + if tcp { 16 } else { 6 };
            let pseudo = u16::from_be_bytes([partial[offset], partial[offset + 1]]);
            let mut completed = partial.clone();
            checksum::complete_partial(&mut completed, start, offset - start).unwrap();
            let sum = u16::from_be_bytes([completed[offset], completed[offset + 1]]);
            // ~sum is P + R; the two free bytes add what makes ~(P + R + x) = P.
            let x = checksum::add(!pseudo, sum);
            payload[..2].copy_from_slice(&x.to_be_bytes());
            let (complete, _) = frame(v6, tcp, &payload, Checksums::Complete);
            let mut again = complete.clone();
            if let Checksum::Partial { start, offset } = detected(&complete, 1500).csum() {
                checksum::complete_partial(&mut again, start.into(), offset.into()).unwrap();
            }
            prop_assert_eq!(again, complete);
        }

        #[test]
        fn any_bytes_are_examined_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            detected(&bytes, 1500);
        }
    }

    #[test]
    fn a_complete_checksum_is_left_alone() {
        let (bytes, _) = frame(false, true, b"payload", Checksums::Complete);
        assert_eq!(detected(&bytes, 1500).csum(), Checksum::Unknown);
    }

    #[test]
    fn a_tcp_packet_longer_than_the_mtu_has_several_segments() {
        let (bytes, _) = frame(false, true, &[7; 4000], Checksums::Partial);
        let gso = detected(&bytes, 1500).gso().unwrap();
        assert_eq!((gso.kind, gso.size, gso.segs), (GsoKind::Tcp4, 1460, 3));
        assert!(detected(&frame(false, true, &[7; 1000], Checksums::Partial).0, 1500).gso().is_none());
    }
}
