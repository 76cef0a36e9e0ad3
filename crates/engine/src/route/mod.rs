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
//! | `order_barrier` | reports to the ingress when the packets before a barrier have left |
//! | `config` | [`RouteConfig`], [`RouteId`], [`Limit`] |
//!
//! Order is absolute: nothing is received while a packet waits for the egress. An egress that
//! refuses packets holds the ingress back (the kernel, the ring or the file keeps its packets) for
//! up to [`RouteConfig::egress_wait`]. After that the held packets are dropped by name.
//!
//! Balance: received + split = sent + merged + drops + held, at every moment between two turns.

mod config;
mod order_barrier;
pub(crate) mod verdicts;

pub use config::{Limit, RouteConfig, RouteId};

use crate::egress::{Egress, Step};
use crate::gro_stage::{GroStage, GroStageConfig, Pushed};
use crate::report::GroCounters;
use crate::rules::{Classifier, PortSide};
use crate::samples::{Sampler, Samples};
use crate::tee::TeeSlot;
use crate::worker::{Ending, Task};
use order_barrier::OrderBarrier;
use std::collections::VecDeque;
use std::sync::Arc;
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};
use towpath_packet::{Batch, Cache, Counters, DropReason, Packet};
use towpath_wire::LinkKind;

/// Packets that may wait for the route of the other direction.
const MAX_REFLECTED: usize = 256;

/// One direction, owned by the thread that runs it.
pub struct Route<R, T> {
    rx: R,
    egress: Egress<T>,
    incoming: Batch,
    classifier: Option<Box<dyn Classifier>>,
    id: RouteId,
    reflected: VecDeque<Packet>,
    gro_stage: Option<GroStage>,
    gro_config: GroStageConfig,
    reflects: bool,
    limit: Option<Arc<Limit>>,
    config: RouteConfig,
    counters: Arc<Counters>,
    ended: Option<State>,
    /// The ingress never receives.
    never_receives: bool,
    order_barrier: OrderBarrier,
    tee: Arc<TeeSlot>,
    sampler: Sampler,
}

