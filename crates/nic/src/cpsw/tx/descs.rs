//! The descriptors of a transmit channel: from a packet to its chain of descriptors and back.

use super::super::config::Config;
use super::super::desc_pool::{DescTable, NO_DESC};
use super::super::descriptors::{BufferPtr, TxPacketInfo};
use towpath_bus::{Dma, Domain, MapError};
use towpath_packet::{Batch, InFlight, Packet, ToDevice};

/// Descriptors of one packet, at most; a packet of more chunks is copied.
pub(in crate::cpsw) const MAX_DESCS: u16 = 18;
/// The host port and up to eight MAC ports.
pub(super) const PORTS: usize = 9;

/// The descriptors, with what is in flight behind them.
pub(in crate::cpsw) struct TxDescs<D: Dma> {
    /// A slot notes the MAC port of its packet.
    pub(in crate::cpsw) table: DescTable<D, ToDevice, u8>,
    /// Packets of each MAC port that are staged or in flight.
    pub(super) pending: [u32; PORTS],
}

impl<D: Dma> TxDescs<D> {
    pub(super) fn new(config: &Config, domain: &Domain<D>, completion: u16) -> Result<TxDescs<D>, MapError> {
        let table = DescTable::new(config, domain, config.tx_descriptors, completion)?;
        Ok(TxDescs { table, pending: [0; PORTS] })
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
        let info = TxPacketInfo { len, port, return_ring: self.table.return_ring, checksum };
        let Some(first) = self.build(&packet, info) else { return Err(packet.complete()) };
        if let Some(slot) = self.table.slots.get_mut(u32::from(first)) {
            (slot.in_flight, slot.note) = (Some(packet), port);
            self.pending[usize::from(port) % PORTS] += 1;
        }
        Ok(first)
    }

    /// Writes one descriptor per chunk. Each names the next one, which is therefore allocated
    /// before.
    #[inline]
    fn build(&mut self, packet: &InFlight<ToDevice>, info: TxPacketInfo) -> Option<u16> {
        let mut chunks = packet.chunks().filter(|chunk| !chunk.is_empty());
        let first = self.table.pool.alloc()?;
        let (mut index, mut rest) = (first, chunks.next());
        let mut written = 0;
        while let Some(chunk) = rest {
            let mapped = self.table.mapper.map_to_device(chunk);
            rest = chunks.next();
            let next = if rest.is_some() { self.table.pool.alloc() } else { None };
            let (Ok(mapped), true) = (mapped, rest.is_none() || next.is_some()) else {
                next.into_iter().for_each(|next| self.table.pool.free(next));
                // The chain ends at `index`: the slot of a descriptor that was free has no next
                // one, and it has no mapping if the mapping failed.
                self.undo(first);
                return None;
            };
            self.table.mapper.sync_for_device(&mapped, chunk.len());
            let buffer = BufferPtr { iova: mapped.iova(), len: chunk.len() as u32 };
            if written == 0 {
                self.table.descriptors.write_packet(index, info, buffer, next);
            } else {
                self.table.descriptors.write_buffer(index, buffer, next);
            }
            written += 1;
            if let Some(slot) = self.table.slots.get_mut(u32::from(index)) {
                slot.mapped = Some(mapped);
                slot.next = next.unwrap_or(NO_DESC);
            }
            index = next.unwrap_or(index);
        }
        if written == 0 {
            self.table.pool.free(first);
            return None;
        }
        Some(first)
    }

    #[cold]
    fn undo(&mut self, first: u16) {
        // The chunks that were mapped were not announced. A chunk that cannot be unmapped stays
        // mapped, and the mapper counts it.
        let _ = self.release(first);
        let _ = self.table.mapper.sync_iotlb();
    }

    /// Unmaps the chunks of a packet and frees its descriptors; returns the packet, unless a chunk
    /// could not be unmapped.
    #[inline]
    fn release(&mut self, first: u16) -> Option<Packet> {
        let mut packet = None;
        let (mut index, mut failed) = (first, false);
        while let Some(slot) = self.table.slots.get_mut(u32::from(index)) {
            if let Some(in_flight) = slot.in_flight.take() {
                packet = Some(in_flight);
                self.pending[usize::from(slot.note) % PORTS] -= 1;
            }
            let next = std::mem::replace(&mut slot.next, NO_DESC);
            if let Some(mapped) = slot.mapped.take() {
                failed |= self.table.mapper.unmap(mapped).is_err();
            }
            self.table.pool.free(index);
            index = next;
        }
        // Dropping what is in flight leaks its packet, which the device may still access.
        if failed { None } else { packet.map(InFlight::<ToDevice>::complete) }
    }

    /// Releases a packet and adds it to those that are freed next; returns false if a chunk could
    /// not be unmapped.
    #[inline]
    pub(super) fn collect(&mut self, first: u16, batch: &mut Batch, free: &mut impl FnMut(&mut Batch)) -> bool {
        let Some(packet) = self.release(first) else { return false };
        if batch.room() == 0 {
            self.free_batch(batch, free);
        }
        let _ = batch.push(packet);
        true
    }

    /// Frees packets after the device can no longer reach their memory, for which it waits if the
    /// policy demands it.
    #[inline]
    pub(super) fn free_batch(&mut self, batch: &mut Batch, free: &mut impl FnMut(&mut Batch)) {
        if batch.is_empty() {
            return;
        }
        if self.table.mapper.sync_iotlb().is_ok() {
            free(batch);
        } else {
            std::mem::forget(std::mem::take(batch));
        }
    }
}
