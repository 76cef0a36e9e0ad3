//! Driver and model take checksums, hashes and the parsing of headers from one crate: a mistake
//! there would be the same on both sides. What they make together is compared here with plain loops
//! over bytes, with published vectors, and with frames at fixed offsets.

use super::rig::*;
use towpath_packet::{Checksum, Gso, GsoKind};

/// The one's complement sum of RFC 1071, two bytes at a time.
fn plain_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low));
        if sum > 0xffff {
            sum = (sum & 0xffff) + 1;
        }
    }
    sum as u16
}

/// Key of Microsoft's verification suite for receive side scaling.
#[rustfmt::skip]
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
    0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A frame at fixed offsets: Ethernet, IPv4 without options or IPv6, TCP without options or UDP.
#[derive(Debug, Clone, Copy)]
struct Shape {
    v6: bool,
    protocol: u8,
}

const SHAPES: [Shape; 4] = [
    Shape { v6: false, protocol: TCP },
    Shape { v6: false, protocol: UDP },
    Shape { v6: true, protocol: TCP },
    Shape { v6: true, protocol: UDP },
];

impl Shape {
    /// Where TCP or UDP begins.
    fn l4(self) -> usize {
        if self.v6 { 54 } else { 34 }
    }

    /// Where the payload begins.
    fn payload(self) -> usize {
        self.l4() + if self.protocol == TCP { 20 } else { 8 }
    }

    /// Where the checksum of TCP or UDP lies.
    fn field(self) -> usize {
        self.l4() + if self.protocol == TCP { 16 } else { 6 }
    }

    /// Source and destination.
    fn addresses(self) -> std::ops::Range<usize> {
        if self.v6 { 22..54 } else { 26..34 }
    }

    /// The sum of the pseudo-header with a length (RFC 9293 section 3.1, RFC 8200 section 8.1).
    fn pseudo(self, frame: &[u8], len: usize) -> u16 {
        let tail = [0, self.protocol, (len >> 8) as u8, len as u8];
        plain_sum(&[&frame[self.addresses()], &tail].concat())
    }

    /// Whether a receiver finds the checksums right. `frame` has no padding.
    fn is_right(self, frame: &[u8]) -> bool {
        let l4 = &frame[self.l4()..];
        let pseudo = self.pseudo(frame, l4.len()).to_be_bytes();
        plain_sum(&[&pseudo, l4].concat()) == 0xffff && (self.v6 || plain_sum(&frame[14..34]) == 0xffff)
    }

    /// A frame with right checksums.
    fn frame(self, addresses: &[u8], ports: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; self.payload()];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        frame[self.addresses()].copy_from_slice(addresses);
        if self.v6 {
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            (frame[14], frame[20], frame[21]) = (0x60, self.protocol, 64);
        } else {
            frame[12..14].copy_from_slice(&[0x08, 0x00]);
            (frame[14], frame[18], frame[19]) = (0x45, 0x12, 0xfe);
            (frame[22], frame[23]) = (64, self.protocol);
        }
        frame[self.l4()..][..4].copy_from_slice(&ports);
        if self.protocol == TCP {
            frame[self.l4() + 4..][..10].copy_from_slice(&[0xff, 0xff, 0xfe, 0, 0, 0, 0, 9, 0x50, 0x19]);
        }
        frame.extend_from_slice(payload);
        self.finish(&mut frame);
        frame
    }

    /// Sets lengths and checksums.
    fn finish(self, frame: &mut [u8]) {
        let (ip, l4) = (frame.len() - 14, frame.len() - self.l4());
        let put = |frame: &mut [u8], at: usize, n: usize| frame[at..at + 2].copy_from_slice(&(n as u16).to_be_bytes());
        if self.v6 {
            put(frame, 18, ip - 40);
        } else {
            put(frame, 16, ip);
            put(frame, 24, 0);
            let check = !plain_sum(&frame[14..34]);
            put(frame, 24, check.into());
        }
        if self.protocol == UDP {
            put(frame, self.l4() + 4, l4);
        }
        put(frame, self.field(), 0);
        let pseudo = self.pseudo(frame, l4).to_be_bytes();
        let check = !plain_sum(&[&pseudo, &frame[self.l4()..]].concat());
        // UDP sends zero as minus zero (RFC 768).
        let check = if self.protocol == UDP && check == 0 { 0xffff } else { check };
        put(frame, self.field(), check.into());
    }

    fn sample(self, payload: &[u8]) -> Vec<u8> {
        let addresses: Vec<u8> = (0..self.addresses().len()).map(|i| (i * 37 + 11) as u8).collect();
        self.frame(&addresses, [0x0a, 0xea, 0x06, 0xe6], payload)
    }
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 151 + 7) as u8).collect()
}

