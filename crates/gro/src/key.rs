//! What flow a packet is of, as a number.
//!
//! The number is a seeded hash of the innermost addresses and ports, VLAN tags, and the identity of
//! a tunnel. Packets of a flow always have the same one, however unusual their headers are, so a
//! packet that cannot be merged finds what is held of its flow. Two flows that happen to share one
//! end each other's aggregates early; they are never mixed, since whole headers are compared before
//! anything is merged.

use towpath_wire::offload::LinkKind;

use crate::bytes::array;
use crate::layout::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Hint, Outer, PORT_GENEVE, PORT_VXLAN, TCP, UDP, Unknown, Walk, walk,
};

#[derive(Clone, Copy)]
pub(crate) struct Hasher {
    pub(crate) seed: u64,
    pub(crate) link: LinkKind,
    /// Tunnels are looked into.
    pub(crate) tunnels: bool,
}

impl Hasher {
    /// The hash of a packet that is [common](Self::common), IP beginning at `L3`. It is made of what is where
    /// addresses and ports of such a packet are; that it is one is left to be found out.
    #[inline(always)]
    pub(crate) fn guess<const L3: usize>(&self, b: &[u8], vlan: u32) -> Option<u64> {
        if is_v6::<L3>(b)? {
            let h: &[u8; 36] = array(b, L3 + 8)?;
            let addresses = self.addresses_v6([word(h, 0), word(h, 8), word(h, 16), word(h, 24)]);
            Some(self.hash(addresses, [h[32], h[33], h[34], h[35]], vlan, 0))
        } else {
            let h: &[u8; 12] = array(b, L3 + 12)?;
            Some(self.hash(word(h, 0), [h[8], h[9], h[10], h[11]], vlan, 0))
        }
    }

    /// Is this one of the commonest packets: TCP, or UDP without a tunnel, over IP without options, no
    /// VLAN tags inline? `b` is the beginning of the packet.
    #[inline(always)]
    pub(crate) fn common<const L3: usize>(&self, b: &[u8]) -> Option<Common> {
        // Version 4 without options, no fragment but maybe the first.
        const WHICH: u64 = u64::from_ne_bytes([0xff, 0, 0, 0, 0, 0, 0x1f, 0xff]);
        const PLAIN: u64 = u64::from_ne_bytes([0x45, 0, 0, 0, 0, 0, 0, 0]);
        let v6 = is_v6::<L3>(b)?;
        let (protocol, port) = if v6 {
            let h: &[u8; 48] = array(b, L3)?;
            if h[0] >> 4 != 6 {
                return None;
            }
            (h[6], [h[42], h[43]])
        } else {
            let h: &[u8; 28] = array(b, L3)?;
            if word(h, 0) & WHICH != PLAIN {
                return None;
            }
            (h[9], [h[22], h[23]])
        };
        let port = u16::from_be_bytes(port);
        let tunnel = || self.tunnels && (port == PORT_VXLAN || port == PORT_GENEVE);
        match protocol {
            TCP => Some(Common { v6, udp: false }),
            UDP if !tunnel() => Some(Common { v6, udp: true }),
            _ => None,
        }
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

/// What a common packet is.
#[derive(Clone, Copy)]
pub(crate) struct Common {
    pub(crate) v6: bool,
    pub(crate) udp: bool,
}

/// Is it IPv6, or IPv4? By what the link header says, and without one by the version.
#[inline(always)]
pub(crate) fn is_v6<const L3: usize>(b: &[u8]) -> Option<bool> {
    if L3 == 0 {
        return match b.first()? >> 4 {
            4 => Some(false),
            6 => Some(true),
            _ => None,
        };
    }
    match u16::from_be_bytes(*array(b, L3 - 2)?) {
        ETHERTYPE_IPV4 => Some(false),
        ETHERTYPE_IPV6 => Some(true),
        _ => None,
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
