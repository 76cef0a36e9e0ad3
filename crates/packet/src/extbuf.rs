//! ExtBufPool: fragments whose bytes lie in memory that belongs to somebody who is not trusted, and who wants to know when they are free again.
//!
//! ```text
//!   application's memory (Region)
//!   ├── page 7 ◄── attach(…, 7) ──► Buf, a fragment of a packet ──► … any thread, any cache ──► dropped
//!   │                                                                                              │
//!   └── ExtBufPool::reclaim: "7" ◄──────────── a list, pushed a burst at a time ◄─────────────────────┘
//! ```
//!
//! A page on its way costs one 64-byte Meta and no copy. Its token waits in a table of the pool, four to a line, so that coming home is
//! to be linked into a list: packets that are freed together cost one compare-and-swap together, and nobody is called but for the first.
//!
//! A page is a fragment of a packet, and has no linear part: that is where headers are written. Its bytes are *foreign*:
//! whoever owns them may write at any moment (see [`Chunk::bytes`](crate::Chunk::bytes)). A packet that is a single page
//! ([`packet`](ExtBufPool::packet)) has head and fragment in one Meta; who needs room in front of it
//! [gives it a head](crate::Cache::ensure_head).

use crate::buf::Buf;
use crate::meta::Meta;
use crate::packet::Packet;
use crate::pool::{Handle, Kind, PoolConfig, PoolError, PoolShared};
use crate::region::Region;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Who waits for pages to come home.
pub trait ExtBufOwner: Send + Sync {
    /// ExtBufPool have come home where none were waiting to be taken back. Called on whatever thread dropped them, so it must neither
    /// block nor panic. It may be called once too often.
    fn on_free(&self);

    /// A page came home after its [`ExtBufPool`] were gone. Under the same terms.
    fn on_free_orphaned(&self, token: u64) {
        let _ = token;
    }
}

/// What a page's owner calls it, and how long it was at first.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Token {
    pub(crate) word: u64,
    pub(crate) len: u16,
}

/// One thread's right to show pages of a region; it can be sent to another.
pub struct ExtBufPool {
    /// Metas of pages that are not on their way.
    stock: Vec<NonNull<Meta>>,
    /// Came home, and not taken back yet; linked.
    home: *mut Meta,
    capacity: usize,
    region: Arc<Region>,
    handle: Arc<Handle>,
}

// SAFETY: the Metas in stock and at home are free ones of a pool that the handle keeps alive, and nobody else knows of them.
unsafe impl Send for ExtBufPool {}

impl ExtBufPool {
    /// Up to `capacity` pages of `region` at a time.
    ///
    /// # Errors
    /// [`PoolError::Config`] for a capacity of 0 or beyond 2^24; [`PoolError::Region`] when memory can't be had.
    pub fn new(capacity: usize, region: Arc<Region>, owner: Arc<dyn ExtBufOwner>) -> Result<ExtBufPool, PoolError> {
        if !(1..=1 << 24).contains(&capacity) {
            return Err(PoolError::Config { field: "capacity", value: capacity, rule: "from 1 to 2^24" });
        }
        let config = PoolConfig { capacity, max_caches: 0, ..PoolConfig::default() };
        let shared = PoolShared::new(&config, Kind::Page(owner), Some(region.clone()))?;
        let handle = Arc::new(Handle::new(shared));
        let (mut stock, mut at) = (Vec::with_capacity(capacity), handle.shared().take_returned());
        while let Some(meta) = NonNull::new(at) {
            stock.push(meta);
            // SAFETY: taking the list made its chunks ours.
            at = unsafe { meta.as_ref().next };
        }
        // The first addresses are used first.
        stock.reverse();
        Ok(ExtBufPool { stock, home: null_mut(), capacity, region, handle })
    }

    /// ExtBufPool that can be attached now. Those that came home count once they were [taken back](ExtBufPool::reclaim).
    #[inline]
    pub fn free(&self) -> usize {
        self.stock.len()
    }

    /// ExtBufPool that are on their way, or came home and were not taken back.
    #[inline]
    pub fn in_use(&self) -> usize {
        self.capacity - self.stock.len()
    }

