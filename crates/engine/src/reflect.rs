//! Reflects packets: source and destination are swapped, so that a packet goes back to its sender.
//!
//! | layer | what is swapped |
//! |---|---|
//! | Ethernet | the two addresses and nothing else, for any payload |
//! | IP | the two addresses, and the ports of TCP and UDP; checksums stay valid |

use towpath_packet::Packet;
use towpath_packet::port::Layer;
use towpath_wire::ethernet;

/// Protocols that begin with two ports.
const PORTS: [u8; 2] = [6, 17];

/// Swaps source and destination. Returns false and changes nothing if the packet is too short, if
/// its first bytes are in fragments for which the head has no room, or if they are in a page
/// without a [head](towpath_packet::Cache::ensure_head). A page of an application is never written:
/// the changed bytes are copied in front of it.
#[inline]
pub fn reflect(packet: &mut Packet, layer: Layer) -> bool {
    match layer {
        Layer::Ethernet | Layer::Any => packet.make_linear(ethernet::HEADER_LEN).is_ok() && swap(packet, 0, 6),
        Layer::Ip => reflect_ip(packet),
    }
}

/// Reflects an IP packet; ports behind IPv6 extension headers are not swapped.
fn reflect_ip(packet: &mut Packet) -> bool {
    if packet.make_linear(20).is_err() {
        return false;
    }
    let (at, len, header, protocol) = match *packet.linear() {
        [first, _, _, _, _, _, fragment, rest, _, protocol, ..] if first >> 4 == 4 => {
            let is_later = (fragment & 0x1f, rest) != (0, 0);
            (12, 4, usize::from(first & 15) * 4, if is_later { 0 } else { protocol })
        }
        [first, _, _, _, _, _, next, ..] if first >> 4 == 6 && packet.len() >= 40 => (8, 16, 40, next),
        _ => return false,
    };
    if packet.make_linear(at + 2 * len).is_err() || !swap(packet, at, len) {
        return false;
    }
    if PORTS.contains(&protocol) && packet.make_linear(header + 4).is_ok() {
        swap(packet, header, 2);
    }
    true
}

/// Swaps the `len` bytes at `at` with the `len` bytes after them, in the linear part.
#[inline]
fn swap(packet: &mut Packet, at: usize, len: usize) -> bool {
    let both = packet.linear_mut().get_mut(at..at + 2 * len);
    let Some((a, b)) = both.and_then(|bytes| bytes.split_at_mut_checked(len)) else { return false };
    a.swap_with_slice(b);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::{Cache, Direction, Pool, PoolConfig};
    use towpath_wire::checksum::Accumulator;

    fn cache() -> Cache {
        Pool::new(PoolConfig::default().capacity(512)).unwrap().cache(Direction::Tx).unwrap()
    }

    /// The packet in fragments of `len` bytes behind an empty head.
    fn pieces(cache: &mut Cache, bytes: &[u8], len: usize) -> Packet {
        let mut packet = cache.alloc().unwrap();
        for piece in bytes.chunks(len) {
            packet.append(Packet::copy_from(cache, piece).unwrap()).unwrap();
        }
        packet
    }

    fn numbered(len: u8) -> Vec<u8> {
        (0..len).collect()
    }

    #[test]
    fn a_reflected_frame_has_its_addresses_swapped_and_is_otherwise_unchanged() {
        let mut cache = cache();
        for size in [14, 60, 200] {
            let mut expected = numbered(size);
            let (to, from) = expected.split_at_mut(6);
            to.swap_with_slice(&mut from[..6]);
            for len in [1, 5, 13, 200] {
                let mut packet = pieces(&mut cache, &numbered(size), len);
                assert!(reflect(&mut packet, Layer::Ethernet));
                assert_eq!(packet.to_vec(), expected, "{size} in pieces of {len}");
                assert!(reflect(&mut packet, Layer::Ethernet));
                assert_eq!(packet.to_vec(), numbered(size), "twice is not at all");
            }
        }
        let mut short = Packet::copy_from(&mut cache, &numbered(13)).unwrap();
        assert!(!reflect(&mut short, Layer::Ethernet));
        assert_eq!(short.to_vec(), numbered(13));
    }

    #[test]
    fn a_reflected_ip_packet_has_addresses_and_ports_swapped_and_the_same_checksum() {
        let mut cache = cache();
        let v4 = |fragment: u8, protocol: u8| {
            let mut bytes = numbered(60);
            (bytes[0], bytes[6], bytes[7], bytes[9]) = (0x46, 0, fragment, protocol);
            bytes
        };
        let mut v6 = numbered(60);
        (v6[0], v6[6]) = (0x60, 17);
        let cases =
            [(v4(0, 17), 12, 4, Some(24)), (v4(0, 1), 12, 4, None), (v4(1, 6), 12, 4, None), (v6, 8, 16, Some(40))];
        for (bytes, at, len, ports) in cases {
            let mut expected = bytes.clone();
            expected[at..at + 2 * len].rotate_left(len);
            if let Some(ports) = ports {
                expected[ports..ports + 4].rotate_left(2);
            }
            for piece in [3, 60] {
                let mut packet = pieces(&mut cache, &bytes, piece);
                assert!(reflect(&mut packet, Layer::Ip));
                assert_eq!(packet.to_vec(), expected);
            }
            let sum = |bytes: &[u8]| {
                let mut sum = Accumulator::new();
                sum.add_bytes(bytes);
                sum.finish()
            };
            assert_eq!(sum(&bytes), sum(&expected));
        }
    }

    #[test]
    fn a_truncated_or_non_ip_packet_is_refused_unchanged() {
        let mut cache = cache();
        let first = |byte: u8, len: u8| {
            let mut bytes = numbered(len);
            bytes[0] = byte;
            bytes
        };
        for bytes in [first(0x45, 19), first(0x60, 39), first(0x50, 60), first(0, 60)] {
            let mut packet = pieces(&mut cache, &bytes, 7);
            assert!(!reflect(&mut packet, Layer::Ip));
            assert_eq!(packet.to_vec(), bytes);
        }
    }
}
