//! The error of parsers and emitters.

use core::fmt;

/// Why bytes are not a header of the kind asked for, or headers could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// Fewer bytes than the header, or than the length in it.
    Truncated,
    /// The version field belongs to another protocol or revision.
    Version,
    /// The header length field is below the fixed header or above what the format allows.
    HeaderLength,
    /// The packet length field is below the header, or the packet is longer than the field can say.
    Length,
    /// Well-formed, but a variant of the protocol that is not read here.
    Unsupported,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Truncated => "fewer bytes than the header says",
            Error::Version => "wrong protocol version",
            Error::HeaderLength => "header length out of range",
            Error::Length => "packet length out of range",
            Error::Unsupported => "unsupported variant of the protocol",
        })
    }
}

impl core::error::Error for Error {}

/// Splits off the first `len` bytes.
#[inline]
pub(crate) fn take(bytes: &[u8], len: usize) -> Result<(&[u8], &[u8]), Error> {
    bytes.split_at_checked(len).ok_or(Error::Truncated)
}

/// The first `len` bytes.
#[inline]
pub(crate) fn cut(bytes: &[u8], len: usize) -> Result<&[u8], Error> {
    bytes.get(..len).ok_or(Error::Truncated)
}
