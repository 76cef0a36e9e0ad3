//! Walking over IPv6 extension headers
//! ([RFC 8200 section 4](https://www.rfc-editor.org/rfc/rfc8200#section-4); authentication header
//! [RFC 4302](https://www.rfc-editor.org/rfc/rfc4302)).
//!
//! The walk cannot loop, because every header has at least eight bytes, and it is bounded, so that
//! a packet of tiny headers does not cost more than a useful one.

use crate::Error;
use crate::error::take;
use crate::ip::protocol::{AH, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING};

/// The longest chain that is followed.
/// [RFC 8200 section 4.1](https://www.rfc-editor.org/rfc/rfc8200#section-4.1) recommends each
/// header at most once, destination options twice: six.
pub const MAX_EXTENSIONS: usize = 8;

/// Whether this next header value is an extension header that is walked over.
#[inline]
#[must_use]
pub const fn is_extension(next_header: u8) -> bool {
    matches!(next_header, HOP_BY_HOP | ROUTING | FRAGMENT | AH | DESTINATION_OPTIONS)
}

/// An extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    /// Its kind: the next header value before it.
    pub kind: u8,
    /// The kind of the header after it.
    pub next_header: u8,
    /// All of it, the two bytes of next header and length included. Never less than 8 bytes.
    pub bytes: &'a [u8],
}

/// The fields of a fragment header
/// ([RFC 8200 section 4.5](https://www.rfc-editor.org/rfc/rfc8200#section-4.5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of the fragment in the whole packet's payload, in bytes.
    pub offset: u16,
    /// Whether fragments follow.
    pub more: bool,
    /// Common to the fragments of a packet.
    pub id: u32,
}

impl Extension<'_> {
    /// The fields of a fragment header; `None` for other kinds.
    #[inline]
    #[must_use]
    pub fn fragment(&self) -> Option<Fragment> {
        match (self.kind, self.bytes) {
            (FRAGMENT, &[_, _, o0, o1, i0, i1, i2, i3]) => Some(Fragment {
                offset: u16::from_be_bytes([o0, o1]) & !7,
                more: o1 & 1 != 0,
                id: u32::from_be_bytes([i0, i1, i2, i3]),
            }),
            _ => None,
        }
    }

    /// How many addresses of a routing header are not visited yet; `None` for other kinds.
    /// If it is not 0, the transport checksum covers another destination than the header's.
    #[inline]
    #[must_use]
    pub fn segments_left(&self) -> Option<u8> {
        match (self.kind, self.bytes) {
            (ROUTING, &[_, _, _, left, ..]) => Some(left),
            _ => None,
        }
    }
}

impl Fragment {
    /// Whether this is a part of a packet. A whole packet with a fragment header (an atomic
    /// fragment, [RFC 6946](https://www.rfc-editor.org/rfc/rfc6946)) is not.
    #[inline]
    #[must_use]
    pub const fn is_fragment(&self) -> bool {
        self.more || self.offset != 0
    }
}

/// Iterates over extension headers until another protocol, or until a fragment other than the
/// first, behind which no header follows. Then [`next_header`](Self::next_header) and
/// [`payload`](Self::payload) are those of the rest.
///
/// An error ends the walk: [`Error::Truncated`], or [`Error::Unsupported`] after
/// [`MAX_EXTENSIONS`].
#[derive(Clone, Copy, Debug)]
pub struct Extensions<'a> {
    next_header: u8,
    payload: &'a [u8],
    /// How many headers may follow; 0 after the end.
    budget: usize,
}

impl<'a> Extensions<'a> {
    /// Starts with the next header value before `payload`.
    #[inline]
    #[must_use]
    pub const fn new(next_header: u8, payload: &'a [u8]) -> Self {
        Self { next_header, payload, budget: MAX_EXTENSIONS + 1 }
    }

    /// The protocol of [`payload`](Self::payload).
    #[inline]
    #[must_use]
    pub const fn next_header(&self) -> u8 {
        self.next_header
    }

    /// The bytes after the headers read so far.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The header at the front.
    #[inline]
    fn split(&self) -> Result<(Extension<'a>, &'a [u8]), Error> {
        let &[next_header, len, ..] = self.payload else {
            return Err(Error::Truncated);
        };
        let len = match self.next_header {
            FRAGMENT => 8,
            AH => (usize::from(len) + 2) * 4,
            _ => (usize::from(len) + 1) * 8,
        };
        let (bytes, rest) = take(self.payload, len.max(8))?;
        Ok((Extension { kind: self.next_header, next_header, bytes }, rest))
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<Extension<'a>, Error>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.budget == 0 || !is_extension(self.next_header) {
            return None;
        }
        self.budget -= 1;
        let split = if self.budget == 0 { Err(Error::Unsupported) } else { self.split() };
        let (extension, rest) = match split {
            Ok(found) => found,
            Err(error) => {
                self.budget = 0;
                return Some(Err(error));
            }
        };
        self.next_header = extension.next_header;
        self.payload = rest;
        if extension.fragment().is_some_and(|f| f.offset != 0) {
            self.budget = 0;
        }
        Some(Ok(extension))
    }
}
