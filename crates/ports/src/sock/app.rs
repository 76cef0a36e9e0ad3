//! An application as one transmit queue of the port knows it, and who has its rings.
//!
//! ```text
//!   one queue        took the rings with the first packet, and keeps them: nothing is shared
//!   several queues   take ──► packets of one burst ──► publish ──► put back
//!                    taken by another queue? the burst waits in front of this packet, as behind a ring that is full
//! ```
//!
//! A queue never waits for another: it is told that the rings are taken, and its worker goes on with its other routes. Who has them gives
//! them back at the end of a burst, and takes nobody else's turn by that: the packets of each flow come through one queue, which keeps
//! them in order whether they wait or not.
//!
//! An application with a session on every queue (of one memory, with the same rules) has rings for each of them, which only the queue that
//! they live on takes: they are never found taken.

use super::events::Fault;
use super::receiving::{Receiver, Receiving};
use super::roster::Member;
use super::session::Session;
use std::sync::Arc;
use towpath_packet::{DropReason, Packet};

/// An application, and what one queue has to do with it.
#[derive(Debug)]
pub(super) struct App {
    pub(super) receiver: Arc<Receiver>,
    /// Who gets its packets from this queue: itself, or the one of its group that lives here.
    pub(super) here: usize,
    /// Its rings, as long as this queue has them.
    rings: Option<Box<Receiving>>,
    /// It was given something that it is not shown yet.
    unpublished: bool,
    /// It was given something, and not woken.
    unannounced: bool,
}

impl Member for App {
    fn session(&self) -> &Session {
        &self.receiver.session
    }
}

impl App {
    pub(super) fn new(receiver: Arc<Receiver>) -> App {
        App { receiver, here: 0, rings: None, unpublished: false, unannounced: false }
    }

    /// Takes the rings, unless this queue has them; `false` if another queue does.
    #[inline]
    pub(super) fn take_rings(&mut self) -> bool {
        if self.rings.is_none() {
            self.rings = self.receiver.rings.take();
        }
        // Of a session that is over nobody needs them.
        self.rings.is_some() || self.session().is_closed()
    }

    /// Shows the application what it was given, and lets other queues have the rings, if there are any.
    #[inline]
    pub(super) fn end_burst(&mut self, alone: bool) {
        if std::mem::take(&mut self.unpublished)
            && let Some(rings) = &mut self.rings
        {
            rings.publish();
            self.unannounced = true;
        }
        if !alone && let Some(rings) = self.rings.take() {
            self.receiver.rings.put(rings);
        }
    }

    /// Gives it a packet, for which the rings were taken; why not, if not, and what it did to lose its session.
    #[inline]
    pub(super) fn give(&mut self, packet: &Packet) -> Result<(), (DropReason, Option<Fault>)> {
        let gone = (DropReason::PortGone, None);
        if self.session().is_closed() {
            return Err(gone);
        }
        let rings = self.rings.as_mut().ok_or(gone)?;
        match rings.deliver(packet) {
            Ok(None) => {
                self.unpublished = true;
                Ok(())
            }
            Ok(Some(reason)) => {
                rings.lost(reason);
                Err((reason, None))
            }
            Err(fault) => Err((DropReason::PortGone, Some(fault))),
        }
    }

    /// Takes chunks out of its FILL ring, unless another queue has the rings.
    #[inline]
    pub(super) fn stock(&mut self, alone: bool) -> Result<(), Fault> {
        self.take_rings();
        let done = self.rings.as_mut().map_or(Ok(()), |rings| rings.stock());
        self.end_burst(alone);
        done
    }

    /// Wakes it, if it was given something and sleeps.
    #[inline]
    pub(super) fn announce(&mut self) {
        if std::mem::take(&mut self.unannounced) {
            self.session().tell_received();
        }
    }
}
