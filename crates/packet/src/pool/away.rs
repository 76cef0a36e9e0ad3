//! Fragments and packets of another pool, gathered while packets are freed, to go home together.

use super::shared::Shared;
use crate::meta::Meta;
use std::ptr::NonNull;

/// Linked chunks of one pool, given home when this is dropped or when chunks of a third pool come.
pub(super) struct Away(Option<Run>);

struct Run {
    owner: NonNull<Shared>,
    first: NonNull<Meta>,
    last: NonNull<Meta>,
    count: isize,
}

impl Away {
    pub(super) fn new() -> Away {
        Away(None)
    }

    /// Takes the chain that begins at `next`, which may be null; false, and nothing is taken, unless all of it is of one pool other than
    /// `head`, that of the packet's head.
    ///
    /// # Safety
    /// The caller owns the chain, and gives it up if it is taken.
    #[inline]
    pub(super) unsafe fn take(&mut self, next: *mut Meta, head: NonNull<Shared>) -> bool {
        let Some(first) = NonNull::new(next) else { return true };
        // SAFETY: the chain is owned by the caller.
        let meta = unsafe { first.as_ref() };
        match &mut self.0 {
            // One more of the same, alone: a page.
            Some(run) if run.owner == meta.owner && meta.next.is_null() => {
                run.join(first, first, 1);
                true
            }
            // SAFETY: as the caller's.
            _ => unsafe { self.take_chain(first, head) },
        }
    }

    /// As `take`, for a packet: false as well if its head is of the pool `own`.
    ///
    /// # Safety
    /// As for `take`.
    #[inline]
    pub(super) unsafe fn take_whole(&mut self, head: *mut Meta, own: NonNull<Shared>) -> bool {
        // SAFETY: the chain is owned by the caller.
        unsafe { (*head).owner != own && self.take(head, own) }
    }

    /// # Safety
    /// As for `take`.
    unsafe fn take_chain(&mut self, first: NonNull<Meta>, head: NonNull<Shared>) -> bool {
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
                self.go_home();
                self.0 = Some(Run { owner, first, last, count });
            }
        }
        true
    }

    fn go_home(&mut self) {
        if let Some(Run { owner, first, last, count }) = self.0.take() {
            // SAFETY: the run's chunks are ours, linked, of that pool, and not touched any more.
            unsafe { Shared::take_in(owner, first, last, count) };
        }
    }
}

impl Run {
    /// Links chunks behind those that are there.
    #[inline]
    fn join(&mut self, first: NonNull<Meta>, last: NonNull<Meta>, count: isize) {
        // SAFETY: the run's chunks are ours.
        unsafe { self.last.as_mut().next = first.as_ptr() };
        (self.last, self.count) = (last, self.count + count);
    }
}

impl Drop for Away {
    #[inline]
    fn drop(&mut self) {
        self.go_home();
    }
}
