//! Chunks on their way back to their pool without a cache of that pool: the list that any thread
//! pushes to ([`ReturnList`]), the chain that is freed to it ([`PoolShared::free_chain`]), and the
//! run that a cache of another pool gathers for it ([`FreeRun`]).
//!
//! The list is linked through [`Meta::next`], which a free chunk does not need. Pushing is one
//! compare-and-swap. One thread takes the whole list by one swap, so no node is ever popped from
//! under a reader and no tag against ABA is needed. The list can be *closed*: from then on a push
//! is refused (the pool has become an orphan).

use super::shared::{Kind, PoolShared, destroy};
use crate::meta::Meta;
use crate::owned;
use crate::packet::Packet;
use crate::sync::{AtomicPtr, Ordering};
use std::ptr::{NonNull, null_mut};

/// Alone on its cache line: every core that drops packets writes it.
#[repr(align(64))]
pub(crate) struct ReturnList(AtomicPtr<Meta>);

/// The head of a closed list. Metas are 64-byte aligned, so no chunk has this address.
const CLOSED: *mut Meta = std::ptr::without_provenance_mut(1);

impl ReturnList {
    pub(crate) fn new() -> ReturnList {
        ReturnList(AtomicPtr::new(null_mut()))
    }

    /// Whether there are no chunks, for callers to which a stale answer does no harm.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    /// Pushes the linked chunks `first ..= last`. Returns false if the list is closed; the caller
    /// still owns them then. Calls `on_first` before a push on an empty list: at least once if they
    /// become the first.
    ///
    /// # Safety
    /// The chunks are owned by the caller, linked by `next` from `first` to `last`, and belong to
    /// this list's pool.
    pub(crate) unsafe fn push(&self, first: *mut Meta, last: *mut Meta, mut on_first: impl FnMut()) -> bool {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            if head == CLOSED {
                return false;
            }
            if head.is_null() {
                on_first();
            }
            // SAFETY: `last` is owned by the caller until the exchange below succeeds.
            unsafe { (*last).next = head };
            // Release: the thread that takes the list sees the links and all writes to the chunks.
            match self.0.compare_exchange_weak(head, first, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
    }

    /// Takes the whole list; null if it is empty. Must not be called after
    /// [`close`](ReturnList::close).
    pub(crate) fn take_all(&self) -> *mut Meta {
        if self.0.load(Ordering::Relaxed).is_null() {
            return null_mut();
        }
        // Acquire: pairs with the release of `push`.
        self.0.swap(null_mut(), Ordering::Acquire)
    }

    /// Takes the whole list and refuses all further pushes.
    pub(crate) fn close(&self) -> *mut Meta {
        self.0.swap(CLOSED, Ordering::AcqRel)
    }
}

impl PoolShared {
    /// Returns a chain of chunks, each to its own pool; neighbours of one pool go together.
    ///
    /// # Safety
    /// The caller owns the whole chain, and gives it up.
    pub(crate) unsafe fn free_chain(first: NonNull<Meta>) {
        let mut run = first;
        loop {
            // SAFETY: the chain is owned; a chunk in use keeps its pool alive.
            let owner = unsafe { run.as_ref().owner };
            let (mut last, mut count) = (run, 1);
            let rest = loop {
                // SAFETY: `last` is part of the owned chain.
                let next = NonNull::new(unsafe { last.as_ref().next });
                match next {
                    // SAFETY: `next` is part of the owned chain.
                    Some(next) if unsafe { next.as_ref().owner } == owner => {
                        last = next;
                        count += 1;
                    }
                    other => break other,
                }
            };
            // SAFETY: run..=last is owned, linked and of one pool; nothing of it is touched
            // afterwards.
            unsafe { PoolShared::return_run(owner, run, last, count) };
            match rest {
                Some(next) => run = next,
                None => return,
            }
        }
    }

