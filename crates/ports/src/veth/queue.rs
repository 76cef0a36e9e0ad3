//! The queues of one end, and the part that the two ends of a pipe share. A pipe is one direction
//! of a pair.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use towpath_packet::notify::{self, Notifier};
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};
use towpath_packet::spsc::{Consumer, Producer};
use towpath_packet::{Batch, Counters, Offloads, Packet};

/// The shared part of a pipe, besides the rings. Ring `i` belongs to receive queue `i % receivers`,
/// whose notifier is signalled.
#[derive(Debug)]
pub(super) struct PipeShared {
    pub(super) notifiers: Vec<Notifier>,
    receivers: AtomicUsize,
    senders: AtomicUsize,
    accept: AtomicU16,
}

impl PipeShared {
    /// For a number of rings; no end is started.
    pub(super) fn new(rings: u16) -> io::Result<Arc<PipeShared>> {
        let notifiers = (0..rings).map(|_| Notifier::new()).collect::<io::Result<_>>()?;
        let accept = AtomicU16::new(Offloads::ALL.bits());
        let receivers = AtomicUsize::new(usize::from(rings));
        Ok(Arc::new(PipeShared { notifiers, receivers, senders: AtomicUsize::new(0), accept }))
    }

    /// The receiving end starts with `n` queues. Called before any notifier is armed: by the fences
    /// in [`Notifier`], a sender that sees an armed notifier sees this number too.
    pub(super) fn receive_with(&self, n: u16) {
        self.receivers.store(usize::from(n).max(1), Ordering::Relaxed);
    }

    /// The sending end starts with `n` queues, of rings 0 to `n - 1`; the others stay empty. Called
    /// before the first packet is put into a ring: by the fences in [`Notifier`], a receiver that
    /// goes to sleep sees this number.
    pub(super) fn send_with(&self, n: u16) {
        self.senders.store(usize::from(n), Ordering::Relaxed);
    }

    /// The queues of the sending end; 0 before it is started.
    #[inline]
    pub(super) fn senders(&self) -> usize {
        self.senders.load(Ordering::Relaxed)
    }

    /// The number of rings of one receive queue that have a sender.
    pub(super) fn used(&self, receiver: usize) -> usize {
        self.senders().saturating_sub(receiver).div_ceil(self.receivers.load(Ordering::Relaxed))
    }

    /// Wakes the receiver of a ring, if it sleeps.
    #[inline]
    pub(super) fn notify(&self, ring: usize) {
        notify::publish();
        let receivers = self.receivers.load(Ordering::Relaxed);
        if let Some(notifier) = self.notifiers.get(if ring < receivers { ring } else { ring % receivers }) {
            notifier.notify();
        }
    }

    /// The offloads that the receiving end accepts, and so those of the sending end.
    #[inline]
    pub(super) fn accept(&self) -> Offloads {
        Offloads::from_bits(self.accept.load(Ordering::Relaxed))
    }

    pub(super) fn set_accept(&self, accept: Offloads) {
        self.accept.store(accept.bits(), Ordering::Relaxed);
    }
}

/// Held by the sending end, and dropped after its rings: wakes all receivers, which then see the
/// closed rings.
#[derive(Debug)]
pub(super) struct CloseGuard(pub(super) Arc<PipeShared>);

impl Drop for CloseGuard {
    fn drop(&mut self) {
        notify::publish();
        self.0.notifiers.iter().for_each(Notifier::notify);
    }
}

/// The state of a queue whose other end is dropped.
const CLOSED: State = State::Gone(std::borrow::Cow::Borrowed("the other end is closed"));

/// A receive queue: reads its rings of one pipe.
#[derive(Debug)]
pub struct VethRx {
    /// A cell because [`wake`](RxQueue::wake) and [`state`](RxQueue::state) read the rings through
    /// `&self`.
    rings: RefCell<Vec<Consumer<Packet>>>,
    /// The number of rings that can have packets: those with a sending queue.
    used: usize,
    /// The number of sending queues from which `used` was computed.
    senders: usize,
    /// The ring to read first, so that none is starved.
    first: usize,
    pipe: Arc<PipeShared>,
    /// Index of this queue and its notifier.
    number: usize,
    /// Whether the notifier may be armed.
    armed: Cell<bool>,
    counters: Arc<Counters>,
}

impl VethRx {
    pub(super) fn new(rings: Vec<Consumer<Packet>>, pipe: Arc<PipeShared>, number: usize) -> VethRx {
        let (armed, counters) = (Cell::new(false), Arc::default());
        VethRx { rings: RefCell::new(rings), used: 0, senders: 0, first: 0, pipe, number, armed, counters }
    }
}

#[cfg(all(test, not(loom)))]
impl VethRx {
    pub(super) fn notifier(&self) -> &Notifier {
        &self.pipe.notifiers[self.number]
    }
}

impl RxQueue for VethRx {
    #[inline]
    fn rx(&mut self, out: &mut Batch) -> usize {
        let from = out.len();
        let senders = self.pipe.senders();
        if senders != self.senders {
            self.senders = senders;
            self.used = self.pipe.used(self.number);
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
            && let Some(notifier) = self.pipe.notifiers.get(self.number)
        {
            notifier.disarm();
        }
        // Another core may have written the lines: prefetch all of them, then read them.
        got.iter().for_each(Packet::prefetch);
        let bytes: usize = got.iter().map(Packet::len).sum();
        self.counters.moved(got.len() as u64, bytes as u64);
        got.len()
    }

    fn set_rx_offloads(&mut self, accept: Offloads) {
        self.pipe.set_accept(accept);
    }

    fn state(&self) -> State {
        let closed = self.rings.try_borrow_mut().is_ok_and(|mut rings| rings.iter_mut().all(Consumer::is_closed));
        if closed { CLOSED } else { State::Up }
    }

    /// Arms the notifier; to be called only before a sleep.
    fn wake(&self) -> Wake {
        let (Some(notifier), Ok(mut rings)) = (self.pipe.notifiers.get(self.number), self.rings.try_borrow_mut())
        else {
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

/// A transmit queue: writes to one ring of a pipe.
#[derive(Debug)]
pub struct VethTx {
    // Drop order: the ring is closed before the guard wakes the other end.
    ring: Producer<Packet>,
    /// Rings without a queue of this end; they stay open, because the other end checks whether all
    /// are closed.
    _unused: Vec<Producer<Packet>>,
    guard: CloseGuard,
    number: usize,
    /// Packets were sent since the notifier was last signalled.
    needs_kick: bool,
    counters: Arc<Counters>,
}

impl VethTx {
    pub(super) fn new(
        ring: Producer<Packet>,
        unused: Vec<Producer<Packet>>,
        pipe: Arc<PipeShared>,
        number: usize,
    ) -> VethTx {
        VethTx { ring, _unused: unused, guard: CloseGuard(pipe), number, needs_kick: false, counters: Arc::default() }
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
        self.needs_kick = true;
        sent
    }

    #[inline]
    fn kick(&mut self) {
        if std::mem::take(&mut self.needs_kick) {
            self.guard.0.notify(self.number);
        }
    }

    fn offloads(&self) -> Offloads {
        self.guard.0.accept()
    }

    fn state(&self) -> State {
        if self.ring.is_closed() { CLOSED } else { State::Up }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
