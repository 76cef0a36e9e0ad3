//! What leaves through a queue: the TX ring, and the COMPLETION ring behind it.
//!
//! ```text
//!   batch ──► lent: chunk ─► packet ──► TX ring ──► kernel, driver ──► COMPLETION ring ──► home
//!                │  in no chunk of ours, in too many pieces, sharing a chunk with one on its way
//!                └──────────► copied first
//! ```
//!
//! A packet counts as sent when its last piece is completed. The kernel does not say what became of it, but when it drops a packet
//! it says so at once (EBUSY), and what it found invalid it counts: as many of the next completions count as refused.

use super::events::Event;
use super::lent::Lent;
use super::metadata;
use super::queue::{Loan, Queue, TxRings};
use super::timing::Sample;
use crate::finish::asks_more;
use crate::ports::kernel::link::{LinkWatch, down};
use crate::sys::netdev::Link;
use std::sync::Arc;
use std::time::Instant;
use towpath_packet::port::{Info, PortError, State, TxQueue, Wake};
use towpath_packet::xring::Desc;
use towpath_packet::{Batch, Cache, Counters, Csum, Direction, DropReason, Offloads, Packet};

/// Shortest frame that the kernel takes: an Ethernet header.
const SHORTEST: usize = 14;
/// Bytes of an Ethernet header and two tags.
const LINK: usize = 14 + 8;
/// Pieces of a packet, at most, that the kernel takes in any mode.
const MOST_PIECES: usize = 32;

/// A transmit queue of an AF_XDP port.
#[derive(Debug)]
pub struct SocketTx {
    rings: Option<TxRings>,
    pub(super) queue: Arc<Queue>,
    epoch: u32,
    /// The rings have been handed over, and no new ones have come.
    handed: bool,
    /// At most as many chunks as a ring has entries.
    lent: Lent,
    size: usize,
    pieces: usize,
    longest: usize,
    offloads: Offloads,
    /// Packets of which the kernel said that it dropped them, and that are not completed yet.
    refused: u64,
    invalid: u64,
    done: Batch,
    cache: Cache,
    copies: Cache,
    /// The last call left entries in the ring.
    unfinished: bool,
    /// Something was completed since the rings were made.
    worked: bool,
    /// The frame that is timed, where frames are.
    sample: Option<Sample>,
    waits_since: Option<Instant>,
    state: State,
    watch: LinkWatch,
    counters: Arc<Counters>,
}

impl SocketTx {
    pub(super) fn new(
        queue: Arc<Queue>,
        rings: TxRings,
        info: &Info,
        timed: bool,
        watch: LinkWatch,
        pool: &towpath_packet::Pool,
    ) -> Result<SocketTx, PortError> {
        let setup = &queue.setup;
        let failed = |source| PortError::Pool { port: setup.config.port(), source };
        Ok(SocketTx {
            rings: Some(rings),
            epoch: queue.epoch(),
            handed: false,
            lent: Lent::new(setup.frames.capacity()),
            size: setup.config.ring.into(),
            pieces: info.max_chunks.into(),
            longest: info.mtu as usize + LINK,
            offloads: info.tx_offloads,
            refused: 0,
            invalid: 0,
            done: Batch::new(),
            cache: pool.cache(Direction::Tx).map_err(failed)?,
            copies: setup.frames.pool.cache(Direction::Tx).map_err(failed)?,
            unfinished: false,
            worked: false,
            sample: timed.then(Sample::default),
            waits_since: None,
            state: State::Up,
            watch,
            counters: Arc::default(),
            queue,
        })
    }

    /// Packets from the front for whose pieces there is room.
    #[inline]
    fn fitting(&mut self, batch: &Batch) -> usize {
        let Some(rings) = &mut self.rings else { return 0 };
        let most = self.pieces.max(1);
        let at_worst = batch.len() * most;
        if (rings.tx.free(at_worst as u32) as usize).min(self.size - self.lent.chunks()) >= at_worst {
            return batch.len();
        }
        let pieces = |packet: &Packet| (packet.frags() + 1).min(most);
        let wanted: usize = batch.iter().map(pieces).sum();
        let free = rings.tx.free(wanted as u32) as usize;
        let mut room = free.min(self.size - self.lent.chunks());
        let mut n = 0;
        for packet in batch {
            match room.checked_sub(pieces(packet)) {
                Some(rest) => room = rest,
                None => break,
            }
            n += 1;
        }
        n
    }

