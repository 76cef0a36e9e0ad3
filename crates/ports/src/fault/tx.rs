//! Faults of what is sent.

use super::dice::{Dice, Fate, Mood};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::port::{State, TxBarrier, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, DropReason, Offloads, Packet};

/// A transmit queue with faults. Its counters are those of the queue inside, with what disappeared as dropped by
/// `fault`, and what was sent twice as split.
#[derive(Debug)]
pub struct FaultTx<T: TxQueue> {
    // A box for the reason that `FaultRx` has one.
    inner: T,
    dice: Dice,
    cache: Cache,
    /// Decided on, and not yet taken by the queue inside.
    ready: Batch,
    /// Held back, and how many others are to pass before.
    held: Option<(Packet, u32)>,
    /// Nothing was sent since the last [`reclaim`](TxQueue::reclaim).
    idle: bool,
}

impl<T: TxQueue> FaultTx<T> {
    pub(super) fn new(inner: T, dice: Dice, cache: Cache) -> FaultTx<T> {
        FaultTx { inner, dice, cache, ready: Batch::new(), held: None, idle: false }
    }

    fn pass(&mut self, packet: Packet) {
        // The caller takes no more than there is room for.
        let _ = self.ready.push(packet);
        if let Some((_, wait)) = &mut self.held {
            *wait = wait.saturating_sub(1);
        }
        self.release(false);
    }

    /// Lets go what was held back long enough, or `at_once`.
    fn release(&mut self, at_once: bool) {
        if self.ready.room() > 0
            && let Some((packet, _)) = self.held.take_if(|(_, wait)| *wait == 0 || at_once)
        {
            let _ = self.ready.push(packet);
        }
    }

    fn waiting(&self) -> usize {
        self.ready.len() + usize::from(self.held.is_some())
    }
}

#[deny(clippy::missing_trait_methods)]
impl<T: TxQueue> TxQueue for FaultTx<T> {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if batch.is_empty() {
            return 0;
        }
        self.idle = false;
        if self.dice.call() != Mood::Well {
            self.inner.counters().retried(1);
            return 0;
        }
        self.inner.tx(&mut self.ready);
        // Each packet may come twice, and let go the one that is held back.
        let room = self.ready.room().saturating_sub(1) / 2;
        let mut taken = 0;
        while taken < room
            && self.dice.mood() == Mood::Well
            && let Some(mut packet) = batch.drain_front(1).next()
        {
            taken += 1;
            match self.dice.fate(&mut packet) {
                Fate::Drop => {
                    self.inner.counters().dropped(DropReason::Fault, 1);
                    self.cache.free(packet);
                }
                Fate::Hold(wait) if self.held.is_none() => {
                    self.dice.tally().reordered.fetch_add(1, Relaxed);
                    self.held = Some((packet, wait));
                }
                Fate::Duplicate => {
                    if let Some(twin) = packet.duplicate(&mut self.cache) {
                        self.dice.tally().duplicated.fetch_add(1, Relaxed);
                        self.inner.counters().split(2);
                        self.pass(twin);
                    }
                    self.pass(packet);
                }
                Fate::Hold(_) | Fate::Pass => self.pass(packet),
            }
        }
        self.inner.tx(&mut self.ready);
        taken
    }

    fn reclaim(&mut self) -> usize {
        let idle = std::mem::replace(&mut self.idle, true);
        if idle && self.waiting() > 0 && matches!(self.dice.mood(), Mood::Well | Mood::Gone) {
            self.release(true);
            self.inner.tx(&mut self.ready);
            self.inner.kick();
        } else if idle && self.waiting() > 0 {
            // Nothing is sent any more, so the episode would never end by itself.
            self.dice.call();
        }
        self.inner.reclaim()
    }

    fn close(&mut self) {
        self.inner.close();
    }

    fn kick(&mut self) {
        self.inner.kick();
    }

    fn offloads(&self) -> Offloads {
        self.inner.offloads()
    }

    fn max_offloads(&self) -> Offloads {
        self.inner.max_offloads()
    }

    fn pending(&self) -> usize {
        self.inner.pending() + self.waiting()
    }

    fn order_barrier(&mut self) -> Option<&mut dyn TxBarrier> {
        self.inner.order_barrier()
    }

    fn state(&self) -> State {
        match self.dice.mood() {
            Mood::Gone => State::Gone(Cow::Borrowed("fault: it vanished")),
            Mood::Down => State::Down(Cow::Borrowed("fault: the link is down")),
            Mood::Well | Mood::Stalled => self.inner.state(),
        }
    }

    fn wake(&self) -> Wake {
        if self.waiting() > 0 || self.dice.mood() != Mood::Well { Wake::Poll } else { self.inner.wake() }
    }

    fn counters(&self) -> &Arc<Counters> {
        self.inner.counters()
    }
}

impl<T: TxQueue> Drop for FaultTx<T> {
    fn drop(&mut self) {
        self.inner.counters().dropped(DropReason::Stopped, self.waiting() as u64);
    }
}
