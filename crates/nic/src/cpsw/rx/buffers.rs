//! The descriptors of a receive flow, with the buffers behind them.

use super::super::config::Config;
use super::super::desc_pool::{DescSlot, DescTable, NO_DESC};
use super::super::descriptors::{BufferPtr, RxBufferDesc};
use super::super::soc::Family;
use towpath_bus::{Dma, Domain, MapError};
use towpath_packet::{Cache, FromDevice, InFlight, Packet};

/// Descriptors and buffers.
pub(in crate::cpsw) struct RxBuffers<D: Dma> {
    /// A slot notes whether its descriptor has an element on the free ring: the first of its chain.
    pub(in crate::cpsw) table: DescTable<D, FromDevice, bool>,
    pub(super) cache: Cache,
    /// Descriptors with a mapped buffer that the device does not have: frames that were shorter
    /// than their chain left them over.
    pub(super) spare: Vec<u16>,
    /// Buffers of a frame, at most.
    pub(super) chain: u16,
    /// PKTDMA: the driver links descriptors to chains. UDMA links them itself.
    pub(super) linked: bool,
    /// Elements on the free ring.
    pub(super) posted: u32,
}

impl<D: Dma> RxBuffers<D> {
    pub(super) fn new(
        config: &Config,
        domain: &Domain<D>,
        cache: Cache,
        completion: u16,
    ) -> Result<RxBuffers<D>, MapError> {
        let table = DescTable::new(config, domain, config.rx_ring, completion)?;
        Ok(RxBuffers {
            spare: Vec::with_capacity(usize::from(table.count)),
            table,
            cache,
            chain: u16::from(config.rx_buffers),
            linked: config.soc.family == Family::Pktdma && config.rx_buffers > 1,
            posted: 0,
        })
    }

    /// Number of descriptors behind each element of the free ring.
    #[inline]
    pub(super) fn per_element(&self) -> u16 {
        if self.linked { self.chain } else { 1 }
    }

    /// Maps a buffer and gives it a descriptor; `None` if that fails.
    pub(super) fn attach(&mut self, buffer: Packet) -> Option<u16> {
        let buffer = InFlight::<FromDevice>::post(buffer).ok()?;
        let Ok(mapped) = self.table.mapper.map_from_device(&buffer) else {
            self.cache.free(buffer.complete(0));
            return None;
        };
        let Some(index) = self.table.pool.alloc() else {
            let _ = self.table.mapper.unmap(mapped);
            self.cache.free(buffer.complete(0));
            return None;
        };
        if let Some(slot) = self.table.slots.get_mut(u32::from(index)) {
            *slot = DescSlot { in_flight: Some(buffer), mapped: Some(mapped), next: NO_DESC, note: false };
        }
        Some(index)
    }

    /// Links the last `n` spare descriptors; returns the first of the chain.
    pub(super) fn link(&mut self, n: usize) -> u16 {
        let mut next = NO_DESC;
        for index in self.spare.drain(self.spare.len().saturating_sub(n)..) {
            if let Some(slot) = self.table.slots.get_mut(u32::from(index)) {
                slot.next = next;
            }
            next = index;
        }
        next
    }

    /// Writes a descriptor and those that are linked to it, for the free ring; returns the element.
    #[inline]
    pub(super) fn post(&mut self, first: u16) -> u64 {
        let mut index = first;
        while let Some(slot) = self.table.slots.get_mut(u32::from(index)) {
            let (Some(buffer), Some(mapped)) = (&slot.in_flight, &slot.mapped) else { break };
            let pointer = BufferPtr { iova: mapped.iova(), len: buffer.room() as u32 };
            let next = (slot.next != NO_DESC).then_some(slot.next);
            slot.note = index == first;
            self.table.descriptors.write_free(index, pointer, self.table.return_ring, next);
            index = next.unwrap_or(NO_DESC);
        }
        self.posted += 1;
        self.table.descriptors.element(first)
    }

    /// The next descriptor of a frame; to be called before the buffer of `index` is taken.
    pub(super) fn next(&mut self, index: u16, desc: RxBufferDesc) -> u16 {
        let next = if self.linked {
            self.table.slots.get_mut(u32::from(index)).map_or(NO_DESC, |slot| slot.next)
        } else {
            self.table.descriptors.index(desc.next).unwrap_or(NO_DESC)
        };
        if next != index && self.table.is_in_flight(next) { next } else { NO_DESC }
    }

    /// Keeps the rest of a chain, mapped as it is, for the next frames.
    pub(super) fn keep_rest(&mut self, mut index: u16) {
        while let Some(slot) = self.table.slots.get_mut(u32::from(index)) {
            self.spare.push(index);
            index = std::mem::replace(&mut slot.next, NO_DESC);
        }
    }

    /// Takes a buffer back from the device, which wrote `len` bytes, and frees the descriptor.
    #[inline]
    pub(super) fn take(&mut self, index: u16, len: usize) -> Option<InFlight<FromDevice>> {
        let slot = self.table.slots.get_mut(u32::from(index))?;
        let (buffer, mapped) = (slot.in_flight.take()?, slot.mapped.take()?);
        self.posted -= u32::from(std::mem::take(&mut slot.note));
        self.table.mapper.sync_for_cpu(&mapped, len.min(buffer.room()));
        let unmapped = self.table.mapper.unmap(mapped);
        self.table.pool.free(index);
        // A buffer that the device may still write to is dropped in flight, which leaks it.
        unmapped.is_ok().then_some(buffer)
    }

    /// Takes all buffers back, of a channel that has been torn down.
    pub(super) fn drain(&mut self) {
        self.spare.clear();
        for index in 0..self.table.count {
            if let Some(buffer) = self.take(index, 0)
                && self.table.mapper.sync_iotlb().is_ok()
            {
                self.cache.free(buffer.complete(0));
            }
        }
        let _ = self.table.mapper.flush_iotlb();
    }
}
