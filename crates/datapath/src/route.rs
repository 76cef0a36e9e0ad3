//! A route: one direction from a receive queue to a transmit queue, run to completion by one thread.
//!
//! ```text
//!   RxQueue ──rx──► incoming ──► verdicts ──► Coalescer, if there is one ──► incoming
//!                      │            └ tx, redirect: to the route of the other direction, on the same thread
//!                      ├─ a packet asks for more than the egress can ──► Finisher ──► outgoing ──► Fitter ──tx──► TxQueue
//!                      └─ no packet does ──────────────────────────────────────────────────► Fitter ──tx──► TxQueue
//! ```
//!
//! Order is absolute: nothing is received while something waits to be sent. An egress that takes no more holds the
//! ingress back (the kernel, the ring or the file keeps the packets) for up to [`RouteConfig::egress_wait`]; only then are the
//! packets that are held dropped, by name.
//!
//! Balance: received + split = sent + merged + drops + held, at every moment between two turns.

mod settle;

use self::settle::Settling;
use crate::coalesce::{CoalesceConfig, Coalescer};
use crate::finish::{Finisher, asks_more};
use crate::fit::Fitter;
use crate::mirror::mirror;
use crate::report::GroCounters;
use crate::rules::{Judge, PortSide, Verdict, dissect_packet};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use towpath_gro::Link;
use towpath_packet::port::{Layer, RxQueue, State, TxLinear, TxQueue, TxShape, Wake};
use towpath_packet::{Batch, Cache, Counters, DropReason, Offloads, Packet};
use towpath_wire::LinkKind;

/// How a route behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteConfig {
    /// How long an egress may refuse before what is held is dropped as `egress-full`. Zero drops at once.
    pub egress_wait: Duration,
    /// What packets begin with.
    pub layer: Layer,
    /// What the egress may be given, of what it can take: without segmentation abilities, super-packets are cut before it.
    pub allow: Offloads,
    /// What the egress wants of the memory of packets.
    pub shape: TxShape,
    /// The ingress is a queue between threads: when stopping, what is in it is still received, until its other side has
    /// closed it.
    pub internal: bool,
}

impl Default for RouteConfig {
    /// Ten milliseconds; Ethernet.
    fn default() -> RouteConfig {
        RouteConfig {
            egress_wait: Duration::from_millis(10),
            layer: Layer::Ethernet,
            allow: Offloads::ALL,
            shape: TxShape::default(),
            internal: false,
        }
    }
}

/// A number of packets that several routes may move together.
#[derive(Debug)]
pub struct Limit(AtomicI64);

impl Limit {
    /// `n` packets.
    pub fn new(n: u64) -> Limit {
        Limit(AtomicI64::new(i64::try_from(n).unwrap_or(i64::MAX)))
    }

    /// Takes up to `n`; returns how many there were.
    fn take(&self, n: usize) -> usize {
        let before = self.0.fetch_sub(n as i64, Ordering::Relaxed);
        before.clamp(0, n as i64) as usize
    }

    fn used_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) <= 0
    }
}

/// Packets that may wait for the route of the other direction.
const TURNED: usize = 256;

/// Where a route stands among others: what its verdicts refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The end of `fwd A B` that its packets come from.
    pub side: PortSide,
    /// A number that it shares with the route of the other direction, if there is one: both run on the same thread.
    pub pair: usize,
}

/// One direction, owned by the thread that runs it.
pub struct Route<R, T> {
    rx: R,
    tx: T,
    incoming: Batch,
    outgoing: Batch,
    judge: Option<Box<dyn Judge>>,
    standing: Standing,
    turned: VecDeque<Packet>,
    coalescer: Option<Coalescer>,
    gro: CoalesceConfig,
    finisher: Finisher,
    fitter: Option<Fitter>,
    mirrors: bool,
    can: Offloads,
    limit: Option<Arc<Limit>>,
    config: RouteConfig,
    refused_since: Option<Instant>,
    counters: Arc<Counters>,
    ended: Option<State>,
    /// The ingress never brings anything.
    silent: bool,
    settling: Settling,
    closed: bool,
}

