//! The Toeplitz hash of receive side scaling (Microsoft, "RSS hashing types").
//!
//! For each bit of the input that is set, the 32 bits of the key that begin at its position are
//! added without carry. As that is linear, the sums for all values of each half byte are kept in a
//! table: 72 × 16 words, 4.5 KiB, built once per key. Hashing 12 bytes (IPv4 with ports) is 24
//! independent look-ups, 36 bytes (IPv6 with ports) 72.

use core::fmt;

/// Bytes of the longest input: two IPv6 addresses and two ports.
const MAX_INPUT: usize = 36;

/// A key, prepared for hashing.
#[derive(Clone, PartialEq, Eq)]
pub struct Toeplitz {
    /// For each half byte of the input, upper half first, the contribution of each value.
    table: [[u32; 16]; 2 * MAX_INPUT],
}

impl Toeplitz {
    /// The key of Microsoft's verification suite, which most NICs start with.
    pub const MICROSOFT_KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];

    /// A key of period 16 bits: exchanging addresses and ports does not change the hash, at the
    /// price of its quality (Woo and Park, "Scalable TCP Session Monitoring with Symmetric
    /// Receive-side Scaling").
    pub const SYMMETRIC_KEY: [u8; 40] = {
        let mut key = [0x6d; 40];
        let mut i = 1;
        while i < key.len() {
            key[i] = 0x5a;
            i += 2;
        }
        key
    };

    /// Prepares a key. `const`: a fixed key's table is made by the compiler.
    #[must_use]
    pub const fn new(key: &[u8; 40]) -> Self {
        let mut table = [[0; 16]; 2 * MAX_INPUT];
        let mut half = 0;
        while half < table.len() {
            let mut value = 1;
            while value < 16 {
                let highest = 3 - (value as u8).ilog2() as usize;
                let without = value & !(8 >> highest);
                table[half][value] = table[half][without] ^ window(key, 4 * half + highest);
                value += 1;
            }
            half += 1;
        }
        Self { table }
    }

    /// The hash of up to 36 bytes; what is longer is cut.
    #[inline]
    #[must_use]
    pub fn hash(&self, input: &[u8]) -> u32 {
        let (halves, _) = self.table.as_chunks::<2>();
        input.iter().zip(halves).fold(0, |hash, (byte, [upper, lower])| {
            hash ^ upper[usize::from(byte >> 4)] ^ lower[usize::from(byte & 15)]
        })
    }
}

/// The 32 bits of the key that begin at a bit.
const fn window(key: &[u8; 40], bit: usize) -> u32 {
    let mut bits = 0u64;
    let mut i = 0;
    while i < 5 {
        let byte = if bit / 8 + i < key.len() { key[bit / 8 + i] } else { 0 };
        bits = bits << 8 | byte as u64;
        i += 1;
    }
    (bits >> (8 - bit % 8)) as u32
}

impl fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Toeplitz").finish_non_exhaustive()
    }
}

/// What receive side scaling hashes: addresses and, if the packet has them, ports, in network
/// byte order; IPv4 addresses as four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssInput {
    bytes: [u8; MAX_INPUT],
    len: u8,
}

impl RssInput {
    /// Nothing to hash: not an IP packet.
    pub const EMPTY: Self = Self { bytes: [0; MAX_INPUT], len: 0 };

    /// Of a packet with the given key.
    #[inline]
    #[must_use]
    pub fn new(key: &super::FlowKey, is_v4: bool, has_ports: bool) -> Self {
        let mut bytes = [0; MAX_INPUT];
        let addresses = if is_v4 {
            let ([.., s0, s1, s2, s3], [.., d0, d1, d2, d3]) = (key.src.octets(), key.dst.octets());
            bytes[..8].copy_from_slice(&[s0, s1, s2, s3, d0, d1, d2, d3]);
            8
        } else {
            bytes[..16].copy_from_slice(&key.src.octets());
            bytes[16..32].copy_from_slice(&key.dst.octets());
            32
        };
        let ports = u32::from(key.src_port) << 16 | u32::from(key.dst_port);
        bytes[addresses..addresses + 4].copy_from_slice(&ports.to_be_bytes());
        Self { bytes, len: addresses as u8 + if has_ports { 4 } else { 0 } }
    }

    /// The bytes to hash: 0, 8, 12, 32 or 36.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::FlowKey;
    use crate::ip::mapped;
    use core::net::Ipv6Addr;

    /// Bit by bit, as the definition reads.
    fn oracle(key: &[u8; 40], input: &[u8]) -> u32 {
        let bit = |bytes: &[u8], i: usize| bytes.get(i / 8).is_some_and(|b| b >> (7 - i % 8) & 1 != 0);
        (0..8 * input.len())
            .filter(|i| bit(input, *i))
            .fold(0, |hash, i| hash ^ (0..32).fold(0, |window, j| window << 1 | u32::from(bit(key, i + j))))
    }

    fn hashes(key: &FlowKey, is_v4: bool) -> (u32, u32) {
        let toeplitz = Toeplitz::new(&Toeplitz::MICROSOFT_KEY);
        let hash = |ports| toeplitz.hash(RssInput::new(key, is_v4, ports).as_bytes());
        (hash(false), hash(true))
    }

    #[test]
    fn the_ipv4_vectors_of_microsofts_verification_suite_come_out() {
        let vectors = [
            ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
            ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
            ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
            ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
            ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
        ];
        for (src, src_port, dst, dst_port, addresses, with_ports) in vectors {
            let address = |s: &str| mapped(s.parse().unwrap());
            let (src, dst) = (address(src), address(dst));
            let key = FlowKey { src, dst, src_port, dst_port, protocol: 6 };
            assert_eq!(hashes(&key, true), (addresses, with_ports));
        }
    }

    #[test]
    fn the_ipv6_vectors_of_microsofts_verification_suite_come_out() {
        let vectors = [
            ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
            ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
            ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, "fe80::200:f8ff:fe21:67cf", 38024, 0x4b61_e985, 0x02d1_feef),
        ];
        for (src, src_port, dst, dst_port, addresses, with_ports) in vectors {
            let address = |s: &str| s.parse::<Ipv6Addr>().unwrap();
            let (src, dst) = (address(src), address(dst));
            let key = FlowKey { src, dst, src_port, dst_port, protocol: 6 };
            assert_eq!(hashes(&key, false), (addresses, with_ports));
        }
    }

    proptest::proptest! {
        #[test]
        fn the_table_agrees_with_the_definition(
            key in proptest::array::uniform32(0u8..), more in proptest::array::uniform8(0u8..),
            input in proptest::collection::vec(0u8.., 0..=36),
        ) {
            let mut whole = [0; 40];
            whole[..32].copy_from_slice(&key);
            whole[32..].copy_from_slice(&more);
            proptest::prop_assert_eq!(Toeplitz::new(&whole).hash(&input), oracle(&whole, &input));
        }

        #[test]
        fn the_symmetric_key_does_not_tell_directions_apart(
            src in proptest::array::uniform16(0u8..), dst in proptest::array::uniform16(0u8..),
            src_port: u16, dst_port: u16, is_v4: bool,
        ) {
            let toeplitz = Toeplitz::new(&Toeplitz::SYMMETRIC_KEY);
            let key = FlowKey { src: src.into(), dst: dst.into(), src_port, dst_port, protocol: 6 };
            let hash = |key| toeplitz.hash(RssInput::new(key, is_v4, true).as_bytes());
            proptest::prop_assert_eq!(hash(&key), hash(&key.reversed()));
        }
    }
}
