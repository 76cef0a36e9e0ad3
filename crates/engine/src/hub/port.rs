//! A port of a hub: its queues, and the packets that are staged for it.
//!
//! ```text
//!   push ─┬─ without GRO ─► staged, then backlog ─────────────┐
//!         └─ with GRO ────► fresh ─► GroStage ─► staged ──────┴─► Egress ─► tx
//! ```
//!
//! `staged` is sent from its front, the backlog follows it, and the ready packets of the GRO stage
//! follow the backlog: the stage is bypassed only while it has none.

use crate::egress::{Egress, Step};
use crate::gro_stage::{GroStage, GroStageConfig, Pushed};
use crate::report::GroCounters;
use crate::route::RouteConfig;
use crate::route::verdicts::classify_burst;
use crate::rules::{Classifier, Verdict};
use crate::samples::{Sampler, Samples};
use crate::tee::TeeSlot;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, DropReason, Offloads, Packet};
use towpath_wire::LinkKind;

/// Packets that may wait for an egress behind its batch, by default.
const BACKLOG: usize = 512;

/// A port of a hub; `P` is the switch's state of it.
pub struct HubPort<R, T, P> {
    rx: R,
    egress: Egress<T>,
    /// The switch's state of the port.
    pub(super) state: P,
    staged: Batch,
    backlog: VecDeque<Packet>,
    max_backlog: usize,
    fresh: Batch,
    gro_stage: Option<GroStage>,
    gro_config: GroStageConfig,
    classifier: Option<Box<dyn Classifier>>,
    config: RouteConfig,
    tee: Option<Arc<TeeSlot>>,
    sampler: Sampler,
    /// Egresses that hold packets of the sample.
    pub(super) sampled_for: Vec<u16>,
    /// Listed among the ports with staged packets.
    pub(super) is_listed: bool,
    receives: bool,
    is_gone: bool,
    is_down: bool,
}

impl<R: RxQueue, T: TxQueue, P> HubPort<R, T, P> {
    /// A port of two queues. Copies and segments come from `cache`, which is a
    /// [`Direction::Tx`](towpath_packet::Direction::Tx) cache.
    pub fn new(rx: R, tx: T, cache: Cache, config: RouteConfig, state: P) -> HubPort<R, T, P> {
        let receives = rx.wake() != Wake::Never;
        HubPort {
            rx,
            egress: Egress::new(tx, cache, &config, Arc::default()),
            state,
            staged: Batch::new(),
            backlog: VecDeque::with_capacity(BACKLOG),
            max_backlog: BACKLOG,
            fresh: Batch::new(),
            gro_stage: None,
            gro_config: GroStageConfig::default(),
            classifier: None,
            config,
            tee: None,
            sampler: Sampler::new(LinkKind::from(config.layer)),
            sampled_for: Vec::new(),
            is_listed: false,
            receives,
            is_gone: false,
            is_down: false,
        }
    }

    /// Lets `packets` wait while the egress refuses, besides the batch that it refused.
    #[must_use]
    pub fn with_backlog(mut self, packets: usize) -> HubPort<R, T, P> {
        self.max_backlog = packets;
        self.backlog.reserve(packets);
        self
    }

    /// Coalesces the packets for this port, if `config` enables GRO for it.
    #[must_use]
    pub fn with_gro(mut self, config: &GroStageConfig) -> HubPort<R, T, P> {
        let can = self.egress.max_offloads();
        if config.applies(can) {
            self.gro_config = *config;
            self.gro_stage = Some(GroStage::new(config, self.config.layer, can, self.counters().clone()));
        }
        self
    }

    /// Classifies the packets that the port receives. They pass or are dropped; every other verdict
    /// passes too.
    #[must_use]
    pub fn with_classifier(mut self, classifier: Box<dyn Classifier>) -> HubPort<R, T, P> {
        self.classifier = Some(classifier);
        self
    }

    /// Shows received, sent and dropped packets to the tees of `slot`.
    #[must_use]
    pub fn with_tees(mut self, slot: Arc<TeeSlot>) -> HubPort<R, T, P> {
        slot.watch(self.rx.counters(), self.counters(), self.egress.tx().counters());
        self.egress.set_tee(slot.clone());
        self.tee = Some(slot);
        self
    }

    /// Drops, copies and splits of the packets that the port received or was to send.
    pub fn counters(&self) -> &Arc<Counters> {
        self.egress.counters()
    }

    /// Received packets, samples of them, and whether the queues work.
    pub fn samples(&self) -> &Arc<Samples> {
        self.sampler.samples()
    }

    /// Counters of the GRO stage, if there is one.
    pub fn gro(&self) -> Option<&Arc<GroCounters>> {
        self.gro_stage.as_ref().map(GroStage::gro_counters)
    }

    pub(super) fn cache(&mut self) -> &mut Cache {
        self.egress.cache()
    }

    pub(super) fn insert_vlan(&mut self, packet: Packet) -> Result<Packet, (DropReason, Packet)> {
        self.egress.software_offload().insert_vlan(packet)
    }

    pub(super) fn set_rx_offloads(&mut self, accept: Offloads) {
        self.rx.set_rx_offloads(accept);
    }

