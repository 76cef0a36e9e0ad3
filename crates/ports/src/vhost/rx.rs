//! The receive queue of the port: frames of the guest's transmit ring, as packets.
//!
//! ```text
//!   chain   [header 12][frame ……………][frame …]
//!   short frame          a head with a copy; the chain is complete at once
//!   one piece, egress takes fragments     its page, no head
//!   any other            a head with what the egress or an offload needs linear, then pages
//! ```
//!
//! The header is read once. What it asks for is checked against bytes that were copied.

use super::events::{RingEvents, add};
use super::pages::Pages;
use super::rarp::Rarp;
use super::ring::{Ring, RingSlot, feature};
use crate::copy_plan::{CopyPlan, SinglePiece};
use crate::kernel::rx_buffers::MAX_PACKET;
use crate::vnet::{self, MAX_SUPER_HEADERS, NEEDS_CSUM, VnetHeader};
use std::cell::Cell;
use std::sync::Arc;
use towpath_packet::port::{RxMemory, RxQueue, State, TxLayout, Wake};
use towpath_packet::{Batch, Buf, Cache, Counters, DropReason, Missed, Offloads, Packet};
use towpath_virtio::{Piece, RegionPlace, Regions, RingError, Token};

/// Bytes of the shortest frame: an Ethernet header.
const SHORTEST: usize = 14;
/// Frames of up to so many bytes are copied whole. A page costs the metadata of a second chunk, its
/// way through a list of freed ones, and a chain that the guest gets back later.
const COPYBREAK: usize = 256;
/// Pieces of a frame that go on as pages; a frame in more pieces is copied.
const MAX_PAGES: usize = 64;
/// Chains of a burst, of which some may be no frames: a guest that sends none of use must not take
/// the time of others.
const MAX_CHAINS: usize = 2 * Batch::<64>::CAPACITY;

/// A receive queue of the port: the transmit queue of a guest.
#[derive(Debug)]
pub struct VhostRx {
    slot: Arc<RingSlot>,
    plan: CopyPlan,
    cache: Cache,
    /// Empty packets.
    heads: Batch,
    queue: u8,
    /// Why no packet comes, if none can.
    down: Option<&'static str>,
    armed: Cell<bool>,
    /// Announcements that the front end asks for, at one queue of the port.
    rarp: Option<Arc<Rarp>>,
    /// The last burst ended for a reason that nothing announces the end of.
    stalled: bool,
    counters: Arc<Counters>,
}

/// Sums of a burst.
#[derive(Debug, Default)]
struct Totals {
    bytes: u64,
    copies: u64,
    copied_bytes: u64,
    attached: u64,
    malformed: u64,
    disabled: u64,
    /// Frames for which there was no buffer.
    dropped: u64,
}

impl VhostRx {
    /// The queue that takes frames out of the ring in `slot`, with heads of `cache`.
    pub(super) fn new(slot: Arc<RingSlot>, cache: Cache, queue: u16) -> VhostRx {
        VhostRx {
            slot,
            plan: CopyPlan::new(TxLayout::default()),
            cache,
            heads: Batch::new(),
            queue: u8::try_from(queue).unwrap_or(u8::MAX),
            down: Some(super::NO_GUEST),
            armed: Cell::new(false),
            rarp: None,
            stalled: false,
            counters: Arc::default(),
        }
    }

    /// The queue at which announcements of the guest come in.
    pub(super) fn with_announcements(self, rarp: Arc<Rarp>) -> VhostRx {
        VhostRx { rarp: Some(rarp), ..self }
    }

    /// Appends the announcement that the front end asked for. It is lost if there is no buffer for
    /// it.
    #[cold]
    fn announce(&mut self, frame: &[u8], out: &mut Batch) -> usize {
        let packet = Packet::copy_from(&mut self.cache, frame).filter(|_| out.room() > 0);
        let Some(mut packet) = packet else { return 0 };
        packet.set_ingress(0, self.queue);
        self.counters.moved(1, frame.len() as u64);
        // There is room.
        let _ = out.push(packet);
        1
    }

    /// Adds a burst to the counts.
    #[inline]
    fn count(&self, got: usize, totals: &Totals) {
        let events: &RingEvents = self.slot.events();
        if got > 0 {
            self.counters.moved(got as u64 + totals.dropped, totals.bytes);
        }
        if totals.copies > 0 {
            self.counters.copied(totals.copies, totals.copied_bytes);
            add(&events.copies, totals.copies);
            add(&events.copied_bytes, totals.copied_bytes);
        }
        if totals.attached > 0 {
            events.ext_bufs.attach(totals.attached);
        }
        if totals.malformed + totals.disabled + totals.dropped > 0 {
            self.count_lost(got, totals);
        }
    }

