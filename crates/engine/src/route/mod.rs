//! A route: one direction from a receive queue to a transmit queue, run to completion by one
//! thread.
//!
//! ```text
//!   RxQueue ──rx──► incoming ──► verdicts ──► GroStage, if enabled ──► incoming
//!                    │            └ tx, redirect: to the route of the other direction
//!                    ├─ a packet needs software ─► SoftwareOffload ─► outgoing ─► Linearizer ─► tx
//!                    └─ no packet does ─────────────────────────────────────────► Linearizer ─► tx
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`Route`]: how it is built, its turn, sending, and the end |
//! | `verdicts` | classification and reflection of received packets |
//! | `order_barrier` | tells the ingress when the packets before a barrier have left |
//! | `config` | [`RouteConfig`], [`RouteId`], [`Limit`] |
//!
//! Order is absolute: nothing is received while a packet waits for the egress. An egress that
//! refuses packets holds the ingress back (the kernel, the ring or the file keeps its packets) for
//! up to [`RouteConfig::egress_wait`]. After that the held packets are dropped by name.
//!
//! Balance: received + split = sent + merged + drops + held, at every moment between two turns.

mod config;
mod order_barrier;
mod verdicts;

pub use config::{Limit, RouteConfig, RouteId};

use crate::gro_stage::{GroStage, GroStageConfig, Pushed};
use crate::linearize::Linearizer;
use crate::report::GroCounters;
use crate::rules::{Classifier, PortSide};
use crate::software_offload::{SoftwareOffload, needs_software};
use crate::tee::TeeSlot;
use order_barrier::OrderBarrier;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use towpath_packet::port::{RxQueue, State, TxLinear, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, DropReason, Offloads, Packet};
use towpath_wire::LinkKind;

/// Packets that may wait for the route of the other direction.
const MAX_REFLECTED: usize = 256;

/// One direction, owned by the thread that runs it.
pub struct Route<R, T> {
    rx: R,
    tx: T,
    incoming: Batch,
    outgoing: Batch,
    classifier: Option<Box<dyn Classifier>>,
    id: RouteId,
    reflected: VecDeque<Packet>,
    gro_stage: Option<GroStage>,
    gro_config: GroStageConfig,
    software_offload: SoftwareOffload,
    linearizer: Option<Linearizer>,
    reflects: bool,
    egress_offloads: Offloads,
    limit: Option<Arc<Limit>>,
    config: RouteConfig,
    refused_since: Option<Instant>,
    counters: Arc<Counters>,
    ended: Option<State>,
    /// The ingress never receives.
    never_receives: bool,
    order_barrier: OrderBarrier,
    tee: Arc<TeeSlot>,
    closed: bool,
}

impl<R: RxQueue, T: TxQueue> Route<R, T> {
    /// Joins two queues. Segments and copies come from `cache`, which is a
    /// [`Direction::Tx`](towpath_packet::Direction::Tx) cache.
    pub fn new(rx: R, tx: T, cache: Cache, mut config: RouteConfig) -> Route<R, T> {
        if config.tx_layout.linear == TxLinear::Whole {
            // A super-packet is longer than any chunk.
            config.offloads = config.offloads.without(Offloads::GSO);
        }
        let counters = Arc::new(Counters::default());
        let link = LinkKind::from(config.layer);
        let software_offload = SoftwareOffload::new(cache, link, counters.clone());
        let egress_offloads = tx.offloads().and(config.offloads);
        let never_receives = rx.wake() == Wake::Never;
        let (incoming, outgoing) = (Batch::new(), Batch::new());
        Route {
            rx,
            tx,
            incoming,
            outgoing,
            classifier: None,
            id: RouteId { side: PortSide::A, pair: 0 },
            reflected: VecDeque::with_capacity(MAX_REFLECTED),
            gro_stage: None,
            gro_config: GroStageConfig::default(),
            software_offload,
            linearizer: Linearizer::new(config.tx_layout, counters.clone()),
            reflects: false,
            egress_offloads,
            limit: None,
            config,
            refused_since: None,
            counters,
            ended: None,
            never_receives,
            order_barrier: OrderBarrier::default(),
            tee: TeeSlot::new(None, None, link),
            closed: false,
        }
    }

