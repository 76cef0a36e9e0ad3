//! A transmit queue: its core, its doorbells, and the watch over what does not come back.

use super::super::control::{Control, Fault};
use super::super::device::{Device, QueueRing, add_tx_statistics};
use super::super::regs::{FLUSH_PARTIAL, QUEUE, TDT, TIDV, status};
use super::super::tx::TxCore;
use crate::common::reset::QueueHandle;
use crate::common::watch::{HangState, HangWatch, Watchdog};
use std::sync::Arc;
use towpath_bus::{DmaCounts, Pci};
use towpath_packet::port::{State, TxQueue};
use towpath_packet::{Batch, Counters, DropReason, Offloads};

/// A transmit queue.
pub struct E1000eTx<B: Pci> {
    // Empty only while the queue is being dropped.
    core: Option<TxCore<B::Dma>>,
    bar: B::Bar,
    handle: QueueHandle<Device<B>>,
    control: Control,
    number: u32,
    counters: Arc<Counters>,
    offloads: Offloads,
    watchdog: Watchdog,
    hang: HangWatch,
    done: u64,
}

impl<B: Pci> E1000eTx<B> {
    pub(in super::super) fn new(
        device: Arc<Device<B>>,
        core: TxCore<B::Dma>,
        number: u32,
        counters: Arc<Counters>,
        offloads: Offloads,
    ) -> E1000eTx<B> {
        E1000eTx {
            core: Some(core),
            bar: device.bar.clone(),
            control: device.control.clone(),
            number,
            counters,
            offloads,
            watchdog: Watchdog::new(device.config.stall),
            hang: HangWatch::new(),
            done: 0,
            handle: QueueHandle::new(device),
        }
    }

    /// A handle to the port that works from any thread.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// What was done with buffers.
    pub fn dma_counts(&self) -> DmaCounts {
        self.core.as_ref().map(TxCore::dma_counts).unwrap_or_default()
    }

    #[inline]
    fn runs(&mut self) -> bool {
        let E1000eTx { handle, core, control, hang, .. } = self;
        handle.runs(|| {
            let reason = if control.link_is_up() { DropReason::Refused } else { DropReason::LinkDown };
            core.iter_mut().for_each(|core| core.restart(reason));
            hang.restart();
        })
    }

    /// Writes descriptors, and announces each full batch of them; returns how many packets were taken.
    #[inline]
    fn stage(&mut self, batch: &mut Batch) -> usize {
        let (size, mut taken) = (self.control.batch(), 0);
        while let Some(core) = &mut self.core
            && !batch.is_empty()
        {
            let n = core.send(batch, size.saturating_sub(core.staged()) as usize);
            taken += n;
            if core.staged() >= size {
                self.announce();
            } else if n == 0 {
                break;
            }
        }
        taken
    }

    /// Tells the device of everything that it does not know of.
    #[inline]
    fn announce(&mut self) {
        let Some(core) = &mut self.core else { return };
        if let Some(index) = core.announce() {
            TDT.nth(self.number, QUEUE).write(&self.bar, index);
            self.counters.called(1);
        }
    }

    /// Looks at what need not be looked at per packet: whether frames wait for too long.
    #[cold]
    fn watch(&mut self) {
        let word = self.handle.device().check_link();
        if self.number == 0 {
            add_tx_statistics(&self.bar, &self.counters);
        }
        let Some(core) = &mut self.core else { return };
        let pending = core.pending();
        if pending == 0 {
            core.idle();
        }
        let state = self.hang.check(self.done, pending, self.handle.device().config.stall);
        if state == HangState::Fine {
            return;
        }
        if word & status::TX_OFF != 0 && word & status::LINK_UP != 0 && self.hang.excuse_pause() {
            return;
        }
        if state == HangState::Suspect {
            // Reports may be waiting for more of them.
            TIDV.nth(self.number, QUEUE).write(&self.bar, FLUSH_PARTIAL);
            return;
        }
        if self.control.link_is_up() {
            // It does not go on, or does not report: for us that is the same.
            self.control.fault(Fault::Hang);
            self.counters.failed(1);
        }
        self.hang.restart();
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
            // There is no room: the device gets what there is, and what it has reported in the meantime makes some.
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
        let Some(core) = &mut self.core else { return 0 };
        let done = core.reclaim();
        let idle = done == 0;
        self.done += done as u64;
        self.handle.moved(done as u64);
        if self.watchdog.is_due(idle) {
            self.watch();
        }
        done
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

    #[inline]
    fn pending(&self) -> usize {
        self.core.as_ref().map_or(0, TxCore::pending)
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
        if let Some(core) = self.core.take() {
            self.handle.leave(QueueRing::Tx(Box::new(core)));
        }
    }
}

impl<B: Pci> std::fmt::Debug for E1000eTx<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("E1000eTx").field("number", &self.number).field("pending", &self.pending()).finish()
    }
}