    #[cold]
    fn count_lost(&self, got: usize, totals: &Totals) {
        let events: &RingEvents = self.slot.events();
        if got == 0 {
            self.counters.moved(totals.dropped, 0);
        }
        self.counters.dropped(DropReason::NoBuffer, totals.dropped);
        if totals.malformed > 0 {
            self.counters.missed(Missed::Unreadable, totals.malformed);
            add(&events.malformed, totals.malformed);
        }
        if totals.disabled > 0 {
            self.counters.missed(Missed::Link, totals.disabled);
            add(&events.disabled, totals.disabled);
        }
    }
}

impl RxQueue for VhostRx {
    fn rx(&mut self, out: &mut Batch) -> usize {
        let announcement = self.rarp.as_ref().and_then(|rarp| rarp.take());
        let announced = announcement.map_or(0, |frame| self.announce(&frame, out));
        let Some(mut taken) = self.slot.take() else { return announced };
        let Some(ring) = taken.ring() else {
            self.down = Some(super::NO_GUEST);
            return announced;
        };
        let before = out.len();
        let mut burst = Burst {
            plan: self.plan,
            cache: &mut self.cache,
            heads: &mut self.heads,
            queue: self.queue,
            totals: Totals::default(),
        };
        ring.pages.reclaim(&mut ring.device);
        self.stalled = false;
        self.down = ring.stands_still();
        if ring.broken.is_none() {
            match burst.take(ring, out) {
                Ok(end) => self.stalled = end == End::NoHead,
                Err(error) => ring.breaks(error, self.slot.events()),
            }
        }
        ring.publish(self.slot.events());
        let got = out.len() - before;
        if got > 0 && self.armed.replace(false) {
            self.slot.disarm(ring);
        }
        let totals = burst.totals;
        drop(taken);
        if self.stalled {
            self.counters.retried(1);
        }
        self.count(got, &totals);
        announced + got
    }

    fn set_tx_layout(&mut self, egress: TxLayout) {
        self.plan = CopyPlan::new(egress);
        if self.plan.linear() > 0 {
            self.cache.free_bulk(&mut self.heads);
            self.cache.set_headroom(egress.headroom.into());
        }
    }

    fn memory(&self) -> RxMemory {
        RxMemory::ext_bufs(self.slot.events().ext_bufs.clone())
    }

    fn state(&self) -> State {
        self.down.map_or(State::Up, |why| State::Down(why.into()))
    }

    fn wake(&self) -> Wake {
        self.armed.set(true);
        // Nothing announces a buffer that is free again.
        if self.slot.arm() && !self.stalled { Wake::Fd(self.slot.sleeps_on()) } else { Wake::Poll }
    }

    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// Why a burst ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// No chain is left, or no room.
    Done,
    /// The pool is empty.
    NoHead,
}

/// Why a frame became no packet.
enum Lost {
    Malformed,
    NoBuffer,
}

/// What a burst takes frames with.
struct Burst<'a> {
    plan: CopyPlan,
    cache: &'a mut Cache,
    heads: &'a mut Batch,
    queue: u8,
    totals: Totals,
}

/// The chain of a frame.
struct InChain<'a> {
    memory: &'a Regions,
    pages: &'a mut Pages,
    pieces: &'a [Piece<RegionPlace>],
    len: usize,
    token: &'a Token,
    /// Descriptors of the ring.
    size: u16,
    /// Pieces that are out in the packet.
    held: u16,
}

