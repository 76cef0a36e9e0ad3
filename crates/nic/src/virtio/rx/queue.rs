//! A receive queue as a port's: its ring, its calls and its watchdog.

use super::super::control::{Control, Fault};
use super::super::device::{Device, QueueRing};
use super::super::transport::Transport;
use super::RxRing;
use crate::common::copybreak::RxCounts;
use crate::common::reset::QueueHandle;
use crate::common::watch::Watchdog;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;
use towpath_packet::port::{RxMemory, RxQueue, State, Wake};
use towpath_packet::{Batch, Counters, Pool};
use towpath_sys::Epoll;

/// A receive queue.
pub struct VirtioRx<T: Transport> {
    // `None` only while the queue is dropped.
    ring: Option<RxRing<T::Dma>>,
    handle: QueueHandle<Device<T>>,
    control: Control,
    /// The index of its virtqueue.
    index: u16,
    counters: Arc<Counters>,
    watchdog: Watchdog,
    /// What its worker waits for; `None` if it polls.
    wait: Option<Epoll>,
    armed: Cell<bool>,
    own_pool: Option<Pool>,
}

impl<T: Transport> VirtioRx<T> {
    pub(in super::super) fn new(
        device: Arc<Device<T>>,
        ring: RxRing<T::Dma>,
        index: u16,
        wait: Option<Epoll>,
        own_pool: Option<Pool>,
    ) -> VirtioRx<T> {
        VirtioRx {
            control: device.control.clone(),
            index,
            counters: ring.counters.clone(),
            ring: Some(ring),
            watchdog: Watchdog::new(device.config.stall, Instant::now()),
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
        let VirtioRx { handle, ring, .. } = self;
        handle.runs(|_| ring.iter_mut().for_each(RxRing::restart))
    }

    /// The watchdog's task: the condition of the device, and a kick that it may have lost. With RSS
    /// QEMU asks for a kick of a receive queue that has too few buffers for a packet, and no longer
    /// does after a shorter one of another queue of its tap has found enough. The longer packet and
    /// all behind it wait for that kick.
    #[cold]
    fn watch(&mut self) {
        if let Some(cause) = self.handle.device().check() {
            self.handle.request_reset(cause);
        }
        self.ring.iter_mut().for_each(RxRing::idle);
        if !T::RECONNECTS && self.control.link_is_up() {
            self.handle.device().transport.kick(self.index);
        }
    }

    /// The wait of its worker is over.
    #[cold]
    fn disarm(&mut self) {
        self.armed.set(false);
        if let Some(ring) = &mut self.ring {
            ring.driver.disable_calls();
        }
        if let Some(wait) = &self.wait {
            wait.drain();
            self.handle.device().transport.take_calls(self.index);
        }
        if let Some(cause) = self.handle.device().check() {
            self.handle.request_reset(cause);
        }
    }
}

impl<T: Transport> RxQueue for VirtioRx<T> {
    #[inline]
    fn rx(&mut self, out: &mut Batch) -> usize {
        if !self.runs() {
            return 0;
        }
        let Some(ring) = &mut self.ring else { return 0 };
        let (packets, bytes, result) = ring.receive(out, self.control.copybreak() as usize);
        if packets > 0 {
            self.counters.moved(packets as u64, bytes);
            self.handle.moved(packets);
        }
        if result.is_err() {
            self.control.fault(Fault::BrokenRing);
            if let Some(cause) = self.handle.device().broken() {
                self.handle.request_reset(cause);
            }
        }
        if self.watchdog.is_due(packets == 0, Instant::now) {
            self.watch();
        }
        packets
    }

    #[inline]
    fn refill(&mut self) -> usize {
        if self.armed.get() {
            self.disarm();
        }
        if !self.runs() {
            return 0;
        }
        let Some(ring) = &mut self.ring else { return 0 };
        let (posted, kick) = ring.refill();
        if kick {
            let kicks = self.handle.device().kick_rx(self.index);
            self.counters.called(kicks);
        }
        posted
    }

    fn memory(&self) -> RxMemory {
        self.own_pool.clone().map_or_else(RxMemory::default, RxMemory::own_pool)
    }

    fn state(&self) -> State {
        self.handle.device().state()
    }

    /// Asks for the device's call. The worker polls once more before it waits, so that no frame
    /// that came meanwhile is missed.
    fn wake(&self) -> Wake {
        match (&self.wait, &self.ring) {
            // Without buffers no call comes, and a link that is down has to be looked at.
            (Some(wait), Some(ring)) if !ring.is_starved() && self.handle.is_running() && self.control.link_is_up() => {
                self.armed.set(true);
                // A chain that is used already is found by that poll.
                let _ = ring.driver.enable_calls();
                Wake::Fd(wait.fd())
            }
            _ => Wake::Poll,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl<T: Transport> Drop for VirtioRx<T> {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take() {
            self.handle.leave(QueueRing::Rx(Box::new(ring)));
        }
    }
}

impl<T: Transport> std::fmt::Debug for VirtioRx<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtioRx").field("index", &self.index).field("counts", &self.counts()).finish()
    }
}
