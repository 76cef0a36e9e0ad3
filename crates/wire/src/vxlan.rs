//! VXLAN: Ethernet frames over UDP ([RFC 7348](https://www.rfc-editor.org/rfc/rfc7348)).

use crate::Error;
use core::borrow::{Borrow, BorrowMut};

/// The UDP destination port.
pub const PORT: u16 = 4789;

/// In [`offset::FLAGS`]: the network identifier is valid.
pub const FLAG_VNI: u8 = 0x08;
/// In [`offset::FLAGS`]: the next protocol is named, it need not be Ethernet (VXLAN-GPE).
pub const FLAG_NEXT_PROTOCOL: u8 = 0x04;

header! {
    Vxlan: 8 bytes;
    /// Flags.
    0 FLAGS: u8, flags, set_flags;
    /// Network identifier in the upper 24 bits, 8 reserved bits.
    4 VNI: u32, vni_and_reserved, set_vni_and_reserved;
}

impl<B: Borrow<[u8; HEADER_LEN]>> Header<B> {
    /// Network identifier, 24 bits.
    #[inline]
    pub fn vni(&self) -> u32 {
        self.vni_and_reserved() >> 8
    }
}

impl<B: BorrowMut<[u8; HEADER_LEN]>> Header<B> {
    /// Sets the network identifier (cut to 24 bits) and clears the reserved bits.
    #[inline]
    pub fn set_vni(&mut self, vni: u32) {
        self.set_vni_and_reserved(vni << 8);
    }
}

/// A VXLAN packet.
#[derive(Clone, Copy, Debug)]
pub struct Vxlan<'a> {
    header: Header<&'a [u8; HEADER_LEN]>,
    payload: &'a [u8],
}

impl<'a> Vxlan<'a> {
    /// Reads the packet in `bytes`, the payload of a UDP datagram.
    ///
    /// # Errors
    /// [`Error::Truncated`]; [`Error::Unsupported`] without a valid network identifier, or if the
    /// next protocol need not be Ethernet.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, payload) = Header::split(bytes)?;
        if header.flags() & (FLAG_VNI | FLAG_NEXT_PROTOCOL) != FLAG_VNI {
            return Err(Error::Unsupported);
        }
        Ok(Self { header, payload })
    }

    /// The Ethernet frame inside.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
