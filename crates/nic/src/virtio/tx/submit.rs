//! Packets become chains. Packets of one piece without offloads, with room in front for a header,
//! take the short way ([`TxRing::submit_plain`]): one descriptor each, in runs. Every other packet
//! takes the long way: its header is made, it is copied if the device can't reach it, its pieces
//! are mapped, and the chain is added.

use super::super::control::Fault;
use super::super::features::{HASH_HEADER, HEADER};
use super::{MAX_PIECES, TxRing, TxSlot};
use std::num::NonZeroU32;
use towpath_bus::{Dma, DmaMapper, MapError, Mapped};
use towpath_packet::vnet::{self, NEEDS_CSUM, VnetHeader};
use towpath_packet::{Batch, Checksum, DropReason, Front, InFlight, Offloads, Packet, ToDevice};
use towpath_virtio::{AddError, Segment, SingleBuffers};
use towpath_wire::ethernet;

/// What became of a packet.
enum Submitted {
    /// It is a chain with this id.
    Queued(u16),
    Dropped(DropReason),
    /// The ring has no room now.
    Full,
}

/// Why a chain was not added.
enum Refusal {
    /// The device can't reach a piece, but could reach a copy.
    Unreachable,
    /// There are more pieces than the ring takes, but a copy would have fewer.
    Pieces,
    /// There is no room now.
    Full,
}

impl<D: Dma> TxRing<D> {
    /// Takes packets from the front of a batch; returns how many. The device does not see them
    /// before [`publish`](TxRing::publish).
    #[inline]
    pub(super) fn send(&mut self, batch: &mut Batch) -> usize {
        if self.header == HEADER { self.send_with::<HEADER>(batch) } else { self.send_with::<HASH_HEADER>(batch) }
    }

    /// [`send`](TxRing::send) with headers of `LEN` bytes.
    #[inline]
    fn send_with<const LEN: usize>(&mut self, batch: &mut Batch) -> usize {
        let (mut taken, mut dropped) = (0, 0);
        let (mut front, mut freed): (_, Batch) = (batch.front(), Batch::new());
        loop {
            taken += self.submit_plain::<LEN>(&mut front);
            let Some(packet) = front.peek() else { break };
            let id = match self.submit_any(packet) {
                Submitted::Queued(id) => Some(id),
                Submitted::Dropped(reason) => {
                    self.counters.dropped_packet(reason, packet);
                    dropped += 1;
                    None
                }
                Submitted::Full => break,
            };
            taken += 1;
            let Some(packet) = front.take() else { break };
            match id.and_then(|id| self.slots.get_mut(usize::from(id))) {
                Some(slot) => slot.frame = Some(InFlight::<ToDevice>::post(packet)),
                // Together, so that external buffers return in their order.
                None => freed.push(packet).unwrap_or_else(|packet| self.cache.free(packet)),
            }
        }
        drop(front);
        self.cache.free_bulk(&mut freed);
        self.pending += taken - dropped;
        taken
    }