    /// Ends the route when `limit` is used up; packets received beyond it are dropped as `stopped`.
    #[must_use]
    pub fn with_limit(mut self, limit: Arc<Limit>) -> Route<R, T> {
        self.limit = Some(limit);
        self
    }

    /// Coalesces received packets if `config` enables GRO for this egress.
    #[must_use]
    pub fn with_gro(mut self, config: &GroStageConfig) -> Route<R, T> {
        let max_offloads = self.tx.max_offloads().and(self.config.offloads);
        if config.applies(max_offloads) {
            self.gro_config = *config;
            self.gro_stage = Some(GroStage::new(config, self.config.layer, max_offloads, self.counters.clone()));
        }
        self
    }

    /// Classifies each received packet.
    #[must_use]
    pub fn with_classifier(mut self, classifier: Box<dyn Classifier>) -> Route<R, T> {
        self.classifier = Some(classifier);
        self
    }

    /// Reflects each packet: the egress is the port that it came from.
    #[must_use]
    pub fn with_reflect(mut self) -> Route<R, T> {
        self.reflects = true;
        self
    }

    /// Shows received, sent and dropped packets to the tees of `slot`.
    #[must_use]
    pub fn with_tees(mut self, slot: Arc<TeeSlot>) -> Route<R, T> {
        slot.watch(self.rx.counters(), &self.counters, self.tx.counters());
        self.tee = slot;
        self
    }

    /// Sets the position of the route among others.
    #[must_use]
    pub fn with_id(mut self, id: RouteId) -> Route<R, T> {
        self.id = id;
        self
    }

    /// The position of the route among others.
    pub fn id(&self) -> RouteId {
        self.id
    }

    /// Counters of the GRO stage, if there is one.
    pub fn gro(&self) -> Option<&Arc<GroCounters>> {
        self.gro_stage.as_ref().map(GroStage::gro_counters)
    }

    /// Drops and splits between the queues; the queues count packets themselves.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Packets that wait for the egress.
    fn waiting(&self) -> usize {
        let ready = self.gro_stage.as_ref().map_or(0, GroStage::ready);
        self.incoming.len() + ready + self.software_offload.held() + self.outgoing.len()
    }

    /// Packets that were received and are not sent: they wait for the egress, for more of their
    /// flow, or for the other direction.
    pub fn held(&self) -> usize {
        self.waiting() + self.reflected.len() + self.gro_stage.as_ref().map_or(0, GroStage::held)
    }

    /// Why the route has ended; `None` while it runs.
    pub fn ended(&self) -> Option<&State> {
        self.ended.as_ref()
    }

