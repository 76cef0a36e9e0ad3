//! A transmit queue as a port's: its ring, its kicks and its watchdog.

use super::super::control::{Control, Fault};
use super::super::device::{Device, QueueRing};
use super::super::transport::Transport;
use super::TxRing;
use crate::common::reset::{QueueHandle, ResetCause};
use crate::common::watch::{HangState, HangWatch, Watchdog};
use std::sync::Arc;
use std::time::Instant;
use towpath_packet::port::{State, TxQueue};
use towpath_packet::{Batch, Counters, DropReason, Offloads};

/// A transmit queue.
pub struct VirtioTx<T: Transport> {
    // `None` only while the queue is dropped.
    ring: Option<TxRing<T::Dma>>,
    handle: QueueHandle<Device<T>>,
    control: Control,
    /// The index of its virtqueue.
    index: u16,
    counters: Arc<Counters>,
    offloads: Offloads,
    watchdog: Watchdog,
    hang: HangWatch,
    completed: u64,
}

impl<T: Transport> VirtioTx<T> {
    pub(in super::super) fn new(
        device: Arc<Device<T>>,
        ring: TxRing<T::Dma>,
        index: u16,
        offloads: Offloads,
    ) -> VirtioTx<T> {
        let now = Instant::now();
        VirtioTx {
            control: device.control.clone(),
            index,
            counters: ring.counters.clone(),
            ring: Some(ring),
            offloads,
            watchdog: Watchdog::new(device.config.stall, now),
            hang: HangWatch::new(now),
            completed: 0,
            handle: QueueHandle::new(device),
        }
    }

    /// A handle to the port that works from any thread.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Whether the queue goes on: one load, as long as no queue of the device requests a reset. If
    /// one does, this queue halts, and empties its ring after the reset.
    #[inline]
    fn runs(&mut self) -> bool {
        let VirtioTx { handle, ring, hang, .. } = self;
        handle.runs(|cause| {
            // A back end that went away never sends what it was given.
            let known = cause != ResetCause::Stall;
            let reason = if known { DropReason::LinkDown } else { DropReason::Refused };
            ring.iter_mut().for_each(|ring| ring.restart(reason));
            hang.restart(Instant::now());
        })
    }

    /// The watchdog's task: the condition of the device, and frames that hang.
    #[cold]
    fn watch(&mut self) {
        if let Some(cause) = self.handle.device().check() {
            self.handle.request_reset(cause);
        }
        let Some(ring) = &mut self.ring else { return };
        if ring.pending == 0 {
            ring.idle();
        }
        let (now, pending) = (Instant::now(), ring.pending);
        if T::RECONNECTS || !self.control.link_is_up() {
            self.hang.restart(now);
            return;
        }
        match self.hang.check(self.completed, pending, self.handle.device().config.stall, now) {
            HangState::Moving | HangState::Waiting => {}
            // Perhaps the kick was lost.
            HangState::Suspect => self.handle.device().transport.kick(self.index),
            HangState::Hung => {
                self.control.fault(Fault::Hang);
                self.counters.failed(1);
                self.handle.request_reset(ResetCause::Stall);
            }
        }
    }

    /// Makes all added chains available, and kicks the device if it waits for it.
    #[inline]
    fn announce(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        if ring.publish() {
            self.handle.device().transport.kick(self.index);
            self.counters.called(1);
        }
    }
}

impl<T: Transport> TxQueue for VirtioTx<T> {
    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if !self.runs() || !self.control.link_is_up() {
            return 0;
        }
        let Some(ring) = &mut self.ring else { return 0 };
        let mut taken = ring.send(batch);
        if !batch.is_empty() {
            // The ring is full: announces what is added, and frees what was sent meanwhile.
            self.announce();
            self.reclaim();
            taken += self.ring.as_mut().map_or(0, |ring| ring.send(batch));
        }
        taken
    }

    #[inline]
    fn reclaim(&mut self) -> usize {
        if !self.runs() {
            return 0;
        }
        let Some(ring) = &mut self.ring else { return 0 };
        let completed = match ring.reclaim() {
            Ok(completed) => completed,
            Err(_) => {
                self.control.fault(Fault::BrokenRing);
                if let Some(cause) = self.handle.device().broken() {
                    self.handle.request_reset(cause);
                }
                0
            }
        };
        self.completed += completed as u64;
        self.handle.moved(completed);
        if self.watchdog.is_due(completed == 0, Instant::now) {
            self.watch();
        }
        completed
    }

    #[inline]
    fn kick(&mut self) {
        if self.runs() {
            self.announce();
        }
    }

    #[inline]
    fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Nothing leaves a device that is gone, or a back end that is not there: the worker does not
    /// wait for it.
    #[inline]
    fn pending(&self) -> usize {
        let waits = self.control.link_is_up() && !self.handle.device().is_gone();
        self.ring.as_ref().filter(|_| waits).map_or(0, |ring| ring.pending)
    }

    fn state(&self) -> State {
        self.handle.device().state()
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl<T: Transport> Drop for VirtioTx<T> {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            self.handle.leave(QueueRing::Tx(Box::new(ring)));
        }
    }
}

impl<T: Transport> std::fmt::Debug for VirtioTx<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtioTx").field("index", &self.index).finish_non_exhaustive()
    }
}
