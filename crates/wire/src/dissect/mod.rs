//! The one-pass dissector: offsets and kinds of the headers of a frame, and its flow.
//!
//! ```text
//!   │ Ethernet │ tag │ tag │ IP │ extensions or options │ transport │ payload │ padding │
//!   0                      l3                           l4          payload   end       len
//! ```
//!
//! Always `l3 <= l4 <= payload <= end <= frame.len()`. If a header is missing, cut short or wrong,
//! [`Dissected::stop`] names it, and the offsets after it are all equal: the bytes from there on
//! are not understood.
//!
//! Tunnels are not entered: dissect the payload again.
//!
//! | file | |
//! |---|---|
//! | `link` | the link header and its tags |
//! | `common` | the fast path: TCP and UDP without options or extension headers |
//! | `general` | any IP packet |
//! | `flow_hash` | the hash of the flow alone |

mod common;
mod flow_hash;
mod general;
mod link;

pub use flow_hash::symmetric_hash;
use link::LinkLayer;
pub use link::dissect;

use crate::hash::{FlowKey, RssInput, Toeplitz};
use crate::vlan::Tag;

/// Why the dissector stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Stop {
    /// It read all headers: [`Dissected::payload`] is behind the transport header.
    #[default]
    Complete,
    /// The Ethernet header or a tag is cut short.
    LinkTruncated,
    /// More than two tags.
    TooManyTags,
    /// Neither IPv4 nor IPv6, see [`Dissected::ethertype`]; `l3` is where it begins.
    NotIp,
    /// The IP header is cut short.
    NetworkTruncated,
    /// Version, header length or total length of the IP header is impossible.
    NetworkMalformed,
    /// An IPv6 extension header is cut short.
    ExtensionTruncated,
    /// More than [`MAX_EXTENSIONS`](crate::ipv6::MAX_EXTENSIONS) IPv6 extension headers.
    TooManyExtensions,
    /// A fragment that is not the first: its payload has no transport header.
    LaterFragment,
    /// A protocol without ports or that is not known here; `l4` is where it begins.
    OtherTransport,
    /// The transport header is cut short.
    TransportTruncated,
    /// The TCP header length is impossible.
    TransportMalformed,
}

/// Properties of a frame, a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

impl Flags {
    /// The network header is IPv4, and sound.
    pub const IPV4: Self = Self(1);
    /// The network header is IPv6, and sound.
    pub const IPV6: Self = Self(1 << 1);
    /// A part of a packet. (IPv6 packets with a fragment header that are whole are not.)
    pub const FRAGMENT: Self = Self(1 << 2);
    /// The part that has the transport header.
    pub const FIRST_FRAGMENT: Self = Self(1 << 3);
    /// There are IPv4 options.
    pub const OPTIONS: Self = Self(1 << 4);
    /// There are IPv6 extension headers.
    pub const EXTENSIONS: Self = Self(1 << 5);
    /// The flow key has ports.
    pub const PORTS: Self = Self(1 << 6);
    /// The IP header promises more bytes than the frame has.
    pub const TRUNCATED: Self = Self(1 << 7);
    /// Bytes follow the IP packet: Ethernet padding or a trailer.
    pub const PADDED: Self = Self(1 << 8);

    /// Whether all of `flags` are set.
    #[inline]
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether any of `flags` is set.
    #[inline]
    #[must_use]
    pub const fn intersects(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// The bits.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
}

impl core::ops::BitOr for Flags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl core::ops::BitOrAssign for Flags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// The headers of a frame, in 64 bytes. Offsets are bytes from the start of the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Dissected {
    /// Addresses, ports and protocol.
    pub flow: FlowKey,
    /// VLAN tags, the outer first; all zero where there is none.
    pub tags: [Tag; 2],
    /// The ethertype after the link header and tags; derived from the IP version where there is no
    /// link header; 0 if that was not reached.
    pub ethertype: u16,
    /// Offset of the network header: the length of the link header with its tags.
    pub l3: u16,
    /// Offset of the transport header.
    pub l4: u16,
    /// Offset of the transport's payload.
    pub payload: u16,
    /// Offset of the end of the IP packet.
    pub end: u32,
    /// Properties.
    pub flags: Flags,
    /// The control bits of TCP, see [`tcp::flags`](crate::tcp::flags); 0 for other protocols.
    pub tcp_flags: u8,
    /// Why the dissector stopped.
    pub stop: Stop,
}

const _: () = assert!(size_of::<Dissected>() <= 64);

impl Dissected {
    /// Whether the frame holds an IPv4 packet.
    #[inline]
    #[must_use]
    pub const fn is_ipv4(&self) -> bool {
        self.flags.contains(Flags::IPV4)
    }

    /// Whether the frame holds an IPv6 packet.
    #[inline]
    #[must_use]
    pub const fn is_ipv6(&self) -> bool {
        self.flags.contains(Flags::IPV6)
    }

    /// Whether this is a part of a packet.
    #[inline]
    #[must_use]
    pub const fn is_fragment(&self) -> bool {
        self.flags.contains(Flags::FRAGMENT)
    }

    /// Length of the transport's payload.
    #[inline]
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        self.end as usize - self.payload as usize
    }

    /// A hash that both directions of the flow share, see [`FlowKey::symmetric_hash`].
    #[inline]
    #[must_use]
    pub fn symmetric_hash(&self, seed: u64) -> u32 {
        self.flow.symmetric_hash(seed)
    }

    /// The input of a NIC's hash: addresses, and ports if the packet has them.
    #[inline]
    #[must_use]
    pub fn rss_input(&self) -> RssInput {
        if !self.flags.intersects(Flags::IPV4 | Flags::IPV6) {
            return RssInput::EMPTY;
        }
        RssInput::new(&self.flow, self.is_ipv4(), self.flags.contains(Flags::PORTS))
    }

    /// The hash of a NIC with this key; 0 for what is not IP.
    #[inline]
    #[must_use]
    pub fn toeplitz(&self, key: &Toeplitz) -> u32 {
        key.hash(self.rss_input().as_bytes())
    }
}
