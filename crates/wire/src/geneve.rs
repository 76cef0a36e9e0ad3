//! GENEVE: anything with an ethertype over UDP
//! ([RFC 8926](https://www.rfc-editor.org/rfc/rfc8926)).

use crate::Error;
use crate::error::take;
use core::borrow::{Borrow, BorrowMut};

/// The UDP destination port.
pub const PORT: u16 = 6081;

/// In [`offset::FLAGS`]: a control packet.
pub const FLAG_CONTROL: u8 = 0x80;
/// In [`offset::FLAGS`]: there are options that must be understood.
pub const FLAG_CRITICAL: u8 = 0x40;

header! {
    Geneve: 8 bytes;
    /// Version (2 bits) and length of the options in 32-bit words (6 bits).
    0 VERSION_LEN: u8, version_len, set_version_len;
    /// Flags.
    1 FLAGS: u8, flags, set_flags;
    /// Ethertype of the payload.
    2 PROTOCOL: u16, protocol, set_protocol;
    /// Network identifier in the upper 24 bits, 8 reserved bits.
    4 VNI: u32, vni_and_reserved, set_vni_and_reserved;
}

impl<B: Borrow<[u8; HEADER_LEN]>> Header<B> {
    /// Network identifier, 24 bits.
    #[inline]
    pub fn vni(&self) -> u32 {
        self.vni_and_reserved() >> 8
    }

    /// Length of fixed header and options in bytes, 8..=260.
    #[inline]
    pub fn header_len(&self) -> usize {
        HEADER_LEN + usize::from(self.version_len() & 0x3f) * 4
    }
}

impl<B: BorrowMut<[u8; HEADER_LEN]>> Header<B> {
    /// Sets the network identifier (cut to 24 bits) and clears the reserved bits.
    #[inline]
    pub fn set_vni(&mut self, vni: u32) {
        self.set_vni_and_reserved(vni << 8);
    }
}

/// A GENEVE packet.
#[derive(Clone, Copy, Debug)]
pub struct Geneve<'a> {
    header: Header<&'a [u8; HEADER_LEN]>,
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Geneve<'a> {
    /// Reads the packet in `bytes`, the payload of a UDP datagram.
    ///
    /// # Errors
    /// [`Error::Truncated`] and [`Error::Version`] (not 0).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, _) = Header::split(bytes)?;
        if header.version_len() >> 6 != 0 {
            return Err(Error::Version);
        }
        let (head, payload) = take(bytes, header.header_len())?;
        let (_, options) = take(head, HEADER_LEN)?;
        Ok(Self { header, options, payload })
    }

    /// The options.
    #[inline]
    #[must_use]
    pub const fn options(&self) -> Options<'a> {
        Options(self.options)
    }

    /// The packet inside, of type `protocol`.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// An option ([RFC 8926 section 3.5](https://www.rfc-editor.org/rfc/rfc8926#section-3.5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneveOption<'a> {
    /// The namespace of the type.
    pub class: u16,
    /// The type; its upper bit marks an option that must be understood.
    pub kind: u8,
    /// The data, a multiple of 4 bytes.
    pub data: &'a [u8],
}

/// Iterates over options; after one that is cut short, an error ends the iteration.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Result<GeneveOption<'a>, Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let bytes = core::mem::take(&mut self.0);
        if bytes.is_empty() {
            return None;
        }
        let Some((&[c0, c1, kind, len], rest)) = bytes.split_first_chunk() else {
            return Some(Err(Error::Truncated));
        };
        let Some((data, rest)) = rest.split_at_checked(usize::from(len & 0x1f) * 4) else {
            return Some(Err(Error::Truncated));
        };
        self.0 = rest;
        Some(Ok(GeneveOption { class: u16::from_be_bytes([c0, c1]), kind, data }))
    }
}