    /// Makes the chains available; returns whether the device needs a kick.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        self.driver.publish()
    }

    /// Takes packets of one piece without offloads, with room in front for a header, from the
    /// front; returns how many. Ends at a packet that needs another way, that can't be mapped now,
    /// or for which no descriptor is free.
    #[inline]
    fn submit_plain<const LEN: usize>(&mut self, front: &mut Front<'_, 64>) -> usize {
        let TxRing { driver, mapper, slots, max_frame, .. } = self;
        driver.add_singles(false, &mut Plain::<D, LEN> { front, mapper, slots, max_frame: *max_frame })
    }

    /// Any packet: with offloads, of several pieces, without room in front, out of reach.
    #[inline(never)]
    fn submit_any(&mut self, packet: &mut Packet) -> Submitted {
        let header = match self.header(packet) {
            Ok(header) => header,
            Err(reason) => return Submitted::Dropped(reason),
        };
        let (mut copied, mut mapped_external) = (false, false);
        // At most three rounds: external memory is mapped once, and a copy is copied no more.
        loop {
            let why = match self.add(packet, header) {
                Ok(id) => return Submitted::Queued(id),
                Err(Refusal::Full) => return Submitted::Full,
                Err(_) if copied => return Submitted::Dropped(DropReason::Refused),
                Err(Refusal::Unreachable) if !mapped_external && self.mapper.map_external(packet) => {
                    mapped_external = true;
                    continue;
                }
                Err(Refusal::Unreachable) => Fault::Bounced,
                Err(Refusal::Pieces) => Fault::Linearised,
            };
            if self.driver.num_free() == 0 {
                return Submitted::Full;
            }
            let Some(copy) = packet.duplicate(&mut self.cache) else {
                return Submitted::Dropped(DropReason::NoBuffer);
            };
            self.counters.copied(1, packet.len() as u64);
            self.control.fault(why);
            self.cache.free(std::mem::replace(packet, copy));
            copied = true;
        }
    }

    /// The header of a packet that may be sent.
    fn header(&self, packet: &Packet) -> Result<VnetHeader, DropReason> {
        let len = packet.len();
        if len < ethernet::HEADER_LEN {
            return Err(DropReason::Malformed);
        }
        let mut header = vnet::header_of(packet)?;
        // A driver does not set DATA_VALID (virtio 1.2 §5.1.6.2.1).
        header.flags &= NEEDS_CSUM;
        let needs = match packet.gso() {
            Some(gso) => Offloads::for_gso(gso),
            None if len > self.max_frame => return Err(DropReason::TooLong),
            None => Offloads::NONE,
        };
        let partial = matches!(packet.csum(), Checksum::Partial { .. });
        let needs = if partial { needs.with(Offloads::CSUM) } else { needs };
        if self.offloads.has(needs) { Ok(header) } else { Err(DropReason::Offload) }
    }

    /// Maps all pieces, and adds their chain.
    fn add(&mut self, packet: &mut Packet, header: VnetHeader) -> Result<u16, Refusal> {
        let pieces = packet.frags() + 2;
        if pieces > MAX_PIECES.min(self.slots.len()) {
            return Err(Refusal::Pieces);
        }
        if self.driver.num_free() == 0 {
            return Err(Refusal::Full);
        }
        if self.is_out_of_reach(packet) {
            return Err(Refusal::Unreachable);
        }
        let bytes = header.to_le_bytes_v1(0);
        let mut segments = [Segment::readable(0, 0); MAX_PIECES];
        let mut n = 0;
        let place = match packet.push_front(self.header) {
            Ok(front) => {
                write(front, &bytes);
                None
            }
            Err(_) => {
                let (place, addr) = self.headers.put(&bytes, bytes == [0; HEADER]).ok_or(Refusal::Full)?;
                if let Some(segment) = segments.first_mut() {
                    *segment = Segment::readable(addr, self.header as u32);
                }
                n = 1;
                Some(place)
            }
        };
        let mut slot = TxSlot { header: place, ..TxSlot::default() };
        let added = self.map_pieces(packet, &mut slot, &mut segments, &mut n).and_then(|()| {
            self.driver.add(segments.get(..n).unwrap_or_default()).map_err(|error| match error {
                AddError::Full => Refusal::Full,
                _ => Refusal::Pieces,
            })
        });
        match added {
            Ok(id) => {
                if let Some(place) = self.slots.get_mut(usize::from(id)) {
                    *place = slot;
                }
            }
            Err(_) => {
                self.undo(slot);
                if place.is_none() {
                    packet.pull_front(self.header);
                }
            }
        }
        added
    }

    /// Maps the pieces of a packet, those that lie side by side as one.
    fn map_pieces(
        &mut self,
        packet: &Packet,
        slot: &mut TxSlot,
        segments: &mut [Segment; MAX_PIECES],
        n: &mut usize,
    ) -> Result<(), Refusal> {
        let mut chunks = packet.chunks();
        while chunks.clone().next().is_some() {
            let run = match self.mapper.map_run_to_device(chunks.clone()) {
                Ok(run) => run,
                Err(error) => return Err(self.refusal(&error)),
            };
            for chunk in chunks.by_ref().take(run.pieces) {
                let iova = run.iova(&chunk);
                self.mapper.sync_piece_for_device(iova, chunk.len());
                let segment = segments.get_mut(*n).ok_or(Refusal::Pieces)?;
                *segment = Segment::readable(iova.get(), chunk.len() as u32);
                *n += 1;
            }
            let Some(mapped) = Some(run.mapped).filter(Mapped::is_temporary) else { continue };
            if slot.mapped.is_none() {
                slot.mapped = Some(mapped);
                continue;
            }
            match self.mappings.push(slot.more, mapped) {
                Ok(list) => slot.more = list,
                Err(mapped) => {
                    let _ = self.mapper.unmap(mapped);
                    return Err(Refusal::Full);
                }
            }
        }
        Ok(())
    }

    /// Whether the device is known not to reach a packet of the datapath's pool.
    #[inline]
    fn is_out_of_reach(&self, packet: &Packet) -> bool {
        let Some(pool) = &self.out_of_reach else { return false };
        let base = pool.base().addr().get();
        packet.chunks().any(|chunk| chunk.as_ptr().addr().wrapping_sub(base) < pool.len())
    }

    /// Unmaps the pieces of a packet that was not added.
    #[cold]
    fn undo(&mut self, mut slot: TxSlot) {
        // A piece that stays mapped can be read by the device, but no descriptor names it.
        while let Some(mapped) = slot.mapped.take().or_else(|| self.mappings.pop(&mut slot.more)) {
            let _ = self.mapper.unmap(mapped);
        }
        let _ = self.mapper.sync_iotlb();
        if let Some(place) = slot.header {
            self.headers.free(place);
        }
    }

    #[cold]
    fn refusal(&self, error: &MapError) -> Refusal {
        match error {
            MapError::Foreign | MapError::Unregistered | MapError::Granule { .. } | MapError::Range { .. } => {
                Refusal::Unreachable
            }
            _ => {
                self.control.fault(Fault::MapFailed);
                self.counters.retried(1);
                Refusal::Full
            }
        }
    }
}