impl Burst<'_> {
    /// Takes chains until none is left or the batch is full.
    #[inline]
    fn take(&mut self, ring: &mut Ring, out: &mut Batch) -> Result<End, RingError> {
        let (header_len, enabled, acked) = (ring.header_len(), ring.setup.enabled, acked(ring));
        let Ring { device, setup, chain, pages, .. } = ring;
        for _ in 0..MAX_CHAINS {
            if out.room() == 0 {
                break;
            }
            if self.heads.is_empty() && self.cache.alloc_bulk(self.heads, out.room()) == 0 {
                return Ok(End::NoHead);
            }
            let Some(token) = device.take(&setup.memory, chain)? else { break };
            if !enabled {
                self.totals.disabled += 1;
                device.complete(token, 0);
                continue;
            }
            let len = chain.readable_len() as usize;
            let memory = &setup.memory;
            let mut chain =
                InChain { memory, pages, pieces: chain.readable(), len, token: &token, size: setup.size, held: 0 };
            let frame = self.frame(&mut chain, header_len, acked);
            let held = chain.held;
            if held == 0 {
                device.complete(token, 0);
            } else {
                self.totals.attached += u64::from(held);
                pages.hold(token.slot(setup.size), token, held);
            }
            match frame {
                Ok(mut packet) => {
                    self.totals.bytes += packet.len() as u64;
                    packet.set_ingress(0, self.queue);
                    // There is room.
                    let _ = out.push(packet);
                }
                Err(Lost::Malformed) => self.totals.malformed += 1,
                Err(Lost::NoBuffer) => self.totals.dropped += 1,
            }
        }
        Ok(End::Done)
    }

    /// The packet of one chain.
    #[inline]
    fn frame(&mut self, chain: &mut InChain<'_>, header_len: usize, acked: Offloads) -> Result<Packet, Lost> {
        let len = chain.len.checked_sub(header_len).filter(|len| (SHORTEST..=MAX_PACKET).contains(len));
        let len = len.ok_or(Lost::Malformed)?;
        let (header, skip) = chain.header(header_len)?;
        if header.is_plain() {
            if len <= COPYBREAK {
                return self.copy_short(chain, skip, len);
            }
            let single = self.plan.single() == SinglePiece::Page && chain.pieces.len() == 1;
            if single && let Some(packet) = chain.packet(skip) {
                return Ok(packet);
            }
            return self.build(self.plan, chain, skip);
        }
        self.frame_with_offload(chain, header, skip, acked)
    }

    /// Copies a short frame into a head.
    #[inline]
    fn copy_short(&mut self, chain: &mut InChain<'_>, skip: usize, len: usize) -> Result<Packet, Lost> {
        if let [Piece { place, .. }] = chain.pieces
            && let Some(memory) = chain.memory.memory(place.region)
            && let Some(mut packet) = self.heads.pop()
        {
            if memory.append_to(place.offset + skip, len, &mut packet) {
                self.totals.copies += 1;
                self.totals.copied_bytes += len as u64;
                return Ok(packet);
            }
            // Chunks are shorter than short frames. There is room: the head was taken out.
            let _ = self.heads.push(packet);
        }
        self.build(self.plan.with_headers(len), chain, skip)
    }

    /// The packet of a frame whose header asks for something.
    #[inline(never)]
    fn frame_with_offload(
        &mut self,
        chain: &mut InChain<'_>,
        header: VnetHeader,
        skip: usize,
        acked: Offloads,
    ) -> Result<Packet, Lost> {
        // A guest's claim that a checksum is right is ignored, and all flags are without the
        // feature (virtio 1.2, 5.1.6.2).
        let flags = if acked.has(Offloads::CSUM) { header.flags & NEEDS_CSUM } else { 0 };
        let header = VnetHeader { flags, ..header };
        let mut packet = self.build(self.plan.with_headers(MAX_SUPER_HEADERS), chain, skip)?;
        match vnet::apply_untrusted(header, &mut packet, usize::MAX) {
            Ok(applied)
                if applied.longest <= MAX_PACKET
                    && packet.gso().is_none_or(|gso| acked.has(Offloads::for_gso(gso))) =>
            {
                self.totals.copied_bytes += applied.copied as u64;
                Ok(packet)
            }
            _ => {
                self.cache.free(packet);
                Err(Lost::Malformed)
            }
        }
    }

    /// A packet with a head: copies first, as `plan` has it, then pages.
    #[inline]
    fn build(&mut self, plan: CopyPlan, chain: &mut InChain<'_>, mut skip: usize) -> Result<Packet, Lost> {
        let mut packet = self.heads.pop().ok_or(Lost::NoBuffer)?;
        let mut copied = 0;
        let few = chain.pieces.len() <= MAX_PAGES;
        let pieces = chain.pieces;
        for (i, piece) in pieces.iter().enumerate() {
            let mut len = piece.len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let mut place = piece.place;
            (place.offset, len, skip) = (place.offset + skip, len - skip, 0);
            let n = plan.copy_len(&packet, len);
            if n > 0 && chain.copy(place, n, &mut packet) {
                (place.offset, len, copied) = (place.offset + n, len - n, copied + n);
            }
            if len == 0 {
                continue;
            }
            if few && let Some(page) = chain.attach(place, len) {
                // There are fewer pages than a packet's fragments.
                let _ = packet.append_buf(page);
                continue;
            }
            let rest = pieces.get(i + 1..).unwrap_or_default();
            match self.copy_rest(chain, Piece { place, len: len as u32 }, rest, packet) {
                Ok((whole, n)) => (packet, copied) = (whole, copied + n),
                Err(packet) => {
                    self.cache.free(packet);
                    return Err(Lost::NoBuffer);
                }
            }
            break;
        }
        self.totals.copies += u64::from(copied > 0);
        self.totals.copied_bytes += copied as u64;
        Ok(packet)
    }

    /// Appends copies of the last pieces of a frame, for which there are no pages. Returns the
    /// packet without all of them if the pool is empty.
    #[cold]
    fn copy_rest(
        &mut self,
        chain: &InChain<'_>,
        first: Piece<RegionPlace>,
        rest: &[Piece<RegionPlace>],
        mut packet: Packet,
    ) -> Result<(Packet, usize), Packet> {
        let mut copied = 0;
        let mut tail: Option<Packet> = None;
        for &Piece { mut place, len } in std::iter::once(&first).chain(rest) {
            let mut left = len as usize;
            while left > 0 {
                let mut to = match tail.take().filter(|tail| tail.tailroom() > 0) {
                    Some(to) => to,
                    None => match self.cache.alloc() {
                        Some(to) => to,
                        None => return Err(packet),
                    },
                };
                let n = left.min(to.tailroom());
                if n == 0 || !chain.copy(place, n, &mut to) {
                    return Err(packet);
                }
                (place.offset, left, copied) = (place.offset + n, left - n, copied + n);
                if to.tailroom() > 0 {
                    tail = Some(to);
                } else if packet.append(to).is_err() {
                    return Err(packet);
                }
            }
        }
        match tail.map_or(Ok(()), |tail| packet.append(tail)) {
            Ok(()) => Ok((packet, copied)),
            Err(_) => Err(packet),
        }
    }
}

