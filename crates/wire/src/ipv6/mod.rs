//! IPv6 (RFC 8200) and its extension headers.
//!
//! Jumbograms (RFC 2675: payload length 0 and a hop-by-hop option) are read as packets without
//! payload.

mod extension;

pub use extension::{Extension, Extensions, Fragment, MAX_EXTENSIONS, is_extension};

use crate::error::cut;
use crate::{Error, checksum};
use core::borrow::{Borrow, BorrowMut};
use core::net::Ipv6Addr;

header! {
    Ipv6: 40 bytes;
    /// Version (4 bits), traffic class (8) and flow label (20).
    0 VERSION_CLASS_FLOW: u32, version_class_flow, set_version_class_flow;
    /// Length of all that follows the fixed header, extension headers included.
    4 PAYLOAD_LEN: u16, payload_len, set_payload_len;
    /// What follows: an extension header or a transport protocol.
    6 NEXT_HEADER: u8, next_header, set_next_header;
    /// Hop limit.
    7 HOP_LIMIT: u8, hop_limit, set_hop_limit;
    /// Source address.
    8 SRC: Ipv6Addr, src, set_src;
    /// Destination address.
    24 DST: Ipv6Addr, dst, set_dst;
}

impl<B: Borrow<[u8; HEADER_LEN]>> Header<B> {
    /// Version, 6 if this is IPv6.
    #[inline]
    pub fn version(&self) -> u8 {
        (self.version_class_flow() >> 28) as u8
    }

    /// Traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_flow() >> 20) as u8
    }

    /// Differentiated services code point.
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// Explicit congestion notification.
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.traffic_class() & 3
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        self.version_class_flow() & 0xf_ffff
    }
}

impl<B: BorrowMut<[u8; HEADER_LEN]>> Header<B> {
    /// Sets version 6, traffic class and flow label (cut to 20 bits).
    #[inline]
    pub fn set_class_and_flow(&mut self, traffic_class: u8, flow_label: u32) {
        let class = u32::from(traffic_class) << 20;
        self.set_version_class_flow(6 << 28 | class | flow_label & 0xf_ffff);
    }
}

/// An IPv6 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a> {
    header: Header<&'a [u8; HEADER_LEN]>,
    payload: &'a [u8],
}

/// What the extension headers lead to.
#[derive(Clone, Copy, Debug)]
pub struct Upper<'a> {
    /// The protocol of `payload`.
    pub protocol: u8,
    /// Transport header and data, or the middle of it in a later fragment.
    pub payload: &'a [u8],
    /// The fragment header, if there was one.
    pub fragment: Option<Fragment>,
}

impl<'a> Ipv6<'a> {
    /// Reads the packet at the beginning of `bytes`; Ethernet padding may follow.
    ///
    /// # Errors
    /// [`Error::Truncated`] and [`Error::Version`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, rest) = Header::split(bytes)?;
        if header.version() != 6 {
            return Err(Error::Version);
        }
        let payload = cut(rest, usize::from(header.payload_len()))?;
        Ok(Self { header, payload })
    }

    /// What follows the fixed header, extension headers included.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The extension headers.
    #[inline]
    #[must_use]
    pub fn extensions(&self) -> Extensions<'a> {
        Extensions::new(self.next_header(), self.payload)
    }

    /// What follows the extension headers.
    ///
    /// # Errors
    /// Those of [`Extensions`].
    #[inline]
    pub fn upper(&self) -> Result<Upper<'a>, Error> {
        let mut extensions = self.extensions();
        let mut fragment = None;
        for extension in extensions.by_ref() {
            fragment = extension?.fragment().or(fragment);
        }
        let (protocol, payload) = (extensions.next_header(), extensions.payload());
        Ok(Upper { protocol, payload, fragment })
    }

    /// The sum of the pseudo-header for `len` bytes of `protocol`; without regard to a routing
    /// header, which would put the final destination in the place of this packet's.
    #[inline]
    #[must_use]
    pub fn pseudo_sum(&self, protocol: u8, len: u32) -> u16 {
        checksum::pseudo_v6(self.src(), self.dst(), protocol, len)
    }
}
