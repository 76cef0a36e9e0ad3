//! A transmit queue: its core, its doorbells, and the watch over what does not come back.

use super::super::control::{Control, Fault};
use super::super::device::Device;
use super::super::regs::{FLUSH_PARTIAL, QUEUE, TDT, TIDV, status};
use super::super::tx::TxCore;
use super::super::watch::{self, Stall, Verdict, Watch};
use super::Member;
use std::sync::Arc;
use towpath_bus::{DmaCounts, Pci};
use towpath_packet::port::{State, TxQueue};
use towpath_packet::{Batch, Counters, DropReason, Offloads};

/// A transmit queue.
pub struct E1000eTx<B: Pci> {
    // Empty only while the queue is being dropped.
    core: Option<TxCore<B::Dma>>,
    bar: B::Bar,
    member: Member<B>,
    control: Control,
    number: u32,
    counters: Arc<Counters>,
    offloads: Offloads,
    watch: Watch,
    stall: Stall,
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
            watch: Watch::new(&device.config),
            stall: Stall::new(),
            done: 0,
            member: Member::new(device),
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
        let E1000eTx { member, core, control, stall, .. } = self;
        member.runs(|| {
            let reason = if control.link_is_up() { DropReason::Refused } else { DropReason::LinkDown };
            core.iter_mut().for_each(|core| core.restart(reason));
            stall.forget();
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
    fn look(&mut self) {
        let word = self.member.device().look();
        if self.number == 0 {
            watch::transmit_statistics(&self.bar, &self.counters);
        }
        let Some(core) = &mut self.core else { return };
        let pending = core.pending();
        if pending == 0 {
            core.idle();
        }
        let verdict = self.stall.judge(self.done, pending, self.member.device().config.stall);
        if verdict == Verdict::Fine {
            return;
        }
        if word & status::TX_OFF != 0 && word & status::LINK_UP != 0 && self.stall.pause() {
            return;
        }
        if verdict == Verdict::Suspect {
            // Reports may be waiting for more of them.
            TIDV.nth(self.number, QUEUE).write(&self.bar, FLUSH_PARTIAL);
            return;
        }
        if self.control.link_is_up() {
            // It does not go on, or does not report: for us that is the same.
            self.control.fault(Fault::Hang);
            self.counters.failed(1);
        }
        self.stall.forget();
        self.member.ask_reset();
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
        self.member.moved(done as u64);
        if self.watch.is_due(idle) {
            self.look();
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
        self.member.state()
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl<B: Pci> Drop for E1000eTx<B> {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            self.member.leave_tx(core);
        }
    }
}

impl<B: Pci> std::fmt::Debug for E1000eTx<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("E1000eTx").field("number", &self.number).field("pending", &self.pending()).finish()
    }
}