    /// Puts a packet into the TX ring, in which there is room; or the reason why it can never go, and the packet.
    #[inline]
    fn submit(&mut self, packet: Packet) -> Result<(), (DropReason, Packet)> {
        if asks_more(&packet, self.offloads) {
            return Err((DropReason::Offload, packet));
        }
        match packet.len() {
            len if len < SHORTEST => return Err((DropReason::Malformed, packet)),
            len if len > self.longest => return Err((DropReason::TooLong, packet)),
            _ => {}
        }
        let mut place = self.place(&packet);
        let mut packet = packet;
        if place.is_none() && !self.can_go(&packet) {
            packet = self.copy(packet)?;
            place = self.place(&packet);
        }
        let mut ask = 0;
        if let Csum::Partial { .. } = packet.csum() {
            ask |= metadata::CHECKSUM;
        }
        let room = packet.headroom() >= metadata::LEN && !packet.linear().is_empty();
        if room && self.sample.as_ref().is_some_and(Sample::is_due) {
            ask |= metadata::TIMESTAMP;
        }
        if ask != 0 && metadata::ask(&mut packet, ask).is_none() {
            return Err((DropReason::Offload, packet));
        }
        match place {
            Some((chunk, addr)) => self.lend_whole(packet, chunk, addr, ask),
            None => self.lend_pieces(packet, ask),
        }
    }

    /// Whether there is room in front of the packet for what must be asked.
    #[inline]
    fn has_room(packet: &Packet) -> bool {
        !matches!(packet.csum(), Csum::Partial { .. })
            || (packet.headroom() >= metadata::LEN && !packet.linear().is_empty())
    }

    /// Chunk and address of a packet that is all in one chunk, from which the kernel can take it.
    #[inline]
    fn place(&self, packet: &Packet) -> Option<(usize, u64)> {
        if packet.frags() > 0 || !Self::has_room(packet) {
            return None;
        }
        let place = packet.chunks().next().and_then(|piece| self.queue.setup.frames.address(&piece));
        place.filter(|&(chunk, _)| self.lent.is_free(chunk))
    }

    /// Whether the kernel can take the packet from where it lies, in however many pieces.
    #[cold]
    fn can_go(&self, packet: &Packet) -> bool {
        if !Self::has_room(packet) {
            return false;
        }
        let mut pieces = 0;
        for piece in packet.chunks() {
            let Some((chunk, _)) = self.queue.setup.frames.address(&piece) else { return false };
            if !self.lent.is_free(chunk) {
                return false;
            }
            pieces += 1;
        }
        pieces <= self.pieces && (pieces < 2 || self.apart(packet))
    }

    /// Whether all pieces lie in chunks of their own, the head's among them.
    #[cold]
    fn apart(&self, packet: &Packet) -> bool {
        let mut seen = [usize::MAX; MOST_PIECES];
        for (i, piece) in packet.chunks().enumerate() {
            let Some((chunk, _)) = self.queue.setup.frames.address(&piece) else { return false };
            if seen.contains(&chunk) || i >= seen.len() {
                return false;
            }
            seen[i] = chunk;
        }
        true
    }

    /// The packet in chunks of our memory, with room for metadata in front.
    #[cold]
    fn copy(&mut self, packet: Packet) -> Result<Packet, (DropReason, Packet)> {
        let Some(mut copy) = self.copies.alloc() else { return Err((DropReason::NoBuffer, packet)) };
        if copy.headroom() < metadata::LEN {
            // A pool without headroom: make some.
            let _ = copy.push_back(metadata::LEN);
            copy.pull_front(metadata::LEN);
        }
        let len = packet.len();
        let mut at = len.min(copy.tailroom());
        if let Ok(room) = copy.push_back(at) {
            packet.copy_to(0, room);
        }
        while at < len {
            let Some(mut next) = self.copies.alloc() else { return Err((DropReason::NoBuffer, packet)) };
            let n = (len - at).min(next.tailroom());
            if let Ok(room) = next.push_back(n) {
                packet.copy_to(at, room);
            }
            at += n;
            if copy.frags() + 2 > self.pieces || n == 0 || copy.append(next).is_err() {
                return Err((DropReason::TooLong, packet));
            }
        }
        self.counters.copied(1, packet.len() as u64);
        copy.set_csum(packet.csum());
        self.cache.free(packet);
        Ok(copy)
    }

