//! A receive queue as a port's: its ring, its interrupt and its watchdog.

use super::super::control::{Control, Fault};
use super::super::device::{Device, QueueRing, add_rx_statistics};
use super::super::regs::{QUEUE, RDT};
use super::{BurstOptions, RxRing};
use crate::common::copybreak::RxCounts;
use crate::common::reset::{QueueHandle, ResetCause};
use crate::common::watch::Watchdog;
use std::cell::Cell;
use std::sync::Arc;
use towpath_bus::{Mmio, Pci};
use towpath_packet::port::{RxMemory, RxQueue, State, Wake};
use towpath_packet::{Batch, Counters, Offloads, Pool};
use towpath_sys::Epoll;

/// A receive queue.
pub struct E1000eRx<B: Pci> {
    // `None` only while the queue is dropped.
    ring: Option<RxRing<B::Dma>>,
    bar: B::Bar,
    handle: QueueHandle<Device<B>>,
    control: Control,
    number: u32,
    counters: Arc<Counters>,
    keep_tags: bool,
    watchdog: Watchdog,
    out_of_order: bool,
    last_completed: u64,
    /// What its worker waits for; `None` if it polls.
    wait: Option<Epoll>,
    armed: Cell<bool>,
    own_pool: Option<Pool>,
}

impl<B: Pci> E1000eRx<B> {
    pub(in super::super) fn new(
        device: Arc<Device<B>>,
        ring: RxRing<B::Dma>,
        number: u32,
        counters: Arc<Counters>,
        keep_tags: bool,
        wait: Option<Epoll>,
        own_pool: Option<Pool>,
    ) -> E1000eRx<B> {
        E1000eRx {
            ring: Some(ring),
            bar: device.bar.clone(),
            control: device.control.clone(),
            number,
            counters,
            keep_tags,
            watchdog: Watchdog::new(device.config.stall, device.bar.now()),
            out_of_order: false,
            last_completed: 0,
            wait,
            armed: Cell::new(false),
            own_pool,
            handle: QueueHandle::new(device),
        }
    }

    /// A handle to the port that works from any thread.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// What the queue has done with buffers.
    pub fn counts(&self) -> RxCounts {
        self.ring.as_ref().map(RxRing::counts).unwrap_or_default()
    }

    /// Whether the queue goes on: one load, as long as no queue of the device requests a reset. If
    /// one does, this queue halts, and empties its ring after the reset.
    #[inline]
    fn runs(&mut self) -> bool {
        let E1000eRx { handle, ring, out_of_order, control, .. } = self;
        handle.runs(|_| {
            ring.iter_mut().for_each(|ring| ring.restart(control.buffer_size()));
            *out_of_order = false;
        })
    }

    /// The watchdog's task: link, statistics, PHY, and descriptors out of order.
    #[cold]
    fn watch(&mut self) {
        if !self.check() {
            return;
        }
        if self.number == 0 && self.control.link_is_up() {
            add_rx_statistics(&self.bar, &self.counters);
        }
        if self.number == 0 && self.handle.device().phy_is_stuck() {
            self.handle.request_reset(ResetCause::Known);
        }
        let Some(ring) = &mut self.ring else { return };
        let completed = ring.counts().completed;
        if std::mem::replace(&mut self.last_completed, completed) != completed {
            self.out_of_order = false;
            return;
        }
        ring.buffers.idle();
        let suspected = std::mem::replace(&mut self.out_of_order, ring.buffers.is_out_of_order());
        if suspected && self.out_of_order {
            self.out_of_order = false;
            self.control.fault(Fault::OutOfOrder);
            self.counters.failed(1);
            self.handle.request_reset(ResetCause::Stall);
        }
    }

    /// Looks at the link and at the events of the function; returns whether the queue goes on.
    #[cold]
    fn check(&self) -> bool {
        let device = self.handle.device();
        device.check_link();
        if device.needs_reset() {
            self.handle.request_reset(ResetCause::Known);
        }
        self.handle.is_running()
    }

    /// Masks the interrupt that was armed: its wait is over. Returns whether the queue goes on.
    #[cold]
    fn disarm(&mut self) -> bool {
        self.armed.set(false);
        let interrupts = &self.handle.device().interrupts;
        match &self.wait {
            Some(wait) if interrupts.disarm(&self.bar, self.number, wait) => self.check(),
            _ => true,
        }
    }
}

impl<B: Pci> RxQueue for E1000eRx<B> {
    #[inline]
    fn rx(&mut self, out: &mut Batch) -> usize {
        if !self.runs() {
            return 0;
        }
        let options = BurstOptions { copybreak: self.control.copybreak() as usize, keep_tags: self.keep_tags };
        let Some(ring) = &mut self.ring else { return 0 };
        ring.set_max_frame(self.control.max_frame());
        let (packets, bytes) = ring.receive(out, options);
        if packets > 0 {
            self.counters.moved(packets as u64, bytes);
            self.handle.moved(packets);
        }
        if self.watchdog.is_due(packets == 0, || self.bar.now()) {
            self.watch();
        }
        packets
    }

    #[inline]
    fn refill(&mut self) -> usize {
        if !self.runs() {
            return 0;
        }
        if self.armed.get() && !self.disarm() {
            return 0;
        }
        let Some(ring) = &mut self.ring else { return 0 };
        let (bar, counters, tail) = (&self.bar, &self.counters, RDT.nth(self.number, QUEUE));
        ring.buffers.refill(self.control.batch(), |index| {
            tail.write(bar, index);
            counters.called(1);
        })
    }

    fn set_rx_offloads(&mut self, accept: Offloads) {
        self.keep_tags = accept.has(Offloads::VLAN);
    }

    fn memory(&self) -> RxMemory {
        self.own_pool.clone().map_or_else(RxMemory::default, RxMemory::own_pool)
    }

    fn state(&self) -> State {
        self.handle.device().state()
    }

    /// Unmasks the queue's interrupt. The worker polls once more before it waits, so that no frame
    /// that came meanwhile is missed.
    fn wake(&self) -> Wake {
        let starved = self.ring.as_ref().is_none_or(|ring| ring.buffers.is_starved());
        match &self.wait {
            // Without buffers no interrupt comes, and the worker has to try to refill.
            Some(wait) if !starved && self.handle.is_running() => {
                self.armed.set(true);
                self.handle.device().interrupts.arm(&self.bar, self.number);
                Wake::Fd(wait.fd())
            }
            _ => Wake::Poll,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl<B: Pci> Drop for E1000eRx<B> {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            self.handle.leave(QueueRing::Rx(Box::new(ring)));
        }
    }
}

impl<B: Pci> std::fmt::Debug for E1000eRx<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("E1000eRx").field("number", &self.number).field("counts", &self.counts()).finish()
    }
}
