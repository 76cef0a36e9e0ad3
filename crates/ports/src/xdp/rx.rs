//! What comes in through a queue: the RX ring, and the FILL ring ahead of it.

use super::events::Event;
use super::partial;
use super::queue::{Loan, Queue, RxRings};
use crate::kernel::link::{LinkWatch, down};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use towpath_packet::port::{PortError, RxMemory, RxQueue, State, Wake};
use towpath_packet::xsk_ring::Desc;
use towpath_packet::{Batch, Cache, Counters, Direction, FromDevice, InFlight, Offloads, Packet};
use towpath_sys::netdev::Link;
use towpath_sys::xsk::Statistics;

/// Calls between two looks at the clock while packets keep coming.
const LOOK_EVERY: u32 = 256;
/// Buffers that the FILL ring gets at a time.
const STOCK: usize = 64;

/// A receive queue of an AF_XDP port.
#[derive(Debug)]
pub struct XdpRx {
    rings: Option<RxRings>,
    queue: Arc<Queue>,
    epoch: u32,
    /// The rings have been handed over, and no new ones have come.
    handed: bool,
    /// The buffer that the kernel has of each chunk.
    lent: Box<[Option<InFlight<FromDevice>>]>,
    out: usize,
    most: usize,
    spare: Box<Batch>,
    cache: Cache,
    /// The beginning of a packet whose end has not come yet.
    begun: Option<Packet>,
    /// The packet that is coming in is not to be had whole.
    torn: bool,
    state: State,
    starved: bool,
    turn: u32,
    /// Whether frames are looked at for what their sender left undone, and the MTU.
    notes: Option<usize>,
    busy_poll: bool,
    watch: LinkWatch,
    seen: Statistics,
    counters: Arc<Counters>,
}

impl XdpRx {
    pub(super) fn new(
        queue: Arc<Queue>,
        rings: RxRings,
        notes: Option<usize>,
        watch: LinkWatch,
    ) -> Result<XdpRx, PortError> {
        let setup = &queue.setup;
        let failed = |source| PortError::Pool { port: setup.config.port(), source };
        let cache = setup.frames.pool.cache(Direction::Rx).map_err(failed)?;
        let capacity = setup.frames.capacity();
        // At most a quarter of all buffers waits for frames, of all queues together.
        let most = usize::from(setup.config.ring).min((capacity / 4 / usize::from(setup.queues)).max(STOCK));
        let busy_poll = !setup.config.busy_poll.is_zero();
        let mut rx = XdpRx {
            rings: Some(rings),
            epoch: queue.epoch(),
            handed: false,
            lent: std::iter::repeat_with(|| None).take(capacity).collect(),
            out: 0,
            most,
            spare: Box::default(),
            cache,
            begun: None,
            torn: false,
            state: State::Up,
            starved: false,
            turn: 0,
            notes,
            busy_poll,
            watch,
            seen: Statistics::default(),
            counters: Arc::default(),
            queue,
        };
        rx.refill();
        Ok(rx)
    }

    /// Lends what the FILL ring has room for, in whole batches.
    #[inline]
    fn stock(&mut self) -> usize {
        let Some(rings) = &mut self.rings else { return 0 };
        let mut lent = 0;
        while self.out + STOCK <= self.most && rings.fill.reserve(STOCK as u32) as usize >= STOCK {
            let got = self.cache.alloc_bulk(&mut self.spare, STOCK);
            self.starved = got < STOCK;
            for packet in self.spare.drain_front(STOCK) {
                let Ok(loan) = InFlight::<FromDevice>::post(packet) else { continue };
                let Some(chunk) = self.queue.setup.frames.chunk_of(loan.at().as_ptr()) else {
                    drop(loan.complete(0));
                    continue;
                };
                rings.fill.write(self.queue.setup.frames.start(chunk));
                if let Some(slot) = self.lent.get_mut(chunk) {
                    // It was empty: a chunk that is lent is not in the pool.
                    *slot = Some(loan);
                }
                lent += 1;
            }
            self.out += got;
            if self.starved {
                break;
            }
        }
        if lent > 0 {
            rings.fill.submit();
        }
        lent
    }

    /// The packet that a descriptor is about; `None` for one that names no buffer that was lent.
    #[inline]
    fn take(&mut self, desc: Desc) -> Option<Packet> {
        let (chunk, offset) = self.queue.setup.frames.locate(desc.addr)?;
        let loan = self.lent.get_mut(chunk)?.take()?;
        self.out -= 1;
        let before = self.queue.setup.frames.pool.headroom();
        let len = desc.len as usize;
        match offset.checked_sub(before) {
            Some(skip) if skip + len <= loan.room() => {
                let mut packet = loan.complete(skip + len);
                packet.pull_front(skip);
                Some(packet)
            }
            _ => {
                drop(loan.complete(0));
                None
            }
        }
    }

    /// One piece of a packet; the packet, when it was the last.
    #[inline]
    fn piece(&mut self, desc: Desc) -> Option<Packet> {
        let more = desc.options & Desc::CONTINUED != 0;
        let piece = self.take(desc);
        if !more && self.begun.is_none() && !self.torn {
            if piece.is_none() {
                self.counters.missed(1);
            }
            return piece;
        }
        self.assemble(piece, more)
    }

