//! What applications send: the port's receive queues. A session lives on one of them, which keeps its frames in order.

use super::Transmit;
use super::copying::Copying;
use super::events::Fault;
use super::gate::{Gate, Waker};
use super::line::AGAIN;
use super::roster::{Member, Roster};
use super::session::Session;
use super::statistics::Counted;
use crate::sys::app::fence_programs;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_client::protocol::{MAX_PIECES, REQUEST_CHECKSUM, Statistic};
use towpath_packet::port::{Lent, RxQueue, TxLinear, TxShape, Wake};
use towpath_packet::ring::{Consumer, Producer};
use towpath_packet::xring::Shared;
use towpath_packet::{Batch, Cache, Counters, Csum, Packet, Pages, xring};

/// Turns between looks at what programs made of their lines, of a queue that does not come to rest.
const TURNS: u32 = 1024;

/// Shortest frame: an Ethernet header.
const SHORTEST: usize = 14;

/// What was taken in one turn.
#[derive(Debug, Default)]
struct Tally {
    bytes: usize,
    copies: u64,
    copied_bytes: u64,
    /// Pages that were attached, and that came home.
    lent: u64,
    home: u64,
}

/// One application's half: its TX and COMPLETION rings.
#[derive(Debug)]
pub(super) struct Sending {
    /// The queue that it lives on.
    pub(super) queue: u8,
    pub(super) session: Arc<Session>,
    pub(super) tx: xring::Consumer<xring::Mapped<xring::Desc>>,
    pub(super) completion: xring::Producer<xring::Mapped<u64>>,
    pub(super) counted: Counted,
    /// Descriptors that can't be are counted, and do not end the session.
    pub(super) lenient: bool,
    /// Their tokens are the addresses by which they were sent.
    pub(super) pages: Pages,
    /// Bytes of chunks that may be on their way.
    pub(super) budget: u64,
    /// Bytes that are.
    pub(super) charged: u64,
    /// Longest frame.
    pub(super) longest: usize,
    /// The first pieces of a packet, and how many they are.
    pub(super) begun: Option<Packet>,
    pub(super) pieces: usize,
    /// Bytes of metadata in front of frames, 0 for none.
    pub(super) metadata: u32,
    /// Where the checksum of the packet begins and lies, if it asks for one.
    pub(super) request: Option<(u16, u16)>,
    /// Completions were written that the application has not been told of.
    pub(super) told: bool,
    /// There was no room in the COMPLETION ring for all that came home.
    pub(super) blocked: bool,
    /// There was no buffer for a head, no page, or no room in the COMPLETION ring.
    pub(super) starved: bool,
}

