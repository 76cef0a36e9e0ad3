//! What an application receives: its RX and FILL rings.
//!
//! Bytes are copied once. An application that has posted too few chunks, or does not look into its RX ring, loses packets, which are
//! counted by name; it never holds up the others.

use super::events::Fault;
use super::memory::Piece;
use super::session::Session;
use super::statistics::Counted;
use crate::rules::Rules;
use crate::vnet::VnetHeader;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_client::protocol::{HEADER, MAX_PIECES, MAX_SUPER_PIECES, Statistic};
use towpath_packet::xring::{Consumer, Desc, Mapped, Producer};
use towpath_packet::{DropReason, Packet};

/// An application, as every transmit queue of the port knows it.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) session: Arc<Session>,
    pub(super) rules: Rules,
    /// Whether it gets what no rule of anybody matches.
    pub(super) default: bool,
    /// Sessions of the same memory with the same rules have the same group.
    pub(super) group: u64,
    /// The queue that it lives on.
    pub(super) queue: u16,
    /// Whether it takes what is not finished.
    pub(super) offloads: bool,
    /// Bytes of a packet that fit in one of its chunks.
    room: usize,
    /// Taken by a queue once for all packets of a burst.
    half: Mutex<Receiving>,
}

impl Receiver {
    pub(super) fn new(
        session: Arc<Session>,
        (rules, default): (Rules, bool),
        (group, queue): (u64, u16),
        half: Receiving,
    ) -> Receiver {
        let (offloads, room) = (half.offloads, session.memory.chunk() - half.headroom);
        Receiver { session, rules, default, group, queue, offloads, room, half: Mutex::new(half) }
    }

    /// Whether it takes a packet that is not finished as it is.
    pub(super) fn takes(&self, packet: &Packet) -> bool {
        self.offloads && packet.len().div_ceil(self.room) <= MAX_SUPER_PIECES
    }

    /// The rings, for this queue alone.
    #[inline]
    pub(super) fn half(&self) -> MutexGuard<'_, Receiving> {
        // Nobody panics in the middle of it.
        self.half.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes chunks out of the FILL ring, unless another queue is at it.
    #[inline]
    pub(super) fn stock(&self) -> Result<(), Fault> {
        self.half.try_lock().map_or(Ok(()), |mut half| half.stock(&self.session))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        for piece in self.half().posted.drain(..) {
            self.session.memory.returned(piece.chunk);
        }
        self.session.events().halves.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The datapath's ends of the rings.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) fill: Consumer<Mapped<u64>>,
    pub(super) rx: Producer<Mapped<Desc>>,
    pub(super) counted: Counted,
    /// Addresses that can't be are counted, and do not end the session.
    pub(super) lenient: bool,
    /// Chunks that were posted.
    pub(super) posted: Vec<Piece>,
    pub(super) headroom: usize,
    /// Whether a packet may come in several chunks.
    pub(super) pieces: bool,
    /// Whether packets that are not finished may come, with a header in front.
    pub(super) offloads: bool,
}

impl Receiving {
    /// Takes chunks out of the FILL ring.
    #[inline]
    pub(super) fn stock(&mut self, session: &Session) -> Result<(), Fault> {
        let room = self.posted.capacity() - self.posted.len();
        let ready = self.fill.try_ready(1).map_err(|_| Fault::Counter)? as usize;
        let n = ready.min(room);
        for _ in 0..n {
            match session.memory.fillable(self.fill.pop()) {
                Ok(piece) => {
                    session.memory.posted(piece);
                    self.posted.push(piece);
                }
                Err(_) if self.lenient => {
                    self.counted.add(Statistic::RxInvalidDescs, 1);
                    session.events().skipped.fetch_add(1, Ordering::Relaxed);
                }
                Err(fault) => return Err(fault),
            }
        }
        if n > 0 {
            self.fill.release();
        }
        Ok(())
    }

    /// Copies the packet into posted chunks; why not, if not. It is seen when it is [published](Receiving::publish).
    #[inline]
    pub(super) fn deliver(&mut self, session: &Session, packet: &Packet) -> Result<Option<DropReason>, Fault> {
        let memory = &session.memory;
        let room = memory.chunk() - self.headroom;
        let pieces = packet.len().div_ceil(room);
        let header = if self.offloads { VnetHeader::of(packet) } else { Ok(VnetHeader::default()) };
        let header = match header {
            Ok(header) => header,
            Err(reason) => return Ok(Some(reason)),
        };
        let most = if packet.gso().is_some() { MAX_SUPER_PIECES } else { MAX_PIECES };
        if pieces > 1 && (!self.pieces || pieces > most) {
            return Ok(Some(DropReason::TooLong));
        }
        if pieces > self.posted.len() {
            self.stock(session)?;
        }
        if pieces > self.posted.len() {
            return Ok(Some(DropReason::NoBuffer));
        }
        if self.rx.try_free(pieces as u32).map_err(|_| Fault::Counter)? < pieces as u32 {
            return Ok(Some(DropReason::EgressFull));
        }
        for number in 0..pieces {
            let Some(piece) = self.posted.pop() else { break };
            let from = number * room;
            let len = (packet.len() - from).min(room);
            // It lies inside: chunk and headroom were bounded.
            let _ = memory.foreign().write(piece.at + self.headroom, packet, from, len);
            memory.returned(piece.chunk);
            let mut options = if number + 1 < pieces { Desc::CONTINUED } else { 0 };
            if number == 0 && header != VnetHeader::default() {
                options |= Desc::METADATA;
                // It lies in the headroom.
                let _ = memory.foreign().put(piece.at + self.headroom - HEADER, &header.write());
            }
            self.rx.push(Desc { addr: memory.received(piece, self.headroom), len: len as u32, options });
        }
        Ok(None)
    }

    /// Counts a packet that was not delivered, as AF_XDP does.
    #[cold]
    pub(super) fn lost(&mut self, reason: DropReason) {
        match reason {
            DropReason::EgressFull => self.counted.add(Statistic::RxRingFull, 1),
            DropReason::NoBuffer => {
                self.counted.add(Statistic::RxFillRingEmptyDescs, 1);
                self.counted.add(Statistic::RxDropped, 1);
            }
            _ => self.counted.add(Statistic::RxDropped, 1),
        }
    }

    /// Shows the application what was delivered.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.rx.publish();
    }
}
