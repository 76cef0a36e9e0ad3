//! One chunk, owned ([`Buf`]), and a contiguous piece of bytes as its reader sees it ([`Chunk`]).

use crate::meta::Meta;
use crate::pool::PoolShared;
use crate::untrusted;
use std::marker::PhantomData;
use std::ptr::NonNull;
use towpath_sys::uio::IoVec;

/// An owned chunk that is not part of a packet: `headroom | data | tailroom`, an indirect piece of
/// a shared chunk, or an external buffer.
///
/// The handle has eight bytes, is moved and never copied. Dropping it returns the chunk to its pool
/// and releases what the chunk refers to.
pub struct Buf(NonNull<Meta>);

// SAFETY: the handle owns its chunk alone, and pools accept chunks from any thread.
unsafe impl Send for Buf {}

impl Buf {
    /// Takes over a chunk.
    ///
    /// # Safety
    /// The caller owns the chunk, gives it up, and it has no successor.
    #[inline]
    pub(crate) unsafe fn from_meta(meta: NonNull<Meta>) -> Buf {
        Buf(meta)
    }

    /// Gives up the handle for the chunk.
    #[inline]
    pub(crate) fn into_meta(self) -> NonNull<Meta> {
        let meta = self.0;
        std::mem::forget(self);
        meta
    }

    pub(crate) fn as_meta(&self) -> NonNull<Meta> {
        self.0
    }

    fn meta(&self) -> &Meta {
        // SAFETY: the handle owns the chunk, and the pool lives as long as one of its chunks is in
        // use.
        unsafe { self.0.as_ref() }
    }

    /// Bytes of data.
    pub fn len(&self) -> usize {
        usize::from(self.meta().room.len)
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.meta().room.len == 0
    }

    /// The data.
    pub fn chunk(&self) -> Chunk<'_> {
        let meta = self.meta();
        // SAFETY: data and len describe bytes inside the chunk, which the borrowed handle owns.
        unsafe { Chunk::new(meta.data, usize::from(meta.room.len), meta.is_untrusted()) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: the handle owned the chunk, and nothing uses it after the drop.
        unsafe { PoolShared::free_chain(self.0) };
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buf").field("len", &self.len()).finish()
    }
}

/// The bytes of one contiguous piece of a packet, its linear part or a fragment: what DPDK calls a
/// segment of an mbuf.
///
/// They lie in a chunk of a [`Pool`](crate::Pool), which has room around them, as a chunk of an
/// AF_XDP socket's UMEM has; or in external memory.
///
/// Bytes that only this process can change are available as a slice. Bytes that another process may
/// write at the same moment (an application's frame) are *untrusted*: they can be copied, or given
/// to the kernel by address and length, but never borrowed as `&[u8]`. A value that changes between
/// two reads would be undefined behaviour as well as an attack.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    ptr: *const u8,
    len: usize,
    untrusted: bool,
    life: PhantomData<&'a [u8]>,
}

impl<'a> Chunk<'a> {
    /// # Safety
    /// `ptr..ptr + len` is readable for `'a`, and unless `untrusted` nothing writes to it during
    /// `'a`.
    pub(crate) unsafe fn new(ptr: *const u8, len: usize, untrusted: bool) -> Chunk<'a> {
        Chunk { ptr, len, untrusted, life: PhantomData }
    }

    /// Address of the first byte, valid for reads of [`len`](Chunk::len) bytes while the packet is
    /// borrowed.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// The piece for a gathering system call.
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

    /// The bytes, or `None` if another process may write to them.
    #[inline]
    pub fn bytes(&self) -> Option<&'a [u8]> {
        // SAFETY: by the contract of `new` the range is readable for 'a, and nothing writes to it
        // unless it is untrusted.
        (!self.untrusted).then(|| unsafe { std::slice::from_raw_parts(self.ptr, self.len) })
    }

    /// Copies the bytes from `offset` on into `out`, each read once; returns the number of bytes.
    #[inline]
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        let n = self.len.saturating_sub(offset).min(out.len());
        if n > 0 {
            // SAFETY: offset + n <= len, so the source is readable; `out` is writable.
            unsafe { untrusted::copy(self.ptr.add(offset), out.as_mut_ptr(), n) };
        }
        n
    }

    /// The piece without its first `n` bytes; empty if it has fewer.
    pub fn skip(self, n: usize) -> Chunk<'a> {
        let n = n.min(self.len);
        Chunk { ptr: self.ptr.wrapping_add(n), len: self.len - n, ..self }
    }
}