    /// Whether the port may receive more.
    #[inline]
    pub(super) fn receives(&self) -> bool {
        self.receives
    }

    /// Receives a burst, and drops what its rules refuse; returns how many were received.
    #[inline]
    pub(super) fn receive(&mut self, burst: &mut Batch) -> usize {
        self.rx.refill();
        let received = self.rx.rx(burst);
        if received > 0 {
            self.sampler.received(burst);
        }
        if received > 0
            && let Some(tee) = self.tee.as_deref().filter(|tee| tee.has_rx())
        {
            tee.received(burst.as_slice());
        }
        if received > 0
            && let Some(classifier) = &mut self.classifier
        {
            let mut verdicts = [Verdict::Pass; Batch::<64>::CAPACITY];
            if classify_burst(&mut **classifier, burst, LinkKind::from(self.config.layer), &mut verdicts) {
                let mut all = std::mem::take(burst);
                for (packet, verdict) in all.drain_front(received).zip(verdicts) {
                    if verdict == Verdict::Drop {
                        self.egress.counters().dropped_packet(DropReason::Filtered, &packet);
                        self.egress.cache().free(packet);
                    } else {
                        let _ = burst.push(packet);
                    }
                }
            }
        }
        received
    }

    /// The state of the port if it is gone. The end of a file only ends its receiving.
    #[cold]
    pub(super) fn check_ended(&mut self) -> Option<State> {
        match (self.rx.state(), self.egress.tx().state()) {
            (gone @ State::Gone(_), _) | (_, gone @ State::Gone(_)) => return Some(gone),
            (State::Done, _) => self.receives = false,
            _ => {}
        }
        None
    }

    /// Whether the last burst is a sample whose egresses are not known yet.
    #[inline]
    pub(super) fn is_sampled(&self) -> bool {
        self.sampler.is_open() && self.sampled_for.is_empty()
    }

    /// The sample's packets have left.
    pub(super) fn close_sample(&mut self) {
        self.sampler.close();
    }

    /// Looks at the link; returns whether it went down since the last call.
    pub(super) fn went_down(&mut self) -> bool {
        let (rx, tx) = (self.rx.state(), self.egress.tx().state());
        self.sampler.queue_states(&rx, &tx);
        let is_down = matches!(worse(rx, tx), State::Down(_));
        let was_down = std::mem::replace(&mut self.is_down, is_down);
        is_down && !was_down
    }

    /// The state of the port: the worse one of its queues.
    pub(super) fn state(&self) -> State {
        worse(self.rx.state(), self.egress.tx().state())
    }

    /// Stages a packet. What does not fit is dropped as `egress-full`.
    #[inline]
    pub(super) fn push(&mut self, packet: Packet) {
        let refused = if self.gro_stage.is_some() {
            self.fresh.push(packet)
        } else if self.backlog.is_empty() {
            self.staged.push(packet)
        } else {
            Err(packet)
        };
        if let Err(packet) = refused {
            self.push_full(packet);
        }
    }

    /// Stages a burst, which is empty afterwards.
    #[inline]
    pub(super) fn push_all(&mut self, burst: &mut Batch) {
        let batch = if self.gro_stage.is_some() { &mut self.fresh } else { &mut self.staged };
        if batch.is_empty() && self.backlog.is_empty() {
            std::mem::swap(batch, burst);
            return;
        }
        let n = burst.len();
        for packet in burst.drain_front(n) {
            self.push(packet);
        }
    }

    #[cold]
    fn push_full(&mut self, packet: Packet) {
        if self.backlog.len() < self.max_backlog && !self.is_gone {
            self.backlog.push_back(packet);
        } else {
            let reason = if self.is_gone { DropReason::PortGone } else { DropReason::EgressFull };
            self.egress.counters().dropped_packet(reason, &packet);
            self.egress.cache().free(packet);
        }
    }

