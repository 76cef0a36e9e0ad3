//! TCP ([RFC 9293](https://www.rfc-editor.org/rfc/rfc9293)) and its options (timestamps and window
//! scale [RFC 7323](https://www.rfc-editor.org/rfc/rfc7323), SACK
//! [RFC 2018](https://www.rfc-editor.org/rfc/rfc2018)).

use crate::Error;
use crate::error::take;
use crate::options::{Options, RawOption};
use core::borrow::{Borrow, BorrowMut};

/// Control bits in [`offset::FLAGS`].
pub mod flags {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Push.
    pub const PSH: u8 = 0x08;
    /// The acknowledgment field is valid.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer is valid.
    pub const URG: u8 = 0x20;
    /// ECN echo ([RFC 3168](https://www.rfc-editor.org/rfc/rfc3168)).
    pub const ECE: u8 = 0x40;
    /// Congestion window reduced ([RFC 3168](https://www.rfc-editor.org/rfc/rfc3168)).
    pub const CWR: u8 = 0x80;
}

/// Option kinds (IANA "TCP Option Kind Numbers").
pub mod kind {
    /// Maximum segment size.
    pub const MSS: u8 = 2;
    /// Window scale.
    pub const WINDOW_SCALE: u8 = 3;
    /// Selective acknowledgment permitted.
    pub const SACK_PERMITTED: u8 = 4;
    /// Selective acknowledgment.
    pub const SACK: u8 = 5;
    /// Timestamps.
    pub const TIMESTAMPS: u8 = 8;
}

header! {
    Tcp: 20 bytes;
    /// Source port.
    0 SRC_PORT: u16, src_port, set_src_port;
    /// Destination port.
    2 DST_PORT: u16, dst_port, set_dst_port;
    /// Sequence number.
    4 SEQ: u32, seq, set_seq;
    /// Acknowledgment number.
    8 ACK: u32, ack, set_ack;
    /// Header length in 32-bit words (4 bits) and reserved bits, the last of them AE
    /// ([RFC 9768](https://www.rfc-editor.org/rfc/rfc9768)).
    12 DATA_OFFSET: u8, data_offset, set_data_offset;
    /// Control bits, see [`flags`].
    13 FLAGS: u8, flags, set_flags;
    /// Window, not scaled.
    14 WINDOW: u16, window, set_window;
    /// Checksum over pseudo-header, header and data.
    16 CHECKSUM: u16, checksum, set_checksum;
    /// Urgent pointer.
    18 URGENT: u16, urgent, set_urgent;
}

impl<B: Borrow<[u8; HEADER_LEN]>> Header<B> {
    /// Length of the header in bytes by its own field, 0..=60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.data_offset() >> 4) * 4
    }
}

impl<B: BorrowMut<[u8; HEADER_LEN]>> Header<B> {
    /// Sets the length of the header in bytes: a multiple of 4 in 20..=60. Clears the reserved
    /// bits.
    #[inline]
    pub fn set_header_len(&mut self, bytes: usize) {
        self.set_data_offset(((bytes / 4) << 4) as u8);
    }
}

/// A TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    header: Header<&'a [u8; HEADER_LEN]>,
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Reads the segment in `bytes`, the payload of an IP packet.
    ///
    /// # Errors
    /// [`Error::Truncated`] and [`Error::HeaderLength`] (less than 20).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, _) = Header::split(bytes)?;
        if header.header_len() < HEADER_LEN {
            return Err(Error::HeaderLength);
        }
        let (head, payload) = take(bytes, header.header_len())?;
        let (_, options) = take(head, HEADER_LEN)?;
        Ok(Self { header, options, payload })
    }

    /// The options, decoded.
    #[inline]
    pub fn options(&self) -> impl Iterator<Item = Result<TcpOption<'a>, Error>> + use<'a> {
        self.raw_options().map(|option| option.map(TcpOption::from))
    }

    /// The undecoded options.
    #[inline]
    #[must_use]
    pub const fn raw_options(&self) -> Options<'a> {
        Options::new(self.options)
    }

    /// The data.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// A TCP option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// Maximum segment size.
    Mss(u16),
    /// The shift of the window.
    WindowScale(u8),
    /// Selective acknowledgments may be sent.
    SackPermitted,
    /// Selective acknowledgments.
    Sack(SackBlocks<'a>),
    /// Timestamp value and echo reply.
    Timestamps {
        /// The sender's clock.
        value: u32,
        /// The echoed clock value of the peer.
        echo: u32,
    },
    /// Any other option, and any of the above with a length other than the standard's.
    Other(RawOption<'a>),
}

impl<'a> From<RawOption<'a>> for TcpOption<'a> {
    #[inline]
    fn from(option: RawOption<'a>) -> Self {
        match (option.kind, option.data) {
            (kind::MSS, &[a, b]) => TcpOption::Mss(u16::from_be_bytes([a, b])),
            (kind::WINDOW_SCALE, &[shift]) => TcpOption::WindowScale(shift),
            (kind::SACK_PERMITTED, []) => TcpOption::SackPermitted,
            (kind::SACK, data) if data.len().is_multiple_of(8) => TcpOption::Sack(SackBlocks(data.as_chunks().0)),
            (kind::TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => TcpOption::Timestamps {
                value: u32::from_be_bytes([a, b, c, d]),
                echo: u32::from_be_bytes([e, f, g, h]),
            },
            _ => TcpOption::Other(option),
        }
    }
}

/// The ranges of a selective acknowledgment: left edge, right edge (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SackBlocks<'a>(&'a [[u8; 8]]);

impl Iterator for SackBlocks<'_> {
    type Item = (u32, u32);

    #[inline]
    fn next(&mut self) -> Option<(u32, u32)> {
        let (&[a, b, c, d, e, f, g, h], rest) = self.0.split_first()?;
        self.0 = rest;
        Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])))
    }
}