impl InChain<'_> {
    /// The header, read once, and the number of bytes to skip: all of it in the first pieces.
    #[inline]
    fn header(&self, header_len: usize) -> Result<(VnetHeader, usize), Lost> {
        let bytes = match self.pieces.first() {
            Some(first) if first.len as usize >= VnetHeader::LEN => {
                let memory = self.memory.memory(first.place.region);
                memory.and_then(|memory| memory.get::<{ VnetHeader::LEN }>(first.place.offset))
            }
            _ => self.spread_header(),
        };
        Ok((VnetHeader::from_le_bytes(&bytes.ok_or(Lost::Malformed)?), header_len))
    }

    /// The header byte by byte, out of pieces that are shorter.
    #[cold]
    fn spread_header(&self) -> Option<[u8; VnetHeader::LEN]> {
        let mut places = self.pieces.iter().flat_map(|piece| {
            (0..piece.len as usize).map(|at| RegionPlace { offset: piece.place.offset + at, ..piece.place })
        });
        let mut bytes = [0; VnetHeader::LEN];
        for byte in &mut bytes {
            let place = places.next()?;
            [*byte] = self.memory.memory(place.region)?.get::<1>(place.offset)?;
        }
        Some(bytes)
    }

    /// The packet of a chain of one piece, without its first `skip` bytes.
    #[inline]
    fn packet(&mut self, skip: usize) -> Option<Packet> {
        let Piece { place, len } = *self.pieces.first()?;
        let place = RegionPlace { offset: place.offset + skip, ..place };
        let packet = self.pages.packet(place, len as usize - skip, self.token.slot(self.size))?;
        self.held = 1;
        Some(packet)
    }

    #[inline]
    fn attach(&mut self, place: RegionPlace, len: usize) -> Option<Buf> {
        let page = self.pages.attach(place, len, self.token.slot(self.size))?;
        self.held += 1;
        Some(page)
    }

    #[inline]
    fn copy(&self, place: RegionPlace, len: usize, to: &mut Packet) -> bool {
        self.memory.memory(place.region).is_some_and(|memory| memory.append_to(place.offset, len, to))
    }
}

/// What frames of the guest may ask for.
fn acked(ring: &Ring) -> Offloads {
    let kinds = [
        (feature::CSUM, Offloads::CSUM),
        (feature::CSUM | feature::HOST_TSO4, Offloads::TSO4),
        (feature::CSUM | feature::HOST_TSO6, Offloads::TSO6),
        (feature::CSUM | feature::HOST_ECN, Offloads::TSO_ECN),
        (feature::CSUM | feature::HOST_USO, Offloads::USO),
    ];
    kinds.into_iter().filter(|&(bits, _)| ring.has(bits)).fold(Offloads::NONE, |all, (_, kind)| all.with(kind))
}
