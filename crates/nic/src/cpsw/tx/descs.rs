//! The descriptors of a transmit channel: from a packet to its chain of descriptors and back.

use super::super::config::Config;
use super::super::desc_pool::DescPool;
use super::super::descriptors::{BufferPtr, Descriptors, TxPacketInfo};
use super::super::ring::NO_DESC;
use crate::common::slots::Slots;
use towpath_bus::{Dma, DmaMapper, Domain, MapError, Mapped};
use towpath_packet::{InFlight, Packet, ToDevice};

/// Descriptors of one packet, at most; a packet of more chunks is copied.
pub(in crate::cpsw) const MAX_DESCS: u16 = 18;
/// The host port and up to eight MAC ports.
const PORTS: usize = 9;

/// The driver's shadow of a descriptor.
#[derive(Debug)]
struct TxSlot {
    /// The packet, in the slot of its first descriptor.
    packet: Option<InFlight<ToDevice>>,
    mapped: Option<Mapped>,
    /// The next descriptor of the packet.
    next: u16,
    /// MAC port of the packet.
    port: u8,
}

impl Default for TxSlot {
    fn default() -> TxSlot {
        TxSlot { packet: None, mapped: None, next: NO_DESC, port: 0 }
    }
}

/// The descriptors, with what is in flight behind them.
pub(super) struct TxDescs<D: Dma> {
    pub(super) descriptors: Descriptors,
    pool: DescPool,
    slots: Slots<TxSlot>,
    count: u16,
    mapper: DmaMapper<D>,
    return_ring: u16,
    /// Packets of each MAC port that are staged or in flight.
    pending: [u32; PORTS],
}

impl<D: Dma> TxDescs<D> {
    pub(super) fn new(config: &Config, domain: &Domain<D>, return_ring: u16) -> Result<TxDescs<D>, MapError> {
        let count = config.tx_descriptors as u16;
        Ok(TxDescs {
            descriptors: Descriptors::new(domain, count, &config.soc)?,
            pool: DescPool::new(count, config.desc_alloc),
            slots: Slots::new(config.tx_descriptors),
            count,
            mapper: DmaMapper::new(domain, config.tx_descriptors, 1 << 16)?,
            return_ring,
            pending: [0; PORTS],
        })
    }

    /// Number of descriptors.
    #[inline]
    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// Number of free descriptors.
    #[inline]
    pub(super) fn free(&self) -> usize {
        self.pool.len()
    }

    /// Number of packets of MAC port `port` that are staged or in flight.
    #[inline]
    pub(super) fn pending(&self, port: u8) -> usize {
        self.pending[usize::from(port) % PORTS] as usize
    }

    /// Builds the chain of a packet; returns its first descriptor.
    ///
    /// # Errors
    /// Hands the packet back: its memory can't be mapped for the device, or descriptors are
    /// missing.
    #[inline]
    pub(super) fn post(&mut self, packet: Packet, port: u8, checksum: u32) -> Result<u16, Packet> {
        let len = packet.len() as u32;
        let packet = InFlight::<ToDevice>::post(packet);
        let info = TxPacketInfo { len, port, return_ring: self.return_ring, checksum };
        let Some(first) = self.build(&packet, info) else { return Err(packet.complete()) };
        if let Some(slot) = self.slots.get_mut(u32::from(first)) {
            (slot.packet, slot.port) = (Some(packet), port);
            self.pending[usize::from(port) % PORTS] += 1;
        }
        Ok(first)
    }

    /// Writes one descriptor per chunk. Each names the next one, which is therefore allocated
    /// before.
    #[inline]
    fn build(&mut self, packet: &InFlight<ToDevice>, info: TxPacketInfo) -> Option<u16> {
        let mut chunks = packet.chunks().filter(|chunk| !chunk.is_empty());
        let first = self.pool.alloc()?;
        let (mut index, mut rest) = (first, chunks.next());
        let mut written = 0;
        while let Some(chunk) = rest {
            let mapped = self.mapper.map_to_device(chunk);
            rest = chunks.next();
            let next = if rest.is_some() { self.pool.alloc() } else { None };
            let (Ok(mapped), true) = (mapped, rest.is_none() || next.is_some()) else {
                next.into_iter().for_each(|next| self.pool.free(next));
                // The chain ends at `index`, which has no mapping if the mapping failed.
                self.link(index, NO_DESC);
                self.undo(first);
                return None;
            };
            self.mapper.sync_for_device(&mapped, chunk.len());
            let buffer = BufferPtr { iova: mapped.iova(), len: chunk.len() as u32 };
            if written == 0 {
                self.descriptors.write_packet(index, info, buffer, next);
            } else {
                self.descriptors.write_buffer(index, buffer, next);
            }
            written += 1;
            if let Some(slot) = self.slots.get_mut(u32::from(index)) {
                slot.mapped = Some(mapped);
                slot.next = next.unwrap_or(NO_DESC);
            }
            index = next.unwrap_or(index);
        }
        if written == 0 {
            self.pool.free(first);
            return None;
        }
        Some(first)
    }

    fn link(&mut self, index: u16, next: u16) {
        if let Some(slot) = self.slots.get_mut(u32::from(index)) {
            slot.next = next;
        }
    }

    #[cold]
    fn undo(&mut self, first: u16) {
        // The chunks that were mapped were not announced. A chunk that cannot be unmapped stays
        // mapped, and the mapper counts it.
        let _ = self.release(first);
        let _ = self.mapper.sync_iotlb();
    }

    /// Whether `first` is the first descriptor of a packet in flight.
    #[inline]
    pub(super) fn is_in_flight(&mut self, first: u16) -> bool {
        self.slots.get_mut(u32::from(first)).is_some_and(|slot| slot.packet.is_some())
    }

    /// Unmaps the chunks of a packet and frees its descriptors; returns the packet, unless a chunk
    /// could not be unmapped.
    #[inline]
    pub(super) fn release(&mut self, first: u16) -> Option<Packet> {
        let mut packet = None;
        let (mut index, mut failed) = (first, false);
        while let Some(slot) = self.slots.get_mut(u32::from(index)) {
            if let Some(in_flight) = slot.packet.take() {
                packet = Some(in_flight);
                self.pending[usize::from(slot.port) % PORTS] -= 1;
            }
            let next = std::mem::replace(&mut slot.next, NO_DESC);
            if let Some(mapped) = slot.mapped.take() {
                failed |= self.mapper.unmap(mapped).is_err();
            }
            self.pool.free(index);
            index = next;
        }
        // Dropping what is in flight leaks its packet, which the device may still access.
        if failed { None } else { packet.map(InFlight::<ToDevice>::complete) }
    }

    /// Waits, if the policy demands it, until the device can't reach the memory that was unmapped;
    /// false if that can't be shown.
    #[inline]
    pub(super) fn sync_iotlb(&mut self) -> bool {
        self.mapper.sync_iotlb().is_ok()
    }

    /// Waits, under any policy, until the device can't reach the memory that was unmapped.
    pub(super) fn flush(&mut self) {
        let _ = self.mapper.flush();
    }

    /// Maps the memory of a packet's external buffers for the device; returns whether the device
    /// can reach more memory now.
    #[cold]
    pub(super) fn map_external(&mut self, packet: &Packet) -> bool {
        self.mapper.map_external(packet)
    }

    /// Unmaps memory of external buffers that has no other user.
    #[cold]
    pub(super) fn unmap_unused(&mut self) {
        self.mapper.unmap_unused();
    }
}