impl<R: RxQueue, T: TxQueue> Route<R, T> {
    /// Joins two queues. `cache` is where segments and copies come from, a [`Direction::Tx`](towpath_packet::Direction::Tx) one.
    pub fn new(rx: R, tx: T, cache: Cache, mut config: RouteConfig) -> Route<R, T> {
        if config.shape.linear == TxLinear::Whole {
            // A super-packet is longer than any chunk.
            config.allow = config.allow.without(Offloads::GSO);
        }
        let counters = Arc::new(Counters::default());
        let link = if config.layer == Layer::Ip { Link::Ip } else { Link::Ethernet };
        let finisher = Finisher::new(cache, link, counters.clone());
        let can = tx.offloads().and(config.allow);
        let silent = rx.wake() == Wake::Never;
        let (incoming, outgoing) = (Batch::new(), Batch::new());
        Route {
            rx,
            tx,
            incoming,
            outgoing,
            judge: None,
            standing: Standing { side: PortSide::A, pair: 0 },
            turned: VecDeque::with_capacity(TURNED),
            coalescer: None,
            gro: CoalesceConfig::default(),
            finisher,
            fitter: Fitter::new(config.shape, counters.clone()),
            mirrors: false,
            can,
            limit: None,
            config,
            refused_since: None,
            counters,
            ended: None,
            silent,
            settling: Settling::default(),
            closed: false,
        }
    }

    /// Ends the route when `limit` is used up; what was received beyond it is dropped as `stopped`.
    #[must_use]
    pub fn with_limit(mut self, limit: Arc<Limit>) -> Route<R, T> {
        self.limit = Some(limit);
        self
    }

    /// Coalesces what is received, if `config` says so for this egress.
    #[must_use]
    pub fn with_gro(mut self, config: &CoalesceConfig) -> Route<R, T> {
        let potential = self.tx.potential().and(self.config.allow);
        if config.applies(potential) {
            self.gro = *config;
            self.coalescer = Some(Coalescer::new(config, self.config.layer, potential, self.counters.clone()));
        }
        self
    }

    /// Asks `judge` what becomes of each packet that is received.
    #[must_use]
    pub fn with_judge(mut self, judge: Box<dyn Judge>) -> Route<R, T> {
        self.judge = Some(judge);
        self
    }

    /// Turns each packet round: the egress is where it came from.
    #[must_use]
    pub fn with_mirror(mut self) -> Route<R, T> {
        self.mirrors = true;
        self
    }

    /// Says where the route stands.
    #[must_use]
    pub fn with_standing(mut self, standing: Standing) -> Route<R, T> {
        self.standing = standing;
        self
    }

    /// Where the route stands.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// What GRO did on this route, if it is in use.
    pub fn gro(&self) -> Option<&Arc<GroCounters>> {
        self.coalescer.as_ref().map(Coalescer::figures)
    }

    /// What is dropped and split between the queues; packets are counted by the queues themselves.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Packets that wait for the egress.
    fn waiting(&self) -> usize {
        let ready = self.coalescer.as_ref().map_or(0, Coalescer::ready);
        self.incoming.len() + ready + self.finisher.holds() + self.outgoing.len()
    }

    /// Packets that were received and not yet taken by an egress: waiting for it, for more of their flow, or for the other
    /// direction.
    pub fn held(&self) -> usize {
        self.waiting() + self.turned.len() + self.coalescer.as_ref().map_or(0, Coalescer::held)
    }

    /// Why the route will move no more packets; `None` while it may.
    pub fn ended(&self) -> Option<&State> {
        self.ended.as_ref()
    }

