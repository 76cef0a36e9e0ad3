//! One application of the transmit queues: its rules, its RX and FILL rings, and the queue that
//! has them.
//!
//! ```text
//!   one queue        takes the rings with the first packet, and keeps them: nothing is shared
//!   several queues   take ──► packets of one burst ──► submit ──► put back
//!                    taken by another queue? the burst waits, as for a ring that is full
//! ```
//!
//! A queue never waits for another one: `take_rings` fails while another queue has the rings, and
//! the worker goes on with its other routes. A queue puts the rings back at the end of its burst.
//! Order is kept in either case: the packets of a flow come through one queue, which keeps their
//! order.
//!
//! An application with a session on every queue (of one memory, with the same rules) has rings for
//! each of them. Only the session's queue takes them, so they are always free for it.
//!
//! Bytes are copied once. An application that posts too few chunks, or leaves its RX ring full,
//! loses packets, which are counted by reason. It does not delay other applications.

use crate::sock::session::{Session, SessionHalf};
use crate::sock::stats::{Fault, SessionStats};
use crate::sock::umem::FillChunk;
use crate::vnet::{self, VnetHeader};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_client::protocol::{HEADER, MAX_PIECES, MAX_SUPER_PIECES, Statistic};
use towpath_engine::rules::Rules;
use towpath_packet::xsk_ring::{Consumer, Desc, Mapped, Producer};
use towpath_packet::{DropReason, Packet, TakeCell};

/// A session as all transmit queues of the port share it.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(in crate::sock) session: Arc<Session>,
    pub(super) rules: Rules,
    /// It gets the packets that no application's rule matches.
    pub(super) default: bool,
    /// Sessions of the same memory with the same rules have the same group.
    pub(super) group: u64,
    /// The queue of the session.
    pub(super) queue: u16,
    /// It takes super-packets and partial checksums.
    pub(super) offloads: bool,
    /// Bytes of a packet that fit in one of its chunks.
    room: usize,
    /// The rings, while no queue has them.
    rings: TakeCell<AppRxRings>,
}

impl Destination {
    pub(crate) fn new((rules, default): (Rules, bool), (group, queue): (u64, u16), rings: AppRxRings) -> Destination {
        let (session, offloads, room) = (rings.session.clone(), rings.offloads, rings.room());
        Destination { session, rules, default, group, queue, offloads, room, rings: TakeCell::new(Box::new(rings)) }
    }

    /// Whether it takes a packet with offloads as it is.
    pub(super) fn accepts(&self, packet: &Packet) -> bool {
        self.offloads && packet.len().div_ceil(self.room) <= MAX_SUPER_PIECES
    }
}

/// A destination, and its state on one queue.
#[derive(Debug)]
pub(crate) struct App {
    pub(in crate::sock) destination: Arc<Destination>,
    /// The index of the application that gets its packets from this queue: itself, or the member of
    /// its group whose session belongs to this queue.
    pub(super) local: usize,
    /// The rings, while this queue has them.
    rings: Option<Box<AppRxRings>>,
    /// The RX ring has entries that were not submitted.
    unsubmitted: bool,
    /// Entries were submitted, and the application was not notified.
    unnotified: bool,
}

impl SessionHalf for App {
    fn session(&self) -> &Session {
        &self.destination.session
    }
}

impl App {
    pub(crate) fn new(destination: Arc<Destination>) -> App {
        App { destination, local: 0, rings: None, unsubmitted: false, unnotified: false }
    }

    /// Takes the rings, unless this queue has them; `false` if another queue does.
    #[inline]
    pub(crate) fn take_rings(&mut self) -> bool {
        if self.rings.is_none() {
            self.rings = self.destination.rings.take();
        }
        // A closed session needs no rings.
        self.rings.is_some() || self.session().is_closed()
    }

    /// Submits the entries of the burst, and puts the rings back if there are other queues.
    #[inline]
    pub(crate) fn end_burst(&mut self, single_queue: bool) {
        if std::mem::take(&mut self.unsubmitted)
            && let Some(rings) = &mut self.rings
        {
            rings.submit();
            self.unnotified = true;
        }
        if !single_queue && let Some(rings) = self.rings.take() {
            self.destination.rings.put(rings);
        }
    }

    /// Delivers a packet into the rings that were taken. Else returns the reason, and the fault if
    /// the application broke the protocol.
    #[inline]
    pub(super) fn deliver(&mut self, packet: &Packet) -> Result<(), (DropReason, Option<Fault>)> {
        let gone = (DropReason::PortGone, None);
        if self.session().is_closed() {
            return Err(gone);
        }
        let rings = self.rings.as_mut().ok_or(gone)?;
        match rings.deliver(packet) {
            Ok(None) => {
                self.unsubmitted = true;
                Ok(())
            }
            Ok(Some(reason)) => {
                rings.count_drop(reason);
                Err((reason, None))
            }
            Err(fault) => Err((DropReason::PortGone, Some(fault))),
        }
    }

