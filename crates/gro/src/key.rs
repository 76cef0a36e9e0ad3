//! The hash of a packet's flow.
//!
//! It covers the innermost addresses and ports, VLAN tags, and the identity of a tunnel, with a
//! seed. All packets of a flow have the same hash, however unusual their headers are, so a packet
//! that cannot be merged finds the aggregate of its flow. Two flows with the same hash end each
//! other's aggregates early. They are never mixed, because whole headers are compared before a
//! merge.

use towpath_wire::offload::LinkKind;

use crate::bytes::array;
use crate::layout::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, Hint, IPV4, Outer, PORT_GENEVE, PORT_VXLAN, TCP, UDP, Unknown, Walk, walk,
};

#[derive(Clone, Copy)]
pub(crate) struct Hasher {
    pub(crate) seed: u64,
    pub(crate) link: LinkKind,
    /// Whether inner headers of tunnels are read.
    pub(crate) tunnels: bool,
}

impl Hasher {
    /// The hash of a [common](Self::common) packet, IP beginning at `L3`, from the offsets of its
    /// addresses and ports. Whether the packet is a common one is not checked.
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

    /// Whether this is a common packet: TCP, or UDP without a tunnel, over IP without options, no
    /// VLAN tags inline. `b` is the beginning of the packet.
    #[inline(always)]
    pub(crate) fn common<const L3: usize>(&self, b: &[u8]) -> Option<Common> {
        if is_v6::<L3>(b)? { self.common_v6(array(b, L3)?) } else { self.common_v4(array(b, L3)?) }
    }

    #[inline(always)]
    fn common_v4(&self, h: &[u8; 28]) -> Option<Common> {
        // Version 4 without options, not a later fragment.
        const WHICH: u64 = u64::from_ne_bytes([0xff, 0, 0, 0, 0, 0, 0x1f, 0xff]);
        const PLAIN: u64 = u64::from_ne_bytes([0x45, 0, 0, 0, 0, 0, 0, 0]);
        if word(h, 0) & WHICH == PLAIN { self.common_transport(false, h[9], [h[22], h[23]]) } else { None }
    }

    #[inline(always)]
    fn common_v6(&self, h: &[u8; 48]) -> Option<Common> {
        if h[0] >> 4 == 6 { self.common_transport(true, h[6], [h[42], h[43]]) } else { None }
    }

    #[inline(always)]
    fn common_transport(&self, v6: bool, protocol: u8, port: [u8; 2]) -> Option<Common> {
        let port = u16::from_be_bytes(port);
        let tunnel = || self.tunnels && (port == PORT_VXLAN || port == PORT_GENEVE);
        match protocol {
            TCP => Some(Common { v6, udp: false }),
            UDP if !tunnel() => Some(Common { v6, udp: true }),
            _ => None,
        }
    }

    /// A number that all packets of an aggregate have in common, by the shortest look: a hash of
    /// bytes that are addresses and ports of most packets, and do not differ within an aggregate in
    /// others. Tags beside packets are not looked at. `None` for packets of the other version of
    /// IP, and where it takes a longer look.
    #[inline(always)]
    pub(crate) fn usual_key<const L3: usize, const V6: bool>(&self, b: &[u8]) -> Option<u64> {
        // The bytes that lie furthest back first, so that one comparison shows that all are there.
        // IP in IP has an inner length where others have ports.
        if V6 {
            array::<36>(b, L3 + 8)?;
            let usual = is_v6::<L3>(b) == Some(true) && b.get(L3 + 6) != Some(&IPV4);
            return if usual { self.guess::<L3>(b, 0) } else { None };
        }
        let h: &[u8; 12] = array(b, L3 + 12)?;
        let usual = is_v6::<L3>(b) == Some(false) && (!self.tunnels || b.get(L3 + 9) != Some(&IPV4));
        usual.then(|| self.hash(word(h, 0), [h[8], h[9], h[10], h[11]], 0, 0))
    }

    /// The same number for any packet. 0 for packets that merge with nothing.
    #[inline(always)]
    pub(crate) fn key<const L3: usize>(&self, b: &[u8]) -> u64 {
        let usual = self.usual_key::<L3, false>(b).or_else(|| self.usual_key::<L3, true>(b));
        usual.unwrap_or_else(|| self.uncommon_key(b))
    }

    #[inline(never)]
    fn uncommon_key(&self, b: &[u8]) -> u64 {
        self.any(b, 0).map_or(0, |(hash, _)| hash)
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

/// A common packet's kind.
#[derive(Clone, Copy)]
pub(crate) struct Common {
    pub(crate) v6: bool,
    pub(crate) udp: bool,
}

/// IPv6 or IPv4, by the ethertype; without a link header, by the version.
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
