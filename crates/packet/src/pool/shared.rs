//! The state that all handles, caches and chunks of a pool share, and its end.

use super::depot::Depot;
use super::return_list::{EndsOnUnwind, ReturnList};
use super::{Direction, Floors, PoolConfig, PoolError, PoolStats};
use crate::extbuf::{ExtBufOwner, Token};
use crate::meta::{Meta, flag};
use crate::region::{Backing, Region, RegionHandle};
use crate::sync::{AtomicIsize, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::cell::UnsafeCell;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The kind of a pool's chunks.
pub(crate) enum Kind {
    /// Memory of the pool's own region (a direct buffer).
    Direct,
    /// References to other chunks, which they keep alive.
    Indirect,
    /// Memory of an external owner, which is notified when some is free.
    ExtBuf(Arc<dyn ExtBufOwner>),
    /// Memory of objects that the buffers own, each an allocation of its own.
    Owned,
}

pub(crate) struct PoolShared {
    pub(super) kind: Kind,
    pub(crate) chunk: u16,
    pub(crate) headroom: u16,
    capacity: usize,
    floors: Floors,
    /// The first Meta.
    first: *mut Meta,
    /// Their memory; none if there are none.
    _metas: Option<Region>,
    region: Option<RegionHandle>,
    /// Users of a shared chunk, by index; 0 for all others.
    refs: Box<[AtomicU32]>,
    /// For indirect buffers: the chunk that each keeps alive. Only the owner of the buffer touches
    /// its entry.
    parents: Box<[UnsafeCell<Option<NonNull<Meta>>>]>,
    /// For external buffers: the token of each. As for `parents`.
    tokens: Box<[UnsafeCell<Token>]>,
    pub(crate) depot: Depot,
    pub(super) returned: ReturnList,
    caches: AtomicUsize,
    max_caches: usize,
    shortages: AtomicU64,
    /// Chunks that an orphan still waits for; meaningful only once `returned` is closed.
    pub(super) outstanding: AtomicIsize,
}

// SAFETY: regions are address ranges, depot and list synchronise themselves, and only the owner of
// the chunk of an index touches that entry of `parents` or `tokens`.
unsafe impl Send for PoolShared {}
// SAFETY: as for Send.
unsafe impl Sync for PoolShared {}

impl PoolShared {
    /// Builds the state, with all chunks in the depot.
    pub(crate) fn new(
        config: &PoolConfig,
        kind: Kind,
        region: Option<RegionHandle>,
    ) -> Result<NonNull<PoolShared>, PoolError> {
        let metas = Region::new(config.capacity * size_of::<Meta>(), Backing::HugePreferred)?;
        let shared = NonNull::from(Box::leak(Box::new(PoolShared::build(config, kind, region, Some(metas)))));
        // SAFETY: just leaked, so it lives until `destroy`; nothing else refers to it yet.
        unsafe { shared.as_ref().init_chunks(shared) };
        Ok(shared)
    }

    /// The state without its chunks. Without memory for them, the capacity is 0.
    pub(crate) fn build(
        config: &PoolConfig,
        kind: Kind,
        region: Option<RegionHandle>,
        metas: Option<Region>,
    ) -> PoolShared {
        let PoolConfig { capacity, chunk, headroom, floors, max_caches, magazine, .. } = *config;
        // Two magazines per cache must not hold the whole of a small pool.
        let fill = (capacity / 16).clamp(1, magazine);
        // Full ones for every chunk, two for each cache, and one more so that an exchange always
        // finds an empty one. External buffers lie in none.
        let magazines = if max_caches > 0 { capacity.div_ceil(fill) + 2 * max_caches + 1 } else { 0 };
        let (is_data, is_indirect, is_extbuf) =
            (matches!(kind, Kind::Direct), matches!(kind, Kind::Indirect), matches!(kind, Kind::ExtBuf(_)));
        PoolShared {
            kind,
            chunk: if is_data { chunk as u16 } else { 0 },
            headroom: if is_data { headroom as u16 } else { 0 },
            capacity,
            floors,
            first: metas.as_ref().map_or(null_mut(), |metas| metas.base().as_ptr().cast()),
            _metas: metas,
            refs: (0..capacity).map(|_| AtomicU32::new(0)).collect(),
            parents: (0..if is_indirect { capacity } else { 0 }).map(|_| UnsafeCell::new(None)).collect(),
            tokens: (0..if is_extbuf { capacity } else { 0 }).map(|_| UnsafeCell::default()).collect(),
            region,
            depot: Depot::new(magazines as u32, fill),
            returned: ReturnList::new(),
            caches: AtomicUsize::new(0),
            max_caches,
            shortages: AtomicU64::new(0),
            outstanding: AtomicIsize::new(0),
        }
    }

    /// Writes every Meta and puts all chunks in the depot, the lowest addresses on top.
    ///
    /// # Safety
    /// Called once, before the pool is shared; `this` is `self`.
    unsafe fn init_chunks(&self, this: NonNull<PoolShared>) {
        let size = usize::from(self.chunk);
        let base = match (&self.kind, &self.region) {
            (Kind::Direct, Some(region)) => region.base().as_ptr(),
            _ => null_mut(),
        };
        let fill = self.depot.fill();
        let mut end = self.capacity;
        while end > 0 {
            // A partly filled last magazine would break the depot's rule; its chunks go to the
            // list.
            let start = (end - 1) / fill * fill;
            for i in start..end {
                // SAFETY: i < capacity, so both the Meta and the chunk lie inside their regions.
                // Without memory of its own the base is null, and no byte is reached through it.
                unsafe { self.meta(i).write(Meta::free(this, base.wrapping_add(i * size), self.chunk)) };
            }
            let mag = if end - start == fill { self.depot.take_empty() } else { None };
            match mag {
                Some(mut mag) => {
                    let m = self.depot.open(&mut mag);
                    for (slot, i) in m.slots.iter_mut().zip((start..end).rev()) {
                        *slot = self.meta(i);
                    }
                    m.len = fill;
                    self.depot.add_full(mag);
                }
                None => {
                    for i in start..end {
                        // SAFETY: the chunk is free, of this pool, and nothing else refers to it.
                        unsafe { self.returned.push(self.meta(i), self.meta(i), || {}) };
                    }
                }
            }
            end = start;
        }
    }

    fn meta(&self, index: usize) -> *mut Meta {
        self.first.wrapping_add(index)
    }

    /// Index of a chunk of this pool.
    fn index(&self, meta: NonNull<Meta>) -> usize {
        (meta.as_ptr().addr() - self.first.addr()) / size_of::<Meta>()
    }

    pub(crate) fn region(&self) -> Option<&RegionHandle> {
        self.region.as_ref()
    }

    #[inline]
    pub(crate) fn is_indirect(&self) -> bool {
        matches!(self.kind, Kind::Indirect)
    }

    #[inline]
    pub(crate) fn is_owned(&self) -> bool {
        matches!(self.kind, Kind::Owned)
    }

    /// Chunks that an allocation for `direction` leaves in the depot.
    #[inline]
    pub(crate) fn floor(&self, direction: Direction) -> usize {
        match direction {
            Direction::Rx => self.floors.tx,
            Direction::Tx => self.floors.rx,
        }
    }

    pub(crate) fn note_shortage(&self) {
        self.shortages.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn register_cache(&self) -> Result<(), PoolError> {
        let taken =
            self.caches.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < self.max_caches).then_some(n + 1));
        taken.map(drop).map_err(|_| PoolError::Caches(self.max_caches))
    }

    pub(crate) fn unregister_cache(&self) {
        self.caches.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes the returned chunks; the caller owns them, linked by `next`.
    pub(crate) fn take_returned(&self) -> *mut Meta {
        self.returned.take_all()
    }

    /// Whether there are returned chunks.
    pub(crate) fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let mut on_list = 0;
        let first = self.returned.take_all();
        if let Some(mut last) = NonNull::new(first) {
            on_list = 1;
            // SAFETY: taking the list made its chunks ours until they are pushed back.
            unsafe {
                while let Some(next) = NonNull::new(last.as_ref().next) {
                    last = next;
                    on_list += 1;
                }
                self.returned.push(first, last.as_ptr(), || {});
            }
        }
        let free = self.depot.chunks() + on_list;
        PoolStats { capacity: self.capacity, free, shortages: self.shortages.load(Ordering::Relaxed) }
    }

    /// Sets the chunk that a new indirect buffer keeps alive.
    ///
    /// # Safety
    /// The caller owns `meta`, a chunk of this pool of indirect buffers.
    pub(crate) unsafe fn set_parent(&self, meta: NonNull<Meta>, parent: NonNull<Meta>) {
        // SAFETY: the entry belongs to the owner of the chunk, which is the caller.
        unsafe { *self.parents[self.index(meta)].get() = Some(parent) };
    }

    /// Releases the parent of an indirect buffer.
    ///
    /// # Safety
    /// The caller owns `meta`, a chunk of this pool of indirect buffers.
    pub(crate) unsafe fn release_parent(&self, meta: NonNull<Meta>) {
        // SAFETY: the entry belongs to the owner of the chunk, which is the caller.
        let parent = unsafe { self.parents[self.index(meta)].get().replace(None) };
        if let Some(parent) = parent {
            // SAFETY: the indirect buffer held one of the parent's references, and gives it up
            // here.
            unsafe { PoolShared::unshare(parent) };
        }
    }

    /// Sets the token of an external buffer.
    ///
    /// # Safety
    /// The caller owns `meta`, a chunk of this pool of external buffers.
    #[inline]
    pub(crate) unsafe fn set_token(&self, meta: NonNull<Meta>, token: Token) {
        // SAFETY: the entry belongs to the owner of the chunk, which is the caller.
        unsafe { *self.tokens[self.index(meta)].get() = token };
    }

    /// The token of an external buffer.
    ///
    /// # Safety
    /// As for [`set_token`](PoolShared::set_token).
    #[inline]
    pub(crate) unsafe fn token(&self, meta: NonNull<Meta>) -> Token {
        // SAFETY: the entry belongs to the owner of the chunk, which is the caller.
        unsafe { *self.tokens[self.index(meta)].get() }
    }

    /// Informs the owner of an external buffer that was returned to an orphan.
    ///
    /// # Safety
    /// The caller owns `meta`, a chunk of this pool.
    pub(super) unsafe fn on_free_orphaned(&self, meta: NonNull<Meta>) {
        if let Kind::ExtBuf(owner) = &self.kind
            // SAFETY: owned by the caller.
            && unsafe { meta.as_ref() }.flags & flag::EXTERNAL != 0
        {
            // SAFETY: as above, and of this pool of external buffers.
            owner.on_free_orphaned(unsafe { self.token(meta) }.value);
        }
    }

    /// Adds `n` users to a chunk.
    ///
    /// # Safety
    /// The caller owns `meta`, or holds a reference to it.
    pub(crate) unsafe fn share(meta: NonNull<Meta>, n: u32) {
        // SAFETY: an owned or referenced chunk keeps its pool alive.
        let shared = unsafe { meta.as_ref().owner.as_ref() };
        shared.refs[shared.index(meta)].fetch_add(n, Ordering::Relaxed);
    }

    /// Removes one user; the last one frees the chunk.
    ///
    /// # Safety
    /// The caller holds a reference made by [`share`](PoolShared::share), and gives it up.
    pub(crate) unsafe fn unshare(meta: NonNull<Meta>) {
        // SAFETY: the reference keeps the chunk and its pool alive until the decrement.
        let shared = unsafe { meta.as_ref().owner.as_ref() };
        // AcqRel: all reads by other users happen before the chunk is reused.
        if shared.refs[shared.index(meta)].fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: that was the last user, so the chunk is ours alone; a shared chunk has no
            // chain.
            unsafe { PoolShared::free_chain(meta) };
        }
    }
}

