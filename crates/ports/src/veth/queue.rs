//! The queues of one end.

use super::way::{Closer, Way};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};
use towpath_packet::spsc::{Consumer, Producer};
use towpath_packet::{Batch, Counters, Offloads, Packet};

/// What a queue says when nobody is on the other side any more.
const CLOSED: State = State::Gone(std::borrow::Cow::Borrowed("the other end is closed"));

/// Takes packets out of the rings of one direction.
#[derive(Debug)]
pub struct VethRx {
    /// A cell only because [`wake`](RxQueue::wake) and [`state`](RxQueue::state) look into the rings through `&self`.
    rings: RefCell<Vec<Consumer<Packet>>>,
    /// How many of them can have packets: those that the sending end has queues for.
    used: usize,
    /// The number of sending queues that `used` was worked out from.
    senders: usize,
    /// The ring to begin with, so that none is starved.
    first: usize,
    way: Arc<Way>,
    /// Whose notifier of the way is ours.
    number: usize,
    /// Whether the notifier may be armed.
    armed: Cell<bool>,
    counters: Arc<Counters>,
}

impl VethRx {
    pub(super) fn new(rings: Vec<Consumer<Packet>>, way: Arc<Way>, number: usize) -> VethRx {
        let (armed, counters) = (Cell::new(false), Arc::default());
        VethRx { rings: RefCell::new(rings), used: 0, senders: 0, first: 0, way, number, armed, counters }
    }
}

#[cfg(all(test, not(loom)))]
impl VethRx {
    pub(super) fn notifier(&self) -> &towpath_packet::Notifier {
        &self.way.notifiers[self.number]
    }
}

impl RxQueue for VethRx {
    #[inline]
    fn rx(&mut self, out: &mut Batch) -> usize {
        let from = out.len();
        let senders = self.way.senders();
        if senders != self.senders {
            self.senders = senders;
            self.used = self.way.used(self.number);
        }
        match self.rings.get_mut().get_mut(..self.used).unwrap_or_default() {
            [ring] => {
                ring.pop_batch(out);
            }
            rings => {
                let (before, after) = rings.split_at_mut(self.first.min(rings.len()));
                for ring in after.iter_mut().chain(before) {
                    ring.pop_batch(out);
                }
                self.first = if self.first + 1 < rings.len() { self.first + 1 } else { 0 };
            }
        }
        let got = &out.as_slice()[from..];
        if got.is_empty() {
            return 0;
        }
        if self.armed.replace(false)
            && let Some(notifier) = self.way.notifiers.get(self.number)
        {
            notifier.disarm();
        }
        // The lines were last written on another core, perhaps: fetch them together, then read them.
        got.iter().for_each(Packet::prefetch);
        let bytes: usize = got.iter().map(Packet::len).sum();
        self.counters.moved(got.len() as u64, bytes as u64);
        got.len()
    }

    fn set_rx_offloads(&mut self, accept: Offloads) {
        self.way.set_accept(accept);
    }

    fn state(&self) -> State {
        let closed = self.rings.try_borrow_mut().is_ok_and(|mut rings| rings.iter_mut().all(Consumer::is_closed));
        if closed { CLOSED } else { State::Up }
    }

    /// Arms the notifier: to be called only by who is about to sleep.
    fn wake(&self) -> Wake {
        let (Some(notifier), Ok(mut rings)) = (self.way.notifiers.get(self.number), self.rings.try_borrow_mut()) else {
            return Wake::Poll;
        };
        notifier.arm();
        self.armed.set(true);
        if rings.iter_mut().any(|ring| ring.peek(1) > 0) || rings.iter_mut().all(Consumer::is_closed) {
            notifier.wake();
        }
        Wake::Fd(notifier.fd())
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// Puts packets into a ring of one direction.
#[derive(Debug)]
pub struct VethTx {
    // In this order: the ring is closed before the closer wakes the other side.
    ring: Producer<Packet>,
    /// Rings that no queue of this end uses; open, because the other end watches them.
    _unused: Vec<Producer<Packet>>,
    closer: Closer,
    number: usize,
    /// Something was sent since the notifier was last rung.
    unannounced: bool,
    counters: Arc<Counters>,
}

impl VethTx {
    pub(super) fn new(ring: Producer<Packet>, unused: Vec<Producer<Packet>>, way: Arc<Way>, number: usize) -> VethTx {
        VethTx { ring, _unused: unused, closer: Closer(way), number, unannounced: false, counters: Arc::default() }
    }
}

impl TxQueue for VethTx {
    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let n = self.ring.free(batch.len()).min(batch.len());
        if n == 0 || self.ring.is_closed() {
            return 0;
        }
        let bytes: usize = batch.iter().take(n).map(Packet::len).sum();
        let sent = self.ring.push_batch(batch);
        self.counters.moved(sent as u64, bytes as u64);
        self.unannounced = true;
        sent
    }

    #[inline]
    fn kick(&mut self) {
        if std::mem::take(&mut self.unannounced) {
            self.closer.0.ring(self.number);
        }
    }

    fn offloads(&self) -> Offloads {
        self.closer.0.accept()
    }

    fn state(&self) -> State {
        if self.ring.is_closed() { CLOSED } else { State::Up }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
