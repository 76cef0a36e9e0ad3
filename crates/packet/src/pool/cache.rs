//! The per-core side of a pool: two magazines, no atomics until both are used up.

use super::depot::Mag;
use super::recent::current_core;
use super::return_list::FreeRun;
use super::shared::{Handle, PoolShared};
use super::{Direction, Pool, PoolError};
use crate::batch::Batch;
use crate::meta::{Meta, Room};
use crate::packet::Packet;
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::{replace, swap};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// One thread's stock of chunks of one pool. It can be sent to another thread, but not shared.
///
/// Chunks of any pool may be freed through it. Those of its own pool go into its magazines. Those
/// of other pools go to the list of their pool, one compare-and-swap for chunks that are freed
/// together.
pub struct Cache {
    loaded: Mag,
    spare: Mag,
    /// The pool, if its chunks have memory of their own; indirect buffers must be released one by
    /// one.
    direct: Option<NonNull<PoolShared>>,
    fill: usize,
    /// The empty room of a new packet.
    room: Room,
    direction: Direction,
    handle: Arc<Handle>,
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: the pointer to the pool is only compared, never dereferenced; everything else can be
// sent.
unsafe impl Send for Cache {}

impl Cache {
    pub(super) fn new(handle: Arc<Handle>, direction: Direction) -> Result<Cache, PoolError> {
        let shared = handle.shared();
        shared.register_cache()?;
        // There are two magazines for every cache that may register, and one more.
        match (shared.depot.take_empty(), shared.depot.take_empty()) {
            (Some(loaded), Some(spare)) => {
                let (direct, fill) = ((!shared.is_indirect()).then_some(NonNull::from(shared)), shared.depot.fill());
                let room = Room::empty(shared.chunk, shared.headroom);
                Ok(Cache { loaded, spare, direct, fill, room, direction, handle, not_sync: PhantomData })
            }
            (a, b) => {
                a.into_iter().chain(b).for_each(|m| shared.depot.put_empty(m));
                shared.unregister_cache();
                Err(PoolError::Caches(0))
            }
        }
    }

    /// The pool that the cache belongs to.
    pub fn pool(&self) -> Pool {
        Pool::from_handle(self.handle.clone())
    }

    /// A cache of the same pool for another thread.
    ///
    /// # Errors
    /// [`PoolError::Caches`] if as many exist as the pool's configuration allows.
    pub fn another(&self, direction: Direction) -> Result<Cache, PoolError> {
        Cache::new(self.handle.clone(), direction)
    }

    /// Bytes of headroom in a new packet.
    pub fn headroom(&self) -> usize {
        usize::from(self.room.headroom)
    }

    /// Sets the headroom of this cache's new packets, instead of the pool's: at most the chunk.
    pub fn set_headroom(&mut self, headroom: usize) {
        let chunk = self.handle.shared().chunk;
        self.room = Room::empty(chunk, u16::try_from(headroom).unwrap_or(u16::MAX).min(chunk));
    }

    /// Bytes in a chunk, headroom included.
    pub fn chunk(&self) -> usize {
        usize::from(self.handle.shared().chunk)
    }

    /// An empty packet with the cache's headroom, or `None` if the pool is empty or down to the
    /// other direction's floor.
    #[inline]
    pub fn alloc(&mut self) -> Option<Packet> {
        let room = self.room;
        let mut meta = self.alloc_meta()?;
        // SAFETY: the chunk came out of a magazine, so it is free and now ours alone.
        unsafe {
            meta.as_mut().reset(room);
            Some(Packet::from_meta(meta))
        }
    }

    /// Appends up to `n` empty packets to `out`, as many as it has room for; returns their number.
    #[inline]
    pub fn alloc_bulk<const N: usize>(&mut self, out: &mut Batch<N>, n: usize) -> usize {
        let room = self.room;
        let want = n.min(out.room());
        let mut got = 0;
        while got < want {
            // SAFETY: the handle keeps the depot alive.
            let magazine = unsafe { self.loaded.open() };
            let take = magazine.len.min(want - got);
            let left = magazine.len - take;
            let taken = magazine.slots[left..magazine.len].iter().rev();
            // SAFETY: slots below a magazine's length hold free chunks of this pool; taking them
            // out makes them ours.
            let packets = taken.map(|&chunk| unsafe {
                (*chunk).reset(room);
                Packet::from_meta(NonNull::new_unchecked(chunk))
            });
            // SAFETY: `take` is at most the room of the batch.
            unsafe { out.extend_unchecked(packets) };
            magazine.len = left;
            got += take;
            if got < want && !self.reload() {
                break;
            }
        }
        got
    }

    /// Puts an empty head, with room for a linear part, in front of a packet that is a single
    /// [external buffer](Packet::is_extbuf). The metadata stays. All other packets have a head
    /// already. Returns false, and changes nothing, if the pool is empty.
    pub fn ensure_head(&mut self, packet: &mut Packet) -> bool {
        if packet.is_extbuf() {
            let Some(mut head) = self.alloc() else { return false };
            head.copy_metadata_from(packet);
            let ext_buf = replace(packet, head);
            // A head without fragments has room for one.
            let _ = packet.append(ext_buf);
        }
        true
    }