    /// # Safety
    /// As for `free_chain`, for `count` linked chunks of the pool `this`.
    pub(crate) unsafe fn return_run(
        this: NonNull<PoolShared>,
        first: NonNull<Meta>,
        last: NonNull<Meta>,
        count: isize,
    ) {
        // SAFETY: `count` chunks are in use, so the pool lives at least until they are returned
        // below.
        let shared = unsafe { this.as_ref() };
        let guard = EndsOnUnwind;
        match &shared.kind {
            Kind::Direct | Kind::ExtBuf(_) => {}
            Kind::Indirect => {
                let mut at = Some(first);
                while let Some(meta) = at {
                    // SAFETY: the chunks are owned, and linked up to `last`.
                    unsafe {
                        shared.release_parent(meta);
                        at = if meta == last { None } else { NonNull::new(meta.as_ref().next) };
                    }
                }
            }
            Kind::Owned => {
                // SAFETY: as above.
                unsafe { owned::free_run(first, last) };
                std::mem::forget(guard);
                return;
            }
        }
        let mut owner = None;
        // Before the push, because the pool may be freed right after it.
        let on_first = || {
            if let Kind::ExtBuf(waits) = &shared.kind {
                owner.get_or_insert_with(|| waits.clone());
            }
        };
        // SAFETY: owned, linked, of this pool.
        if unsafe { shared.returned.push(first.as_ptr(), last.as_ptr(), on_first) } {
            if let Some(owner) = owner {
                owner.on_free();
            }
            std::mem::forget(guard);
            return;
        }
        // The pool is an orphan: nothing is allocated again, so the chunks are only counted.
        let mut at = Some(first);
        while let Some(meta) = at {
            // SAFETY: the chunks are owned, and linked up to `last`.
            at = unsafe {
                shared.on_free_orphaned(meta);
                if meta == last { None } else { NonNull::new(meta.as_ref().next) }
            };
        }
        // AcqRel: the thread that frees the pool sees everything that was done with the chunks
        // before.
        if shared.outstanding.fetch_sub(count, Ordering::AcqRel) == count {
            // SAFETY: these were the last chunks that the orphan waited for.
            unsafe { destroy(this) };
        }
        std::mem::forget(guard);
    }
}

/// Ends the process when it is dropped, which a panic of an owner does. Callers of
/// [`PoolShared::return_run`] have given up some chunks of a batch and hold others, so that nothing
/// may unwind through them.
pub(super) struct EndsOnUnwind;

impl Drop for EndsOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Linked chunks of one pool other than the cache's, gathered while packets are freed. They are
/// returned when this is dropped or when chunks of a third pool come.
pub(super) struct FreeRun(Option<Run>);

struct Run {
    owner: NonNull<PoolShared>,
    first: NonNull<Meta>,
    last: NonNull<Meta>,
    count: isize,
}

impl FreeRun {
    pub(super) fn new() -> FreeRun {
        FreeRun(None)
    }

    /// Adds packets from the front of which all chunks are of one pool other than `own`; returns
    /// their number.
    ///
    /// # Safety
    /// The caller owns the packets, and gives up those that are added.
    #[inline]
    pub(super) unsafe fn add(&mut self, packets: &[Packet], own: NonNull<PoolShared>) -> usize {
        let mut added = 0;
        while let Some(packet) = packets.get(added).filter(|packet| packet.as_meta().owner != own) {
            // SAFETY: the packet owns its chain.
            if !unsafe { self.add_chain(packet.as_ptr(), own) } {
                break;
            }
            added += 1;
            added += self.0.as_mut().map_or(0, |run| run.join_singles(&packets[added..]));
        }
        added
    }

    /// Adds the chain that begins at `next`, which may be null. Returns false, and adds nothing,
    /// unless all of it is of one pool other than `head`, that of the packet's head.
    ///
    /// # Safety
    /// The caller owns the chain, and gives it up if it is added.
    #[inline]
    pub(super) unsafe fn add_chain(&mut self, next: *mut Meta, head: NonNull<PoolShared>) -> bool {
        let Some(first) = NonNull::new(next) else { return true };
        // SAFETY: the chain is owned by the caller.
        let meta = unsafe { first.as_ref() };
        match &mut self.0 {
            // One more chunk of the same pool: an external buffer.
            Some(run) if run.owner == meta.owner && meta.next.is_null() => {
                run.join(first, first, 1);
                true
            }
            // SAFETY: as the caller's.
            _ => unsafe { self.add_any(first, head) },
        }
    }

