//! The receive queue: the RX ring and the FILL ring.

use super::events::Event;
use super::partial_checksum;
use super::queue::{Posted, QueueShared, RxRings};
use crate::kernel::link::{LinkWatch, down, passed};
use crate::null::NullRx;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use towpath_packet::port::{PortError, RxMemory, RxQueue, State, Wake};
use towpath_packet::xsk_ring::Desc;
use towpath_packet::{
    Batch, Cache, Counters, Direction, FromDevice, InFlight, Missed, Offloads, Packet, delegate_rx_queue,
};
use towpath_sys::netdev::LinkState;
use towpath_sys::xsk::Statistics;

/// Calls between two reads of the clock while packets arrive.
const CHECK_EVERY: u32 = 256;
/// Buffers that are added to the FILL ring at a time.
const FILL_BATCH: usize = 64;

/// A receive queue of an AF_XDP port.
#[derive(Debug)]
pub enum XdpRx {
    /// Of a port that receives.
    Socket(Box<SocketRx>),
    /// `rx=off`: the queue never has a packet.
    Off(NullRx),
}

delegate_rx_queue!(impl[] for XdpRx { XdpRx::Socket(queue) => queue, XdpRx::Off(queue) => queue });

/// A receive queue through an AF_XDP socket.
#[derive(Debug)]
pub struct SocketRx {
    rings: Option<RxRings>,
    queue: Arc<QueueShared>,
    epoch: u32,
    /// The rings were dropped, and new ones are not attached yet.
    detached: bool,
    /// The buffer in flight of each chunk.
    posted: Box<[Option<InFlight<FromDevice>>]>,
    in_flight: usize,
    max_in_flight: usize,
    fresh: Box<Batch>,
    cache: Cache,
    /// The first fragments of a packet whose last one is not received yet.
    head: Option<Packet>,
    /// The packet under assembly lost a fragment.
    broken: bool,
    state: State,
    starved: bool,
    calls: u32,
    /// The MTU, if received frames are examined for partial checksums.
    partial_mtu: Option<usize>,
    busy_poll: bool,
    watch: LinkWatch,
    last: Statistics,
    counters: Arc<Counters>,
}

impl SocketRx {
    pub(super) fn new(
        queue: Arc<QueueShared>,
        rings: RxRings,
        partial_mtu: Option<usize>,
        watch: LinkWatch,
    ) -> Result<SocketRx, PortError> {
        let port = &queue.port;
        let failed = |source| PortError::Pool { port: port.config.port(), source };
        let cache = port.umem.pool.cache(Direction::Rx).map_err(failed)?;
        let capacity = port.umem.capacity();
        // All queues together have at most a quarter of the buffers in their FILL rings.
        let max_in_flight =
            usize::from(port.config.ring).min((capacity / 4 / usize::from(port.queues)).max(FILL_BATCH));
        let busy_poll = !port.config.busy_poll.is_zero();
        let mut rx = SocketRx {
            rings: Some(rings),
            epoch: queue.epoch(),
            detached: false,
            posted: std::iter::repeat_with(|| None).take(capacity).collect(),
            in_flight: 0,
            max_in_flight,
            fresh: Box::default(),
            cache,
            head: None,
            broken: false,
            state: State::Up,
            starved: false,
            calls: 0,
            partial_mtu,
            busy_poll,
            watch,
            last: Statistics::default(),
            counters: Arc::default(),
            queue,
        };
        rx.refill();
        Ok(rx)
    }

