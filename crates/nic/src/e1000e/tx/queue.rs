//! A transmit queue as a port's: its ring, its doorbells and its watchdog.

use super::super::control::{Control, Fault};
use super::super::device::{Device, QueueRing, add_tx_statistics};
use super::super::init::flush_write_backs;
use super::super::regs::{QUEUE, TDT, status};
use super::TxRing;
use crate::common::link::LinkStatus;
use crate::common::reset::{QueueHandle, ResetCause};
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
    /// The link that the offloads are for.
    link: LinkStatus,
    offloads: Offloads,
    max_offloads: Offloads,
    /// The offloads have changed since packets were taken.
    has_changed: bool,
    watchdog: Watchdog,
    hang: HangWatch,
    completed: u64,
    /// Losses of the link that explain no frames that wait.
    link_losses: u64,
}

impl<B: Pci> E1000eTx<B> {
    pub(in super::super) fn new(
        device: Arc<Device<B>>,
        ring: TxRing<B::Dma>,
        number: u32,
        counters: Arc<Counters>,
        offloads: Offloads,
    ) -> E1000eTx<B> {
        let mut queue = E1000eTx {
            ring: Some(ring),
            bar: device.bar.clone(),
            control: device.control.clone(),
            number,
            counters,
            link: LinkStatus::default(),
            offloads,
            max_offloads: offloads,
            has_changed: false,
            watchdog: Watchdog::new(device.config.stall, device.bar.now()),
            hang: HangWatch::new(device.bar.now()),
            completed: 0,
            link_losses: 0,
            handle: QueueHandle::new(device),
        };
        queue.follow_link();
        queue.has_changed = false;
        queue
    }

    /// A handle to the port that works from any thread.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// What the queue has done with buffers.
    pub fn dma_counts(&self) -> DmaCounts {
        self.ring.as_ref().map(|ring| ring.mapper.counts()).unwrap_or_default()
    }

    /// Whether the queue goes on: one load, as long as no queue of the device requests a reset. If
    /// one does, this queue halts, and empties its ring after the reset.
    #[inline]
    fn runs(&mut self) -> bool {
        self.follow_link();
        let E1000eTx { handle, ring, bar, hang, .. } = self;
        handle.runs(|cause| {
            let lost = cause == ResetCause::LinkLost;
            let reason = if lost { DropReason::LinkDown } else { DropReason::Refused };
            ring.iter_mut().for_each(|ring| ring.restart(reason));
            hang.restart(bar.now());
        })
    }

    /// Writes descriptors, and announces each full batch of them; returns how many packets were
    /// taken.
    #[inline]
    fn stage(&mut self, batch: &mut Batch) -> usize {
        let (size, copybreak, mut taken) = (self.control.batch(), self.control.tx_copybreak() as usize, 0);
        let max_frame = self.control.max_frame();
        self.ring.iter_mut().for_each(|ring| ring.set_max_frame(max_frame));
        while let Some(ring) = &mut self.ring
            && !batch.is_empty()
        {
            let n = ring.send(batch, size.saturating_sub(ring.staged) as usize, copybreak);
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
            self.handle.request_reset(ResetCause::Known);
        }
        if !self.handle.is_running() {
            return;
        }
        let link = self.control.link();
        let Some(ring) = &mut self.ring else { return };
        let pending = ring.pending;
        if pending == 0 {
            ring.idle();
        }
        let (now, losses) = (self.bar.now(), self.control.link_losses());
        if !link.up {
            // Without a link the device has stopped, and never sends what is in its ring (Linux:
            // `e1000_watchdog_task`).
            if pending > 0 {
                self.handle.request_reset(ResetCause::LinkLost);
            }
            self.hang.restart(now);
            self.link_losses = losses;
            return;
        }
        self.follow_link();
        if self.number == 0 && !link.full_duplex {
            add_tx_statistics(&self.bar, &self.counters);
        }
        let limit = self.handle.device().config.stall * slowness(link.speed);
        match self.hang.check(self.completed, pending, limit, now) {
            HangState::Moving => self.link_losses = losses,
            HangState::Waiting => {}
            _ if word & status::TX_OFF != 0 && self.hang.excuse_pause(now) => {}
            // The link was lost and is back, seen by another queue or by none.
            _ if losses != self.link_losses || self.handle.device().interrupts.link_has_changed(&self.bar) => {
                self.link_losses = losses;
                self.handle.request_reset(ResetCause::LinkLost);
            }
            HangState::Suspect => flush_write_backs(&self.bar, self.number),
            HangState::Hung => {
                // The device does not send, or does not write back: the driver can't tell which.
                self.control.fault(Fault::Hang);
                self.counters.failed(1);
                self.handle.request_reset(ResetCause::Stall);
            }
        }
    }

    /// Any queue's watchdog notes the link: this one follows before it sends the next packet.
    #[inline]
    fn follow_link(&mut self) {
        let link = self.control.link();
        if link != self.link {
            self.link = link;
            self.follow_speed();
        }
    }

    /// Below 1000 Mb/s the device does not segment (Linux: `e1000_probe`).
    #[cold]
    fn follow_speed(&mut self) {
        if !self.link.up {
            return;
        }
        let slow = self.link.speed < 1000;
        let offloads = if slow { self.max_offloads.without(Offloads::GSO) } else { self.max_offloads };
        if offloads != self.offloads {
            (self.offloads, self.has_changed) = (offloads, true);
            self.ring.iter_mut().for_each(|ring| ring.set_segmentation(!slow));
        }
    }
}

/// How many times longer than at 1000 Mb/s a frame may wait (Linux: `e1000_watchdog_task`).
fn slowness(speed: u32) -> u32 {
    match speed {
        10 => 16,
        100 => 10,
        _ => 1,
    }
}

impl<B: Pci> TxQueue for E1000eTx<B> {
    /// The first call after [`offloads`](TxQueue::offloads) have changed takes nothing, so that the
    /// sender prepares its packets again. Later a packet that needs more is dropped.
    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if !self.runs() || !self.control.link_is_up() || std::mem::take(&mut self.has_changed) {
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
        self.handle.moved(completed);
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

    fn max_offloads(&self) -> Offloads {
        self.max_offloads
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