#[test]
fn the_plain_sum_is_that_of_rfc_1071_and_of_a_header_from_the_wire() {
    assert_eq!(plain_sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    let header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
    assert_eq!(plain_sum(&header), 0xffff);
    assert_eq!(plain_sum(&[0xff, 0xff, 0x01]), 0x0100, "an odd byte is the high one");
}

#[test]
fn a_received_frame_is_verified_exactly_if_a_plain_sum_finds_it_right() {
    let mut r = rig(config(), strict());
    for shape in SHAPES {
        // No frame is so short that it would be padded.
        for len in [64, 65, 511, 1400] {
            let good = shape.sample(&payload(len));
            assert!(shape.is_right(&good));
            let places = shape.addresses().chain(shape.l4()..shape.l4() + 4).chain([shape.field(), shape.field() + 1]);
            let places = places.chain([shape.payload(), shape.payload() + 1, good.len() - 1]);
            let bad = places.flat_map(|at| [0x01, 0x80, 0xff].map(|bits| (at, bits)));
            let bad = bad.map(|(at, bits)| {
                let mut frame = good.clone();
                frame[at] ^= bits;
                frame
            });
            for frame in std::iter::once(good.clone()).chain(bad) {
                r.arrive([frame.as_slice()]);
                let got = r.settle();
                let verified = got[0].csum() == Checksum::Verified;
                assert_eq!(verified, shape.is_right(&frame), "{shape:?} {len}: {frame:02x?}");
            }
        }
    }
    r.end();
}

#[test]
fn a_sent_checksum_is_that_of_a_plain_sum() {
    let mut r = rig(config(), strict());
    for shape in SHAPES {
        // The second payload is as long, and its sum makes the checksum zero.
        for len in [64, 65, 1400] {
            let plain = shape.sample(&payload(len));
            let mut zero = payload(len);
            zero[..2].fill(0);
            let check = shape.sample(&zero)[shape.field()..][..2].to_vec();
            zero[..2].copy_from_slice(&check);
            for whole in [plain, shape.sample(&zero)] {
                let mut partial = whole.clone();
                let pseudo = shape.pseudo(&whole, whole.len() - shape.l4());
                partial[shape.field()..][..2].copy_from_slice(&pseudo.to_be_bytes());
                let mut packet = r.packet(&partial);
                let (start, offset) = (shape.l4() as u16, (shape.field() - shape.l4()) as u8);
                packet.set_csum(Checksum::Partial { start, offset });
                r.send(0, [packet]);
                r.settle();
                assert_eq!(r.far.drain(), [whole], "{shape:?} {len}");
            }
        }
    }
    r.end();
}

#[test]
fn segments_are_those_of_a_plain_split() {
    const FIN_PSH: u8 = 0x09;
    for (shape, kind) in [(SHAPES[0], GsoKind::Tcp4), (SHAPES[2], GsoKind::Tcp6)] {
        for (len, size) in [(4000, 1448), (1448 * 2, 1448), (1449, 1448), (9001, 537)] {
            let mut r = rig(config(), strict());
            let data = payload(len);
            let whole = shape.sample(&data);
            let pieces = data.chunks(size).enumerate().map(|(i, piece)| {
                let mut segment = [&whole[..shape.payload()], piece].concat();
                let tcp = shape.l4();
                let sequence = 0xffff_fe00_u32.wrapping_add((i * size) as u32);
                segment[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
                if (i + 1) * size < len {
                    segment[tcp + 13] &= !FIN_PSH;
                }
                if !shape.v6 {
                    segment[18..20].copy_from_slice(&(0x12fe + i as u16).to_be_bytes());
                }
                shape.finish(&mut segment);
                // The shortest frame of Ethernet.
                segment.resize(segment.len().max(60), 0);
                segment
            });
            let expected: Vec<_> = pieces.collect();
            let mut packet = r.cache.alloc().unwrap();
            for piece in whole.chunks(1500) {
                let part = r.packet(piece);
                packet.append(part).unwrap();
            }
            packet.set_csum(Checksum::Partial { start: shape.l4() as u16, offset: 16 });
            let segs = len.div_ceil(size) as u16;
            packet.set_gso(Some(Gso { kind, ecn: false, size: size as u16, segs, hdr_len: 0 }));
            r.send(0, [packet]);
            r.settle();
            assert!(r.far.drain() == expected, "{shape:?} {len} by {size}");
            r.end();
        }
    }
}

/// The hash as its definition has it, bit by bit.
fn plain_toeplitz(input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| u32::from(bytes[at / 8] >> (7 - at % 8) & 1);
    let window = |at: usize| (at..at + 32).fold(0, |word, at| word << 1 | bit(&KEY, at));
    (0..8 * input.len()).filter(|&at| bit(input, at) == 1).fold(0, |hash, at| hash ^ window(at))
}

/// [Microsoft's vectors]: addresses, ports, the hash of addresses, the hash with ports.
///
/// [Microsoft's vectors]:
/// https://learn.microsoft.com/windows-hardware/drivers/network/verifying-the-rss-hash-calculation
#[test]
fn hashes_are_the_published_ones_and_those_of_the_definition() {
    let v4 = |a: [u8; 4], b: [u8; 4]| [a, b].concat();
    let v6 = |a: &str, b: &str| [a, b].map(|text| text.parse::<std::net::Ipv6Addr>().unwrap().octets()).concat();
    let vectors = [
        (v4([66, 9, 149, 187], [161, 142, 100, 80]), [2794_u16, 1766], 0x323e_8fc2_u32, 0x51cc_c178_u32),
        (v4([199, 92, 111, 2], [65, 69, 140, 83]), [14230, 4739], 0xd718_262a, 0xc626_b0ea),
        (v4([153, 39, 163, 191], [202, 188, 127, 2]), [44251, 1303], 0x5d18_09c5, 0x10e8_28a2),
        (v6("3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1"), [2794, 1766], 0x2cc1_8cd5, 0x4020_7d3d),
        (v6("3ffe:501:8::260:97ff:fe40:efab", "ff02::1"), [14230, 4739], 0x0f0c_461c, 0xdde5_1bbf),
    ];
    let mut r = rig(with(|c| (c.rss_key, c.queues) = (KEY, 2)), strict());
    for (addresses, ports, without, with_ports) in vectors {
        let ports = ports.map(u16::to_be_bytes);
        let ports = [ports[0][0], ports[0][1], ports[1][0], ports[1][1]];
        assert_eq!(plain_toeplitz(&addresses), without);
        assert_eq!(plain_toeplitz(&[&addresses[..], &ports].concat()), with_ports);
        for (protocol, expected) in [(TCP, with_ports), (UDP, without)] {
            let shape = Shape { v6: addresses.len() == 32, protocol };
            r.arrive([shape.frame(&addresses, ports, &payload(64)).as_slice()]);
            let got = r.settle();
            assert_eq!(got[0].flow_hash(), Some(expected), "{shape:?}");
            assert_eq!(u32::from(got[0].ingress().1), expected & 1, "the table alternates");
        }
    }
    r.end();
}
