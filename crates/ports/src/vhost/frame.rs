//! One chain of the guest's transmit ring, as a packet.
//!
//! ```text
//!   chain   [header 12][frame ……………][frame …]
//!   short frame          a head with a copy; the chain is used at once
//!   one piece, egress takes fragments     its page, no head
//!   any other            a head with what the egress or an offload needs linear, then pages
//! ```
//!
//! The header is read once. What it asks for is checked against bytes that were copied.
//!
//! Chains of one buffer are taken in [groups](Group). While the frames of one group are copied,
//! those of the next one are on their way. Chains of short frames go back to the ring all together,
//! at the end of the burst: one by one, their used descriptors would go to lines that are still
//! being read, and that the driver gets back later.

use super::group::Group;
use super::pages::Pages;
use super::ring::Ring;
use crate::copy_plan::{CopyPlan, SinglePiece};
use crate::vnet::{self, DATA_VALID, MAX_SUPER_HEADERS, NEEDS_CSUM, VnetHeader};
use towpath_packet::{Batch, Buf, Cache, Offloads, Packet, UntrustedBytes};
use towpath_virtio::{Device, Piece, RegionPlace, Regions, RingError, Token};
use towpath_wire::ethernet::{self, MAX_PACKET};
use towpath_wire::virtio_net::feature;

/// Sums of a burst.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) bytes: u64,
    pub(super) copies: u64,
    pub(super) copied_bytes: u64,
    pub(super) attached: u64,
    pub(super) malformed: u64,
    /// Frames for which there was no buffer.
    pub(super) dropped: u64,
}

/// Pieces of a frame that go on as pages; a frame in more pieces is copied.
const MAX_PAGES: usize = 64;
/// Chains of a burst, of which some may be no frames: a guest that sends none of use must not take
/// the time of others.
const MAX_CHAINS: usize = 2 * Batch::<64>::CAPACITY;

/// Why a burst ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
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
pub(super) struct Burst<'a> {
    pub(super) plan: CopyPlan,
    /// Frames of up to so many bytes are copied whole, and fit into a head.
    pub(super) copybreak: usize,
    pub(super) cache: &'a mut Cache,
    /// Empty packets.
    pub(super) heads: &'a mut Batch,
    pub(super) queue: u8,
    pub(super) totals: Totals,
    header_len: usize,
    acked: Offloads,
}

/// The chain of a frame.
struct InChain<'a> {
    memory: &'a Regions,
    pages: &'a mut Pages,
    pieces: &'a [Piece<RegionPlace>],
    /// Bytes in front of the frame.
    skip: usize,
    slot: usize,
    /// Pieces that are out in the packet.
    held: u16,
}