    #[inline]
    fn lend_whole(&mut self, packet: Packet, chunk: usize, addr: u64, ask: u64) -> Result<(), (DropReason, Packet)> {
        let Some(rings) = &mut self.rings else { return Err((DropReason::PortGone, packet)) };
        let options = if ask == 0 { 0 } else { Desc::METADATA };
        rings.tx.push(Desc { addr, len: packet.len() as u32, options });
        self.lent.lend(packet, chunk);
        self.time(chunk, ask);
        Ok(())
    }

    #[cold]
    fn lend_pieces(&mut self, packet: Packet, ask: u64) -> Result<(), (DropReason, Packet)> {
        let Some(rings) = &mut self.rings else { return Err((DropReason::PortGone, packet)) };
        let total = packet.chunks().count();
        let mut options = if ask == 0 { 0 } else { Desc::METADATA };
        let (mut chunks, mut n) = ([0; MOST_PIECES], 0);
        for (i, piece) in packet.chunks().enumerate() {
            // They were found there a moment ago, and are not more.
            let (Some((chunk, addr)), Some(at)) = (self.queue.setup.frames.address(&piece), chunks.get_mut(i)) else {
                continue;
            };
            (*at, n) = (chunk, i + 1);
            let more = if i + 1 < total { Desc::CONTINUED } else { 0 };
            rings.tx.push(Desc { addr, len: piece.len() as u32, options: options | more });
            options = 0;
        }
        if n == 0 {
            return Err((DropReason::Malformed, packet));
        }
        self.lent.lend_pieces(packet, &chunks[..n]);
        self.time(chunks[0], ask);
        Ok(())
    }

    /// The frame that begins in this chunk was submitted; it is timed if that was asked for.
    #[inline]
    fn time(&mut self, chunk: usize, ask: u64) {
        if ask & metadata::TIMESTAMP != 0
            && let Some(sample) = &mut self.sample
        {
            sample.begin(chunk);
        }
    }

    /// A chunk came back; the packet, if that was its last.
    #[inline]
    fn complete(&mut self, addr: u64) -> Option<Packet> {
        let located = self.queue.setup.frames.locate(addr);
        let Some(Ok(done)) = located.map(|(chunk, _)| self.lent.complete(chunk)) else {
            // Nothing of ours: the kernel, or someone else with the rings, is confused.
            self.counters.failed(1);
            self.queue.setup.events.count(Event::UnknownCompletion, 1);
            return None;
        };
        let mut packet = done?;
        if let Some(sample) = &mut self.sample {
            let first = packet.chunks().next().and_then(|piece| self.queue.setup.frames.address(&piece));
            if first.is_some_and(|(chunk, _)| sample.is_in(chunk)) {
                sample.end(metadata::timestamp(&mut packet), &self.queue.setup.events.delays);
            }
        }
        Some(packet)
    }

    /// Takes what the kernel is through with; returns how many packets.
    #[inline]
    fn collect(&mut self) -> usize {
        let mut sent = 0;
        let mut bytes = 0;
        while let Some(rings) = &mut self.rings {
            let ready = rings.completion.ready(1).min(self.done.room() as u32);
            if ready == 0 {
                break;
            }
            for _ in 0..ready {
                let Some(rings) = &mut self.rings else { break };
                let addr = rings.completion.pop();
                if let Some(packet) = self.complete(addr) {
                    bytes += packet.len() as u64;
                    sent += 1;
                    let _ = self.done.push(packet);
                }
            }
            if let Some(rings) = &mut self.rings {
                rings.completion.release();
            }
            self.cache.free_bulk(&mut self.done);
        }
        if sent > 0 {
            self.waits_since = None;
            self.worked = true;
            let refused = self.refused.min(sent);
            if refused > 0 {
                // Which of them it were is not known; their bytes are taken to be as many as those of the others.
                bytes -= bytes / sent * refused;
                self.refused -= refused;
                self.counters.dropped(DropReason::Refused, refused);
            }
            self.counters.moved(sent - refused, bytes);
        }
        sent as usize
    }