    /// Takes chunks out of its FILL ring, unless another queue has the rings.
    #[inline]
    pub(super) fn take_fill(&mut self, single_queue: bool) -> Result<(), Fault> {
        self.take_rings();
        let done = self.rings.as_mut().map_or(Ok(()), |rings| rings.take_fill());
        self.end_burst(single_queue);
        done
    }

    /// Wakes the application if it sleeps and has new entries.
    #[inline]
    pub(super) fn notify(&mut self) {
        if std::mem::take(&mut self.unnotified) {
            self.session().notify_rx();
        }
    }
}

/// The rings by which an application receives, RX and FILL. The transmit queues of the port have
/// them: what an application receives, the port transmits.
#[derive(Debug)]
pub(crate) struct AppRxRings {
    pub(crate) session: Arc<Session>,
    pub(crate) fill: Consumer<Mapped<u64>>,
    pub(crate) rx: Producer<Mapped<Desc>>,
    pub(crate) stats: SessionStats,
    /// Invalid addresses are counted and do not end the session.
    pub(crate) skip_invalid: bool,
    /// Chunks that were posted.
    pub(crate) posted: Vec<FillChunk>,
    pub(crate) headroom: usize,
    /// A packet may come in several chunks.
    pub(crate) pieces: bool,
    /// Packets with offloads may come, with a header in front.
    pub(crate) offloads: bool,
}

impl Drop for AppRxRings {
    fn drop(&mut self) {
        for chunk in self.posted.drain(..) {
            self.session.umem.unpost(chunk.index);
        }
    }
}

impl AppRxRings {
    /// Bytes of a packet that fit in a chunk.
    #[inline]
    fn room(&self) -> usize {
        self.session.umem.chunk() - self.headroom
    }

    /// Takes chunks out of the FILL ring.
    #[inline]
    fn take_fill(&mut self) -> Result<(), Fault> {
        let room = self.posted.capacity() - self.posted.len();
        let ready = self.fill.try_peek(1).map_err(|_| Fault::Counter)? as usize;
        let n = ready.min(room);
        for _ in 0..n {
            match self.session.umem.locate_fill(self.fill.read()) {
                Ok(chunk) => {
                    self.session.umem.post(chunk);
                    self.posted.push(chunk);
                }
                Err(fault) => {
                    self.stats.add(Statistic::RxInvalidDescs, 1);
                    if !self.skip_invalid {
                        return Err(fault);
                    }
                    self.session.events.skipped.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        if n > 0 {
            self.fill.release();
        }
        Ok(())
    }

    /// Copies a packet into posted chunks, or returns the reason why not. The application sees it
    /// after [`submit`](AppRxRings::submit).
    #[inline]
    fn deliver(&mut self, packet: &Packet) -> Result<Option<DropReason>, Fault> {
        let room = self.room();
        let pieces = packet.len().div_ceil(room);
        let header = match self.offloads.then(|| vnet::header_of(packet)) {
            Some(Err(reason)) => return Ok(Some(reason)),
            Some(Ok(header)) if header != VnetHeader::default() => Some(header),
            _ => None,
        };
        let most = if packet.gso().is_some() { MAX_SUPER_PIECES } else { MAX_PIECES };
        if pieces > 1 && (!self.pieces || pieces > most) {
            return Ok(Some(DropReason::TooLong));
        }
        if pieces > self.posted.len() {
            self.take_fill()?;
        }
        if pieces > self.posted.len() {
            return Ok(Some(DropReason::NoBuffer));
        }
        if self.rx.try_reserve(pieces as u32).map_err(|_| Fault::Counter)? < pieces as u32 {
            return Ok(Some(DropReason::EgressFull));
        }
        let umem = &self.session.umem;
        for number in 0..pieces {
            let Some(chunk) = self.posted.pop() else { break };
            let from = number * room;
            let len = (packet.len() - from).min(room);
            // The bytes lie inside: chunk and headroom are bounded.
            let _ = umem.mem().write(chunk.at + self.headroom, packet, from, len);
            umem.unpost(chunk.index);
            let mut options = if number + 1 < pieces { Desc::CONTINUED } else { 0 };
            if number == 0
                && let Some(header) = header
            {
                options |= Desc::METADATA;
                // The header lies in the headroom.
                let _ = umem.mem().put(chunk.at + self.headroom - HEADER, &header.to_ne_bytes());
            }
            self.rx.write(Desc { addr: umem.rx_addr(chunk, self.headroom), len: len as u32, options });
        }
        Ok(None)
    }

    /// Counts a packet that was not delivered, as AF_XDP does.
    #[cold]
    fn count_drop(&mut self, reason: DropReason) {
        match reason {
            DropReason::EgressFull => self.stats.add(Statistic::RxRingFull, 1),
            DropReason::NoBuffer => {
                self.stats.add(Statistic::RxFillRingEmptyDescs, 1);
                self.stats.add(Statistic::RxDropped, 1);
            }
            _ => self.stats.add(Statistic::RxDropped, 1),
        }
    }

    /// Shows delivered packets to the application.
    #[inline]
    fn submit(&mut self) {
        self.rx.submit();
    }
}