impl<R: RxQueue, T: TxQueue> Route<R, T> {
    /// Joins two queues. Segments and copies come from `cache`, which is a
    /// [`Direction::Tx`](towpath_packet::Direction::Tx) cache.
    pub fn new(rx: R, tx: T, cache: Cache, config: RouteConfig) -> Route<R, T> {
        let counters = Arc::new(Counters::default());
        let never_receives = rx.wake() == Wake::Never;
        let egress = Egress::new(tx, cache, &config, counters.clone());
        Route {
            rx,
            egress,
            incoming: Batch::new(),
            classifier: None,
            id: RouteId { side: PortSide::A, pair: 0 },
            reflected: VecDeque::with_capacity(MAX_REFLECTED),
            gro_stage: None,
            gro_config: GroStageConfig::default(),
            reflects: false,
            limit: None,
            config,
            counters,
            ended: None,
            never_receives,
            order_barrier: OrderBarrier::default(),
            tee: TeeSlot::new(None, None, LinkKind::from(config.layer)),
            sampler: Sampler::new(LinkKind::from(config.layer)),
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
        let max_offloads = self.egress.max_offloads();
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
        slot.watch(self.rx.counters(), &self.counters, self.egress.tx().counters());
        self.egress.set_tee(slot.clone());
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

    /// Received packets, and samples of them.
    pub fn samples(&self) -> &Arc<Samples> {
        self.sampler.samples()
    }

    /// Packets that wait for the egress.
    fn waiting(&self) -> usize {
        let ready = self.gro_stage.as_ref().map_or(0, GroStage::ready);
        self.incoming.len() + ready + self.egress.held()
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

    /// Whether packets are still on their way: held here, or pending in the egress.
    pub fn is_draining(&self) -> bool {
        self.held() + self.egress.tx().pending() > 0 || (self.config.internal && self.ended.is_none())
    }

    /// Moves one burst; returns how many packets were received or sent. With `stopping`, nothing is
    /// received.
    #[inline]
    pub fn turn(&mut self, stopping: bool) -> usize {
        let moved = self.burst(stopping);
        if self.sampler.is_open() && self.held() == 0 {
            self.sampler.close();
        }
        moved
    }

    #[inline]
    fn burst(&mut self, stopping: bool) -> usize {
        self.egress.tx_mut().reclaim();
        if self.waiting() > 0 {
            let sent = self.send();
            match self.waiting() {
                0 => self.egress.accepted(),
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
            self.order_barrier.step(&mut self.rx, self.gro_stage.as_mut(), self.egress.tx_mut());
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
        self.sampler.received(&self.incoming);
        if self.tee.has_rx() {
            self.tee.received(self.incoming.as_slice());
        }
        if let Some(limit) = &self.limit {
            let granted = limit.take(received);
            while self.incoming.len() > granted {
                if let Some(packet) = self.incoming.pop() {
                    self.counters.dropped_packet(DropReason::Stopped, &packet);
                    self.egress.cache().free(packet);
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
        let worth = self.gro_config.applies(self.egress.offloads());
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
        let egress = self.egress.tx().state();
        if egress.ended() && self.ended.is_none() {
            self.ended = Some(egress);
        }
        received
    }

    #[cold]
    fn check_ended(&mut self) {
        let (rx, tx) = (self.rx.state(), self.egress.tx().state());
        self.sampler.queue_states(&rx, &tx);
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
            let (taken, goes_on) = match self.egress.step(&mut self.incoming) {
                Step::Nothing => break,
                Step::Sent(taken) => (taken, true),
                Step::Refused(taken) => (taken, false),
                Step::Changed(taken) => {
                    self.rx.set_rx_offloads(self.egress.offloads());
                    (taken, true)
                }
            };
            sent += taken;
            self.order_barrier.sent(taken);
            if !goes_on {
                break;
            }
        }
        self.egress.tx_mut().kick();
        sent
    }

    /// The egress refused packets.
    #[cold]
    fn refused(&mut self, progress: bool) {
        self.sampler.queue_states(&State::Up, &self.egress.tx().state());
        let Some(reason) = self.egress.refused(progress) else { return };
        self.drop_held(reason);
        if reason == DropReason::PortGone {
            self.ended = Some(self.egress.tx().state());
        }
    }

    /// Closes the egress, once. If packets did not leave it, its failure is how the route ends.
    fn close(&mut self) {
        if let Err(why) = self.egress.close()
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
        let mut faults: Vec<_> = [(ingress, self.rx.state()), (egress, self.egress.tx().state())].into();
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
            self.egress.cache().free(packet);
        }
        self.drop_held(DropReason::Stopped);
        self.close();
    }

    /// Drops every packet that waits for the egress.
    fn drop_held(&mut self, reason: DropReason) {
        self.counters.dropped(reason, (self.waiting() - self.egress.held()) as u64);
        self.incoming.iter().for_each(|packet| self.counters.show_dropped(reason, packet));
        if let Some(gro_stage) = &mut self.gro_stage {
            gro_stage.drop_ready(self.egress.cache(), |packet| self.counters.show_dropped(reason, packet));
        }
        self.egress.cache().free_bulk(&mut self.incoming);
        self.egress.drop_held(reason);
    }

    /// The wake-up conditions of an idle worker; `true` marks the sending side.
    pub(crate) fn wakes(&self) -> [(Wake, bool); 2] {
        if self.held() > 0 {
            // A descriptor that stays writable while the queue refuses would make a busy loop. The
            // wait is bounded, so the queue is polled at intervals instead.
            return [(Wake::Poll, true), (Wake::Never, true)];
        }
        let reclaim = match self.egress.tx().pending() {
            0 if self.order_barrier.is_pending() => Wake::Poll,
            0 => Wake::Never,
            _ => self.egress.tx().wake(),
        };
        let rx = if self.ended.is_some() { Wake::Never } else { self.rx.wake() };
        [(rx, false), (reclaim, true)]
    }
}

impl<R: RxQueue, T: TxQueue> Task for Route<R, T> {
    #[inline]
    fn turn(&mut self, stopping: bool) -> usize {
        Route::turn(self, stopping)
    }

    /// Passes reflected packets to the routes of the other direction.
    #[inline]
    fn exchange(routes: &mut [Route<R, T>]) -> usize {
        if routes.iter().all(|route| route.reflected.is_empty()) {
            return 0;
        }
        verdicts::exchange_reflected(routes);
        1
    }

    fn is_exhausted(&self) -> bool {
        self.ended.is_some() || self.never_receives
    }

    fn is_draining(&self) -> bool {
        Route::is_draining(self)
    }

    fn wakes(&self, mut wait_for: impl FnMut(Wake, bool)) {
        Route::wakes(self).into_iter().for_each(|(wake, sending)| wait_for(wake, sending));
    }

    fn end(&mut self, number: usize) -> Ending {
        self.abandon();
        let state = self.ended.clone().unwrap_or(State::Up);
        let faults = self.faults().into_iter().map(|(side, state)| (side as usize, state)).collect();
        Ending { task: number, state, faults }
    }
}

#[cfg(test)]
pub(crate) mod tests;