    /// Packets that can be sent now.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        let ready = self.gro_stage.as_ref().map_or(0, GroStage::ready);
        self.fresh.len() + self.staged.len() + self.backlog.len() + ready + self.egress.held()
    }

    /// Packets in the port: those that can be sent, and those that wait for more of their flow.
    pub(super) fn held(&self) -> usize {
        self.waiting() + self.gro_stage.as_ref().map_or(0, GroStage::held)
    }

    pub(super) fn is_draining(&self) -> bool {
        self.held() + self.egress.tx().pending() > 0
    }

    /// Coalesces what was pushed. `emptied`: the ingress has no more packets at this moment.
    #[inline]
    pub(super) fn coalesce(&mut self, emptied: bool) {
        let Some(gro_stage) = &mut self.gro_stage else { return };
        if self.fresh.is_empty() {
            return;
        }
        let worth = self.gro_config.applies(self.egress.offloads());
        if worth || gro_stage.ready() + gro_stage.held() > 0 {
            if gro_stage.ready() > self.max_backlog {
                let counters = self.egress.counters();
                counters.dropped(DropReason::EgressFull, self.fresh.len() as u64);
                self.fresh.iter().for_each(|packet| counters.show_dropped(DropReason::EgressFull, packet));
                self.egress.cache().free_bulk(&mut self.fresh);
                return;
            }
            if gro_stage.push(&mut self.fresh, emptied) == Pushed::Taken {
                return;
            }
        }
        let n = self.fresh.len();
        if self.staged.is_empty() && self.backlog.is_empty() {
            std::mem::swap(&mut self.staged, &mut self.fresh);
            return;
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        for packet in fresh.drain_front(n) {
            if !self.backlog.is_empty() {
                self.push_full(packet);
            } else if let Err(packet) = self.staged.push(packet) {
                self.push_full(packet);
            }
        }
    }

    /// Moves waiting packets to the batch that is sent.
    #[inline]
    fn fill(&mut self) {
        while self.staged.room() > 0
            && let Some(packet) = self.backlog.pop_front()
        {
            let _ = self.staged.push(packet);
        }
        if self.backlog.is_empty()
            && let Some(gro_stage) = &mut self.gro_stage
        {
            gro_stage.fill(&mut self.staged);
        }
    }

    /// Sends what waits, as far as the egress accepts it; returns how many it accepted. If it
    /// refuses for too long, the rest is dropped by name.
    #[inline]
    pub(super) fn send(&mut self) -> usize {
        let mut sent = 0;
        loop {
            self.fill();
            match self.egress.step(&mut self.staged) {
                Step::Nothing => break,
                Step::Sent(taken) | Step::Changed(taken) => sent += taken,
                Step::Refused(taken) => {
                    sent += taken;
                    break;
                }
            }
        }
        self.egress.tx_mut().kick();
        if self.waiting() == 0 {
            self.egress.accepted();
        } else if let Some(reason) = self.egress.refused(sent > 0) {
            self.drop_held(reason);
        }
        sent
    }

    /// What is done for the egress before each turn: completions, and what waits; returns how many
    /// packets it accepted.
    #[inline]
    pub(super) fn retry(&mut self, stopping: bool) -> usize {
        self.egress.tx_mut().reclaim();
        if let Some(gro_stage) = &mut self.gro_stage
            && gro_stage.held() > 0
        {
            if stopping {
                gro_stage.flush();
            } else {
                gro_stage.idle();
            }
        }
        if self.waiting() > 0 { self.send() } else { 0 }
    }

    pub(super) fn flush_gro(&mut self) {
        self.coalesce(true);
        if let Some(gro_stage) = &mut self.gro_stage {
            gro_stage.flush();
        }
    }

    /// Drops every packet that can be sent now.
    #[cold]
    pub(super) fn drop_held(&mut self, reason: DropReason) {
        let counters = self.egress.counters().clone();
        counters.dropped(reason, (self.waiting() - self.egress.held()) as u64);
        let waiting = self.backlog.iter().chain(self.fresh.iter()).chain(self.staged.iter());
        waiting.for_each(|packet| counters.show_dropped(reason, packet));
        if let Some(gro_stage) = &mut self.gro_stage {
            gro_stage.drop_ready(self.egress.cache(), |packet| counters.show_dropped(reason, packet));
        }
        for packet in self.backlog.drain(..) {
            self.egress.cache().free(packet);
        }
        self.egress.cache().free_bulk(&mut self.fresh);
        self.egress.cache().free_bulk(&mut self.staged);
        self.egress.drop_held(reason);
    }

    /// The port is gone: what it holds is dropped, and nothing is accepted any more.
    #[cold]
    pub(super) fn lose(&mut self) {
        self.flush_gro();
        self.drop_held(DropReason::PortGone);
        (self.receives, self.is_gone, self.max_backlog) = (false, true, 0);
        self.sampler.gone();
    }

    /// The port receives nothing more.
    pub(super) fn retire(&mut self) {
        self.receives = false;
    }

    /// Has the port shown as gone: it is detached.
    pub(super) fn leave(&mut self) {
        self.sampler.gone();
    }

    pub(super) fn close(&mut self) -> Result<(), Cow<'static, str>> {
        self.egress.close()
    }

    /// The wake-up conditions of an idle worker; `true` marks the sending side.
    pub(super) fn wakes(&self) -> [(Wake, bool); 2] {
        let rx = if self.receives { self.rx.wake() } else { Wake::Never };
        let tx = match (self.held(), self.egress.tx().pending()) {
            (0, 0) => Wake::Never,
            (0, _) => self.egress.tx().wake(),
            // A descriptor that stays writable while the queue refuses would make a busy loop.
            _ => Wake::Poll,
        };
        [(rx, false), (tx, true)]
    }
}

/// The worse state of a port's queues; the end of a file only ends its receiving.
fn worse(rx: State, tx: State) -> State {
    match (rx, tx) {
        (State::Up | State::Done, state) | (state, _) => state,
    }
}

#[cfg(test)]
impl<R: RxQueue, T: TxQueue, P> HubPort<R, T, P> {
    pub(crate) fn rx_mut(&mut self) -> &mut R {
        &mut self.rx
    }

    pub(crate) fn tx_mut(&mut self) -> &mut T {
        self.egress.tx_mut()
    }

    pub(crate) fn in_port(&self) -> usize {
        self.held()
    }
}