impl Member for Sending {
    fn session(&self) -> &Session {
        &self.session
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.session.events().halves.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sending {
    /// One turn: completions, then up to `room` packets.
    #[inline]
    fn turn(
        &mut self,
        room: usize,
        copying: Copying,
        cache: &mut Cache,
        out: &mut Batch,
        tally: &mut Tally,
    ) -> Result<(), Fault> {
        tally.home += self.complete()?;
        let done = self.take(room, copying, cache, out, tally);
        if let Some(line) = self.session.line()
            && (self.starved || line.is_full())
        {
            line.set_full(!self.has_room());
        }
        if std::mem::take(&mut self.told) {
            self.completion.publish();
            self.session.tell_completed();
        }
        done
    }

    /// Whether the application has room to send, by AF_XDP's rule: no more than half of its TX ring is full.
    fn has_room(&self) -> bool {
        self.tx.waiting() <= self.tx.ring().size() / 2
    }

    /// Writes completions of pages that came home, as far as the ring has room; returns how many.
    #[inline]
    fn complete(&mut self) -> Result<u64, Fault> {
        self.blocked = false;
        if !self.pages.has_back() {
            return Ok(0);
        }
        let free = self.completion.try_free(self.pages.away() as u32).map_err(|_| Fault::Counter)?;
        let (completion, memory, charged) = (&mut self.completion, &self.session.memory, &mut self.charged);
        let n = self.pages.take_back(free as usize, |addr, len| {
            completion.push(addr);
            memory.came_back(addr);
            *charged -= memory.truesize(len.into());
        });
        self.told |= n > 0;
        self.blocked = n == free as usize && self.pages.has_back();
        Ok(n as u64)
    }

    /// Takes up to `room` packets, each into a head of its own at the end of `out`, and no more descriptors than that, whatever they say:
    /// what nobody can send must not take time from the others.
    #[inline]
    fn take(
        &mut self,
        room: usize,
        copying: Copying,
        cache: &mut Cache,
        out: &mut Batch,
        tally: &mut Tally,
    ) -> Result<(), Fault> {
        let ready = self.tx.try_ready(room as u32).map_err(|_| Fault::Counter)? as usize;
        let chunks = self.budget.saturating_sub(self.charged) / self.session.memory.chunk() as u64;
        let mut n = ready.min(room).min(self.pages.free()).min(chunks as usize);
        if copying.linear > 0 || self.lenient {
            // What is copied, or skipped, is completed at once.
            n = n.min(self.completion.try_free(n as u32).map_err(|_| Fault::Counter)? as usize);
        }
        // More is there, which no kick will announce, and this turn may end without a packet.
        self.starved = n < ready;
        if n == 0 {
            return Ok(());
        }
        if n == ready && n < room {
            self.counted.add(Statistic::TxRingEmptyDescs, 1);
        }
        let mut at = out.len();
        let begun = self.begun.take().is_some_and(|packet| out.push(packet).is_ok());
        let heads = n - usize::from(begun);
        self.starved |= cache.alloc_bulk(out, heads) < heads;
        let mut done = Ok(());
        for _ in 0..n {
            let Some(packet) = out.as_mut_slice().get_mut(at) else { break };
            let desc = self.tx.pop();
            let added = self.add(desc, packet, copying, tally);
            if added.is_ok() && desc.options & xring::Desc::CONTINUED != 0 {
                continue;
            }
            let (pieces, request) = (std::mem::take(&mut self.pieces), self.request.take());
            match added.and_then(|()| request.map_or(Ok(()), |request| ask(packet, request))) {
                Ok(()) if (SHORTEST..=self.longest).contains(&packet.len()) => {
                    tally.bytes += packet.len();
                    packet.set_ingress(0, self.queue);
                    at += 1;
                    continue;
                }
                Ok(()) => drop(self.session.events().too_long.fetch_add(1, Ordering::Relaxed)),
                Err(_) if self.lenient => self.skip(pieces, added.is_err().then_some(desc.addr)),
                Err(fault) => {
                    done = Err(fault);
                    break;
                }
            }
            // The last head takes its place.
            let last = out.len() - 1;
            out.as_mut_slice().swap(at, last);
            if let Some(packet) = out.pop() {
                cache.free(packet);
            }
        }
        self.tx.release();
        while out.len() > at
            && let Some(packet) = out.pop()
        {
            if packet.len() > 0 { self.begun = Some(packet) } else { cache.free(packet) }
        }
        done
    }

    /// Counts a packet that can't be sent. Its pieces come home with its head; a descriptor that is none of them is completed here.
    #[cold]
    fn skip(&mut self, pieces: usize, last: Option<u64>) {
        let lost = pieces as u64 + u64::from(last.is_some());
        if let Some(addr) = last {
            self.completion.push(addr);
            self.told = true;
        }
        self.counted.add(Statistic::TxInvalidDescs, lost);
        self.session.events().skipped.fetch_add(lost, Ordering::Relaxed);
    }

    /// Reads what lies in front of the first frame of a packet.
    #[cold]
    fn read_metadata(&mut self, desc: xring::Desc) -> Result<(), Fault> {
        let known = desc.options & !(xring::Desc::CONTINUED | xring::Desc::METADATA) == 0;
        if !known || self.metadata == 0 || self.pieces > 0 {
            return Err(Fault::Descriptor);
        }
        let metadata = self.session.memory.in_front(desc.addr, self.metadata).ok_or(Fault::Descriptor)?;
        let [a, b, c, d, e, f, g, h, s0, s1, o0, o1, ..] = metadata;
        let flags = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        if flags & !REQUEST_CHECKSUM != 0 {
            return Err(Fault::Descriptor);
        }
        let (start, offset) = (u16::from_ne_bytes([s0, s1]), u16::from_ne_bytes([o0, o1]));
        self.request = (flags != 0).then_some((start, offset));
        Ok(())
    }

    /// Adds the piece of a descriptor to a packet: copied, or as a page.
    #[inline]
    fn add(
        &mut self,
        desc: xring::Desc,
        packet: &mut Packet,
        copying: Copying,
        tally: &mut Tally,
    ) -> Result<(), Fault> {
        let xring::Desc { addr, len, options } = desc;
        if options & !xring::Desc::CONTINUED != 0 {
            self.read_metadata(desc)?;
        }
        if self.pieces >= MAX_PIECES {
            return Err(Fault::Descriptor);
        }
        let memory = &self.session.memory;
        let n = copying.next(packet, len as usize);
        let at = memory.send(addr, len, n < len as usize)?;
        self.pieces += 1;
        let len = len as usize;
        if n > 0 {
            // It lies inside: the chunk does.
            let _ = self.pages.copy(at, n, packet);
            tally.copies += 1;
            tally.copied_bytes += n as u64;
        }
        if n == len {
            self.completion.push(addr);
            self.told = true;
            return Ok(());
        }
        let page = self.pages.attach(at + n, len - n, addr).ok_or(Fault::Descriptor)?;
        // It has fewer pieces than a packet may have.
        let _ = packet.append_buf(page);
        tally.lent += 1;
        self.charged += memory.truesize((len - n) as u32);
        Ok(())
    }
}

/// Notes on a packet that its checksum is to be completed.
#[cold]
fn ask(packet: &mut Packet, (start, offset): (u16, u16)) -> Result<(), Fault> {
    let inside = usize::from(start) + usize::from(offset) + 2 <= packet.len();
    let offset = u8::try_from(offset).ok().filter(|_| inside).ok_or(Fault::Descriptor)?;
    packet.set_csum(Csum::Partial { start, offset });
    Ok(())
}

/// A receive queue of the port.
#[derive(Debug)]
pub struct SockRx {
    apps: Roster<Sending>,
    /// The application to begin with, so that none is starved.
    first: usize,
    transmit: Transmit,
    copying: Copying,
    cache: Cache,
    waker: Waker,
    armed: Cell<bool>,
    turns: u32,
    counters: Arc<Counters>,
    gate: Arc<Gate>,
}

impl SockRx {
    pub(super) fn new(
        ways: (Consumer<Sending>, Producer<Sending>),
        cache: Cache,
        transmit: Transmit,
        waker: Waker,
        gate: Arc<Gate>,
    ) -> SockRx {
        let unknown = TxShape { linear: TxLinear::None, headroom: 0, tailroom: 0 };
        SockRx {
            apps: Roster::new(ways, gate.sessions),
            transmit,
            copying: Copying::of(transmit, unknown),
            first: 0,
            cache,
            waker,
            armed: Cell::new(false),
            turns: 0,
            counters: Arc::default(),
            gate,
        }
    }

    /// Who has come, and who has gone.
    #[inline]
    fn greet(&mut self) {
        if self.apps.greet(&self.gate) {
            let armed = self.armed.get();
            self.apps.iter().for_each(|app| app.tx.ring().set_needs_wakeup(armed));
        }
    }

    /// Makes lines say what is true and takes what programs kicked; returns whether one of them has entries to take.
    fn settle(&self) -> bool {
        let mut waiting = false;
        for app in self.apps.iter() {
            if let Some(line) = app.session.line() {
                line.set_full(!app.has_room());
                line.forget_kicks();
                waiting |= app.session.settle();
            }
        }
        waiting
    }
}

impl RxQueue for SockRx {
    fn rx(&mut self, out: &mut Batch) -> usize {
        self.greet();
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS) {
            self.settle();
        }
        let (before, n) = (out.len(), self.apps.len());
        let (mut tally, mut faults) = (Tally::default(), 0);
        // Each gets its share at first; what one leaves, the others may have.
        let share = (out.room() / n.max(1)).max(1);
        for round in [share, usize::MAX] {
            for i in 0..n {
                let Some(app) = self.apps.get_mut((self.first + i) % n) else { continue };
                let room = out.room().min(round);
                if app.session.is_closed() || room == 0 {
                    continue;
                }
                if let Err(fault) = app.turn(room, self.copying, &mut self.cache, out, &mut tally) {
                    app.session.fail(fault);
                    faults += 1;
                }
            }
            if n < 2 {
                break;
            }
        }
        self.first = if self.first + 1 < n { self.first + 1 } else { 0 };
        if faults > 0 {
            self.counters.failed(faults);
        }
        let got = out.len() - before;
        if got > 0 {
            if self.armed.replace(false) {
                self.waker.bell.disarm();
                self.apps.iter().for_each(|app| app.tx.ring().set_needs_wakeup(false));
            }
            self.counters.moved(got as u64, tally.bytes as u64);
        }
        if tally.copies > 0 {
            self.counters.copied(tally.copies, tally.copied_bytes);
            self.gate.events.copies.fetch_add(tally.copies, Ordering::Relaxed);
            self.gate.events.copied_bytes.fetch_add(tally.copied_bytes, Ordering::Relaxed);
        }
        if tally.lent > 0 {
            self.gate.events.lent.take(tally.lent);
        }
        if tally.home > 0 {
            self.gate.events.lent.bring_home(tally.home);
        }
        got
    }

    fn lent(&self) -> Option<Arc<Lent>> {
        Some(self.gate.events.lent.clone())
    }

    fn shape(&mut self, egress: TxShape) {
        self.copying = Copying::of(self.transmit, egress);
        if self.copying.linear > 0 {
            self.cache.set_headroom(egress.headroom.into());
        }
    }

    /// Asks all applications to kick; to be called only by who is about to sleep.
    fn wake(&self) -> Wake {
        self.waker.epoll.drain();
        if self.settle() {
            self.waker.timer.set(AGAIN);
        }
        self.waker.bell.arm();
        self.armed.set(true);
        self.apps.iter().for_each(|app| app.tx.ring().set_needs_wakeup(true));
        // Programs read the flag without a fence behind their counter. A kernel that can't make up for it costs them a timer.
        if self.apps.iter().any(|app| app.session.line().is_some()) && !fence_programs() {
            self.waker.timer.set(AGAIN);
        }
        if self.apps.iter().any(|app| (app.pages.has_back() && !app.blocked) || app.session.is_closed()) {
            self.waker.bell.wake();
        }
        // What waits for something that nobody announces.
        let stalled = self.apps.iter().any(|app| app.starved || app.blocked);
        if stalled { Wake::Poll } else { Wake::Fd(self.waker.epoll.fd()) }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}