    /// Whether the route has nothing to wait for: it has ended, or its ingress never receives.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.ended.is_some() || self.never_receives
    }

    /// Whether packets are still on their way: held here, or pending in the egress.
    pub fn is_draining(&self) -> bool {
        self.held() + self.tx.pending() > 0 || (self.config.internal && self.ended.is_none())
    }

    /// Moves one burst; returns how many packets were received or sent. With `stopping`, nothing is
    /// received.
    #[inline]
    pub fn turn(&mut self, stopping: bool) -> usize {
        self.tx.reclaim();
        if self.waiting() > 0 {
            let sent = self.send();
            match self.waiting() {
                0 => self.refused_since = None,
                _ => self.refused(sent > 0),
            }
            return sent;
        }
        if (stopping && !self.config.internal) || self.ended.is_some() {
            let sent = self.flush();
            if !self.is_draining() {
                self.close();
            }
            return sent;
        }
        if self.reflected.len() > MAX_REFLECTED - Batch::<64>::CAPACITY {
            return 0;
        }
        if self.reflected.is_empty() {
            self.order_barrier.step(&mut self.rx, self.gro_stage.as_mut(), &mut self.tx);
        }
        self.rx.refill();
        let received = self.rx.rx(&mut self.incoming);
        if received == 0 {
            self.check_ended();
            if let Some(gro_stage) = &mut self.gro_stage {
                gro_stage.idle();
                return self.send();
            }
            return 0;
        }
        if self.tee.has_rx() {
            self.tee.received(self.incoming.as_slice());
        }
        if let Some(limit) = &self.limit {
            let granted = limit.take(received);
            while self.incoming.len() > granted {
                if let Some(packet) = self.incoming.pop() {
                    self.counters.dropped_packet(DropReason::Stopped, &packet);
                    self.software_offload.cache().free(packet);
                }
            }
            if limit.used_up() {
                self.ended = Some(State::Done);
            }
        }
        if self.classifier.is_some() {
            self.classify_incoming();
        }
        if self.reflects {
            self.reflect_incoming();
        }
        let worth = self.gro_config.applies(self.egress_offloads);
        if let Some(gro_stage) = &mut self.gro_stage
            && (worth || gro_stage.ready() + gro_stage.held() > 0)
        {
            // `send` takes a bypassed burst from where it is.
            let (Pushed::Taken | Pushed::Bypassed) =
                gro_stage.push(&mut self.incoming, received < Batch::<64>::CAPACITY);
        }
        self.send();
        // A port that is gone may accept and drop packets for ever, while the ingress always has
        // more.
        let egress = self.tx.state();
        if egress.ended() && self.ended.is_none() {
            self.ended = Some(egress);
        }
        received
    }

    #[cold]
    fn check_ended(&mut self) {
        let (rx, tx) = (self.rx.state(), self.tx.state());
        let used_up = self.limit.as_ref().is_some_and(|limit| limit.used_up());
        self.ended = match (rx.ended(), tx.ended()) {
            (true, _) => Some(rx),
            (_, true) => Some(tx),
            _ => used_up.then_some(State::Done),
        };
    }

    /// Flushes the GRO stage; returns how many packets were sent.
    fn flush(&mut self) -> usize {
        match &mut self.gro_stage {
            Some(gro_stage) if gro_stage.held() > 0 => {
                gro_stage.flush();
                self.send()
            }
            _ => 0,
        }
    }

    /// Sends the waiting packets as far as the egress accepts them; returns how many it accepted.
    #[inline]
    fn send(&mut self) -> usize {
        let mut sent = 0;
        loop {
            if let Some(gro_stage) = &mut self.gro_stage {
                gro_stage.fill(&mut self.incoming);
            }
            let direct = self.outgoing.is_empty()
                && self.software_offload.held() == 0
                && !self.incoming.iter().any(|packet| needs_software(packet, self.egress_offloads));
            let batch = if direct {
                &mut self.incoming
            } else {
                self.software_offload.apply(&mut self.incoming, &mut self.outgoing, self.egress_offloads);
                &mut self.outgoing
            };
            if batch.is_empty() {
                break;
            }
            if let Some(linearizer) = &mut self.linearizer {
                linearizer.linearize(batch, self.software_offload.cache());
            }
            let tees = self.tee.has_tx();
            if tees {
                self.tee.sending(batch.as_slice());
            }
            let taken = self.tx.tx(batch);
            if tees {
                self.tee.sent(taken);
            }
            sent += taken;
            self.order_barrier.sent(taken);
            let refused = !batch.is_empty();
            let egress_offloads = self.tx.offloads().and(self.config.offloads);
            if egress_offloads != self.egress_offloads {
                self.egress_offloads = egress_offloads;
                self.rx.set_rx_offloads(egress_offloads);
                self.software_offload.reapply(&mut self.outgoing, egress_offloads);
                continue;
            }
            if refused {
                break;
            }
        }
        self.tx.kick();
        sent
    }

    /// The egress refused packets.
    #[cold]
    fn refused(&mut self, progress: bool) {
        let reason = match self.tx.state() {
            State::Gone(_) | State::Done => DropReason::PortGone,
            State::Down(_) => DropReason::LinkDown,
            State::Up => DropReason::EgressFull,
        };
        let now = Instant::now();
        if progress {
            self.refused_since = None;
        }
        let since = *self.refused_since.get_or_insert(now);
        if reason == DropReason::PortGone || now.duration_since(since) >= self.config.egress_wait {
            self.drop_held(reason);
            self.refused_since = None;
        }
        if reason == DropReason::PortGone {
            self.ended = Some(self.tx.state());
        }
    }

    /// Closes the egress, once. If packets did not leave it, its failure is how the route ends.
    fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        if let Err(why) = self.tx.close()
            && !matches!(self.ended, Some(State::Gone(_)))
        {
            self.ended = Some(State::Gone(why));
        }
    }

    /// The ports that are gone, if that ended the route, or down, each with its state.
    pub(crate) fn faults(&self) -> Vec<(PortSide, State)> {
        let ingress = self.id.side;
        let egress = if self.reflects { ingress } else { ingress.other() };
        let is_fault = |state: &State| match state {
            State::Gone(_) => self.ended.as_ref() == Some(state),
            other => matches!(other, State::Down(_)),
        };
        let mut faults: Vec<_> = [(ingress, self.rx.state()), (egress, self.tx.state())].into();
        faults.retain(|(_, state)| is_fault(state));
        if let Some(state @ State::Gone(_)) = &self.ended
            && !faults.iter().any(|(_, known)| known == state)
        {
            // The egress failed while it was closed.
            faults.push((egress, state.clone()));
        }
        faults
    }

    /// The drain time is over: drops all held packets, and closes the egress.
    pub(crate) fn abandon(&mut self) {
        if let Some(gro_stage) = &mut self.gro_stage {
            gro_stage.flush();
        }
        self.counters.dropped(DropReason::Stopped, self.reflected.len() as u64);
        self.reflected.iter().for_each(|packet| self.counters.show_dropped(DropReason::Stopped, packet));
        for packet in self.reflected.drain(..) {
            self.software_offload.cache().free(packet);
        }
        self.drop_held(DropReason::Stopped);
        self.close();
    }

    /// Drops every packet that waits for the egress.
    fn drop_held(&mut self, reason: DropReason) {
        self.counters.dropped(reason, self.waiting() as u64);
        let batches = self.incoming.iter().chain(self.outgoing.iter());
        batches.for_each(|packet| self.counters.show_dropped(reason, packet));
        if let Some(gro_stage) = &mut self.gro_stage {
            gro_stage.drop_ready(self.software_offload.cache(), |packet| self.counters.show_dropped(reason, packet));
        }
        self.software_offload.drop_held(reason);
        self.software_offload.cache().free_bulk(&mut self.incoming);
        self.software_offload.cache().free_bulk(&mut self.outgoing);
    }

    /// The wake-up conditions of an idle worker; `true` marks the sending side.
    pub(crate) fn wakes(&self) -> [(Wake, bool); 2] {
        if self.held() > 0 {
            // A descriptor that stays writable while the queue refuses would make a busy loop. The
            // wait is bounded, so the queue is polled at intervals instead.
            return [(Wake::Poll, true), (Wake::Never, true)];
        }
        let reclaim = match self.tx.pending() {
            0 if self.order_barrier.is_pending() => Wake::Poll,
            0 => Wake::Never,
            _ => self.tx.wake(),
        };
        let rx = if self.ended.is_some() { Wake::Never } else { self.rx.wake() };
        [(rx, false), (reclaim, true)]
    }
}

#[cfg(test)]
impl<R, T> Route<R, T> {
    pub(crate) fn rx_mut(&mut self) -> &mut R {
        &mut self.rx
    }

    pub(crate) fn tx_mut(&mut self) -> &mut T {
        &mut self.tx
    }
}

#[cfg(test)]
pub(crate) mod tests;
