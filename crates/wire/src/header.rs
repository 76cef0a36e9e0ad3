//! The macro that makes types of fixed headers.
//!
//! `header!` turns a table of fields into `HEADER_LEN`, the constants in `offset`, and
//! `Header<B>`: getters over any `B` that borrows an array of exactly that length, setters over
//! any that borrows it mutably. Because the length is in the type and the offsets are constants,
//! every access is checked by the compiler and none at run time.
//!
//! It also lets the protocol's view (a struct with a field `header`) dereference to its header;
//! `plain_view!` makes a view that needs no checks.

/// A number or address in a header, big-endian.
pub(crate) trait Field {
    /// The bytes on the wire.
    type Wire;
    fn from_wire(wire: Self::Wire) -> Self;
    fn to_wire(self) -> Self::Wire;
}

macro_rules! number {
    ($($ty:ty)*) => { $(
        impl Field for $ty {
            type Wire = [u8; size_of::<$ty>()];
            #[inline(always)]
            fn from_wire(wire: Self::Wire) -> Self {
                Self::from_be_bytes(wire)
            }
            #[inline(always)]
            fn to_wire(self) -> Self::Wire {
                self.to_be_bytes()
            }
        }
    )* };
}
number!(u8 u16 u32);

macro_rules! address {
    ($($ty:ty)*) => { $(
        impl Field for $ty {
            type Wire = [u8; size_of::<$ty>()];
            #[inline(always)]
            fn from_wire(wire: Self::Wire) -> Self {
                Self::from(wire)
            }
            #[inline(always)]
            fn to_wire(self) -> Self::Wire {
                self.octets()
            }
        }
    )* };
}
address!(core::net::Ipv4Addr core::net::Ipv6Addr);

impl<const N: usize> Field for [u8; N] {
    type Wire = Self;
    #[inline(always)]
    fn from_wire(wire: Self) -> Self {
        wire
    }
    #[inline(always)]
    fn to_wire(self) -> Self {
        self
    }
}

/// The `W` bytes at `AT`; refuses to compile if they are not inside.
#[inline(always)]
pub(crate) fn read<const AT: usize, const W: usize, const N: usize>(header: &[u8; N]) -> [u8; W] {
    const { assert!(AT + W <= N) };
    core::array::from_fn(|i| header[AT + i])
}

/// Writes the `W` bytes at `AT`; refuses to compile if they are not inside.
#[inline(always)]
pub(crate) fn write<const AT: usize, const W: usize, const N: usize>(header: &mut [u8; N], value: [u8; W]) {
    const { assert!(AT + W <= N) };
    for (i, byte) in value.into_iter().enumerate() {
        header[AT + i] = byte;
    }
}

macro_rules! header {
    (
        $view:ident: $len:literal bytes;
        $( $(#[$doc:meta])* $at:literal $name:ident: $ty:ty, $get:ident, $set:ident; )*
    ) => {
        /// Length of the fixed header in bytes.
        pub const HEADER_LEN: usize = $len;

        /// Where each field begins, in bytes from the start of the header.
        pub mod offset {
            $(
                #[doc = concat!("Of [`", stringify!($get), "`](super::Header::", stringify!($get), ").")]
                pub const $name: usize = $at;
            )*
        }

        /// The fixed header: getters over borrowed or owned bytes, setters over mutable ones.
        /// Values are not validated.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Header<B>(B);

        impl<'a> Header<&'a [u8; $len]> {
            /// The header at the beginning of `bytes`, and the rest.
            ///
            /// # Errors
            /// [`Error::Truncated`] if there are fewer than [`HEADER_LEN`] bytes.
            #[inline]
            pub fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Error> {
                let (header, rest) = bytes.split_first_chunk().ok_or(Error::Truncated)?;
                Ok((Self(header), rest))
            }
        }

        impl<'a> Header<&'a mut [u8; $len]> {
            /// The mutable header at the beginning of `bytes`, and the rest.
            ///
            /// # Errors
            /// [`Error::Truncated`] if there are fewer than [`HEADER_LEN`] bytes.
            #[inline]
            pub fn split_mut(bytes: &'a mut [u8]) -> Result<(Self, &'a mut [u8]), Error> {
                let (header, rest) = bytes.split_first_chunk_mut().ok_or(Error::Truncated)?;
                Ok((Self(header), rest))
            }
        }

        impl Header<[u8; $len]> {
            /// A header of zeros, to be filled in.
            #[must_use]
            pub const fn zeroed() -> Self {
                Self([0; $len])
            }
        }

        impl<B: core::borrow::Borrow<[u8; $len]>> Header<B> {
            /// The bytes of the header.
            #[inline]
            pub fn bytes(&self) -> &[u8; $len] {
                self.0.borrow()
            }

            $(
                $(#[$doc])*
                #[inline]
                pub fn $get(&self) -> $ty {
                    let wire = crate::header::read::<$at, { size_of::<$ty>() }, $len>(self.bytes());
                    crate::header::Field::from_wire(wire)
                }
            )*
        }

        impl<B: core::borrow::BorrowMut<[u8; $len]>> Header<B> {
            $(
                #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
                #[inline]
                pub fn $set(&mut self, value: $ty) {
                    let wire = crate::header::Field::to_wire(value);
                    crate::header::write::<$at, { size_of::<$ty>() }, $len>(self.0.borrow_mut(), wire);
                }
            )*
        }

        impl<'a> core::ops::Deref for $view<'a> {
            type Target = Header<&'a [u8; $len]>;
            #[inline]
            fn deref(&self) -> &Self::Target {
                &self.header
            }
        }
    };
}

/// A view of a fixed header and the bytes after it, without validation.
macro_rules! plain_view {
    ($(#[$doc:meta])* $view:ident; $(#[$parse:meta])* parse; $(#[$payload:meta])* payload;) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $view<'a> {
            header: Header<&'a [u8; HEADER_LEN]>,
            payload: &'a [u8],
        }

        impl<'a> $view<'a> {
            $(#[$parse])*
            ///
            /// # Errors
            /// [`Error::Truncated`].
            #[inline]
            pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
                let (header, payload) = Header::split(bytes)?;
                Ok(Self { header, payload })
            }

            $(#[$payload])*
            #[inline]
            #[must_use]
            pub const fn payload(&self) -> &'a [u8] {
                self.payload
            }
        }
    };
}