/// Packets of a batch that need nothing but a header of `LEN` bytes, which are put into their slots
/// when they are added.
struct Plain<'a, 'b, D: Dma, const LEN: usize> {
    front: &'a mut Front<'b, 64>,
    mapper: &'a mut DmaMapper<D>,
    slots: &'a mut [TxSlot],
    max_frame: usize,
}

impl<D: Dma, const LEN: usize> SingleBuffers for Plain<'_, '_, D, LEN> {
    #[inline(always)] // a call costs as much as the rest
    fn next(&mut self, id: u16) -> Option<(u64, NonZeroU32)> {
        let (packet, slot) = (self.front.peek()?, self.slots.get_mut(usize::from(id))?);
        let plain = !packet.wants_offload() && packet.frags() == 0;
        if !plain || !(ethernet::HEADER_LEN..=self.max_frame).contains(&packet.len()) {
            return None;
        }
        packet.push_front_array([0; LEN]).ok()?;
        let (len, chunk) = (NonZeroU32::new(packet.len() as u32)?, packet.only_chunk());
        let Some(Ok(mapped)) = chunk.map(|chunk| self.mapper.map_to_device(chunk)) else {
            packet.pull_front(LEN);
            return None;
        };
        let iova = mapped.iova().get();
        self.mapper.sync_for_device(&mapped, len.get() as usize);
        if mapped.is_temporary() {
            slot.mapped = Some(mapped);
        }
        slot.frame = self.front.take().map(InFlight::<ToDevice>::post);
        Some((iova, len))
    }
}

/// Writes a header. The place of a hash behind it is zero.
#[inline]
fn write(front: &mut [u8], header: &[u8; HEADER]) {
    if let Some((first, hash)) = front.split_first_chunk_mut() {
        *first = *header;
        if !hash.is_empty() {
            hash.fill(0);
        }
    }
}