    /// Whether the route has nothing to wait for: it has ended, or its ingress never brings anything.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.ended.is_some() || self.silent
    }

    /// Whether packets are on their way that must not be cut off: held here, or taken by the egress and not yet gone.
    pub(crate) fn is_draining(&self) -> bool {
        self.held() + self.tx.pending() > 0 || (self.config.internal && self.ended.is_none())
    }

    /// Moves one burst; returns how many packets were received or sent. With `stopping`, nothing more is received.
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
            if !self.closed && !self.is_draining() {
                self.closed = true;
                self.tx.close();
            }
            return sent;
        }
        if self.turned.len() > TURNED - Batch::<64>::CAPACITY {
            return 0;
        }
        if self.turned.is_empty() {
            self.settling.step(&mut self.rx, self.coalescer.as_mut(), &mut self.tx);
        }
        self.rx.refill();
        let received = self.rx.rx(&mut self.incoming);
        if received == 0 {
            self.look_for_the_end();
            if let Some(coalescer) = &mut self.coalescer {
                coalescer.idle();
                return self.send();
            }
            return 0;
        }
        if let Some(limit) = &self.limit {
            let granted = limit.take(received);
            while self.incoming.len() > granted {
                if let Some(packet) = self.incoming.pop() {
                    self.counters.dropped(DropReason::Stopped, 1);
                    self.finisher.cache().free(packet);
                }
            }
            if limit.used_up() {
                self.ended = Some(State::Done);
            }
        }
        if self.judge.is_some() {
            self.judge_incoming();
        }
        if self.mirrors {
            self.mirror_incoming();
        }
        let worth = self.gro.applies(self.can);
        if let Some(coalescer) = &mut self.coalescer
            && (worth || coalescer.ready() + coalescer.held() > 0)
        {
            coalescer.push(&mut self.incoming, received < Batch::<64>::CAPACITY);
        }
        self.send();
        // A port that is gone may take packets and drop them, and an ingress that always has more would go on for ever.
        let egress = self.tx.state();
        if egress.ended() && self.ended.is_none() {
            self.ended = Some(egress);
        }
        received
    }

    /// Lets the judge decide on every packet that has come in.
    fn judge_incoming(&mut self) {
        let Some(judge) = &mut self.judge else { return };
        if judge.constant() == Some(Verdict::Pass) {
            return;
        }
        let link = if self.config.layer == Layer::Ip { LinkKind::Ip } else { LinkKind::Ethernet };
        let mut verdicts = [Verdict::Pass; Batch::<64>::CAPACITY];
        for (packet, verdict) in self.incoming.as_mut_slice().iter_mut().zip(&mut verdicts) {
            let found = dissect_packet(packet, link);
            *verdict = judge.judge(packet, &found);
            if packet.flow_hash().is_none() {
                packet.set_flow_hash(found.symmetric_hash(0));
            }
        }
        if verdicts[..self.incoming.len()].iter().all(|verdict| *verdict == Verdict::Pass) {
            return;
        }
        let mut judged = std::mem::take(&mut self.incoming);
        let (n, side) = (judged.len(), self.standing.side);
        for (mut packet, verdict) in judged.drain_front(n).zip(verdicts) {
            match verdict {
                Verdict::Drop => {
                    self.counters.dropped(DropReason::Filtered, 1);
                    self.finisher.cache().free(packet);
                    continue;
                }
                Verdict::Tx => {
                    self.turned.push_back(packet);
                    continue;
                }
                Verdict::Port(to) if to == side => {
                    self.turned.push_back(packet);
                    continue;
                }
                Verdict::Lane(lane) => packet.set_lane(u8::try_from(lane).ok()),
                Verdict::Pass | Verdict::Port(_) => {}
            }
            let _ = self.incoming.push(packet);
        }
    }

    /// Turns all that has come in round; what can't be is dropped as malformed.
    fn mirror_incoming(&mut self) {
        let mut turned = [true; Batch::<64>::CAPACITY];
        for (packet, turned) in self.incoming.as_mut_slice().iter_mut().zip(&mut turned) {
            *turned = mirror(packet, self.config.layer);
        }
        if turned.iter().all(|turned| *turned) {
            return;
        }
        let mut all = std::mem::take(&mut self.incoming);
        let n = all.len();
        for (packet, turned) in all.drain_front(n).zip(turned) {
            if turned {
                let _ = self.incoming.push(packet);
            } else {
                self.counters.dropped(DropReason::Malformed, 1);
                self.finisher.cache().free(packet);
            }
        }
    }

    /// Packets that are to leave by the port that they came from.
    pub(crate) fn turned(&mut self) -> &mut VecDeque<Packet> {
        &mut self.turned
    }

    /// Takes packets that the route of the other direction turned back, as many as it has room for, and sends them.
    pub(crate) fn take_turned(&mut self, turned: &mut VecDeque<Packet>) {
        if self.waiting() > 0 {
            return;
        }
        while self.incoming.room() > 0
            && let Some(packet) = turned.pop_front()
        {
            let _ = self.incoming.push(packet);
        }
        self.send();
    }

    /// There is no route of the other direction.
    pub(crate) fn refuse_turned(&mut self) {
        self.counters.dropped(DropReason::Refused, self.turned.len() as u64);
        for packet in self.turned.drain(..) {
            self.finisher.cache().free(packet);
        }
    }

    /// Lets go of what is held for more of its flow; returns how many packets were sent.
    fn flush(&mut self) -> usize {
        match &mut self.coalescer {
            Some(coalescer) if coalescer.held() > 0 => {
                coalescer.flush();
                self.send()
            }
            _ => 0,
        }
    }

    /// Sends what is held, as far as the egress takes it; returns how many packets it took.
    #[inline]
    fn send(&mut self) -> usize {
        let mut sent = 0;
        loop {
            if let Some(coalescer) = &mut self.coalescer {
                coalescer.fill(&mut self.incoming);
            }
            let direct = self.outgoing.is_empty()
                && self.finisher.holds() == 0
                && !self.incoming.iter().any(|packet| asks_more(packet, self.can));
            let batch = if direct {
                &mut self.incoming
            } else {
                self.finisher.finish(&mut self.incoming, &mut self.outgoing, self.can);
                &mut self.outgoing
            };
            if batch.is_empty() {
                break;
            }
            if let Some(fitter) = &mut self.fitter {
                fitter.fit(batch, self.finisher.cache());
            }
            let taken = self.tx.tx(batch);
            sent += taken;
            self.settling.took(taken);
            let refused = !batch.is_empty();
            let can = self.tx.offloads().and(self.config.allow);
            if can != self.can {
                self.can = can;
                self.rx.restrict(can);
                self.finisher.redo(&mut self.outgoing, can);
                continue;
            }
            if refused {
                break;
            }
        }
        self.tx.kick();
        sent
    }

    /// The egress takes no more for now.
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

    #[cold]
    fn look_for_the_end(&mut self) {
        let (rx, tx) = (self.rx.state(), self.tx.state());
        let used_up = self.limit.as_ref().is_some_and(|limit| limit.used_up());
        self.ended = match (rx.ended(), tx.ended()) {
            (true, _) => Some(rx),
            (_, true) => Some(tx),
            _ => used_up.then_some(State::Done),
        };
    }

    /// The time for draining is over: what is still held is dropped.
    pub(crate) fn abandon(&mut self) {
        if let Some(coalescer) = &mut self.coalescer {
            coalescer.flush();
        }
        self.counters.dropped(DropReason::Stopped, self.turned.len() as u64);
        for packet in self.turned.drain(..) {
            self.finisher.cache().free(packet);
        }
        self.drop_held(DropReason::Stopped);
    }

    /// Drops everything that waits for the egress.
    fn drop_held(&mut self, reason: DropReason) {
        self.counters.dropped(reason, self.waiting() as u64);
        if let Some(coalescer) = &mut self.coalescer {
            coalescer.drop_ready(self.finisher.cache());
        }
        self.finisher.drop_held();
        self.finisher.cache().free_bulk(&mut self.incoming);
        self.finisher.cache().free_bulk(&mut self.outgoing);
    }

    /// What an idle worker waits for, and whether on the sending side.
    pub(crate) fn wakes(&self) -> [(Wake, bool); 2] {
        if self.held() > 0 {
            // A descriptor that is writable all the time although the queue refuses would make a busy loop: the time
            // that the route waits is bounded anyway, so it is looked at from time to time as well.
            return [(Wake::Poll, true), (Wake::Never, true)];
        }
        let reclaim = match self.tx.pending() {
            0 if self.settling.is_under_way() => Wake::Poll,
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