    /// Adds buffers to the FILL ring, in whole batches.
    #[inline]
    fn fill(&mut self) -> usize {
        let Some(rings) = &mut self.rings else { return 0 };
        let mut added = 0;
        while self.in_flight + FILL_BATCH <= self.max_in_flight
            && rings.fill.reserve(FILL_BATCH as u32) as usize >= FILL_BATCH
        {
            let got = self.cache.alloc_bulk(&mut self.fresh, FILL_BATCH);
            self.starved = got < FILL_BATCH;
            for packet in self.fresh.drain_front(FILL_BATCH) {
                let Ok(buffer) = InFlight::<FromDevice>::post(packet) else { continue };
                let Some(chunk) = self.queue.port.umem.chunk_of(buffer.at().as_ptr()) else {
                    drop(buffer.complete(0));
                    continue;
                };
                rings.fill.write(self.queue.port.umem.chunk_address(chunk));
                if let Some(slot) = self.posted.get_mut(chunk) {
                    // The slot is empty: a chunk in flight is not in the pool.
                    *slot = Some(buffer);
                }
                added += 1;
            }
            self.in_flight += got;
            if self.starved {
                break;
            }
        }
        if added > 0 {
            rings.fill.submit();
        }
        added
    }

    /// The packet of a descriptor; `None` if no buffer of its address is in flight.
    #[inline]
    fn complete(&mut self, desc: Desc) -> Option<Packet> {
        let (chunk, offset) = self.queue.port.umem.locate(desc.addr)?;
        let buffer = self.posted.get_mut(chunk)?.take()?;
        self.in_flight -= 1;
        let before = self.queue.port.umem.pool.headroom();
        let len = desc.len as usize;
        match offset.checked_sub(before) {
            Some(skip) if skip + len <= buffer.room() => {
                let mut packet = buffer.complete(skip + len);
                packet.pull_front(skip);
                Some(packet)
            }
            _ => {
                drop(buffer.complete(0));
                None
            }
        }
    }

    /// Takes one fragment; returns the packet after its last one.
    #[inline]
    fn receive(&mut self, desc: Desc) -> Option<Packet> {
        let more = desc.options & Desc::CONTINUED != 0;
        let frag = self.complete(desc);
        if !more && self.head.is_none() && !self.broken {
            if frag.is_none() {
                self.counters.missed(Missed::Unreadable, 1);
            }
            return frag;
        }
        self.assemble(frag, more)
    }

    #[cold]
    fn assemble(&mut self, frag: Option<Packet>, more: bool) -> Option<Packet> {
        match (frag, &mut self.head) {
            (Some(frag), None) if !self.broken => self.head = Some(frag),
            (Some(frag), Some(head)) => {
                if let Err(frag) = head.append(frag) {
                    self.cache.free(frag);
                    self.broken = true;
                }
            }
            (Some(frag), None) => self.cache.free(frag),
            (None, _) => self.broken = true,
        }
        if more {
            return None;
        }
        let whole = self.head.take();
        if std::mem::take(&mut self.broken) {
            if let Some(rest) = whole {
                self.cache.free(rest);
            }
            self.counters.missed(Missed::Unreadable, 1);
            return None;
        }
        whole
    }

    /// Reads the state of the link and the socket's statistics, now and then.
    fn check_link(&mut self) {
        let Some(link) = self.watch.poll() else { return };
        self.state = match link {
            LinkState::Up => State::Up,
            LinkState::Absent => self.queue.gone(),
            LinkState::Down | LinkState::NoCarrier => down(link),
        };
        self.count_statistics();
    }

    fn count_statistics(&mut self) {
        let Some(rings) = &self.rings else { return };
        if let Ok(now) = rings.socket.statistics() {
            let since = |f: fn(&Statistics) -> u64| f(&now).saturating_sub(f(&self.last));
            // In copy mode a frame that finds the FILL ring empty is dropped; in zero-copy mode the
            // driver drops frames later, and counts them as it likes.
            let unfilled = since(|s| s.fill_empty).min(since(|s| s.rx_dropped));
            self.counters.missed(Missed::XskFill, unfilled);
            self.counters.missed(Missed::XskTooLong, since(|s| s.rx_dropped) - unfilled);
            self.counters.missed(Missed::XskRx, since(|s| s.rx_ring_full));
            self.counters.failed(since(|s| s.rx_invalid));
            self.counters.retried(since(|s| s.fill_empty));
            let events = &self.queue.port.events;
            events.count(Event::RxNoRoom, since(|s| s.rx_dropped));
            events.count(Event::RxRingFull, since(|s| s.rx_ring_full));
            events.count(Event::FillInvalid, since(|s| s.rx_invalid));
            events.count(Event::FillEmpty, since(|s| s.fill_empty));
            self.last = now;
        }
    }

