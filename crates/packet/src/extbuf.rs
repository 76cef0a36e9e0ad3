//! External buffers: fragments whose bytes lie in memory of an untrusted owner, which is notified
//! when they are free again.
//!
//! ```text
//!   application's memory (Region)
//!   ├── frame 7 ◄─ attach(…, 7) ──► Buf, a fragment of a packet ──► … any thread ──► dropped
//!   │                                                                                   │
//!   └── ExtBufPool::drain_freed: "7" ◄── a list, pushed a burst at a time ◄─────────────┘
//! ```
//!
//! An attached buffer costs one 64-byte Meta and no copy. Its token is stored in a table of the
//! pool, four to a cache line, so that freeing is linking into a list. Packets that are freed
//! together cost one compare-and-swap together. Only the first buffer on an empty list calls the
//! owner.
//!
//! An external buffer is a fragment of a packet and never the linear part, which is where headers
//! are written. Its bytes are *untrusted*: the owner may write to them at any moment (see
//! [`Chunk::bytes`](crate::Chunk::bytes)). A packet of a single external buffer
//! ([`packet`](ExtBufPool::packet)) has head and fragment in one Meta;
//! [`Cache::ensure_head`](crate::Cache::ensure_head) puts a head with room in front of it.

use crate::buf::Buf;
use crate::meta::Meta;
use crate::packet::Packet;
use crate::pool::{Handle, Kind, PoolConfig, PoolError, PoolShared};
use crate::untrusted::UntrustedMem;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use towpath_sys::mmap::page_size;

/// The owner of external buffers.
///
/// Its functions run in the middle of freeing, also of whole batches. The process ends if one of
/// them panics, or the drop of the last owner does.
pub trait ExtBufOwner: Send + Sync {
    /// A buffer was freed while no other freed one waited to be drained. Called on the thread
    /// that dropped it, so it must neither block nor panic. One call too many is possible.
    fn on_free(&self);

    /// A buffer was freed after its [`ExtBufPool`] was dropped. The same rules hold.
    fn on_free_orphaned(&self, token: u64) {
        let _ = token;
    }
}

/// The owner's name of a buffer, and the length with which it was attached.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Token {
    pub(crate) value: u64,
    pub(crate) len: u16,
}

/// External buffers of one region, attached by one thread at a time.
///
/// The memory is untrusted; that of a pool cannot be attached:
///
/// ```compile_fail,E0308
/// # use std::sync::Arc;
/// use towpath_packet::{ExtBufOwner, ExtBufPool, Pool, PoolConfig};
/// # struct Owner;
/// # impl ExtBufOwner for Owner {
/// #     fn on_free(&self) {}
/// # }
/// let pool = Pool::new(PoolConfig::default()).unwrap();
/// let bufs = ExtBufPool::new(1, pool.region().unwrap().clone(), Arc::new(Owner));
/// ```
pub struct ExtBufPool {
    /// Metas that are free; linked.
    free: *mut Meta,
    /// How many these are.
    free_len: usize,
    /// Metas that were freed and not drained yet; linked.
    freed: *mut Meta,
    capacity: usize,
    memory: UntrustedMem,
    handle: Handle,
}

// SAFETY: the Metas in both fields are free ones of a pool that the handle keeps alive, and nothing
// else refers to them.
unsafe impl Send for ExtBufPool {}

impl ExtBufPool {
    /// Up to `capacity` buffers of `memory` at a time.
    ///
    /// # Errors
    /// [`PoolError::Config`] for a capacity of 0 or above 2^24; [`PoolError::Region`] if the kernel
    /// refuses the memory.
    pub fn new(capacity: usize, memory: UntrustedMem, owner: Arc<dyn ExtBufOwner>) -> Result<ExtBufPool, PoolError> {
        if !(1..=1 << 24).contains(&capacity) {
            return Err(PoolError::Config { field: "capacity", value: capacity, rule: "from 1 to 2^24" });
        }
        let config = PoolConfig::default().capacity(capacity).max_caches(0);
        let shared = PoolShared::new(&config, Kind::ExtBuf(owner), Some(memory.handle().clone()))?;
        let handle = Handle::new(shared);
        // All of them: external buffers lie in no magazine.
        let free = handle.shared().take_returned();
        Ok(ExtBufPool { free, free_len: capacity, freed: null_mut(), capacity, memory, handle })
    }

    /// Bytes of memory for the metadata of `capacity` buffers, whether they are touched or not.
    pub fn metadata_bytes(capacity: usize) -> usize {
        let tables = size_of::<Token>() + size_of::<u32>();
        (capacity * size_of::<Meta>()).next_multiple_of(page_size()) + capacity * tables
    }

    /// Number of buffers that can be attached now (DPDK: `rte_mempool_avail_count`). Freed ones
    /// count once they are [drained](ExtBufPool::drain_freed).
    #[inline]
    pub fn available(&self) -> usize {
        self.free_len
    }

    /// Buffers that are attached, or freed and not drained.
    #[inline]
    pub fn in_use(&self) -> usize {
        self.capacity - self.free_len
    }

    /// A fragment of `len` bytes at `offset` of the region. `token` can be drained when its last
    /// user has dropped it.
    ///
    /// `None` if the bytes do not all lie in the region, if `len` is 0 or more than 65535, or if no
    /// buffer is [available](ExtBufPool::available).
    #[inline]
    pub fn attach(&mut self, offset: usize, len: usize, token: u64) -> Option<Buf> {
        let (mut meta, at, len) = self.get(offset, len, token)?;
        // SAFETY: the Meta was in `free`, so it is ours.
        unsafe {
            meta.as_mut().set_extbuf(at, len);
            Some(Buf::from_meta(meta))
        }
    }

