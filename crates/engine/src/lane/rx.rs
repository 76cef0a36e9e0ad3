//! The lane's side: a receive queue that takes packets from every worker's ring.

use super::{LaneShared, RingShared};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use towpath_packet::port::{RxBarrier, RxQueue, State, Wake};
use towpath_packet::spsc::Consumer;
use towpath_packet::{Batch, Counters, Offloads, Packet};
use towpath_sys::sync::Ordering;

/// The receiving side of one worker's ring.
#[derive(Debug)]
pub(super) struct RingRx {
    /// In a cell because [`state`](RxQueue::state) and [`wake`](RxQueue::wake) check the ring
    /// through `&self`.
    ring: RefCell<Consumer<Packet>>,
    dequeued: u64,
    barrier: u64,
    reported: u64,
    ring_shared: Arc<RingShared>,
}

impl RingRx {
    pub(super) fn new(ring: Consumer<Packet>, ring_shared: Arc<RingShared>) -> RingRx {
        RingRx { ring: RefCell::new(ring), dequeued: 0, barrier: 0, reported: 0, ring_shared }
    }
}

impl Drop for RingRx {
    fn drop(&mut self) {
        self.ring_shared.dequeued.store(self.dequeued, Ordering::Relaxed);
    }
}

/// Takes packets from the rings of all workers; owned by the lane.
#[derive(Debug)]
pub struct LaneRx {
    rings: Vec<RingRx>,
    /// The ring to begin with; it rotates, so that no ring starves.
    first: usize,
    lane_shared: Arc<LaneShared>,
    armed: Cell<bool>,
    counters: Arc<Counters>,
}

impl LaneRx {
    pub(super) fn new(rings: Vec<RingRx>, lane_shared: Arc<LaneShared>) -> LaneRx {
        LaneRx { rings, first: 0, lane_shared, armed: Cell::new(false), counters: Arc::default() }
    }

    fn is_closed(&self) -> bool {
        self.rings.iter().all(|ring_rx| ring_rx.ring.try_borrow_mut().is_ok_and(|mut ring| ring.is_closed()))
    }
}

impl RxQueue for LaneRx {
    #[inline]
    fn rx(&mut self, out: &mut Batch) -> usize {
        let from = out.len();
        let first = self.first.min(self.rings.len());
        let (before, after) = self.rings.split_at_mut(first);
        for ring_rx in after.iter_mut().chain(before) {
            ring_rx.dequeued += ring_rx.ring.get_mut().pop_batch(out) as u64;
        }
        self.first = if self.first + 1 < self.rings.len() { self.first + 1 } else { 0 };
        let got = &out.as_slice()[from..];
        if got.is_empty() {
            return 0;
        }
        if self.armed.replace(false) {
            self.lane_shared.notifier.disarm();
        }
        // The metadata was last written on another core: prefetch all lines before the first read.
        got.iter().for_each(Packet::prefetch);
        let bytes: usize = got.iter().map(Packet::len).sum();
        self.counters.moved(got.len() as u64, bytes as u64);
        got.len()
    }

    fn set_rx_offloads(&mut self, accept: Offloads) {
        self.lane_shared.offloads.store(accept.bits(), Ordering::Relaxed);
    }

    #[inline]
    fn order_barrier(&mut self) -> Option<&mut dyn RxBarrier> {
        Some(self)
    }

    /// Done when every worker has closed its ring and all rings are empty.
    fn state(&self) -> State {
        if self.is_closed() { State::Done } else { State::Up }
    }

    /// Arms the notifier: only called right before a sleep.
    fn wake(&self) -> Wake {
        self.lane_shared.notifier.arm();
        self.armed.set(true);
        let waiting = |ring_rx: &RingRx| ring_rx.ring.try_borrow_mut().is_ok_and(|mut ring| ring.peek(1) > 0);
        if self.rings.iter().any(waiting) || self.is_closed() {
            self.lane_shared.notifier.wake();
        }
        Wake::Fd(self.lane_shared.notifier.fd())
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl RxBarrier for LaneRx {
    #[inline]
    fn begin(&mut self) -> bool {
        let mut news = false;
        for ring_rx in &mut self.rings {
            ring_rx.barrier = ring_rx.dequeued;
            news |= ring_rx.reported != ring_rx.dequeued;
        }
        news
    }

    #[inline]
    fn passed(&mut self) {
        for ring_rx in &mut self.rings {
            if ring_rx.reported != ring_rx.barrier {
                ring_rx.reported = ring_rx.barrier;
                // Release: the sends happen before the worker gives the flow to another lane.
                ring_rx.ring_shared.completed.store(ring_rx.barrier, Ordering::Release);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
impl LaneRx {
    pub(super) fn notifier(&self) -> &towpath_packet::Notifier {
        &self.lane_shared.notifier
    }
}

#[cfg(all(test, loom))]
impl LaneRx {
    /// Sleeps on the descriptor of [`wake`](RxQueue::wake).
    pub(super) fn sleep(&self) {
        self.lane_shared.notifier.sleep();
    }
}
