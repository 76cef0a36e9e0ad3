//! IPv4 (RFC 791; DSCP RFC 2474, ECN RFC 3168).

use crate::error::{cut, take};
use crate::options::Options;
use crate::{Error, checksum};
use core::borrow::{Borrow, BorrowMut};
use core::net::Ipv4Addr;

/// In [`offset::FRAGMENT`]: do not fragment.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// In [`offset::FRAGMENT`]: not the last fragment.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// In [`offset::FRAGMENT`]: the position, in units of 8 bytes.
pub const FRAGMENT_OFFSET: u16 = 0x1fff;

header! {
    Ipv4: 20 bytes;
    /// Version and header length in 32-bit words: `0x45` without options.
    0 VERSION_IHL: u8, version_ihl, set_version_ihl;
    /// Type of service: DSCP and ECN.
    1 TOS: u8, tos, set_tos;
    /// Length of header and payload in bytes.
    2 TOTAL_LEN: u16, total_len, set_total_len;
    /// Identification, common to the fragments of a packet.
    4 ID: u16, id, set_id;
    /// Fragmentation flags and offset.
    6 FRAGMENT: u16, fragment, set_fragment;
    /// Time to live.
    8 TTL: u8, ttl, set_ttl;
    /// What follows, see [`ip::protocol`](crate::ip::protocol).
    9 PROTOCOL: u8, protocol, set_protocol;
    /// Header checksum.
    10 CHECKSUM: u16, checksum, set_checksum;
    /// Source address.
    12 SRC: Ipv4Addr, src, set_src;
    /// Destination address.
    16 DST: Ipv4Addr, dst, set_dst;
}

impl<B: Borrow<[u8; HEADER_LEN]>> Header<B> {
    /// Version, 4 if this is IPv4.
    #[inline]
    pub fn version(&self) -> u8 {
        self.version_ihl() >> 4
    }

    /// Length of the header in bytes as the header says, 0..=60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl() & 15) * 4
    }

    /// Differentiated services code point.
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.tos() >> 2
    }

    /// Explicit congestion notification.
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.tos() & 3
    }

    /// Whether routers may not fragment the packet.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.fragment() & DONT_FRAGMENT != 0
    }

    /// Whether fragments follow.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.fragment() & MORE_FRAGMENTS != 0
    }

    /// Where the payload belongs in the whole packet's, in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(self.fragment() & FRAGMENT_OFFSET) * 8
    }

    /// Whether this is a part of a packet, the first one included.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment() & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0
    }
}

impl<B: BorrowMut<[u8; HEADER_LEN]>> Header<B> {
    /// Computes the checksum of a header without options and sets it.
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let check = checksum::finish(checksum::sum(self.bytes()));
        self.set_checksum(check);
    }
}

/// An IPv4 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    header: Header<&'a [u8; HEADER_LEN]>,
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Reads the packet at the beginning of `bytes`; Ethernet padding may follow. The checksum is
    /// not verified, see [`is_checksum_valid`](Self::is_checksum_valid).
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Version`], [`Error::HeaderLength`] (less than 20) and
    /// [`Error::Length`] (total length less than the header).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, _) = Header::split(bytes)?;
        if header.version() != 4 {
            return Err(Error::Version);
        }
        let (header_len, total_len) = (header.header_len(), usize::from(header.total_len()));
        if header_len < HEADER_LEN {
            return Err(Error::HeaderLength);
        }
        if total_len < header_len {
            return Err(Error::Length);
        }
        let (head, payload) = take(cut(bytes, total_len)?, header_len)?;
        let (_, options) = take(head, HEADER_LEN)?;
        Ok(Self { header, options, payload })
    }

    /// The options.
    #[inline]
    #[must_use]
    pub const fn options(&self) -> Options<'a> {
        Options::new(self.options)
    }

    /// What follows the header, up to the total length.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Whether the header checksum is right.
    #[inline]
    #[must_use]
    pub fn is_checksum_valid(&self) -> bool {
        let fixed = checksum::sum(self.header.bytes());
        checksum::add(fixed, checksum::sum(self.options)) == checksum::VALID
    }

    /// The sum of the pseudo-header for the payload of this packet.
    #[inline]
    #[must_use]
    pub fn pseudo_sum(&self) -> u16 {
        checksum::pseudo_v4(self.src(), self.dst(), self.protocol(), self.payload.len() as u32)
    }
}