    /// Frees a packet and all its fragments.
    #[inline]
    pub fn free(&mut self, packet: Packet) {
        let mut at = packet.into_meta();
        loop {
            // SAFETY: the chain was the packet's, and now is ours.
            let next = NonNull::new(unsafe { at.as_ref().next });
            // SAFETY: as above; `at` is not touched afterwards.
            unsafe { self.free_meta(at) };
            match next {
                Some(next) => at = next,
                None => return,
            }
        }
    }

    /// Frees every packet of a batch; the batch is empty afterwards.
    #[inline]
    pub fn free_bulk<const N: usize>(&mut self, batch: &mut Batch<N>) {
        let n = batch.len();
        self.free_first(batch, n);
    }

    /// Frees the first `n` packets of a batch (all, if it has fewer); the rest moves to its front.
    #[inline]
    pub fn free_first<const N: usize>(&mut self, batch: &mut Batch<N>, n: usize) {
        let mut left = batch.drain_front(n);
        let mut free_run = FreeRun::new();
        while let Some(packets) = left.peek() {
            let own = self.free_own(packets);
            // SAFETY: the magazine owns the chunks of these packets now.
            unsafe { left.forget(own) };
            // SAFETY: the packets own their chains, and those that are added are forgotten.
            let others = left.peek().zip(self.direct).map_or(0, |(packets, own)| unsafe { free_run.add(packets, own) });
            // SAFETY: `free_run` owns the chains of these packets now.
            unsafe { left.forget(others) };
            if others > 0 {
                continue;
            }
            let heads = left.peek().map_or(0, |packets| self.free_heads(packets, &mut free_run));
            // SAFETY: the magazine and `free_run` own the chunks of these packets now.
            unsafe { left.forget(heads) };
            if heads == 0
                && let Some(odd) = left.next()
            {
                self.free(odd);
            }
        }
    }

    /// Moves the chunks of packets from the front that are one chunk of this pool each into the
    /// magazine, as many as it has room for; returns their number. The caller forgets them.
    #[inline]
    fn free_own(&mut self, packets: &[Packet]) -> usize {
        let Some(own) = self.direct else { return 0 };
        // SAFETY: the handle keeps the depot alive.
        let magazine = unsafe { self.loaded.open() };
        let mut freed = 0;
        for (slot, packet) in magazine.slots[..self.fill][magazine.len..].iter_mut().zip(packets) {
            let meta = packet.as_meta();
            if meta.owner != own || !meta.next.is_null() {
                break;
            }
            *slot = packet.as_ptr();
            freed += 1;
        }
        magazine.len += freed;
        freed
    }

    /// As [`free_own`](Cache::free_own), for packets with fragments of one other pool each, which
    /// go to `free_run`.
    #[inline(never)]
    fn free_heads(&mut self, packets: &[Packet], free_run: &mut FreeRun) -> usize {
        // SAFETY: the handle keeps the depot alive.
        let magazine = unsafe { self.loaded.open() };
        let mut freed = 0;
        for (slot, packet) in magazine.slots[..self.fill][magazine.len..].iter_mut().zip(packets) {
            let meta = packet.as_meta();
            // SAFETY: the packet owns its chain; if the chain is added, the head goes into the
            // magazine.
            if self.direct != Some(meta.owner) || !unsafe { free_run.add_chain(meta.next, meta.owner) } {
                break;
            }
            *slot = packet.as_ptr();
            freed += 1;
        }
        magazine.len += freed;
        freed
    }

    /// A free chunk of this pool, not prepared in any way.
    #[inline]
    pub(crate) fn alloc_meta(&mut self) -> Option<NonNull<Meta>> {
        loop {
            let magazine = self.handle.shared().depot.open(&mut self.loaded);
            if magazine.len > 0 {
                magazine.len -= 1;
                return NonNull::new(magazine.slots[magazine.len]);
            }
            if !self.reload() {
                return None;
            }
        }
    }

    /// # Safety
    /// The caller owns the chunk (without the rest of its chain), and gives it up.
    #[inline]
    unsafe fn free_meta(&mut self, mut meta: NonNull<Meta>) {
        let shared = self.handle.shared();
        // SAFETY: the chunk is owned by the caller.
        if unsafe { meta.as_ref().owner } != NonNull::from(shared) {
            // SAFETY: owned, and cut off from its chain.
            unsafe {
                meta.as_mut().next = null_mut();
                PoolShared::free_chain(meta);
            }
            return;
        }
        if shared.is_indirect() {
            // SAFETY: owned, and of this pool of indirect buffers.
            unsafe { shared.release_parent(meta) };
        }
        let magazine = shared.depot.open(&mut self.loaded);
        if magazine.len < shared.depot.fill() {
            magazine.slots[magazine.len] = meta.as_ptr();
            magazine.len += 1;
        } else {
            // SAFETY: owned, of this pool.
            unsafe { self.unload(meta) };
        }
    }