    /// A fragment of `len` bytes at `offset` of the region. When its last user is gone, `token` can be taken back.
    ///
    /// `None` if the bytes do not all lie in the region, if `len` is 0 or more than 65535, or if no page is [free](ExtBufPool::free).
    #[inline]
    pub fn attach(&mut self, offset: usize, len: usize, token: u64) -> Option<Buf> {
        let (mut meta, at, len) = self.take(offset, len, token)?;
        // SAFETY: the Meta was in stock, so it is free and ours.
        unsafe {
            meta.as_mut().show(at, len);
            Some(Buf::from_meta(meta))
        }
    }

    /// A packet of nothing but such a fragment, without room for anything else: no headroom, no linear part, no further fragment.
    ///
    /// `None` as for [`attach`](ExtBufPool::attach).
    #[inline]
    pub fn packet(&mut self, offset: usize, len: usize, token: u64) -> Option<Packet> {
        let (mut meta, at, len) = self.take(offset, len, token)?;
        // SAFETY: the Meta was in stock, so it is free and ours, and is prepared as a head.
        unsafe {
            meta.as_mut().show_alone(at, len);
            Some(Packet::from_meta(meta))
        }
    }

    /// A Meta out of stock, for a piece of the region that lies inside.
    #[inline]
    fn take(&mut self, offset: usize, len: usize, token: u64) -> Option<(NonNull<Meta>, NonNull<u8>, u16)> {
        let at = self.region.at(offset, len)?;
        let len = u16::try_from(len).ok().filter(|&len| len > 0)?;
        let meta = self.stock.pop()?;
        // SAFETY: the Meta was in stock, so it is free and ours; it is of this pool.
        unsafe { self.handle.shared().name(meta, Token { word: token, len }) };
        Some((meta, at, len))
    }

    /// Appends a copy of `len` bytes at `offset` of the region to the linear part of a packet without fragments; false, and nothing is
    /// changed, if they do not lie in the region or there is no room for them.
    #[inline]
    pub fn copy(&self, offset: usize, len: usize, to: &mut Packet) -> bool {
        let Some(at) = self.region.at(offset, len) else { return false };
        let Ok(room) = to.push_back(len) else { return false };
        // SAFETY: the source lies in the region, of which no reference exists, and a packet's linear part in memory of a pool.
        unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), room.as_mut_ptr(), len) };
        true
    }

    /// Hands over the tokens of pages that came home, with the lengths that they were attached with, at most `most`; returns how many
    /// there were. What was dropped together comes in the order in which it was dropped.
    #[inline]
    pub fn reclaim(&mut self, most: usize, mut each: impl FnMut(u64, u16)) -> usize {
        let (mut n, mut home, shared) = (0, self.home, self.handle.shared());
        while n < most {
            if home.is_null() {
                home = shared.take_returned();
            }
            let Some(meta) = NonNull::new(home) else { break };
            // SAFETY: taking the list made its chunks ours; they are of this pool.
            let Token { word: token, len } = unsafe { shared.name_of(meta) };
            // SAFETY: as above.
            home = unsafe { meta.as_ref().next };
            // There is room: it has that of every Meta of the pool.
            self.stock.push(meta);
            each(token, len);
            n += 1;
        }
        self.home = home;
        n
    }

    /// Whether pages came home that were not taken back.
    pub fn has_freed(&self) -> bool {
        !self.home.is_null() || self.handle.shared().has_returned()
    }
}

impl Drop for ExtBufPool {
    /// Gives the free Metas back, so that the last page that is still on its way frees the pool.
    fn drop(&mut self) {
        for meta in self.stock.drain(..) {
            // SAFETY: free and ours; linked in front of those that are at home. It stands for no page.
            unsafe { ((*meta.as_ptr()).next, (*meta.as_ptr()).flags) = (self.home, 0) };
            self.home = meta.as_ptr();
        }
        if let Some(first) = NonNull::new(self.home) {
            // SAFETY: all of them are ours, linked, and of this pool.
            unsafe { PoolShared::free_chain(first) };
        }
    }
}

impl std::fmt::Debug for ExtBufPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExtBufPool").field("capacity", &self.capacity).field("free", &self.free()).finish()
    }
}

/// Counts the external buffers that a port attached to packets, and those that were freed. Once the port and the egress of its packets
/// have ended, the two numbers are equal.
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

    /// Buffers that are attached now. Exact only while nothing moves.
    pub fn in_use(&self) -> u64 {
        self.attached().saturating_sub(self.freed.load(Relaxed))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