    /// # Safety
    /// As for `add_chain`.
    unsafe fn add_any(&mut self, first: NonNull<Meta>, head: NonNull<PoolShared>) -> bool {
        // SAFETY: the chain is owned by the caller.
        let owner = unsafe { first.as_ref().owner };
        if owner == head {
            return false;
        }
        let (mut last, mut count) = (first, 1);
        // SAFETY: as above, for each chunk of the chain.
        while let Some(next) = NonNull::new(unsafe { last.as_ref().next }) {
            // SAFETY: as above.
            if unsafe { next.as_ref().owner } != owner {
                return false;
            }
            (last, count) = (next, count + 1);
        }
        match &mut self.0 {
            Some(run) if run.owner == owner => run.join(first, last, count),
            _ => {
                self.flush();
                self.0 = Some(Run { owner, first, last, count });
            }
        }
        true
    }

    fn flush(&mut self) {
        if let Some(Run { owner, first, last, count }) = self.0.take() {
            // SAFETY: the run's chunks are ours, linked, of that pool, and not touched any more.
            unsafe { PoolShared::return_run(owner, first, last, count) };
        }
    }
}

impl Run {
    /// Links packets from the front behind the present chunks, as long as they are one chunk of
    /// this pool each; returns their number. The caller gives them up.
    #[inline]
    fn join_singles(&mut self, packets: &[Packet]) -> usize {
        let (mut last, mut joined) = (self.last, 0);
        for packet in packets {
            let meta = packet.as_meta();
            if meta.owner != self.owner || !meta.next.is_null() {
                break;
            }
            let Some(next) = NonNull::new(packet.as_ptr()) else { break };
            // SAFETY: the run's chunks are ours.
            unsafe { last.as_mut().next = next.as_ptr() };
            (last, joined) = (next, joined + 1);
        }
        (self.last, self.count) = (last, self.count + joined as isize);
        joined
    }

    /// Links chunks behind the present ones.
    #[inline]
    fn join(&mut self, first: NonNull<Meta>, last: NonNull<Meta>, count: isize) {
        // SAFETY: the run's chunks are ours.
        unsafe { self.last.as_mut().next = first.as_ptr() };
        (self.last, self.count) = (last, self.count + count);
    }
}

impl Drop for FreeRun {
    #[inline]
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
#[cfg(loom)]
mod tests {
    use super::*;
    use loom::sync::Arc;

    fn chunk() -> *mut Meta {
        Box::into_raw(Box::new(Meta::free(NonNull::dangling(), null_mut(), 0)))
    }

    fn count_and_free(mut at: *mut Meta) -> usize {
        let mut n = 0;
        while !at.is_null() {
            // SAFETY: every chunk here was made by `chunk` and leaves the list once, so this is its
            // only owner.
            let meta = unsafe { Box::from_raw(at) };
            at = meta.next;
            n += 1;
        }
        n
    }

    #[test]
    fn chunks_that_two_threads_push_are_taken_once() {
        crate::sync::model(|| {
            let list = Arc::new(ReturnList::new());
            let push = |list: Arc<ReturnList>| {
                let c = chunk();
                // SAFETY: the chunk was just made and is given up.
                assert!(unsafe { list.push(c, c, || {}) });
            };
            let other = list.clone();
            let t = loom::thread::spawn(move || push(other));
            push(list.clone());
            let early = count_and_free(list.take_all());
            t.join().unwrap();
            assert_eq!(early + count_and_free(list.take_all()), 2);
        });
    }

    #[test]
    fn a_push_against_a_close_is_either_taken_or_refused() {
        crate::sync::model(|| {
            let list = Arc::new(ReturnList::new());
            let other = list.clone();
            let t = loom::thread::spawn(move || {
                let c = chunk();
                // SAFETY: the chunk was just made and is given up, unless the push is refused.
                let pushed = unsafe { other.push(c, c, || {}) };
                if !pushed {
                    count_and_free(c);
                }
                pushed
            });
            let taken = count_and_free(list.close());
            assert_eq!(taken == 1, t.join().unwrap());
        });
    }
}
