//! A contiguous piece of a packet, as its reader sees it.

use std::marker::PhantomData;
use towpath_sys::uio::IoVec;

/// One contiguous piece of a packet: the linear part, or a fragment.
///
/// Bytes that only this process can change are had as a slice. Bytes in memory that someone else may write at the
/// same moment (an application's page) are *foreign*: they can be copied out once, or named to the kernel by
/// address and length, but never seen as `&[u8]`, because a value that changes between two looks would be
/// undefined behaviour as well as an attack.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    ptr: *const u8,
    len: usize,
    foreign: bool,
    life: PhantomData<&'a [u8]>,
}

impl<'a> Chunk<'a> {
    /// # Safety
    /// `ptr..ptr + len` is readable for `'a`, and unless `foreign` nobody writes to it for as long.
    pub(crate) unsafe fn new(ptr: *const u8, len: usize, foreign: bool) -> Chunk<'a> {
        Chunk { ptr, len, foreign, life: PhantomData }
    }

    /// Address of the first byte, valid for reads of [`len`](Chunk::len) bytes while the packet is borrowed.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// The piece as the kernel reads it.
    #[inline]
    pub fn io_vec(&self) -> IoVec<'a> {
        // SAFETY: by the contract of `new` the range is readable for 'a.
        unsafe { IoVec::from_raw(self.ptr, self.len) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, or `None` where someone else may be writing them.
    #[inline]
    pub fn bytes(&self) -> Option<&'a [u8]> {
        // SAFETY: by the contract of `new` the range is readable for 'a, and nobody writes to what is not foreign.
        (!self.foreign).then(|| unsafe { std::slice::from_raw_parts(self.ptr, self.len) })
    }

    /// Copies the bytes from `offset` on into `out`, each read once; returns how many there were.
    #[inline]
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        let n = self.len.saturating_sub(offset).min(out.len());
        if n > 0 {
            // SAFETY: offset + n <= len, so the source is readable; `out` is exclusive memory of this process and
            // cannot overlap it.
            unsafe { std::ptr::copy_nonoverlapping(self.ptr.add(offset), out.as_mut_ptr(), n) };
        }
        n
    }

    /// The piece without its first `n` bytes (empty if it has fewer).
    pub fn skip(self, n: usize) -> Chunk<'a> {
        let n = n.min(self.len);
        Chunk { ptr: self.ptr.wrapping_add(n), len: self.len - n, ..self }
    }
}
