//! Faults of what is received.

use super::dice::{Dice, Fate, Mood};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::port::{RxBarrier, RxMemory, RxQueue, State, TxLayout, Wake};
use towpath_packet::{Batch, Cache, Counters, DropReason, Offloads, Packet, Snapshot};

/// A receive queue with faults.
///
/// Its counters are its own: what it hands over is `packets`, what disappeared is dropped as `fault`, and errors, calls
/// and the like are those of the queue inside.
#[derive(Debug)]
pub struct FaultRx<R> {
    // A box, so that a queue of any kind may be a queue with faults around another of any kind.
    inner: R,
    dice: Dice,
    cache: Cache,
    /// Received, and not yet decided on.
    fresh: Batch,
    /// Held back, and how many others are to pass before.
    held: Option<(Packet, u32)>,
    counters: Arc<Counters>,
    /// What the queue inside had counted when it was last looked at.
    mirrored: Snapshot,
}

impl<R: RxQueue> FaultRx<R> {
    pub(super) fn new(inner: R, dice: Dice, cache: Cache) -> FaultRx<R> {
        FaultRx {
            inner,
            dice,
            cache,
            fresh: Batch::new(),
            held: None,
            counters: Arc::default(),
            mirrored: Snapshot::default(),
        }
    }

    /// Copies what the queue inside counted, except packets: those are counted here.
    fn mirror(&mut self) {
        let now = self.inner.counters().snapshot();
        let new = now.since(&self.mirrored);
        self.mirrored = now;
        self.counters.called(new.calls);
        self.counters.retried(new.retries);
        self.counters.failed(new.errors);
        self.counters.missed(new.missed);
        self.counters.merged(new.merged);
        self.counters.split(new.split + 1);
        new.drops().for_each(|(reason, n)| self.counters.dropped(reason, n));
    }

    /// Appends a packet for which there is room, and what it was the last to go before.
    fn pass(&mut self, packet: Packet, out: &mut Batch) {
        let _ = out.push(packet);
        if let Some((_, wait)) = &mut self.held {
            *wait = wait.saturating_sub(1);
        }
    }

    /// Lets go what was held back long enough, or `at_once`.
    fn release(&mut self, out: &mut Batch, at_once: bool) {
        if out.room() > 0
            && let Some((packet, _)) = self.held.take_if(|(_, wait)| *wait == 0 || at_once)
        {
            let _ = out.push(packet);
        }
    }

    /// Everything that was received and not handed over disappears.
    fn lose_all(&mut self) {
        let n = self.fresh.len() as u64 + u64::from(self.held.is_some());
        self.counters.dropped(DropReason::Fault, n);
        self.cache.free_bulk(&mut self.fresh);
        self.held = None;
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: RxQueue> RxQueue for FaultRx<R> {
    fn rx(&mut self, out: &mut Batch) -> usize {
        let from = out.len();
        match self.dice.call() {
            Mood::Well => {}
            Mood::Gone => {
                self.lose_all();
                return 0;
            }
            Mood::Stalled | Mood::Down => return 0,
        }
        if self.fresh.is_empty() {
            self.inner.rx(&mut self.fresh);
            self.mirror();
        }
        let idle = self.fresh.is_empty();
        while out.room() > 0 && self.dice.mood() == Mood::Well {
            self.release(out, idle);
            if out.room() == 0 {
                break;
            }
            let Some(mut packet) = self.fresh.drain_front(1).next() else { break };
            match self.dice.fate(&mut packet) {
                Fate::Drop => {
                    self.counters.dropped(DropReason::Fault, 1);
                    self.cache.free(packet);
                }
                Fate::Hold(wait) if self.held.is_none() => {
                    self.dice.tally().reordered.fetch_add(1, Relaxed);
                    self.held = Some((packet, wait));
                }
                Fate::Duplicate => {
                    if out.room() > 1
                        && let Some(twin) = packet.duplicate(&mut self.cache)
                    {
                        self.dice.tally().duplicated.fetch_add(1, Relaxed);
                        self.pass(twin, out);
                    }
                    self.pass(packet, out);
                }
                Fate::Hold(_) | Fate::Pass => self.pass(packet, out),
            }
        }
        if self.dice.mood() == Mood::Gone {
            self.lose_all();
        }
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
        match self.dice.mood() {
            Mood::Gone => State::Gone(Cow::Borrowed("fault: it vanished")),
            Mood::Down => State::Down(Cow::Borrowed("fault: the link is down")),
            Mood::Well | Mood::Stalled if self.fresh.is_empty() && self.held.is_none() => self.inner.state(),
            Mood::Well | Mood::Stalled => State::Up,
        }
    }

    fn wake(&self) -> Wake {
        match self.dice.mood() {
            Mood::Gone => Wake::Never,
            Mood::Well if self.fresh.is_empty() && self.held.is_none() => self.inner.wake(),
            _ => Wake::Poll,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl<R> Drop for FaultRx<R> {
    fn drop(&mut self) {
        let n = self.fresh.len() as u64 + u64::from(self.held.is_some());
        self.counters.dropped(DropReason::Stopped, n);
    }
}
