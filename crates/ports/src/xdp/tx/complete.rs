//! Completion: the COMPLETION ring, the packets' counters; reopened queues.

use super::SocketTx;
use super::stall::Stall;
use crate::kernel::link::down;
use crate::xdp::events::Event;
use crate::xdp::queue::Posted;
use crate::xdp::tx_metadata;
use std::time::Instant;
use towpath_packet::port::State;
use towpath_packet::{DropReason, Packet};
use towpath_sys::netdev::LinkState;

/// The state of a stalled queue until it has new rings.
fn reopening() -> State {
    State::Down("the driver completes nothing that was sent: the queue is being reopened".into())
}

impl SocketTx {
    /// Completes a chunk; returns the packet if that was its last one.
    #[inline]
    fn complete(&mut self, addr: u64) -> Option<Packet> {
        let located = self.queue.port.umem.locate(addr);
        let Some(Ok(completed)) = located.map(|(chunk, _)| self.in_flight.complete(chunk)) else {
            // The address is outside the UMEM, or its chunk is not in flight.
            self.counters.failed(1);
            self.queue.port.events.count(Event::UnknownCompletion, 1);
            return None;
        };
        let mut packet = completed?;
        if let Some(sample) = &mut self.timestamp {
            let first = packet.chunks().next().and_then(|frag| self.queue.port.umem.address(&frag));
            if first.is_some_and(|(chunk, _)| sample.is_in(chunk)) {
                sample.end(tx_metadata::take_timestamp(&mut packet), &self.queue.port.events.delays);
            }
        }
        Some(packet)
    }

    /// Reads the COMPLETION ring; returns the number of packets.
    #[inline]
    pub(super) fn reap(&mut self) -> usize {
        let mut sent = 0;
        let mut bytes = 0;
        while let Some(rings) = &mut self.rings {
            let ready = rings.completion.peek(1).min(self.completed.room() as u32);
            if ready == 0 {
                break;
            }
            for _ in 0..ready {
                let Some(rings) = &mut self.rings else { break };
                let addr = rings.completion.read();
                if let Some(packet) = self.complete(addr) {
                    bytes += packet.len() as u64;
                    sent += 1;
                    let _ = self.completed.push(packet);
                }
            }
            if let Some(rings) = &mut self.rings {
                rings.completion.release();
            }
            self.cache.free_bulk(&mut self.completed);
        }
        if sent > 0 {
            self.stall = Stall::default();
            self.worked = true;
            let refused = self.refused.min(sent);
            if refused > 0 {
                // The refused ones among them are not known; their bytes are estimated by the mean.
                bytes -= bytes / sent * refused;
                self.refused -= refused;
                self.counters.dropped(DropReason::Refused, refused);
            }
            self.counters.moved(sent - refused, bytes);
        }
        sent as usize
    }

    /// Nothing was completed: reads the state of the link and the socket's statistics, and detects
    /// a stall.
    #[cold]
    pub(super) fn check_progress(&mut self) {
        let Some(link) = self.watch.poll() else { return };
        match link {
            // The link is up; a detached queue stays down until it has rings.
            LinkState::Up if matches!(self.state, State::Down(_)) => {
                self.state = if self.detached { reopening() } else { State::Up }
            }
            LinkState::Up => {}
            LinkState::Absent => self.state = self.queue.gone(),
            LinkState::Down | LinkState::NoCarrier => self.state = down(link),
        }
        if let Some(rings) = &self.rings
            && let Ok(now) = rings.socket.statistics()
        {
            let new = now.tx_invalid.saturating_sub(self.last_invalid);
            self.last_invalid = now.tx_invalid;
            self.refused += new;
            self.counters.failed(new);
            self.queue.port.events.count(Event::TxInvalid, new);
        }
        if self.state.ended() {
            self.reap();
            self.rings = None;
            self.abandon(DropReason::PortGone);
        } else if self.in_flight.packets() == 0 || self.state != State::Up {
            self.stall = Stall::default();
        } else if self.stall.look(Instant::now(), self.queue.port.config.stall) {
            self.stall = Stall::default();
            self.counters.failed(1);
            self.queue.stalled(self.worked);
        }
    }

    /// Counts the packets in flight as dropped. They stay in flight until the socket is closed.
    pub(super) fn abandon(&mut self, reason: DropReason) {
        let packets = self.in_flight.packets() as u64;
        if packets > 0 {
            self.counters.dropped(reason, packets);
        }
        self.in_flight.abandon();
        (self.refused, self.needs_kick) = (0, false);
        if let Some(sample) = &mut self.timestamp {
            sample.end(None, &self.queue.port.events.delays);
        }
    }

    /// Detaches from the stalled queue, and attaches to the reopened one.
    #[cold]
    pub(super) fn reattach(&mut self) {
        if !self.detached {
            self.reap();
            self.rings = None;
            self.detached = true;
            self.abandon(DropReason::Refused);
            self.queue.detach(self.in_flight.drain().map(Posted::Tx));
            self.state = reopening();
        }
        match self.queue.attach_tx() {
            Ok(None) => {}
            Ok(rings) => {
                self.rings = rings;
                self.detached = false;
                self.epoch = self.queue.epoch();
                (self.last_invalid, self.worked) = (0, false);
                self.state = State::Up;
            }
            Err(why) => self.state = State::Gone(why.into()),
        }
    }
}
