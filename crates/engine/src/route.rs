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

mod build;
mod config;
mod send;
mod settle;
mod verdict;

pub use config::{Limit, RouteConfig, Standing};

use crate::gro_stage::{CoalesceConfig, Coalescer};
use crate::linearize::Fitter;
use crate::report::GroCounters;
use crate::rules::Judge;
use crate::software_offload::Finisher;
use settle::Settling;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use towpath_packet::port::{RxQueue, State, TxQueue, Wake};
use towpath_packet::{Batch, Counters, DropReason, Offloads, Packet};

/// Packets that may wait for the route of the other direction.
const TURNED: usize = 256;

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