    /// The loaded magazine is empty: takes the spare, a full one from the depot, or the returned
    /// chunks.
    #[cold]
    #[inline(never)]
    fn reload(&mut self) -> bool {
        let shared = self.handle.shared();
        if shared.depot.open(&mut self.spare).len > 0 {
            swap(&mut self.loaded, &mut self.spare);
            return true;
        }
        let leave = shared.floor(self.direction);
        if let Some(full) = shared.depot.take_full(current_core(), leave) {
            shared.depot.put_empty(replace(&mut self.loaded, full));
            return true;
        }
        let found = self.harvest(leave);
        if !found {
            self.handle.shared().note_shortage();
        }
        found
    }

    /// Sorts the returned chunks into magazines. Full ones go to the depot, and the rest becomes
    /// the loaded one unless the floor forbids it.
    fn harvest(&mut self, leave: usize) -> bool {
        let shared = self.handle.shared();
        let fill = shared.depot.fill();
        let mut at = shared.take_returned();
        loop {
            let magazine = shared.depot.open(&mut self.loaded);
            while magazine.len < fill
                && let Some(meta) = NonNull::new(at)
            {
                // SAFETY: taking the list made its chunks ours.
                at = unsafe { meta.as_ref().next };
                magazine.slots[magazine.len] = meta.as_ptr();
                magazine.len += 1;
            }
            if magazine.len < fill {
                break;
            }
            match shared.depot.take_empty() {
                Some(empty) => shared.depot.add_full(replace(&mut self.loaded, empty)),
                None => break,
            }
        }
        if let Some(rest) = NonNull::new(at) {
            // SAFETY: still ours from the list; a depot without an empty magazine cannot take them.
            unsafe { PoolShared::free_chain(rest) };
        }
        if let Some(full) = shared.depot.take_full(current_core(), leave) {
            // The partly filled one becomes the spare, which is empty.
            swap(&mut self.loaded, &mut self.spare);
            shared.depot.put_empty(replace(&mut self.loaded, full));
            return true;
        }
        if leave <= shared.depot.chunks() {
            return shared.depot.open(&mut self.loaded).len > 0;
        }
        self.empty_loaded();
        false
    }

    /// The loaded magazine is full: it becomes the spare, or goes to the depot if the spare is full
    /// already.
    ///
    /// Most caches only free, or only allocate. Another cache on this core should get the chunks
    /// that this one freed last, while their bytes are still in the core's cache. The spare stays
    /// as a reserve.
    ///
    /// # Safety
    /// The caller owns `meta`, a chunk of this pool, and gives it up.
    #[cold]
    #[inline(never)]
    unsafe fn unload(&mut self, mut meta: NonNull<Meta>) {
        let shared = self.handle.shared();
        if shared.depot.open(&mut self.spare).len < shared.depot.fill() {
            swap(&mut self.loaded, &mut self.spare);
        } else if let Some(empty) = shared.depot.take_empty() {
            shared.depot.put_full(current_core(), replace(&mut self.loaded, empty));
        } else {
            // SAFETY: owned; cut off from any chain.
            unsafe {
                meta.as_mut().next = null_mut();
                PoolShared::free_chain(meta);
            }
            return;
        }
        let magazine = shared.depot.open(&mut self.loaded);
        magazine.slots[magazine.len] = meta.as_ptr();
        magazine.len += 1;
    }

    /// Moves the chunks of the loaded magazine to the returned list, as one linked run.
    fn empty_loaded(&mut self) {
        let shared = self.handle.shared();
        let magazine = shared.depot.open(&mut self.loaded);
        let mut run = null_mut();
        for &chunk in &magazine.slots[..magazine.len] {
            // SAFETY: slots below the length hold free chunks of this pool, ours as long as we hold
            // the magazine. The parent of an indirect buffer was released when it was freed.
            unsafe { (*chunk).next = run };
            run = chunk;
        }
        magazine.len = 0;
        if let Some(first) = NonNull::new(run) {
            // SAFETY: the run is linked, ours, and no longer in the magazine.
            unsafe { PoolShared::free_chain(first) };
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let handle = self.handle.clone();
        let shared = handle.shared();
        for _ in 0..2 {
            swap(&mut self.loaded, &mut self.spare);
            if shared.depot.open(&mut self.loaded).len == shared.depot.fill() {
                shared.depot.put_full(current_core(), replace(&mut self.loaded, Mag::GONE));
            } else {
                self.empty_loaded();
                shared.depot.put_empty(replace(&mut self.loaded, Mag::GONE));
            }
        }
        shared.unregister_cache();
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("direction", &self.direction).field("chunk", &self.chunk()).finish()
    }
}