    #[cold]
    fn assemble(&mut self, piece: Option<Packet>, more: bool) -> Option<Packet> {
        match (piece, &mut self.begun) {
            (Some(piece), None) if !self.torn => self.begun = Some(piece),
            (Some(piece), Some(begun)) => {
                if let Err(piece) = begun.append(piece) {
                    self.cache.free(piece);
                    self.torn = true;
                }
            }
            (Some(piece), None) => self.cache.free(piece),
            (None, _) => self.torn = true,
        }
        if more {
            return None;
        }
        let whole = self.begun.take();
        if std::mem::take(&mut self.torn) {
            if let Some(rest) = whole {
                self.cache.free(rest);
            }
            self.counters.missed(1);
            return None;
        }
        whole
    }

    /// Now and then: is the link up, and what did the kernel drop?
    fn look(&mut self) {
        let Some(link) = self.watch.look() else { return };
        self.state = match link {
            Link::Up => State::Up,
            Link::Absent => self.queue.gone(),
            Link::Down | Link::NoCarrier => down(link),
        };
        self.count();
    }

    fn count(&mut self) {
        let Some(rings) = &self.rings else { return };
        if let Ok(now) = rings.socket.statistics() {
            let since = |f: fn(&Statistics) -> u64| f(&now).saturating_sub(f(&self.seen));
            self.counters.missed(since(|s| s.rx_dropped) + since(|s| s.rx_ring_full));
            self.counters.failed(since(|s| s.rx_invalid));
            self.counters.retried(since(|s| s.fill_empty));
            let events = &self.queue.setup.events;
            events.count(Event::RxNoRoom, since(|s| s.rx_dropped));
            events.count(Event::RxRingFull, since(|s| s.rx_ring_full));
            events.count(Event::FillInvalid, since(|s| s.rx_invalid));
            events.count(Event::FillEmpty, since(|s| s.fill_empty));
            self.seen = now;
        }
    }

    /// The queue is being made anew: hands over what there is, takes what is new.
    #[cold]
    fn renew(&mut self) {
        if !self.handed {
            self.rings = None;
            self.handed = true;
            if let Some(begun) = self.begun.take() {
                self.cache.free(begun);
            }
            self.torn = false;
            self.seen = Statistics::default();
            self.out = 0;
            self.queue.hand_over(self.lent.iter_mut().filter_map(Option::take).map(Loan::Rx));
        }
        match self.queue.claim_rx() {
            Ok(None) => {}
            Ok(rings) => {
                self.rings = rings;
                self.handed = false;
                self.epoch = self.queue.epoch();
                self.stock();
            }
            Err(why) => self.state = State::Gone(why.into()),
        }
    }
}

impl RxQueue for XdpRx {
    fn rx(&mut self, out: &mut Batch) -> usize {
        if self.state.ended() {
            return 0;
        }
        if self.epoch != self.queue.epoch() {
            self.renew();
        }
        let Some(rings) = &mut self.rings else { return 0 };
        let room = out.room() as u32;
        let mut ready = rings.rx.peek(room);
        if ready == 0 && (self.busy_poll || rings.fill.ring().needs_wakeup()) {
            // An interface that is down says so here, and to `look`.
            let _ = rings.socket.wake_rx();
            self.counters.called(1);
            ready = rings.rx.peek(room);
        }
        let (mut packets, mut bytes) = (0, 0);
        for _ in 0..ready.min(room) {
            let Some(rings) = &mut self.rings else { break };
            let desc = rings.rx.read();
            let Some(mut packet) = self.piece(desc) else { continue };
            if let Some(mtu) = self.notes {
                partial::note(&mut packet, mtu);
            }
            packet.set_ingress(0, self.queue.number as u8);
            packets += 1;
            bytes += packet.len() as u64;
            // There is room.
            let _ = out.push(packet);
        }
        if ready > 0
            && let Some(rings) = &mut self.rings
        {
            rings.rx.release();
            self.counters.moved(packets, bytes);
        }
        self.turn = self.turn.wrapping_add(1);
        if packets == 0 || self.turn.is_multiple_of(LOOK_EVERY) {
            self.look();
        }
        packets as usize
    }

    #[inline]
    fn refill(&mut self) -> usize {
        self.stock()
    }

    /// What is received is what there is: the rest is finished by whoever sends it.
    fn set_rx_offloads(&mut self, _accept: Offloads) {}

    fn memory(&self) -> RxMemory {
        let frames = &self.queue.setup.frames;
        if frames.own { RxMemory::own_pool(frames.pool.clone()) } else { RxMemory::default() }
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn wake(&self) -> Wake {
        match (&self.state, &self.rings) {
            (State::Gone(_), _) => Wake::Never,
            (_, Some(rings)) if !self.starved && !self.busy_poll => Wake::Fd(rings.socket.as_raw_fd()),
            _ => Wake::Poll,
        }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for XdpRx {
    /// What arrives from now on goes to the host. What the kernel dropped since the last look is counted too.
    fn drop(&mut self) {
        let _ = self.queue.setup.attached.map.clear(self.queue.number);
        self.count();
        self.rings = None;
        self.queue.leave(self.lent.iter_mut().filter_map(Option::take).map(Loan::Rx), self.handed);
    }
}