impl<'a> Burst<'a> {
    pub(super) fn new(
        (plan, copybreak): (CopyPlan, usize),
        (cache, heads): (&'a mut Cache, &'a mut Batch),
        queue: u8,
        ring: &Ring,
    ) -> Burst<'a> {
        let (header_len, acked) = (ring.header_len(), acked(ring));
        Burst { plan, copybreak, cache, heads, queue, totals: Totals::default(), header_len, acked }
    }

    /// Takes chains until none is left or the batch is full.
    #[inline]
    pub(super) fn take(&mut self, ring: &mut Ring, out: &mut Batch) -> Result<End, RingError> {
        let end = self.take_frames(ring, out);
        ring.device.add_used_all(ring.chains.drain(..));
        end
    }

    /// The same, but chains of the last short frames are still to go back.
    #[inline(always)] // it is called once
    fn take_frames(&mut self, ring: &mut Ring, out: &mut Batch) -> Result<End, RingError> {
        let Ring { device, setup, chain, pages, chains: copied, .. } = ring;
        let memory = &setup.memory;
        let (mut first, mut second) = (Group::new(), Group::new());
        let (mut group, mut next) = (&mut first, &mut second);
        let mut chains = 0;
        loop {
            // A group that is not full has met the end, a chain of another shape, or the last room.
            let more = (group.is_empty() || group.is_full()) && chains < MAX_CHAINS;
            next.take(memory, device, if more { out.room() - group.len() } else { 0 });
            chains += next.len();
            // There is a head for each frame of the group.
            let surplus = group.len() + next.len() - self.heads_for(group.len() + next.len());
            if surplus > 0 {
                next.untake(surplus, device);
            }
            self.copy_all(memory, pages, group, (device, copied), out);
            std::mem::swap(&mut group, &mut next);
            if surplus > 0 {
                self.copy_all(memory, pages, group, (device, copied), out);
                return Ok(End::NoHead);
            }
            if !group.is_empty() {
                continue;
            }
            if out.room() == 0 || chains >= MAX_CHAINS {
                return Ok(End::Done);
            }
            // There is none, or one of another shape, or one for which there is room only now.
            let Some(token) = device.take(memory, chain)? else { return Ok(End::Done) };
            chains += 1;
            if self.heads_for(1) == 0 {
                let _ = device.untake(token);
                return Ok(End::NoHead);
            }
            device.add_used_all(copied.drain(..));
            self.frame(memory, pages, chain.readable(), device, token, out);
        }
    }

    /// Makes packets of the frames of a group, for each of which there is an empty one. Chains of
    /// those that were copied whole are in `copied`, to go back later.
    #[inline]
    fn copy_all(
        &mut self,
        memory: &Regions,
        pages: &mut Pages,
        group: &Group<'_>,
        (device, copied): (&mut Device, &mut Vec<(Token, u32)>),
        out: &mut Batch,
    ) {
        for (at, single) in group.singles().iter().enumerate() {
            if let Some(packet) = group.view(at).and_then(|view| self.copy_short(view)) {
                self.push(packet, out);
                copied.push((single.token(), 0));
            } else {
                // In the order in which they were taken.
                device.add_used_all(copied.drain(..));
                self.frame(memory, pages, &[single.piece], device, single.token(), out);
            }
        }
    }

    /// Allocates empty packets for `n` frames; returns for how many there are some.
    #[inline]
    fn heads_for(&mut self, n: usize) -> usize {
        let missing = n.saturating_sub(self.heads.len());
        if missing > 0 {
            self.cache.alloc_bulk(self.heads, missing);
        }
        n.min(self.heads.len())
    }

    #[inline]
    fn push(&mut self, mut packet: Packet, out: &mut Batch) {
        self.totals.bytes += packet.len() as u64;
        packet.set_ingress(0, self.queue);
        // There is room: no more chains are taken than that.
        let _ = out.push(packet);
    }

    /// The packet of a short frame in one piece that asks for nothing; `None` for any other.
    #[inline]
    fn copy_short(&mut self, bytes: UntrustedBytes<'_>) -> Option<Packet> {
        let len = bytes.len().checked_sub(self.header_len)?;
        if !(ethernet::HEADER_LEN..=self.copybreak).contains(&len) || !asks_nothing(bytes.get(0)?) {
            return None;
        }
        let mut packet = self.heads.pop()?;
        // A short frame has room in a head.
        let _ = bytes.append_to(self.header_len, &mut packet);
        self.totals.copies += 1;
        self.totals.copied_bytes += len as u64;
        Some(packet)
    }

    /// Takes the frame of any chain.
    #[inline(never)]
    fn frame(
        &mut self,
        memory: &Regions,
        pages: &mut Pages,
        pieces: &[Piece<RegionPlace>],
        device: &mut Device,
        token: Token,
        out: &mut Batch,
    ) {
        let slot = pages.slot();
        let mut chain = InChain { memory, pages, pieces, skip: self.header_len, slot, held: 0 };
        let frame = self.packet(&mut chain);
        let held = chain.held;
        if held == 0 {
            device.add_used(token, 0);
        } else {
            self.totals.attached += u64::from(held);
            pages.hold(slot, token, held);
        }
        match frame {
            Ok(packet) => self.push(packet, out),
            Err(Lost::Malformed) => self.totals.malformed += 1,
            Err(Lost::NoBuffer) => self.totals.dropped += 1,
        }
    }

    /// The packet of one chain.
    #[inline]
    fn packet(&mut self, chain: &mut InChain<'_>) -> Result<Packet, Lost> {
        let len = chain.pieces.iter().map(|piece| piece.len as usize).sum::<usize>().checked_sub(chain.skip);
        let len = len.filter(|len| (ethernet::HEADER_LEN..=MAX_PACKET).contains(len)).ok_or(Lost::Malformed)?;
        let header = chain.header().ok_or(Lost::Malformed)?;
        if !asks_nothing(header) {
            return self.packet_with_offload(chain, VnetHeader::from_le_bytes(&header));
        }
        if len <= self.copybreak {
            return self.build(self.plan.with_headers(len), chain);
        }
        if chain.pieces.len() == 1
            && self.plan.single() == SinglePiece::Page
            && let Some(packet) = chain.page()
        {
            return Ok(packet);
        }
        self.build(self.plan, chain)
    }

    /// The packet of a frame whose header asks for something.
    fn packet_with_offload(&mut self, chain: &mut InChain<'_>, header: VnetHeader) -> Result<Packet, Lost> {
        let acked = self.acked;
        // A guest's claim that a checksum is right is ignored, and all flags are without the
        // feature (virtio 1.2, 5.1.6.2).
        let flags = if acked.has(Offloads::CSUM) { header.flags & NEEDS_CSUM } else { 0 };
        let header = VnetHeader { flags, ..header };
        let mut packet = self.build(self.plan.with_headers(MAX_SUPER_HEADERS), chain)?;
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
    fn build(&mut self, plan: CopyPlan, chain: &mut InChain<'_>) -> Result<Packet, Lost> {
        let mut skip = chain.skip;
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
    /// The header, read once.
    #[inline]
    fn header(&self) -> Option<[u8; VnetHeader::LEN]> {
        match self.pieces.first() {
            Some(&Piece { place, len }) if len as usize >= VnetHeader::LEN => {
                self.memory.memory(place.region)?.get(place.offset)
            }
            _ => self.spread_header(),
        }
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

    /// The page of a chain of one piece, as a packet.
    #[inline]
    fn page(&mut self) -> Option<Packet> {
        let Piece { place, len } = *self.pieces.first()?;
        let place = RegionPlace { offset: place.offset + self.skip, ..place };
        let packet = self.pages.packet(place, len as usize - self.skip, self.slot)?;
        self.held = 1;
        Some(packet)
    }

    #[inline]
    fn attach(&mut self, place: RegionPlace, len: usize) -> Option<Buf> {
        let page = self.pages.attach(place, len, self.slot)?;
        self.held += 1;
        Some(page)
    }

    #[inline]
    fn copy(&self, place: RegionPlace, len: usize, to: &mut Packet) -> bool {
        self.memory.memory(place.region).is_some_and(|memory| memory.append_to(place.offset, len, to))
    }
}

/// Whether a header says nothing of its frame.
#[inline]
fn asks_nothing(header: [u8; VnetHeader::LEN]) -> bool {
    header[0] & (NEEDS_CSUM | DATA_VALID) == 0 && header[1] == 0
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
