//! What an application receives: its RX and FILL rings.
//!
//! Bytes are copied once. An application that has posted too few chunks, or does not look into its RX ring, loses packets, which are
//! counted by name; it never holds up the others.

use super::events::Fault;
use super::memory::Piece;
use super::session::Session;
use super::statistics::Counted;
use crate::vnet::VnetHeader;
use crate::vnet::{self};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_client::protocol::{HEADER, MAX_PIECES, MAX_SUPER_PIECES, Statistic};
use towpath_engine::rules::Rules;
use towpath_packet::xsk_ring::{Consumer, Desc, Mapped, Producer};
use towpath_packet::{DropReason, Packet, TakeCell};

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
    /// Taken by one queue at a time.
    pub(super) rings: TakeCell<Receiving>,
}

impl Receiver {
    pub(super) fn new((rules, default): (Rules, bool), (group, queue): (u64, u16), rings: Receiving) -> Receiver {
        let (session, offloads, room) = (rings.session.clone(), rings.offloads, rings.room());
        Receiver { session, rules, default, group, queue, offloads, room, rings: TakeCell::new(Box::new(rings)) }
    }

    /// Whether it takes a packet that is not finished as it is.
    pub(super) fn takes(&self, packet: &Packet) -> bool {
        self.offloads && packet.len().div_ceil(self.room) <= MAX_SUPER_PIECES
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.session.events().halves.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The datapath's ends of the rings.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) session: Arc<Session>,
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

impl Drop for Receiving {
    fn drop(&mut self) {
        for piece in self.posted.drain(..) {
            self.session.memory.returned(piece.chunk);
        }
    }
}

impl Receiving {
    /// Bytes of a packet that fit in a chunk.
    #[inline]
    fn room(&self) -> usize {
        self.session.memory.chunk() - self.headroom
    }

    /// Takes chunks out of the FILL ring.
    #[inline]
    pub(super) fn stock(&mut self) -> Result<(), Fault> {
        let room = self.posted.capacity() - self.posted.len();
        let ready = self.fill.try_peek(1).map_err(|_| Fault::Counter)? as usize;
        let n = ready.min(room);
        for _ in 0..n {
            match self.session.memory.fillable(self.fill.read()) {
                Ok(piece) => {
                    self.session.memory.posted(piece);
                    self.posted.push(piece);
                }
                Err(_) if self.lenient => {
                    self.counted.add(Statistic::RxInvalidDescs, 1);
                    self.session.events().skipped.fetch_add(1, Ordering::Relaxed);
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
    pub(super) fn deliver(&mut self, packet: &Packet) -> Result<Option<DropReason>, Fault> {
        let room = self.room();
        let pieces = packet.len().div_ceil(room);
        let header = if self.offloads { vnet::header_of(packet) } else { Ok(VnetHeader::default()) };
        let header = match header {
            Ok(header) => header,
            Err(reason) => return Ok(Some(reason)),
        };
        let most = if packet.gso().is_some() { MAX_SUPER_PIECES } else { MAX_PIECES };
        if pieces > 1 && (!self.pieces || pieces > most) {
            return Ok(Some(DropReason::TooLong));
        }
        if pieces > self.posted.len() {
            self.stock()?;
        }
        if pieces > self.posted.len() {
            return Ok(Some(DropReason::NoBuffer));
        }
        if self.rx.try_reserve(pieces as u32).map_err(|_| Fault::Counter)? < pieces as u32 {
            return Ok(Some(DropReason::EgressFull));
        }
        let memory = &self.session.memory;
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
                let _ = memory.foreign().put(piece.at + self.headroom - HEADER, &header.to_ne_bytes());
            }
            self.rx.write(Desc { addr: memory.received(piece, self.headroom), len: len as u32, options });
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
        self.rx.submit();
    }
}
