//! Indirect buffers: fragments that refer to pieces of one shared buffer.
//!
//! ```text
//!   a large buffer, shared
//!   ├── bytes 66..1514   ◄─ Buf ─┐
//!   ├── bytes 1514..2962 ◄─ Buf ─┤
//!   last Buf dropped: the buffer returns to its pool
//! ```
//!
//! An indirect buffer costs one 64-byte Meta of its own pool and no copy. It can be a fragment of a
//! packet but never its head: headers are written to the head's linear part, and nothing may write
//! to shared bytes. Fragments in untrusted memory are [`ExtBufPool`](crate::ExtBufPool)'s.

use crate::buf::Buf;
use crate::meta::{Meta, Room, flag};
use crate::pool::{Cache, Direction, Handle, Kind, Pool, PoolConfig, PoolError, PoolShared};
use std::ptr::NonNull;
use std::sync::Arc;

/// A core's cache of indirect buffers; `Send`, not `Sync`, like every cache.
pub struct IndirectPool(Cache);

impl IndirectPool {
    /// A pool of at most `capacity` indirect buffers of [shared buffers](SharedBuf).
    ///
    /// # Errors
    /// [`PoolError::Config`] for a capacity of 0 or above 2^24; [`PoolError::Region`] if the kernel
    /// refuses the memory.
    pub fn new(capacity: usize) -> Result<IndirectPool, PoolError> {
        if !(1..=1 << 24).contains(&capacity) {
            return Err(PoolError::Config { field: "capacity", value: capacity, rule: "from 1 to 2^24" });
        }
        let config = PoolConfig::default().capacity(capacity);
        let shared = PoolShared::new(&config, Kind::Indirect, None)?;
        let pool = Pool::from_handle(Arc::new(Handle::new(shared)));
        Ok(IndirectPool(pool.cache(Direction::Tx)?))
    }

    /// A handle for another thread, of the same capacity.
    ///
    /// # Errors
    /// [`PoolError::Caches`] if 64 handles exist already.
    pub fn another(&self) -> Result<IndirectPool, PoolError> {
        Ok(IndirectPool(self.0.another(Direction::Tx)?))
    }

    fn get(&mut self, at: NonNull<u8>, len: u16, parent: NonNull<Meta>, flags: u8) -> Option<Buf> {
        let mut meta = self.0.alloc_meta()?;
        // SAFETY: the chunk came out of the cache, so it is ours; `set_parent` is called on its own
        // pool.
        unsafe {
            let m = meta.as_mut();
            m.reset(Room::empty(0, 0));
            m.data = at.as_ptr();
            m.room.len = len;
            m.flags = flags;
            m.owner.as_ref().set_parent(meta, parent);
            Some(Buf::from_meta(meta))
        }
    }
}

/// A chunk whose bytes are shared by any number of indirect buffers; nothing can write to it any
/// more.
#[derive(Debug)]
pub struct SharedBuf(std::mem::ManuallyDrop<Buf>);

impl SharedBuf {
    /// Shares a chunk.
    pub fn new(buf: Buf) -> SharedBuf {
        let meta = buf.into_meta();
        // SAFETY: we own the chunk; it lives until its last user calls `unshare`.
        unsafe {
            PoolShared::share(meta, 1);
            SharedBuf(std::mem::ManuallyDrop::new(Buf::from_meta(meta)))
        }
    }

    /// Bytes that can be shared.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An indirect buffer of `len` bytes at `offset`; `None` if they do not all lie inside, if
    /// `len` is 0, or if the pool is empty.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize, pool: &mut IndirectPool) -> Option<Buf> {
        let chunk = self.0.chunk();
        if len == 0 || offset.checked_add(len)? > chunk.len() {
            return None;
        }
        let untrusted = if chunk.bytes().is_none() { flag::EXTERNAL } else { 0 };
        let at = NonNull::new(chunk.as_ptr().cast_mut().wrapping_add(offset))?;
        let parent = self.meta();
        let slice = pool.get(at, u16::try_from(len).ok()?, parent, untrusted)?;
        // SAFETY: this handle holds a reference, so the chunk is alive; the indirect buffer
        // receives a reference of its own.
        unsafe { PoolShared::share(parent, 1) };
        Some(slice)
    }

    fn meta(&self) -> NonNull<Meta> {
        self.0.as_meta()
    }
}

impl Drop for SharedBuf {
    fn drop(&mut self) {
        // SAFETY: the handle held one reference and gives it up.
        unsafe { PoolShared::unshare(self.meta()) };
    }
}

impl std::fmt::Debug for IndirectPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("IndirectPool").field(&self.0).finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::{Backing, Packet};

    fn small_pool() -> Pool {
        Pool::new(PoolConfig::default().capacity(32).chunk(2048).backing(Backing::Anonymous)).unwrap()
    }

    #[test]
    fn a_shared_buffer_returns_to_its_pool_with_its_last_indirect_buffer() {
        let pool = small_pool();
        let mut slices = IndirectPool::new(8).unwrap();
        let mut packet = Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), b"headerpayload").unwrap();
        assert!(packet.pull_front(6));
        let shared = SharedBuf::new(packet.into_linear_buf().unwrap());
        let a = shared.slice(0, 3, &mut slices).unwrap();
        let b = shared.slice(3, 4, &mut slices).unwrap();
        assert!(shared.slice(4, 4, &mut slices).is_none(), "beyond the end");
        drop(shared);
        assert_eq!((a.chunk().bytes().unwrap(), b.chunk().bytes().unwrap()), (&b"pay"[..], &b"load"[..]));
        drop(a);
        assert_eq!(pool.stats().free, 31);
        drop(b);
        assert_eq!(pool.stats().free, 32);
    }
}
