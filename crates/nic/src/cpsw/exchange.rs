//! One source that several take from, each what is theirs.
//!
//! ```text
//!   taker ──► its box ──► the lock? ── somebody has it: he puts what is ours into our box; that is all for now
//!                            │
//!                            └─ had: its box again ──► source ──► ours: taken      another's: into that one's box
//! ```
//!
//! Nobody waits. What is one taker's comes to it in the source's order: what others put into its box before it had the lock is older
//! than what it finds in the source, hence the second look.

use crate::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, TryLockError};
use towpath_packet::spsc::{Consumer, Producer, ring};

/// Where a taker's things are put by others.
pub(super) struct Outbox<T, O> {
    pub(super) ring: Producer<T>,
    pub(super) owner: O,
}

/// The boxes of all takers, those that have joined.
pub(super) struct Outboxes<T, O>(Vec<Option<Outbox<T, O>>>);

impl<T, O> Outboxes<T, O> {
    /// That of a taker, 1 and up; none if there is no such taker, or it never joined.
    #[inline]
    pub(super) fn of(&mut self, taker: u8) -> Option<&mut Outbox<T, O>> {
        self.0.get_mut(usize::from(taker).checked_sub(1)?)?.as_mut()
    }
}

/// A source of `T`, and the boxes of those who take from it; an `O` says whose a box is.
pub(super) struct Exchange<S, T, O>(Mutex<(S, Outboxes<T, O>)>);

impl<S, T: Send, O> Exchange<S, T, O> {
    pub(super) fn new(source: S, takers: u8) -> Exchange<S, T, O> {
        Exchange(Mutex::new((source, Outboxes((0..takers).map(|_| None).collect()))))
    }

    fn lock(&self) -> MutexGuard<'_, (S, Outboxes<T, O>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, what is `taker`'s is kept for whoever has the consumer: up to `room` of it.
    pub(super) fn join(&self, taker: u8, room: usize, owner: O) -> Consumer<T> {
        let (producer, consumer) = ring(room);
        let mut guard = self.lock();
        if let Some(place) = usize::from(taker).checked_sub(1).and_then(|place| guard.1.0.get_mut(place)) {
            *place = Some(Outbox { ring: producer, owner });
        }
        consumer
    }

    /// Takes by `empty` from the taker's box, and by `pull` from the source if nobody else does.
    #[inline]
    pub(super) fn poll<X>(
        &self,
        inbox: &mut Consumer<T>,
        out: &mut X,
        empty: impl Fn(&mut Consumer<T>, &mut X),
        pull: impl FnOnce(&mut S, &mut Outboxes<T, O>, &mut X),
    ) {
        empty(inbox, out);
        self.try_with(|source, outboxes| {
            empty(inbox, out);
            pull(source, outboxes, out);
        });
    }

    /// Does something with the source, unless somebody else has it.
    #[inline]
    pub(super) fn try_with<R>(&self, f: impl FnOnce(&mut S, &mut Outboxes<T, O>) -> R) -> Option<R> {
        let mut guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let (source, outboxes) = &mut *guard;
        Some(f(source, outboxes))
    }

    /// Looks at the source.
    pub(super) fn read<R>(&self, f: impl FnOnce(&S) -> R) -> R {
        f(&self.lock().0)
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::sync::model;
    use loom::sync::Arc;
    use loom::thread;

    /// Numbers, of which the even ones are taker 1's and the odd ones taker 2's.
    type Numbers = Exchange<u32, u32, ()>;

    fn poll(numbers: &Numbers, taker: u8, inbox: &mut Consumer<u32>, out: &mut Vec<u32>) {
        let empty = |inbox: &mut Consumer<u32>, out: &mut Vec<u32>| out.extend(std::iter::from_fn(|| inbox.pop()));
        numbers.poll(inbox, out, empty, |next, outboxes, out| {
            for _ in 0..2 {
                let number = std::mem::replace(next, *next + 1);
                match number as u8 % 2 + 1 {
                    owner if owner == taker => out.push(number),
                    owner => outboxes.of(owner).unwrap().ring.push(number).unwrap(),
                }
            }
        });
    }

    #[test]
    fn t10_what_is_a_takers_comes_to_it_whole_and_in_order_in_all_interleavings() {
        model(|| {
            let numbers = Arc::new(Numbers::new(0, 2));
            let (mut first, mut second) = (numbers.join(1, 8, ()), numbers.join(2, 8, ()));
            let other = numbers.clone();
            let thread = thread::spawn(move || {
                let mut out = Vec::new();
                (0..2).for_each(|_| poll(&other, 2, &mut second, &mut out));
                (second, out)
            });
            let mut out = Vec::new();
            (0..2).for_each(|_| poll(&numbers, 1, &mut first, &mut out));
            let (mut second, mut others) = thread.join().unwrap();
            let pulled = numbers.read(|next| *next);
            out.extend(std::iter::from_fn(|| first.pop()));
            others.extend(std::iter::from_fn(|| second.pop()));
            assert_eq!(out, (0..pulled).step_by(2).collect::<Vec<_>>());
            assert_eq!(others, (1..pulled).step_by(2).collect::<Vec<_>>());
        });
    }
}
