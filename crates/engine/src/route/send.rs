//! The way out: what the egress takes, what it refuses, and for how long that is borne.

use super::Route;
use crate::software_offload::asks_more;
use std::time::Instant;
use towpath_packet::DropReason;
use towpath_packet::port::{RxQueue, State, TxQueue};

impl<R: RxQueue, T: TxQueue> Route<R, T> {
    /// Lets go of what is held for more of its flow; returns how many packets were sent.
    pub(super) fn flush(&mut self) -> usize {
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
    pub(super) fn send(&mut self) -> usize {
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
                self.rx.set_rx_offloads(can);
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
    pub(super) fn refused(&mut self, progress: bool) {
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
}
