//! GRE: anything with an ethertype over IP ([RFC 2784](https://www.rfc-editor.org/rfc/rfc2784); key
//! and sequence number [RFC 2890](https://www.rfc-editor.org/rfc/rfc2890)).

use crate::Error;

/// In [`offset::FLAGS`]: checksum present.
pub const FLAG_CHECKSUM: u16 = 0x8000;
/// In [`offset::FLAGS`]: routing present ([RFC 1701](https://www.rfc-editor.org/rfc/rfc1701),
/// obsolete).
pub const FLAG_ROUTING: u16 = 0x4000;
/// In [`offset::FLAGS`]: key present.
pub const FLAG_KEY: u16 = 0x2000;
/// In [`offset::FLAGS`]: sequence number present.
pub const FLAG_SEQ: u16 = 0x1000;
/// In [`offset::FLAGS`]: the version, 0.
pub const VERSION: u16 = 0x0007;

header! {
    Gre: 4 bytes;
    /// Flags and version.
    0 FLAGS: u16, flags, set_flags;
    /// Ethertype of the payload.
    2 PROTOCOL: u16, protocol, set_protocol;
}

impl<B: core::borrow::Borrow<[u8; HEADER_LEN]>> Header<B> {
    /// Length of fixed header and the optional fields that the flags name, 4..=16.
    #[inline]
    pub fn header_len(&self) -> usize {
        let optional = self.flags() & (FLAG_CHECKSUM | FLAG_KEY | FLAG_SEQ);
        HEADER_LEN + 4 * optional.count_ones() as usize
    }
}

/// A GRE packet.
#[derive(Clone, Copy, Debug)]
pub struct Gre<'a> {
    header: Header<&'a [u8; HEADER_LEN]>,
    checksum: Option<u16>,
    key: Option<u32>,
    seq: Option<u32>,
    payload: &'a [u8],
}

impl<'a> Gre<'a> {
    /// Reads the packet in `bytes`, the payload of an IP packet.
    ///
    /// # Errors
    /// [`Error::Truncated`], [`Error::Version`] (PPTP's is 1) and [`Error::Unsupported`] (routing).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, mut rest) = Header::split(bytes)?;
        let flags = header.flags();
        if flags & VERSION != 0 {
            return Err(Error::Version);
        }
        if flags & FLAG_ROUTING != 0 {
            return Err(Error::Unsupported);
        }
        let mut optional = |flag| {
            if flags & flag == 0 {
                return Ok(None);
            }
            let (word, after) = rest.split_first_chunk().ok_or(Error::Truncated)?;
            rest = after;
            Ok(Some(u32::from_be_bytes(*word)))
        };
        let checksum = optional(FLAG_CHECKSUM)?.map(|word| (word >> 16) as u16);
        let key = optional(FLAG_KEY)?;
        let seq = optional(FLAG_SEQ)?;
        Ok(Self { header, checksum, key, seq, payload: rest })
    }

    /// The checksum over header and payload, if present.
    #[inline]
    #[must_use]
    pub const fn checksum(&self) -> Option<u16> {
        self.checksum
    }

    /// The key, if present.
    #[inline]
    #[must_use]
    pub const fn key(&self) -> Option<u32> {
        self.key
    }

    /// The sequence number, if present.
    #[inline]
    #[must_use]
    pub const fn seq(&self) -> Option<u32> {
        self.seq
    }

    /// The packet inside, of type `protocol`.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