    /// Lets the kernel send what is in the ring, if it wants to be told.
    #[inline]
    fn wake_kernel(&mut self) {
        self.unfinished = false;
        let Some(rings) = &mut self.rings else { return };
        if !rings.tx.ring().needs_wakeup() {
            return;
        }
        let (mut calls, mut waiting) = (0, rings.tx.waiting());
        while waiting > 0 {
            calls += 1;
            let result = rings.socket.wake_tx();
            let left = rings.tx.waiting();
            let progress = left < waiting;
            waiting = left;
            match result.err().and_then(|e| e.raw_os_error()) {
                None | Some(libc::EINTR) if progress => {}
                // The driver dropped one.
                Some(libc::EBUSY) => {
                    self.refused += 1;
                    self.queue.setup.events.count(Event::DroppedByDriver, 1);
                    if !progress {
                        break;
                    }
                }
                // So many in one call, or no room for more; both without loss.
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) if progress => {}
                Some(libc::ENETDOWN) => {
                    self.state = down(Link::Down);
                    break;
                }
                Some(libc::ENXIO | libc::ENODEV) => {
                    self.state = self.queue.gone();
                    break;
                }
                _ => {
                    self.counters.retried(1);
                    break;
                }
            }
            // Completions first: the kernel sends no more than there is room for in their ring.
        }
        self.unfinished = waiting > 0;
        self.counters.called(calls);
    }

    /// Nothing was completed: is there a reason, or is it a stall?
    #[cold]
    fn look(&mut self) {
        let Some(link) = self.watch.look() else { return };
        match link {
            Link::Up if matches!(self.state, State::Down(_)) => self.state = State::Up,
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
    fn give_up(&mut self, reason: DropReason) {
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
    fn renew(&mut self) {
        if !self.handed {
            self.collect();
            self.rings = None;
            self.handed = true;
            self.give_up(DropReason::Refused);
            self.queue.hand_over(self.lent.take().map(Loan::Tx));
            self.state =
                State::Down("the driver completes nothing of what was sent: the queue is being made anew".into());
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

impl TxQueue for SocketTx {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let lost = match self.state {
            State::Down(_) if self.rings.is_none() => None,
            State::Down(_) => Some(DropReason::LinkDown),
            State::Gone(_) => Some(DropReason::PortGone),
            State::Up | State::Done => None,
        };
        if let Some(reason) = lost {
            let n = batch.len();
            self.counters.dropped(reason, n as u64);
            self.cache.free_bulk(batch);
            return n;
        }
        let n = self.fitting(batch);
        for packet in batch.drain_front(n) {
            if let Err((reason, packet)) = self.submit(packet) {
                self.counters.dropped(reason, 1);
                self.cache.free(packet);
            }
        }
        if n > 0
            && let Some(rings) = &mut self.rings
        {
            rings.tx.publish();
            self.wake_kernel();
            self.collect();
        }
        n
    }

    #[inline]
    fn reclaim(&mut self) -> usize {
        if self.epoch != self.queue.epoch() {
            self.renew();
        }
        let sent = self.collect();
        if self.unfinished {
            self.wake_kernel();
        }
        if (self.lent.packets() > 0 && sent == 0) || self.state != State::Up {
            self.look();
        }
        sent
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn pending(&self) -> usize {
        self.lent.packets()
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn wake(&self) -> Wake {
        match (&self.state, &self.rings) {
            (State::Gone(_), _) => Wake::Never,
            // A socket counts as writable while half of its TX ring is free, which says nothing of completions.
            _ => Wake::Poll,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for SocketTx {
    fn drop(&mut self) {
        self.collect();
        self.give_up(DropReason::Stopped);
        self.rings = None;
        self.queue.leave(self.lent.take().map(Loan::Tx), self.handed);
    }
}
