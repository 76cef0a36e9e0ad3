//! The list format that IPv4 and TCP options share
//! ([RFC 791 section 3.1](https://www.rfc-editor.org/rfc/rfc791#section-3.1),
//! [RFC 9293 section 3.1](https://www.rfc-editor.org/rfc/rfc9293#section-3.1)): kind, length of the
//! whole option, data; two kinds are a single byte.

use crate::Error;

/// Kind: the list ends here.
pub const END: u8 = 0;
/// Kind: nothing, used for alignment.
pub const NOP: u8 = 1;

/// An undecoded option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawOption<'a> {
    /// Its kind.
    pub kind: u8,
    /// The bytes after kind and length.
    pub data: &'a [u8],
}

/// Iterates over options. [`NOP`]s are skipped. [`END`] and the end of the bytes end the iteration,
/// and so does an option with an impossible length, after an error.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a>(&'a [u8]);

impl<'a> Options<'a> {
    /// Starts with the bytes between fixed header and payload.
    #[inline]
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes not read yet.
    #[inline]
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<RawOption<'a>, Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let mut bytes = core::mem::take(&mut self.0);
        while let [NOP, rest @ ..] = bytes {
            bytes = rest;
        }
        let (kind, len) = match *bytes {
            [] | [END, ..] => return None,
            [_] => return Some(Err(Error::Truncated)),
            [kind, len, ..] => (kind, usize::from(len)),
        };
        if len < 2 {
            return Some(Err(Error::HeaderLength));
        }
        let Some((option, rest)) = bytes.split_at_checked(len) else {
            return Some(Err(Error::Truncated));
        };
        self.0 = rest;
        Some(Ok(RawOption { kind, data: option.get(2..).unwrap_or_default() }))
    }
}