    /// Detaches from the stalled queue, and attaches to the reopened one.
    #[cold]
    fn reattach(&mut self) {
        if !self.detached {
            self.rings = None;
            self.detached = true;
            if let Some(head) = self.head.take() {
                self.cache.free(head);
            }
            self.broken = false;
            self.last = Statistics::default();
            self.in_flight = 0;
            self.queue.detach(self.posted.iter_mut().filter_map(Option::take).map(Posted::Rx));
        }
        let queue = self.queue.clone();
        let fill = |rings| {
            self.rings = Some(rings);
            self.fill();
            self.rings.take()
        };
        match queue.attach_rx(fill) {
            Ok(Some(rings)) => {
                self.rings = Some(rings);
                self.detached = false;
                self.epoch = self.queue.epoch();
            }
            Ok(None) => self.take_back(),
            Err(why) => {
                self.take_back();
                self.state = State::Gone(why.into());
            }
        }
    }

    /// Frees the buffers of a FILL ring whose socket was closed without a queue.
    fn take_back(&mut self) {
        if std::mem::take(&mut self.in_flight) > 0 {
            self.posted.iter_mut().filter_map(Option::take).map(Posted::Rx).for_each(Posted::complete);
        }
    }
}

impl RxQueue for SocketRx {
    fn rx(&mut self, out: &mut Batch) -> usize {
        if self.state.ended() {
            return 0;
        }
        if self.epoch != self.queue.epoch() {
            self.reattach();
        }
        let Some(rings) = &mut self.rings else { return 0 };
        let room = out.room() as u32;
        let mut ready = rings.rx.peek(room);
        if ready == 0 && (self.busy_poll || rings.fill.ring().needs_wakeup()) {
            // An error means that the interface is down, which `check_link` reports.
            let _ = rings.socket.wake_rx();
            self.counters.called(1);
            ready = rings.rx.peek(room);
        }
        let (mut packets, mut bytes) = (0, 0);
        for _ in 0..ready.min(room) {
            let Some(rings) = &mut self.rings else { break };
            let desc = rings.rx.read();
            let Some(mut packet) = self.receive(desc) else { continue };
            if let Some(mtu) = self.partial_mtu {
                partial_checksum::detect(&mut packet, mtu);
            }
            packet.set_ingress(0, self.queue.number as u8);
            packets += 1;
            bytes += packet.len() as u64;
            // `ready` is at most the room of the batch.
            let _ = out.push(packet);
        }
        if ready > 0
            && let Some(rings) = &mut self.rings
        {
            rings.rx.release();
            self.counters.moved(packets, bytes);
            passed(&mut self.state);
        }
        self.calls = self.calls.wrapping_add(1);
        if packets == 0 || self.calls.is_multiple_of(CHECK_EVERY) {
            self.check_link();
        }
        packets as usize
    }

    #[inline]
    fn refill(&mut self) -> usize {
        self.fill()
    }

    /// Ignored: no setting makes the kernel complete checksums. The egress does it.
    fn set_rx_offloads(&mut self, _accept: Offloads) {}

    fn memory(&self) -> RxMemory {
        let frames = &self.queue.port.umem;
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

impl Drop for SocketRx {
    /// Further frames go to the host. The kernel's drops since the last check are counted too.
    fn drop(&mut self) {
        if let Some(attached) = &self.queue.port.attached {
            let _ = attached.map.delete(self.queue.number);
        }
        self.count_statistics();
        self.rings = None;
        self.queue.close_half(self.posted.iter_mut().filter_map(Option::take).map(Posted::Rx), self.detached);
    }
}
