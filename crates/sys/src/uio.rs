//! One call for a header and all pieces of a packet, without copying (`writev(2)`).

use super::check_len;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;

/// Bytes that the kernel reads: an address and a length, valid for `'a`.
///
/// Unlike [`std::io::IoSlice`] it may name bytes that another process writes to: no reference to
/// them exists.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct IoVec<'a>(libc::iovec, PhantomData<&'a [u8]>);

impl<'a> IoVec<'a> {
    /// The bytes of a slice.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> IoVec<'a> {
        // SAFETY: the bytes are borrowed for 'a.
        unsafe { IoVec::from_raw(bytes.as_ptr(), bytes.len()) }
    }

    /// `len` bytes at an address.
    ///
    /// # Safety
    /// The bytes are mapped and readable for `'a`. Their values may change.
    #[inline]
    pub unsafe fn from_raw(at: *const u8, len: usize) -> IoVec<'a> {
        IoVec(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len }, PhantomData)
    }
}

/// A packet as a list of contiguous pieces.
pub trait Pieces {
    /// The number of pieces.
    fn count(&self) -> usize;
    /// The pieces, in order.
    fn pieces(&self) -> impl Iterator<Item = IoVec<'_>>;
}

pub(crate) const EMPTY: libc::iovec = libc::iovec { iov_base: null_mut(), iov_len: 0 };

/// The list of `writev(2)`, allocated once for all calls.
pub struct Gather(Box<[libc::iovec]>);

// SAFETY: the addresses in the list are used only within `write`, which puts them there.
unsafe impl Send for Gather {}

impl Gather {
    /// A list for a header and at most `pieces` pieces.
    pub fn new(pieces: usize) -> Gather {
        Gather(vec![EMPTY; pieces + 1].into())
    }

    /// Writes `header`, then the packet; returns the bytes written. Pieces past the list's end are
    /// left out.
    ///
    /// # Errors
    /// The error of `writev(2)`.
    #[inline]
    pub fn write(&mut self, to: impl AsFd, header: &[u8], packet: &impl Pieces) -> io::Result<usize> {
        let n = fill(&mut self.0, header, packet);
        // SAFETY: the first n entries were just filled from `header` and `packet`, both borrowed
        // until the call returns; the kernel only reads what they point to.
        check_len(unsafe { libc::writev(to.as_fd().as_raw_fd(), self.0.as_ptr(), n as libc::c_int) })
    }
}

/// Puts the header and the packet's pieces into the list; returns the number of entries.
#[inline]
pub(crate) fn fill(list: &mut [libc::iovec], header: &[u8], packet: &impl Pieces) -> usize {
    let mut n = 0;
    for (entry, piece) in list.iter_mut().zip(std::iter::once(IoVec::new(header)).chain(packet.pieces())) {
        *entry = piece.0;
        n += 1;
    }
    n
}
