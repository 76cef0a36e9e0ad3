//! Who owns a channel or a flow: one queue alone, or several ports that share it.
//!
//! ```text
//!   Own      the queue holds it: no lock
//!   Shared   one lock a burst. Frames of a shared flow are sorted by their source port: whoever polls hands those of the
//!            others to them through rings, and loses only frames of a port that does not take its own
//! ```

use super::exchange::{Exchange, Outbox};
use super::host::Host;
use super::rx::RxFlow;
use super::tx::TxChannel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_bus::Bus;
use towpath_packet::spsc::Consumer;
use towpath_packet::{Batch, Counters, Packet};

/// A transmit channel that is torn down when its last owner ends.
pub(super) struct TxLease<B: Bus> {
    channel: Option<TxChannel<B>>,
    host: Arc<Host<B>>,
}

impl<B: Bus> TxLease<B> {
    pub(super) fn new(channel: TxChannel<B>, host: Arc<Host<B>>) -> TxLease<B> {
        TxLease { channel: Some(channel), host }
    }
}

impl<B: Bus> Drop for TxLease<B> {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.take() {
            self.host.tx_down(channel, &mut |batch: &mut Batch| drop(std::mem::take(batch)));
        }
    }
}

/// A queue's way to its transmit channel.
pub(super) enum TxWay<B: Bus> {
    Own(Box<TxLease<B>>),
    Shared(Arc<Mutex<TxLease<B>>>),
}

impl<B: Bus> TxWay<B> {
    /// Runs `f` on the channel; `None` only while it is being torn down.
    #[inline]
    pub(super) fn with<T>(&mut self, f: impl FnOnce(&mut TxChannel<B>) -> T) -> Option<T> {
        match self {
            TxWay::Own(lease) => lease.channel.as_mut().map(f),
            TxWay::Shared(lease) => lock(lease).channel.as_mut().map(f),
        }
    }

    /// A number of the channel, without changing it.
    pub(super) fn read<T>(&self, f: impl FnOnce(&TxChannel<B>) -> T) -> Option<T> {
        match self {
            TxWay::Own(lease) => lease.channel.as_ref().map(f),
            TxWay::Shared(lease) => lock(lease).channel.as_ref().map(f),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A receive flow; the channel is torn down when the last one's owner ends.
pub(super) struct RxLease<B: Bus> {
    flow: Option<RxFlow<B>>,
    host: Arc<Host<B>>,
}

impl<B: Bus> RxLease<B> {
    pub(super) fn new(flow: RxFlow<B>, host: Arc<Host<B>>) -> RxLease<B> {
        RxLease { flow: Some(flow), host }
    }

    #[inline]
    pub(super) fn flow(&mut self) -> Option<&mut RxFlow<B>> {
        self.flow.as_mut()
    }

    pub(super) fn flow_ref(&self) -> Option<&RxFlow<B>> {
        self.flow.as_ref()
    }
}

impl<B: Bus> Drop for RxLease<B> {
    fn drop(&mut self) {
        if let Some(flow) = self.flow.take() {
            self.host.retire(flow);
        }
    }
}

/// A flow that several ports receive from, each its own frames.
pub(super) type SharedFlow<B> = Exchange<RxLease<B>, Packet, Arc<Counters>>;

/// A queue's way to one flow.
pub(super) enum RxWay<B: Bus> {
    Own(Box<RxLease<B>>),
    Shared { flow: Arc<SharedFlow<B>>, inbox: Consumer<Packet> },
}

impl<B: Bus> RxWay<B> {
    /// Appends frames of `port`; returns how many of other ports, or of none, were lost on the way.
    #[inline]
    pub(super) fn poll(&mut self, port: u8, out: &mut Batch) -> u64 {
        let mut lost = 0;
        match self {
            RxWay::Own(lease) => {
                let Some(flow) = lease.flow() else { return 0 };
                let room = out.room();
                flow.poll(room, |packet, from| {
                    if from == port {
                        // There is room for as many as were asked for.
                        let _ = out.push(packet);
                    } else {
                        lost += 1;
                    }
                });
            }
            RxWay::Shared { flow, inbox } => {
                let empty = |inbox: &mut Consumer<Packet>, out: &mut Batch| {
                    inbox.pop_batch(out);
                };
                flow.poll(inbox, out, empty, |lease, outboxes, out| {
                    let (Some(flow), room) = (lease.flow(), out.room()) else { return };
                    flow.poll(room, |packet, from| {
                        if from == port {
                            let _ = out.push(packet);
                            return;
                        }
                        match outboxes.of(from) {
                            Some(Outbox { ring, owner }) => {
                                if ring.push(packet).is_err() {
                                    owner.missed(1);
                                }
                            }
                            None => lost += 1,
                        }
                    });
                });
            }
        }
        lost
    }

    /// Hands buffers to the device; returns how many.
    #[inline]
    pub(super) fn refill(&mut self, batch: u8) -> usize {
        match self {
            RxWay::Own(lease) => lease.flow().map_or(0, |flow| flow.refill(batch)),
            RxWay::Shared { flow, .. } => {
                let refilled = flow.try_with(|lease, _| lease.flow().map_or(0, |flow| flow.refill(batch)));
                refilled.unwrap_or(0)
            }
        }
    }

    pub(super) fn read<T>(&self, f: impl FnOnce(&RxFlow<B>) -> T) -> Option<T> {
        match self {
            RxWay::Own(lease) => lease.flow_ref().map(f),
            RxWay::Shared { flow, .. } => flow.read(|lease| lease.flow_ref().map(f)),
        }
    }
}
