//! What flow a packet is of, as a number.
//!
//! The number is a seeded hash of the innermost addresses and ports, VLAN tags, and the identity of
//! a tunnel. Packets of a flow always have the same one, however unusual their headers are, so a
//! packet that cannot be merged finds what is held of its flow. Two flows that happen to share one
//! end each other's aggregates early; they are never mixed, since whole headers are compared before
//! anything is merged.

use crate::bytes::array;
use crate::layout::{Hint, Link, Outer, PORT_GENEVE, PORT_VXLAN, TCP, UDP, Unknown, Walk, walk};

#[derive(Clone, Copy)]
pub(crate) struct Hasher {
    pub(crate) seed: u64,
    pub(crate) link: Link,
    /// Tunnels are looked into.
    pub(crate) tunnels: bool,
}

impl Hasher {
    /// The hash of the commonest packets: TCP, or UDP without a tunnel, over IP without options, no
    /// VLAN tags inline. `b` is the beginning of the packet, `vlan` the tag beside it.
    #[inline(always)]
    pub(crate) fn common(&self, b: &[u8], vlan: u32) -> Option<u64> {
        match self.link {
            Link::Ethernet => {
                let h: &[u8; 42] = b.first_chunk()?;
                match [h[12], h[13]] {
                    [0x08, 0x00] => self.ipv4(array(h, 14)?, vlan),
                    [0x86, 0xdd] if h[14] >> 4 == 6 => self.ipv6(array(b, 14)?, vlan),
                    _ => None,
                }
            }
            Link::Ip => match *b.first()? >> 4 {
                4 => self.ipv4(b.first_chunk()?, vlan),
                6 => self.ipv6(b.first_chunk()?, vlan),
                _ => None,
            },
        }
    }

    #[inline(always)]
    fn ipv4(&self, h: &[u8; 28], vlan: u32) -> Option<u64> {
        // Version 4 without options, no fragment but maybe the first.
        const WHICH: u64 = u64::from_ne_bytes([0xff, 0, 0, 0, 0, 0, 0x1f, 0xff]);
        const PLAIN: u64 = u64::from_ne_bytes([0x45, 0, 0, 0, 0, 0, 0, 0]);
        let ports = [h[20], h[21], h[22], h[23]];
        if word(h, 0) & WHICH != PLAIN || !self.is_transport(h[9], ports) {
            return None;
        }
        Some(self.hash(word(h, 12), ports, vlan, 0))
    }

    #[inline(always)]
    fn ipv6(&self, h: &[u8; 48], vlan: u32) -> Option<u64> {
        let ports = [h[40], h[41], h[42], h[43]];
        if !self.is_transport(h[6], ports) {
            return None;
        }
        Some(self.hash(self.addresses_v6([word(h, 8), word(h, 16), word(h, 24), word(h, 32)]), ports, vlan, 0))
    }

    #[inline(always)]
    fn is_transport(&self, protocol: u8, ports: [u8; 4]) -> bool {
        let to = u16::from_be_bytes([ports[2], ports[3]]);
        let tunnel = || self.tunnels && (to == PORT_VXLAN || to == PORT_GENEVE);
        protocol == TCP || (protocol == UDP && !tunnel())
    }

    /// The hash of any packet, and where its headers are.
    pub(crate) fn any(&self, b: &[u8], vlan: u32) -> Result<(u64, Walk), Unknown> {
        let walk = walk(b, self.link, Hint { opaque: !self.tunnels, ..Hint::default() })?;
        if walk.layout.outer != Outer::None && !self.tunnels {
            return Err(Unknown::Foreign);
        }
        let ports = array(b, walk.layout.l4.into()).ok_or(Unknown::Short)?;
        let l3 = usize::from(walk.layout.l3);
        let word = |at: usize| array(b, l3 + at).map_or(0, |a| u64::from_ne_bytes(*a));
        let addresses = if walk.layout.v6 { self.addresses_v6([8, 16, 24, 32].map(word)) } else { word(12) };
        Ok((self.hash(addresses, *ports, vlan, walk.salt), walk))
    }

    #[inline(always)]
    fn addresses_v6(&self, words: [u64; 4]) -> u64 {
        fold(words[0] ^ self.seed, words[1] ^ K1) ^ fold(words[2] ^ K2, words[3] ^ self.seed)
    }

    #[inline(always)]
    fn hash(&self, addresses: u64, ports: [u8; 4], vlan: u32, salt: u64) -> u64 {
        let rest = u64::from(u32::from_ne_bytes(ports)) | u64::from(vlan) << 32;
        fold(addresses ^ self.seed, rest ^ salt ^ K1)
    }
}

const K1: u64 = 0xa076_1d64_78bd_642f;
const K2: u64 = 0xe703_7ed1_a0b4_28db;

#[inline(always)]
fn word<const N: usize>(h: &[u8; N], at: usize) -> u64 {
    array(h, at).map_or(0, |a| u64::from_ne_bytes(*a))
}

/// The two halves of a product: every bit of it depends on every bit of the factors.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}