    /// A packet of a single such fragment, without room for anything else: no headroom, no linear
    /// part, no further fragment.
    ///
    /// `None` as for [`attach`](ExtBufPool::attach).
    #[inline]
    pub fn packet(&mut self, offset: usize, len: usize, token: u64) -> Option<Packet> {
        let (mut meta, at, len) = self.get(offset, len, token)?;
        // SAFETY: the Meta was in `free`, so it is ours; it is prepared as a head.
        unsafe {
            meta.as_mut().set_extbuf_head(at, len);
            Some(Packet::from_meta(meta))
        }
    }

    /// Takes a free Meta for a piece of the region, if the piece lies inside.
    #[inline]
    fn get(&mut self, offset: usize, len: usize, token: u64) -> Option<(NonNull<Meta>, NonNull<u8>, u16)> {
        let at = self.memory.at(offset, len)?;
        let len = u16::try_from(len).ok().filter(|&len| len > 0)?;
        let meta = NonNull::new(self.free)?;
        // SAFETY: the Meta was in `free`, so it is ours; it is of this pool.
        unsafe {
            (self.free, self.free_len) = (meta.as_ref().next, self.free_len - 1);
            self.handle.shared().set_token(meta, Token { value: token, len });
        }
        Some((meta, at, len))
    }

    /// Appends a copy of `len` bytes at `offset` of the region to the linear part of a packet
    /// without fragments. Returns false, and changes nothing, if they do not lie in the region or
    /// have no room.
    #[inline]
    pub fn copy(&self, offset: usize, len: usize, to: &mut Packet) -> bool {
        self.memory.append_to(offset, len, to)
    }

    /// Calls `each` with the tokens of at most `most` freed buffers and the lengths with which they
    /// were attached; returns their number. Buffers that were dropped together come in the order in
    /// which they were dropped.
    #[inline]
    pub fn drain_freed(&mut self, most: usize, mut each: impl FnMut(u64, u16)) -> usize {
        let mut n = 0;
        while n < most {
            if self.freed.is_null() {
                self.freed = self.handle.shared().take_returned();
            }
            let mut at = self.freed;
            let mut run = DrainedRun { pool: self, last: None, len: 0 };
            while n < most
                && let Some(meta) = NonNull::new(at)
            {
                // SAFETY: taking the list made its chunks ours; they are of this pool.
                let Token { value: token, len } = unsafe { run.pool.handle.shared().token(meta) };
                // SAFETY: as above.
                at = unsafe { meta.as_ref().next };
                (run.last, run.len) = (Some(meta), run.len + 1);
                // The run is complete here: the closure may panic.
                each(token, len);
                n += 1;
            }
            if run.last.is_none() {
                break;
            }
        }
        n
    }

    /// Whether buffers were freed and not drained.
    pub fn has_freed(&self) -> bool {
        !self.freed.is_null() || self.handle.shared().has_returned()
    }
}

/// Metas from the front of [`ExtBufPool::freed`] whose tokens were drained. They are free when it
/// is dropped.
struct DrainedRun<'a> {
    pool: &'a mut ExtBufPool,
    last: Option<NonNull<Meta>>,
    len: usize,
}

impl Drop for DrainedRun<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(mut last) = self.last else { return };
        // SAFETY: the Metas from `freed` up to `last` are ours.
        let rest = unsafe { std::mem::replace(&mut last.as_mut().next, self.pool.free) };
        self.pool.free = std::mem::replace(&mut self.pool.freed, rest);
        self.pool.free_len += self.len;
    }
}

impl Drop for ExtBufPool {
    /// Returns the free Metas, so that the last attached buffer frees the pool.
    fn drop(&mut self) {
        while let Some(meta) = NonNull::new(self.free) {
            // SAFETY: free and ours; linked in front of the freed ones. It stands for no buffer.
            unsafe {
                self.free = meta.as_ref().next;
                ((*meta.as_ptr()).next, (*meta.as_ptr()).flags) = (self.freed, 0);
            }
            self.freed = meta.as_ptr();
        }
        if let Some(first) = NonNull::new(self.freed) {
            // SAFETY: all of them are ours, linked, and of this pool.
            unsafe { PoolShared::free_chain(first) };
        }
    }
}

impl std::fmt::Debug for ExtBufPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExtBufPool").field("capacity", &self.capacity).field("free", &self.available()).finish()
    }
}

/// Counts the external buffers that a port attached to packets, and those that were freed. Once the
/// port and the egress of its packets have ended, the two numbers are equal.
#[derive(Debug, Default)]
pub struct ExtBufGauge {
    attached: AtomicU64,
    freed: AtomicU64,
}

impl ExtBufGauge {
    /// `n` more were attached.
    #[inline]
    pub fn attach(&self, n: u64) {
        self.attached.fetch_add(n, Relaxed);
    }

    /// `n` were freed.
    #[inline]
    pub fn free(&self, n: u64) {
        self.freed.fetch_add(n, Relaxed);
    }

    /// Buffers that were attached until now.
    pub fn attached(&self) -> u64 {
        self.attached.load(Relaxed)
    }

    /// Buffers that were freed until now.
    pub fn freed(&self) -> u64 {
        self.freed.load(Relaxed)
    }

    /// Buffers that are attached now. Exact only while nothing moves.
    pub fn in_use(&self) -> u64 {
        self.attached().saturating_sub(self.freed())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
