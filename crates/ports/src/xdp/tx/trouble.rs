//! When nothing is completed: links, stalls, and queues that are made anew.

use super::super::events::Event;
use super::super::queue::Loan;
use super::SocketTx;
use crate::kernel::link::down;
use std::time::Instant;
use towpath_packet::DropReason;
use towpath_packet::port::State;
use towpath_sys::netdev::Link;

/// The state of a queue that stalled, until it has new rings.
fn anew() -> State {
    State::Down("the driver completes nothing of what was sent: the queue is being made anew".into())
}

impl SocketTx {
    /// Nothing was completed: is there a reason, or is it a stall?
    #[cold]
    pub(super) fn look(&mut self) {
        let Some(link) = self.watch.look() else { return };
        match link {
            // A link that is up brings no rings.
            Link::Up if matches!(self.state, State::Down(_)) => {
                self.state = if self.handed { anew() } else { State::Up }
            }
            Link::Up => {}
            Link::Absent => self.state = self.queue.gone(),
            Link::Down | Link::NoCarrier => self.state = down(link),
        }
        if let Some(rings) = &self.rings
            && let Ok(now) = rings.socket.statistics()
        {
            let new = now.tx_invalid.saturating_sub(self.invalid);
            self.invalid = now.tx_invalid;
            self.refused += new;
            self.counters.failed(new);
            self.queue.setup.events.count(Event::TxInvalid, new);
        }
        if self.state.ended() {
            self.collect();
            self.rings = None;
            self.give_up(DropReason::PortGone);
        } else if self.lent.packets() == 0 || self.state != State::Up {
            self.waits_since = None;
        } else if self.waits_since.get_or_insert_with(Instant::now).elapsed() > self.queue.setup.config.stall {
            self.waits_since = None;
            self.counters.failed(1);
            self.queue.stalled(self.worked);
        }
    }

    /// What is on its way is not waited for any more. It stays lent until the socket is closed.
    pub(super) fn give_up(&mut self, reason: DropReason) {
        let packets = self.lent.packets() as u64;
        if packets > 0 {
            self.counters.dropped(reason, packets);
        }
        self.lent.forget();
        (self.refused, self.unfinished) = (0, false);
        if let Some(sample) = &mut self.sample {
            sample.end(None, &self.queue.setup.events.delays);
        }
    }

    /// The queue is being made anew.
    #[cold]
    pub(super) fn renew(&mut self) {
        if !self.handed {
            self.collect();
            self.rings = None;
            self.handed = true;
            self.give_up(DropReason::Refused);
            self.queue.hand_over(self.lent.take().map(Loan::Tx));
            self.state = anew();
        }
        match self.queue.claim_tx() {
            Ok(None) => {}
            Ok(rings) => {
                self.rings = rings;
                self.handed = false;
                self.epoch = self.queue.epoch();
                (self.invalid, self.worked) = (0, false);
                self.state = State::Up;
            }
            Err(why) => self.state = State::Gone(why.into()),
        }
    }
}
