//! One source, from which each of several receivers takes what is its own.
//!
//! ```text
//!   receiver ──► its inbox ──► try the lock
//!                                  ├─ held by another, which puts our items into our inbox: done
//!                                  └─ taken: our inbox again ──► source ──► ours: taken
//!                                                                         others': their inboxes
//! ```
//!
//! No receiver waits. A receiver gets its items in the source's order: the items that others put
//! into its inbox before it took the lock are older than those it finds in the source. That is why
//! it empties its inbox a second time, with the lock held.

use crate::sync::{Mutex, lock};
use std::sync::TryLockError;
use towpath_packet::spsc::{Consumer, Producer, ring};

/// The inbox of a receiver, as the others see it.
pub(super) struct Inbox<T, O> {
    pub(super) ring: Producer<T>,
    pub(super) owner: O,
}

/// The inboxes of all receivers that are attached.
pub(in crate::cpsw) struct Inboxes<T, O>(Vec<Option<Inbox<T, O>>>);

impl<T, O> Inboxes<T, O> {
    /// The inbox of a receiver, 1 and up; `None` if it is not attached.
    #[inline]
    pub(super) fn of(&mut self, receiver: u8) -> Option<&mut Inbox<T, O>> {
        self.0.get_mut(usize::from(receiver).checked_sub(1)?)?.as_mut()
    }
}

/// A source `S` of `T`, and the inboxes of its receivers. `O` describes the owner of an inbox.
pub(in crate::cpsw) struct Demux<S, T, O>(Mutex<(S, Inboxes<T, O>)>);

impl<S, T: Send, O> Demux<S, T, O> {
    pub(in crate::cpsw) fn new(source: S, receivers: u8) -> Demux<S, T, O> {
        Demux(Mutex::new((source, Inboxes((0..receivers).map(|_| None).collect()))))
    }

    /// Attaches a receiver: up to `capacity` of its items wait for the consumer.
    pub(in crate::cpsw) fn attach(&self, receiver: u8, capacity: usize, owner: O) -> Consumer<T> {
        let (producer, consumer) = ring(capacity);
        let mut guard = lock(&self.0);
        if let Some(inbox) = usize::from(receiver).checked_sub(1).and_then(|index| guard.1.0.get_mut(index)) {
            *inbox = Some(Inbox { ring: producer, owner });
        }
        consumer
    }

    /// Takes from the inbox by `empty`, and from the source by `pull` unless another has the lock.
    #[inline]
    pub(super) fn poll<X>(
        &self,
        inbox: &mut Consumer<T>,
        out: &mut X,
        empty: impl Fn(&mut Consumer<T>, &mut X),
        pull: impl FnOnce(&mut S, &mut Inboxes<T, O>, &mut X),
    ) {
        empty(inbox, out);
        self.try_with(|source, inboxes| {
            empty(inbox, out);
            pull(source, inboxes, out);
        });
    }

    /// Runs `f` on the source; `None` if another has the lock.
    #[inline]
    pub(super) fn try_with<R>(&self, f: impl FnOnce(&mut S, &mut Inboxes<T, O>) -> R) -> Option<R> {
        let mut guard = match self.0.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let (source, inboxes) = &mut *guard;
        Some(f(source, inboxes))
    }

    /// Runs `f` on the source, which it does not change.
    pub(super) fn read<R>(&self, f: impl FnOnce(&S) -> R) -> R {
        f(&lock(&self.0).0)
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::sync::model;
    use loom::sync::Arc;
    use loom::thread;

    /// Numbers: the even ones are receiver 1's, the odd ones receiver 2's.
    type Numbers = Demux<u32, u32, ()>;

    fn poll(numbers: &Numbers, receiver: u8, inbox: &mut Consumer<u32>, out: &mut Vec<u32>) {
        let empty = |inbox: &mut Consumer<u32>, out: &mut Vec<u32>| out.extend(std::iter::from_fn(|| inbox.pop()));
        numbers.poll(inbox, out, empty, |next, inboxes, out| {
            for _ in 0..2 {
                let number = std::mem::replace(next, *next + 1);
                match number as u8 % 2 + 1 {
                    owner if owner == receiver => out.push(number),
                    owner => inboxes.of(owner).unwrap().ring.push(number).unwrap(),
                }
            }
        });
    }

    #[test]
    fn t10_each_receiver_gets_all_its_items_in_order_in_all_interleavings() {
        model(|| {
            let numbers = Arc::new(Numbers::new(0, 2));
            let (mut first, mut second) = (numbers.attach(1, 8, ()), numbers.attach(2, 8, ()));
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
