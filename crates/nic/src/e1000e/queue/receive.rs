//! A receive queue: its core, its interrupt, and the looks that are not taken per packet.

use super::super::control::{Control, Fault};
use super::super::device::Device;
use super::super::regs::{ICR, IMC, IMS, QUEUE, RDT, cause};
use super::super::rx::{RxCore, RxCounts, Terms};
use super::super::watch::{self, PhyWatch, Watch};
use super::Member;
use std::cell::Cell;
use std::sync::Arc;
use towpath_bus::{Irq, Pci};
use towpath_packet::port::{RxMemory, RxQueue, State, Wake};
use towpath_packet::{Batch, Counters, Offloads, Pool};

/// A receive queue.
pub struct E1000eRx<B: Pci> {
    // Empty only while the queue is being dropped.
    core: Option<RxCore<B::Dma>>,
    bar: B::Bar,
    member: Member<B>,
    control: Control,
    number: u32,
    counters: Arc<Counters>,
    tags: bool,
    watch: Watch,
    phy: PhyWatch,
    suspected: bool,
    last: u64,
    irq: Option<B::Irq>,
    armed: Cell<bool>,
    own_pool: Option<Pool>,
}

/// What a receive queue is made of.
pub(in super::super) struct RxMake<B: Pci> {
    pub(in super::super) core: RxCore<B::Dma>,
    pub(in super::super) number: u32,
    pub(in super::super) counters: Arc<Counters>,
    pub(in super::super) tags: bool,
    pub(in super::super) irq: Option<B::Irq>,
    pub(in super::super) own_pool: Option<Pool>,
}

impl<B: Pci> E1000eRx<B> {
    pub(in super::super) fn new(device: Arc<Device<B>>, make: RxMake<B>) -> E1000eRx<B> {
        let RxMake { core, number, counters, tags, irq, own_pool } = make;
        E1000eRx {
            core: Some(core),
            bar: device.bar.clone(),
            control: device.control.clone(),
            number,
            counters,
            tags,
            watch: Watch::new(&device.config),
            phy: PhyWatch::default(),
            suspected: false,
            last: 0,
            irq,
            armed: Cell::new(false),
            own_pool,
            member: Member::new(device),
        }
    }

    /// A handle to the port that works from any thread.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// What was done with buffers.
    pub fn counts(&self) -> RxCounts {
        self.core.as_ref().map(RxCore::counts).unwrap_or_default()
    }

    #[inline]
    fn runs(&mut self) -> bool {
        let E1000eRx { member, core, suspected, .. } = self;
        member.runs(|| {
            core.iter_mut().for_each(RxCore::restart);
            *suspected = false;
        })
    }

    /// Looks at what need not be looked at per packet.
    #[cold]
    fn look(&mut self) {
        self.member.device().look();
        if self.number == 0 {
            watch::receive_statistics(&self.bar, &self.counters);
            if self.phy.is_stuck(&self.bar) {
                self.member.ask_reset();
            }
        }
        let Some(core) = &mut self.core else { return };
        let completed = core.counts().completed;
        if std::mem::replace(&mut self.last, completed) != completed {
            self.suspected = false;
            return;
        }
        core.idle();
        if !core.is_out_of_order() {
            self.suspected = false;
        } else if std::mem::replace(&mut self.suspected, true) {
            self.suspected = false;
            self.control.fault(Fault::OutOfOrder);
            self.counters.failed(1);
            self.member.ask_reset();
        }
    }

    /// The interrupt that was asked for has been waited for.
    #[cold]
    fn disarm(&mut self) {
        self.armed.set(false);
        IMC.write(&self.bar, cause::RX_QUEUE_0 << self.number);
        if let Some(irq) = &self.irq {
            irq.take();
        }
    }
}

impl<B: Pci> RxQueue for E1000eRx<B> {
    #[inline]
    fn rx(&mut self, out: &mut Batch) -> usize {
        if !self.runs() {
            return 0;
        }
        let terms = Terms { copybreak: self.control.copybreak() as usize, tags: self.tags };
        let Some(core) = &mut self.core else { return 0 };
        let (packets, bytes) = core.receive(out, terms);
        if packets > 0 {
            self.counters.moved(packets as u64, bytes);
            self.member.moved(packets as u64);
        }
        if self.watch.is_due(packets == 0) {
            self.look();
        }
        packets
    }

    #[inline]
    fn refill(&mut self) -> usize {
        if !self.runs() {
            return 0;
        }
        if self.armed.get() {
            self.disarm();
        }
        let Some(core) = &mut self.core else { return 0 };
        let (bar, counters, tail) = (&self.bar, &self.counters, RDT.nth(self.number, QUEUE));
        core.refill(self.control.batch(), |index| {
            tail.write(bar, index);
            counters.called(1);
        })
    }

    fn set_rx_offloads(&mut self, accept: Offloads) {
        self.tags = accept.has(Offloads::VLAN);
    }

    fn memory(&self) -> RxMemory {
        self.own_pool.clone().map_or_else(RxMemory::default, RxMemory::own_pool)
    }

    fn state(&self) -> State {
        self.member.state()
    }

    /// Unmasks the queue's interrupt; the worker looks once more before it waits, so that what came in between is not missed.
    fn wake(&self) -> Wake {
        let starved = self.core.as_ref().is_none_or(RxCore::is_starved);
        match self.irq.as_ref().and_then(Irq::fd) {
            // Without buffers there will be no interrupt, and someone has to try to get some.
            Some(fd) if !starved && self.member.is_running() => {
                self.armed.set(true);
                // What came before is known, or found by that look.
                ICR.write(&self.bar, cause::RX_QUEUE_0 << self.number);
                IMS.write(&self.bar, cause::RX_QUEUE_0 << self.number);
                Wake::Fd(fd)
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
        if let Some(core) = self.core.take() {
            self.member.leave_rx(core);
        }
    }
}

impl<B: Pci> std::fmt::Debug for E1000eRx<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("E1000eRx").field("number", &self.number).field("counts", &self.counts()).finish()
    }
}
