//! A transmit queue as a port's: its ring, its doorbells and its watchdog.

use super::super::control::{Control, Fault};
use super::super::device::{Device, QueueRing, add_tx_statistics};
use super::super::regs::{FLUSH_PARTIAL, QUEUE, TDT, TIDV, status};
use super::TxRing;
use crate::common::reset::QueueHandle;
use crate::common::watch::{HangState, HangWatch, Watchdog};
use std::sync::Arc;
use towpath_bus::{DmaCounts, Mmio, Pci};
use towpath_packet::port::{State, TxQueue};
use towpath_packet::{Batch, Counters, DropReason, Offloads};

/// A transmit queue.
pub struct E1000eTx<B: Pci> {
    // `None` only while the queue is dropped.
    ring: Option<TxRing<B::Dma>>,
    bar: B::Bar,
    handle: QueueHandle<Device<B>>,
    control: Control,
    number: u32,
    counters: Arc<Counters>,
    offloads: Offloads,
    watchdog: Watchdog,
    hang: HangWatch,
    completed: u64,
}

impl<B: Pci> E1000eTx<B> {
    pub(in super::super) fn new(
        device: Arc<Device<B>>,
        ring: TxRing<B::Dma>,
        number: u32,
        counters: Arc<Counters>,
        offloads: Offloads,
    ) -> E1000eTx<B> {
        E1000eTx {
            ring: Some(ring),
            bar: device.bar.clone(),
            control: device.control.clone(),
            number,
            counters,
            offloads,
            watchdog: Watchdog::new(device.config.stall, device.bar.now()),
            hang: HangWatch::new(device.bar.now()),
            completed: 0,
            handle: QueueHandle::new(device),
        }
    }

    /// A handle to the port that works from any thread.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// What the queue has done with buffers.
    pub fn dma_counts(&self) -> DmaCounts {
        self.ring.as_ref().map(|ring| ring.mapper.counts()).unwrap_or_default()
    }

    #[inline]
    fn runs(&mut self) -> bool {
        let E1000eTx { handle, ring, bar, control, hang, .. } = self;
        handle.runs(|| {
            let reason = if control.link_is_up() { DropReason::Refused } else { DropReason::LinkDown };
            ring.iter_mut().for_each(|ring| ring.restart(reason));
            hang.restart(bar.now());
        })
    }

    /// Writes descriptors, and announces each full batch of them; returns how many packets were
    /// taken.
    #[inline]
    fn stage(&mut self, batch: &mut Batch) -> usize {
        let (size, mut taken) = (self.control.batch(), 0);
        let max_frame = self.control.max_frame();
        self.ring.iter_mut().for_each(|ring| ring.set_max_frame(max_frame));
        while let Some(ring) = &mut self.ring
            && !batch.is_empty()
        {
            let n = ring.send(batch, size.saturating_sub(ring.staged) as usize);
            taken += n;
            if ring.staged >= size {
                self.announce();
            } else if n == 0 {
                break;
            }
        }
        taken
    }

    /// Announces all descriptors that are written.
    #[inline]
    fn announce(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        if let Some(index) = ring.announce() {
            TDT.nth(self.number, QUEUE).write(&self.bar, index);
            self.counters.called(1);
        }
    }

    /// The watchdog's task: link, statistics, and frames that hang.
    #[cold]
    fn watch(&mut self) {
        let word = self.handle.device().check_link();
        if self.handle.device().needs_reset() {
            self.handle.request_reset();
        }
        if !self.handle.is_running() {
            return;
        }
        if self.number == 0 {
            add_tx_statistics(&self.bar, &self.counters);
        }
        let Some(ring) = &mut self.ring else { return };
        let pending = ring.pending;
        if pending == 0 {
            ring.idle();
        }
        let now = self.bar.now();
        let state = self.hang.check(self.completed, pending, self.handle.device().config.stall, now);
        if state == HangState::Fine {
            return;
        }
        if word & status::TX_OFF != 0 && word & status::LINK_UP != 0 && self.hang.excuse_pause(now) {
            return;
        }
        if state == HangState::Suspect {
            // Write-backs may wait for more descriptors to fill their block.
            TIDV.nth(self.number, QUEUE).write(&self.bar, FLUSH_PARTIAL);
            return;
        }
        if self.control.link_is_up() {
            // The device does not send, or does not write back: the driver can't tell which.
            self.control.fault(Fault::Hang);
            self.counters.failed(1);
        }
        self.hang.restart(now);
        self.handle.request_reset();
    }
}

impl<B: Pci> TxQueue for E1000eTx<B> {
    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if !self.runs() || !self.control.link_is_up() {
            return 0;
        }
        let mut taken = self.stage(batch);
        if !batch.is_empty() {
            // The ring is full: announces what is written, and frees what was sent meanwhile.
            self.announce();
            self.reclaim();
            taken += self.stage(batch);
        }
        taken
    }

    #[inline]
    fn reclaim(&mut self) -> usize {
        if !self.runs() {
            return 0;
        }
        let Some(ring) = &mut self.ring else { return 0 };
        let completed = ring.reclaim();
        self.completed += completed as u64;
        self.handle.moved(completed as u64);
        if self.watchdog.is_due(completed == 0, || self.bar.now()) {
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

    /// Nothing leaves a device that is gone: the worker does not wait for it.
    #[inline]
    fn pending(&self) -> usize {
        let ring = self.ring.as_ref().filter(|_| !self.handle.device().is_gone());
        ring.map_or(0, |ring| ring.pending)
    }

    fn state(&self) -> State {
        self.handle.device().state()
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl<B: Pci> Drop for E1000eTx<B> {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            self.handle.leave(QueueRing::Tx(Box::new(ring)));
        }
    }
}

impl<B: Pci> std::fmt::Debug for E1000eTx<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("E1000eTx").field("number", &self.number).field("pending", &self.pending()).finish()
    }
}
