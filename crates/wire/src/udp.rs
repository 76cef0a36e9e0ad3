//! UDP ([RFC 768](https://www.rfc-editor.org/rfc/rfc768)).

use crate::Error;
use crate::error::{cut, take};

header! {
    Udp: 8 bytes;
    /// Source port.
    0 SRC_PORT: u16, src_port, set_src_port;
    /// Destination port.
    2 DST_PORT: u16, dst_port, set_dst_port;
    /// Length of header and data.
    4 LENGTH: u16, length, set_length;
    /// Checksum over pseudo-header, header and data; 0 if there is none.
    6 CHECKSUM: u16, checksum, set_checksum;
}

/// A UDP datagram.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    header: Header<&'a [u8; HEADER_LEN]>,
    payload: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Reads the datagram at the beginning of `bytes`, the payload of an IP packet.
    ///
    /// # Errors
    /// [`Error::Truncated`] and [`Error::Length`] (less than the header).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, _) = Header::split(bytes)?;
        let len = usize::from(header.length());
        if len < HEADER_LEN {
            return Err(Error::Length);
        }
        let (_, payload) = take(cut(bytes, len)?, HEADER_LEN)?;
        Ok(Self { header, payload })
    }

    /// The data, up to the length in the header.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}
