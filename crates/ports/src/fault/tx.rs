//! The transmit queue with faults.

use super::injector::{Action, Health, Injector};
use super::shaper::Shaper;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use towpath_packet::port::{State, TxBarrier, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, DropReason, Offloads, Packet};

/// A transmit queue with faults. Its counters are those of the inner queue; lost packets are
/// dropped by `fault`, duplicates count as split.
#[derive(Debug)]
pub struct FaultTx<T: TxQueue> {
    inner: T,
    injector: Injector,
    cache: Cache,
    /// Packets that are decided on, and that the inner queue did not accept yet.
    pending: Batch,
    /// A held packet, and the number of others that pass it first.
    held: Option<(Packet, u32)>,
    /// Packets that are delayed, in front of `pending`.
    shaper: Option<Shaper>,
    /// Nothing was sent since the last [`reclaim`](TxQueue::reclaim).
    idle: bool,
}

impl<T: TxQueue> FaultTx<T> {
    pub(super) fn new(inner: T, mut injector: Injector, cache: Cache) -> FaultTx<T> {
        let shaper = injector.shaper();
        FaultTx { inner, injector, cache, pending: Batch::new(), held: None, shaper, idle: false }
    }

    fn pass(&mut self, packet: Packet) {
        self.deliver(packet);
        if let Some((_, wait)) = &mut self.held {
            *wait = wait.saturating_sub(1);
        }
        self.release(false);
    }

    /// Appends the held packet, if enough others have passed or `at_once`.
    fn release(&mut self, at_once: bool) {
        if (self.pending.room() > 0 || self.shaper.is_some())
            && let Some((packet, _)) = self.held.take_if(|(_, wait)| *wait == 0 || at_once)
        {
            self.deliver(packet);
        }
    }

    /// Passes a packet on, behind its delay if there is one.
    fn deliver(&mut self, packet: Packet) {
        match &mut self.shaper {
            // `tx` takes no more packets than there is room for.
            None => drop(self.pending.push(packet)),
            Some(shaper) => {
                if let Err(packet) = shaper.push(packet, Instant::now()) {
                    self.injector.faults().limited.fetch_add(1, Relaxed);
                    self.inner.counters().dropped(DropReason::Fault, 1);
                    self.cache.free(packet);
                }
            }
        }
    }

    /// Sends the packets that may leave; returns whether there were any.
    fn send(&mut self) -> bool {
        if let Some(shaper) = self.shaper.as_mut().filter(|shaper| shaper.len() > 0) {
            let now = Instant::now();
            while self.pending.room() > 0
                && let Some(packet) = shaper.pop(now)
            {
                let _ = self.pending.push(packet);
            }
        }
        !self.pending.is_empty() && self.inner.tx(&mut self.pending) > 0
    }

    fn delayed(&self) -> usize {
        self.shaper.as_ref().map_or(0, Shaper::len)
    }

    fn waiting(&self) -> usize {
        self.pending.len() + usize::from(self.held.is_some()) + self.delayed()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<T: TxQueue> TxQueue for FaultTx<T> {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if batch.is_empty() {
            return 0;
        }
        self.idle = false;
        if self.injector.begin_call() != Health::Ok {
            self.inner.counters().retried(1);
            return 0;
        }
        self.send();
        // Each packet may be duplicated, and release the held one. A queue of delayed packets has a
        // limit of its own.
        let room = if self.shaper.is_some() { usize::MAX } else { self.pending.room().saturating_sub(1) / 2 };
        let mut taken = 0;
        while taken < room
            && self.injector.health() == Health::Ok
            && let Some(mut packet) = batch.drain_front(1).next()
        {
            taken += 1;
            match self.injector.decide(&mut packet) {
                Action::Drop => {
                    self.inner.counters().dropped_packet(DropReason::Fault, &packet);
                    self.cache.free(packet);
                }
                Action::Hold(wait) if self.held.is_none() => {
                    self.injector.faults().reordered.fetch_add(1, Relaxed);
                    self.held = Some((packet, wait));
                }
                Action::Duplicate => {
                    if let Some(duplicate) = packet.duplicate(&mut self.cache) {
                        self.injector.faults().duplicated.fetch_add(1, Relaxed);
                        self.inner.counters().split(2);
                        self.pass(duplicate);
                    }
                    self.pass(packet);
                }
                Action::Hold(_) | Action::Pass => self.pass(packet),
            }
        }
        self.send();
        taken
    }

    fn reclaim(&mut self) -> usize {
        let idle = std::mem::replace(&mut self.idle, true);
        if idle && self.waiting() > 0 && matches!(self.injector.health(), Health::Ok | Health::Gone) {
            self.release(true);
            if self.send() {
                self.inner.kick();
            }
        } else if idle && self.waiting() > 0 {
            // Without a call of `tx` the episode would not end.
            self.injector.begin_call();
        }
        self.inner.reclaim()
    }

    fn close(&mut self) -> Result<(), Cow<'static, str>> {
        self.inner.close()
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
        match self.injector.health() {
            Health::Gone => State::Gone(Cow::Borrowed("fault: it vanished")),
            Health::Down => State::Down(Cow::Borrowed("fault: the link is down")),
            Health::Ok | Health::Stalled => self.inner.state(),
        }
    }

    fn wake(&self) -> Wake {
        let waits = !self.pending.is_empty() || self.held.is_some();
        match self.shaper.as_ref().and_then(Shaper::next) {
            _ if waits || self.injector.health() != Health::Ok => Wake::Poll,
            Some(next) => Wake::At(next),
            None => self.inner.wake(),
        }
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
