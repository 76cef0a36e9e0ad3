//! The lane's side: a receive queue that takes from every worker's ring.

use super::{Gate, Link};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use towpath_packet::port::{RxBarrier, RxQueue, State, Wake};
use towpath_packet::spsc::Consumer;
use towpath_packet::{Batch, Counters, Offloads, Packet};
use towpath_sys::sync::Ordering;

/// The way from one worker.
#[derive(Debug)]
pub(super) struct Inlet {
    /// A cell because [`state`](RxQueue::state) and [`wake`](RxQueue::wake) look into the ring through `&self`.
    ring: RefCell<Consumer<Packet>>,
    taken: u64,
    marked: u64,
    published: u64,
    link: Arc<Link>,
}

impl Inlet {
    pub(super) fn new(ring: Consumer<Packet>, link: Arc<Link>) -> Inlet {
        Inlet { ring: RefCell::new(ring), taken: 0, marked: 0, published: 0, link }
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        self.link.taken.store(self.taken, Ordering::Relaxed);
    }
}

/// Takes packets from the rings of all workers; owned by the lane.
#[derive(Debug)]
pub struct LaneRx {
    inlets: Vec<Inlet>,
    /// The ring to begin with, so that none is starved.
    first: usize,
    gate: Arc<Gate>,
    armed: Cell<bool>,
    counters: Arc<Counters>,
}

impl LaneRx {
    pub(super) fn new(inlets: Vec<Inlet>, gate: Arc<Gate>) -> LaneRx {
        LaneRx { inlets, first: 0, gate, armed: Cell::new(false), counters: Arc::default() }
    }

    fn is_closed(&self) -> bool {
        self.inlets.iter().all(|inlet| inlet.ring.try_borrow_mut().is_ok_and(|mut ring| ring.is_closed()))
    }
}

impl RxQueue for LaneRx {
    #[inline]
    fn rx(&mut self, out: &mut Batch) -> usize {
        let from = out.len();
        let first = self.first.min(self.inlets.len());
        let (before, after) = self.inlets.split_at_mut(first);
        for inlet in after.iter_mut().chain(before) {
            inlet.taken += inlet.ring.get_mut().pop_batch(out) as u64;
        }
        self.first = if self.first + 1 < self.inlets.len() { self.first + 1 } else { 0 };
        let got = &out.as_slice()[from..];
        if got.is_empty() {
            return 0;
        }
        if self.armed.replace(false) {
            self.gate.notifier.disarm();
        }
        // The lines were last written on another core: fetch them together, then read them.
        got.iter().for_each(Packet::prefetch);
        let bytes: usize = got.iter().map(Packet::len).sum();
        self.counters.moved(got.len() as u64, bytes as u64);
        got.len()
    }

    fn set_rx_offloads(&mut self, accept: Offloads) {
        self.gate.accept.store(accept.bits(), Ordering::Relaxed);
    }

    #[inline]
    fn order_barrier(&mut self) -> Option<&mut dyn RxBarrier> {
        Some(self)
    }

    /// Done when every worker has closed its ring and all of them are empty.
    fn state(&self) -> State {
        if self.is_closed() { State::Done } else { State::Up }
    }

    /// Arms the notifier: to be called only by who is about to sleep.
    fn wake(&self) -> Wake {
        self.gate.notifier.arm();
        self.armed.set(true);
        let waiting = |inlet: &Inlet| inlet.ring.try_borrow_mut().is_ok_and(|mut ring| ring.peek(1) > 0);
        if self.inlets.iter().any(waiting) || self.is_closed() {
            self.gate.notifier.wake();
        }
        Wake::Fd(self.gate.notifier.fd())
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl RxBarrier for LaneRx {
    #[inline]
    fn begin(&mut self) -> bool {
        let mut news = false;
        for inlet in &mut self.inlets {
            inlet.marked = inlet.taken;
            news |= inlet.published != inlet.taken;
        }
        news
    }

    #[inline]
    fn passed(&mut self) {
        for inlet in &mut self.inlets {
            if inlet.published != inlet.marked {
                inlet.published = inlet.marked;
                // Release: what was sent happened before the worker gives the flow to another lane.
                inlet.link.settled.store(inlet.marked, Ordering::Release);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
impl LaneRx {
    pub(super) fn notifier(&self) -> &towpath_packet::Notifier {
        &self.gate.notifier
    }
}

#[cfg(all(test, loom))]
impl LaneRx {
    /// Sleeps on the descriptor that [`wake`](RxQueue::wake) told.
    pub(super) fn sleep(&self) {
        self.gate.notifier.sleep();
    }
}
