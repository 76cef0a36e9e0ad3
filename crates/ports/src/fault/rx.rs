//! The receive queue with faults.

use super::injector::{Action, Health, Injector};
use super::shaper::Shaper;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use towpath_packet::port::{RxBarrier, RxMemory, RxQueue, State, TxLayout, Wake};
use towpath_packet::{Batch, Cache, Counters, DropReason, Offloads, Packet, Snapshot};

/// A receive queue with faults.
///
/// It has counters of its own: delivered packets are `packets`, lost ones are dropped by `fault`;
/// the other counters are copied from the inner queue.
#[derive(Debug)]
pub struct FaultRx<R> {
    inner: R,
    injector: Injector,
    cache: Cache,
    /// Received packets that are not decided on yet.
    received: Batch,
    /// A held packet, and the number of others that pass it first.
    held: Option<(Packet, u32)>,
    /// Packets that are delayed.
    shaper: Option<Shaper>,
    counters: Arc<Counters>,
    /// The inner queue's counters at the last copy.
    last: Snapshot,
}

impl<R: RxQueue> FaultRx<R> {
    pub(super) fn new(inner: R, mut injector: Injector, cache: Cache) -> FaultRx<R> {
        FaultRx {
            shaper: injector.shaper(),
            inner,
            injector,
            cache,
            received: Batch::new(),
            held: None,
            counters: Arc::default(),
            last: Snapshot::default(),
        }
    }

    /// Copies the inner queue's counters, except packets.
    fn copy_counters(&mut self) {
        let now = self.inner.counters().snapshot();
        let new = now.since(&self.last);
        self.last = now;
        self.counters.called(new.calls);
        self.counters.retried(new.retries);
        self.counters.failed(new.errors);
        new.missed().for_each(|(place, n)| self.counters.missed(place, n));
        self.counters.merged(new.merged);
        self.counters.split(new.split + 1);
        new.drops().for_each(|(reason, n)| self.counters.dropped(reason, n));
    }

    /// Appends a packet, or delays it; the batch has room.
    fn pass(&mut self, packet: Packet, out: &mut Batch) {
        self.deliver(packet, out);
        if let Some((_, wait)) = &mut self.held {
            *wait = wait.saturating_sub(1);
        }
    }

    /// Appends the held packet, if enough others have passed or `at_once`.
    fn release(&mut self, out: &mut Batch, at_once: bool) {
        if out.room() > 0
            && let Some((packet, _)) = self.held.take_if(|(_, wait)| *wait == 0 || at_once)
        {
            self.deliver(packet, out);
        }
    }

    fn deliver(&mut self, packet: Packet, out: &mut Batch) {
        match &mut self.shaper {
            None => drop(out.push(packet)),
            Some(shaper) => {
                if let Err(packet) = shaper.push(packet, Instant::now()) {
                    self.injector.faults().limited.fetch_add(1, Relaxed);
                    self.counters.dropped(DropReason::Fault, 1);
                    self.cache.free(packet);
                }
            }
        }
    }

    /// Appends the delayed packets that may leave.
    fn deliver_due(&mut self, out: &mut Batch) {
        if let Some(shaper) = self.shaper.as_mut().filter(|shaper| shaper.len() > 0) {
            let now = Instant::now();
            while out.room() > 0
                && let Some(packet) = shaper.pop(now)
            {
                let _ = out.push(packet);
            }
        }
    }

    /// Packets that are received and not delivered, besides those that are delayed.
    fn is_empty(&self) -> bool {
        self.received.is_empty() && self.held.is_none()
    }

    fn delayed(&self) -> usize {
        self.shaper.as_ref().map_or(0, Shaper::len)
    }

    /// Drops all packets that are not delivered.
    fn drop_all(&mut self) {
        let n = self.received.len() + usize::from(self.held.is_some()) + self.delayed();
        self.counters.dropped(DropReason::Fault, n as u64);
        self.cache.free_bulk(&mut self.received);
        self.held = None;
        if let Some(shaper) = &mut self.shaper {
            shaper.clear();
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: RxQueue> RxQueue for FaultRx<R> {
    fn rx(&mut self, out: &mut Batch) -> usize {
        let from = out.len();
        match self.injector.begin_call() {
            Health::Ok => {}
            Health::Gone => {
                self.drop_all();
                return 0;
            }
            Health::Stalled | Health::Down => return 0,
        }
        if self.received.is_empty() {
            self.inner.rx(&mut self.received);
            self.copy_counters();
        }
        let idle = self.received.is_empty();
        while out.room() > 0 && self.injector.health() == Health::Ok {
            self.release(out, idle);
            if out.room() == 0 {
                break;
            }
            let Some(mut packet) = self.received.drain_front(1).next() else { break };
            match self.injector.decide(&mut packet) {
                Action::Drop => {
                    self.counters.dropped_packet(DropReason::Fault, &packet);
                    self.cache.free(packet);
                }
                Action::Hold(wait) if self.held.is_none() => {
                    self.injector.faults().reordered.fetch_add(1, Relaxed);
                    self.held = Some((packet, wait));
                }
                Action::Duplicate => {
                    if out.room() > 1
                        && let Some(duplicate) = packet.duplicate(&mut self.cache)
                    {
                        self.injector.faults().duplicated.fetch_add(1, Relaxed);
                        self.pass(duplicate, out);
                    }
                    self.pass(packet, out);
                }
                Action::Hold(_) | Action::Pass => self.pass(packet, out),
            }
        }
        if self.injector.health() == Health::Gone {
            self.drop_all();
        }
        self.deliver_due(out);
        let got = &out.as_slice()[from..];
        let bytes: usize = got.iter().map(Packet::len).sum();
        self.counters.moved(got.len() as u64, bytes as u64);
        got.len()
    }

    fn refill(&mut self) -> usize {
        self.inner.refill()
    }

    fn set_rx_offloads(&mut self, accept: Offloads) {
        self.inner.set_rx_offloads(accept);
    }

    fn set_tx_layout(&mut self, egress: TxLayout) {
        self.inner.set_tx_layout(egress);
    }

    fn order_barrier(&mut self) -> Option<&mut dyn RxBarrier> {
        self.inner.order_barrier()
    }

    fn memory(&self) -> RxMemory {
        self.inner.memory()
    }

    fn state(&self) -> State {
        match self.injector.health() {
            Health::Gone => State::Gone(Cow::Borrowed("fault: it vanished")),
            Health::Down => State::Down(Cow::Borrowed("fault: the link is down")),
            Health::Ok | Health::Stalled if self.is_empty() && self.delayed() == 0 => self.inner.state(),
            Health::Ok | Health::Stalled => State::Up,
        }
    }

    fn wake(&self) -> Wake {
        match self.injector.health() {
            Health::Gone => Wake::Never,
            Health::Ok if self.is_empty() => match (self.shaper.as_ref().and_then(Shaper::next), self.inner.wake()) {
                (None, wake) => wake,
                (Some(next), Wake::At(at)) => Wake::At(at.min(next)),
                (Some(next), Wake::Never) => Wake::At(next),
                // An arrival begins its delay when it is received: the queue looks for it
                // meanwhile.
                (Some(_), _) => Wake::Poll,
            },
            _ => Wake::Poll,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl<R> Drop for FaultRx<R> {
    fn drop(&mut self) {
        let delayed = self.shaper.as_ref().map_or(0, Shaper::len);
        let n = self.received.len() + usize::from(self.held.is_some()) + delayed;
        self.counters.dropped(DropReason::Stopped, n as u64);
    }
}