/// Frees the state.
///
/// # Safety
/// Every chunk is free and no handle is left.
pub(super) unsafe fn destroy(shared: NonNull<PoolShared>) {
    // SAFETY: the pointer came from Box::leak, and by contract nothing uses it any more.
    drop(unsafe { Box::from_raw(shared.as_ptr()) });
}

/// Keeps a pool open for allocation; dropping the last one makes the pool an orphan.
pub(crate) struct Handle(NonNull<PoolShared>);

// SAFETY: PoolShared is Send and Sync; the handle only gives shared references to it.
unsafe impl Send for Handle {}
// SAFETY: as for Send.
unsafe impl Sync for Handle {}

impl Handle {
    /// The handle of a new pool.
    pub(crate) fn new(shared: NonNull<PoolShared>) -> Handle {
        Handle(shared)
    }

    #[inline]
    pub(crate) fn shared(&self) -> &PoolShared {
        // SAFETY: the pool is destroyed only after its last handle.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let shared = self.shared();
        let guard = EndsOnUnwind;
        // No handle and so no cache is left: a chunk is in the depot, on the list or in use.
        let mut free = shared.depot.chunks();
        let mut at = shared.returned.close();
        while let Some(meta) = NonNull::new(at) {
            free += 1;
            // SAFETY: closing the list made its chunks ours.
            at = unsafe {
                shared.on_free_orphaned(meta);
                meta.as_ref().next
            };
        }
        let in_use = (shared.capacity - free) as isize;
        // Chunks that were returned since the list was closed have been subtracted already. If all
        // were, the sum is zero and this thread frees the pool, else the last of them does.
        if shared.outstanding.fetch_add(in_use, Ordering::AcqRel) + in_use == 0 {
            // SAFETY: no handle, no cache, no chunk in use.
            unsafe { destroy(self.0) };
        }
        std::mem::forget(guard);
    }
}
