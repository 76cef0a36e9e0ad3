//! One direction of a pair: what its two sides share besides the rings.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use towpath_packet::Offloads;
use towpath_packet::notify::{self, Notifier};

/// Packets of ring `i` are for receive queue `i % receivers`, whose notifier is rung.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) notifiers: Vec<Notifier>,
    receivers: AtomicUsize,
    senders: AtomicUsize,
    accept: AtomicU16,
}

impl Way {
    /// For as many rings, with nobody receiving yet.
    pub(super) fn new(rings: u16) -> io::Result<Arc<Way>> {
        let notifiers = (0..rings).map(|_| Notifier::new()).collect::<io::Result<_>>()?;
        let accept = AtomicU16::new(Offloads::ALL.bits());
        let receivers = AtomicUsize::new(usize::from(rings));
        Ok(Arc::new(Way { notifiers, receivers, senders: AtomicUsize::new(0), accept }))
    }

    /// The receiving end starts with `n` queues. Called before any notifier is armed, so that by the fences in [`Notifier`] a
    /// sender that sees a notifier armed sees this number too.
    pub(super) fn receive_with(&self, n: u16) {
        self.receivers.store(usize::from(n).max(1), Ordering::Relaxed);
    }

    /// The sending end starts with `n` queues, of rings 0 to `n - 1`; the others stay empty. Called before anything is put
    /// into a ring, so that by the fences in [`Notifier`] a receiver that goes to sleep sees it.
    pub(super) fn send_with(&self, n: u16) {
        self.senders.store(usize::from(n), Ordering::Relaxed);
    }

    /// Queues that the sending end was started with; 0 before that.
    #[inline]
    pub(super) fn senders(&self) -> usize {
        self.senders.load(Ordering::Relaxed)
    }

    /// How many of the rings of one receive queue have a sender.
    pub(super) fn used(&self, receiver: usize) -> usize {
        self.senders().saturating_sub(receiver).div_ceil(self.receivers.load(Ordering::Relaxed))
    }

    /// Wakes whoever receives from a ring, if they sleep.
    #[inline]
    pub(super) fn ring(&self, ring: usize) {
        notify::publish();
        let receivers = self.receivers.load(Ordering::Relaxed);
        if let Some(notifier) = self.notifiers.get(if ring < receivers { ring } else { ring % receivers }) {
            notifier.notify();
        }
    }

    /// What the receiving end can take: read by the sending one, which hands over nothing that asks for more.
    #[inline]
    pub(super) fn accept(&self) -> Offloads {
        Offloads::from_bits(self.accept.load(Ordering::Relaxed))
    }

    pub(super) fn set_accept(&self, accept: Offloads) {
        self.accept.store(accept.bits(), Ordering::Relaxed);
    }
}

/// Held by the sending end, and dropped after its rings: wakes all receivers, so that they see that the rings are closed.
#[derive(Debug)]
pub(super) struct Closer(pub(super) Arc<Way>);

impl Drop for Closer {
    fn drop(&mut self) {
        notify::publish();
        self.0.notifiers.iter().for_each(Notifier::notify);
    }
}
