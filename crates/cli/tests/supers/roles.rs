//! The application: receives a stream and reports its packets, or sends one.

use super::host::{Connection, Host, IP, MAC, MSS, Packet, Segment};
use std::path::Path;
use std::time::{Duration, Instant};
use towpath::wire::emit::{Checksums, Headers, Ip, Link, Network, Transport, Udp};
use towpath::wire::tcp::flags;
use towpath::wire::verify::{Check, verify};
use towpath::wire::{LinkKind, dissect};
use towpath_client::{GsoKind, Segmentation, Socket, Umem};

/// The file that a stream is written to when it is complete.
pub(crate) const STREAM: &str = "stream";
/// The file with the length of the longest packet, written before that.
pub(crate) const LONGEST: &str = "longest";

/// Longest frame of Ethernet.
pub(crate) const FRAME: usize = 1514;
/// Segments of the super-packets that are sent.
pub(crate) const SEGMENTS: usize = 40;
/// Datagrams that answer one, and their payload.
pub(crate) const DATAGRAMS: usize = 20;
pub(crate) const DATAGRAM: usize = 1000;

/// Receives a stream; `whole`: whether super-packets are enabled.
pub(crate) fn take(umem: &Umem, socket: Socket, whole: bool, results: &Path) {
    let mut host = Host::new(umem, socket);
    let (mut stream, mut longest, mut is_over) = (Vec::new(), 0, false);
    let mut connection: Option<Connection> = None;
    while let Some(packets) = host.receive() {
        for packet in packets {
            let Some(segment) = Segment::of(&packet.bytes) else { continue };
            if segment.flags & flags::SYN != 0 {
                let accepted = connection.get_or_insert_with(|| Connection::of(&segment));
                host.send(&accepted.accept(), None);
                continue;
            }
            check(&packet, whole);
            longest = longest.max(packet.bytes.len());
            let Some(connection) = connection.as_mut() else { continue };
            if !is_over && connection.position(&segment) == connection.received {
                stream.extend_from_slice(segment.payload);
                connection.received += segment.payload.len() as u32;
                if segment.flags & flags::FIN != 0 {
                    connection.received += 1;
                    is_over = true;
                    std::fs::write(results.join(LONGEST), longest.to_string()).unwrap();
                    std::fs::write(results.join("part"), &stream).unwrap();
                    std::fs::rename(results.join("part"), results.join(STREAM)).unwrap();
                }
            }
            if !segment.payload.is_empty() || segment.flags & flags::FIN != 0 {
                let (bytes, _) = connection.data(0, if is_over { flags::FIN } else { 0 }, &[]);
                host.send(&bytes, None);
            }
        }
    }
}

/// A packet longer than a frame must have a correct header; all others must have correct checksums
/// or a header that describes partial ones.
fn check(packet: &Packet, whole: bool) {
    let (bytes, found) = (&packet.bytes, dissect(&packet.bytes, LinkKind::Ethernet));
    let Some(header) = packet.header else {
        assert!(bytes.len() <= FRAME, "{} bytes without a header", bytes.len());
        assert_eq!(verify(bytes, LinkKind::Ethernet).transport, Check::Good);
        return;
    };
    assert!(whole, "a header without a request for it");
    let words: Vec<_> = header.as_chunks().0.iter().map(|word| u16::from_ne_bytes(*word)).collect();
    let (flags, kind) = (header[0], header[1]);
    if flags == 2 {
        assert_eq!((kind, verify(bytes, LinkKind::Ethernet).transport), (0, Check::Good));
        return;
    }
    let l4 = usize::from(found.l4);
    assert_eq!((flags, words[3], words[4]), (1, found.l4, 16), "the checksum is that of TCP");
    let sum = Ip::v4(found.flow.src.to_ipv4_mapped().unwrap(), IP).pseudo_sum(6, (bytes.len() - l4) as u32);
    assert_eq!(bytes[l4 + 16..l4 + 18], sum.to_be_bytes(), "the sum over the pseudo-header");
    if bytes.len() > FRAME {
        assert_eq!((kind & 0x7f, words[2]), (1, MSS), "segments of IPv4 TCP, as long as was agreed on");
        assert_eq!(words[1], found.payload, "all headers");
    } else {
        assert!(kind == 0 || words[2] > 0, "{header:?}");
    }
}

/// Sends a stream to each connection, and datagrams in reply to a datagram, both as super-packets.
pub(crate) fn give(umem: &Umem, socket: Socket, stream: &[u8]) {
    const PATIENCE: Duration = Duration::from_millis(300);
    let mut host = Host::new(umem, socket);
    let mut connection: Option<Connection> = None;
    let end = stream.len() as u32;
    let (mut next, mut moved) = (0, Instant::now());
    while let Some(packets) = host.receive() {
        for packet in packets {
            let Some(segment) = Segment::of(&packet.bytes) else {
                answer(&mut host, &packet.bytes);
                continue;
            };
            if segment.flags & flags::SYN != 0 {
                let accepted = connection.get_or_insert_with(|| Connection::of(&segment));
                host.send(&accepted.accept(), None);
            } else if let Some(connection) = &mut connection {
                if connection.acknowledge(&segment) {
                    moved = Instant::now();
                }
                // The peer sends no data, only acknowledgements.
                if segment.flags & flags::FIN != 0 {
                    connection.received = connection.position(&segment) + 1;
                    host.send(&connection.data(end + 1, 0, &[]).0, None);
                }
            }
        }
        let Some(connection) = &connection else { continue };
        if moved.elapsed() > PATIENCE {
            // A loss: retransmit from there.
            (next, moved) = (connection.acknowledged, Instant::now());
        }
        next = next.max(connection.acknowledged);
        // Until the FIN is acknowledged as well.
        while next <= end && connection.acknowledged <= end {
            let window = connection.window.saturating_sub(next - connection.acknowledged);
            let n = (end - next).min(SEGMENTS as u32 * u32::from(MSS)).min(window);
            if n == 0 && next < end {
                break;
            }
            let last = if next + n == end { flags::FIN | flags::PSH } else { 0 };
            let (bytes, segmentation) = connection.data(next, last, &stream[next as usize..(next + n) as usize]);
            host.send(&bytes, segmentation);
            next += n + u32::from(last != 0);
        }
    }
}

/// Answers a datagram.
fn answer(host: &mut Host, bytes: &[u8]) {
    let found = dissect(bytes, LinkKind::Ethernet);
    if found.flow.protocol != 17 || !found.is_ipv4() {
        return;
    }
    let payload: Vec<_> = (0..DATAGRAMS).flat_map(|i| [i as u8; DATAGRAM]).collect();
    let udp = Udp { src_port: found.flow.dst_port, dst_port: found.flow.src_port };
    let link = Link { dst: bytes[6..12].try_into().unwrap(), src: MAC, ..Link::default() };
    let ip = Ip::v4(IP, found.flow.src.to_ipv4_mapped().unwrap());
    let headers = Headers { link: Some(link), network: Network::Ip(ip, Transport::Udp(udp)) };
    let mut packet = vec![0; headers.len() + payload.len()];
    headers.emit(&mut packet, &payload, Checksums::Partial).unwrap();
    let asked = Segmentation { kind: GsoKind::Udp, size: DATAGRAM as u16, transport: 34 };
    host.send(&packet, Some(asked));
}
