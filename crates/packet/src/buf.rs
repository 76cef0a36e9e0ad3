//! One chunk, owned.

use crate::chunk::Chunk;
use crate::meta::{Meta, flag};
use crate::pool::Shared;
use std::ptr::NonNull;

/// An owned chunk that is not (yet) part of a packet: `headroom | data | tailroom`, or a view of someone else's bytes.
///
/// Eight bytes, moved and never copied. Dropping it gives the chunk back to its pool, and what it viewed back to its
/// owner.
pub struct Buf(NonNull<Meta>);

// SAFETY: the handle owns its chunk alone, and pools take chunks back from any thread.
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
        // SAFETY: the handle owns the chunk, and its pool lives as long as the chunk is away.
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
        // SAFETY: data and len describe bytes inside the chunk, which is ours as long as the handle is borrowed.
        unsafe { Chunk::new(meta.data, usize::from(meta.room.len), meta.flags & flag::FOREIGN != 0) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: the handle owned the chunk and is going away.
        unsafe { Shared::give_home(self.0) };
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buf").field("len", &self.len()).finish()
    }
}
