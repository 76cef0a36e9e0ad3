//! The descriptors of a receive flow, with the buffers behind them.

use super::super::config::{Config, Family};
use super::super::desc_pool::DescPool;
use super::super::descriptors::{BufferPtr, Descriptors, RxBufferDesc};
use super::super::ring::NO_DESC;
use crate::common::slots::Slots;
use towpath_bus::{Dma, DmaMapper, Domain, MapError, Mapped};
use towpath_packet::{Batch, Cache, FromDevice, InFlight, Packet};

/// The driver's shadow of a descriptor.
#[derive(Debug)]
struct RxSlot {
    buffer: Option<InFlight<FromDevice>>,
    mapped: Option<Mapped>,
    /// The next descriptor of a chain that the driver linked.
    next: u16,
    /// The descriptor has an element on the free ring: the first of its chain.
    queued: bool,
}

impl Default for RxSlot {
    fn default() -> RxSlot {
        RxSlot { buffer: None, mapped: None, next: NO_DESC, queued: false }
    }
}

/// Descriptors and buffers.
pub(super) struct RxBuffers<D: Dma> {
    pub(super) descriptors: Descriptors,
    pool: DescPool,
    slots: Slots<RxSlot>,
    count: u16,
    mapper: DmaMapper<D>,
    cache: Cache,
    return_ring: u16,
    /// Descriptors with a mapped buffer that the device does not have: frames that were shorter
    /// than their chain left them over.
    spare: Vec<u16>,
    /// Buffers of a frame, at most.
    chain: u16,
    /// PKTDMA: the driver links descriptors to chains. UDMA links them itself.
    linked: bool,
    /// Elements on the free ring.
    posted: u32,
}

impl<D: Dma> RxBuffers<D> {
    pub(super) fn new(
        config: &Config,
        domain: &Domain<D>,
        cache: Cache,
        return_ring: u16,
    ) -> Result<RxBuffers<D>, MapError> {
        let count = config.rx_ring as u16;
        Ok(RxBuffers {
            descriptors: Descriptors::new(domain, count, &config.soc)?,
            pool: DescPool::new(count, config.desc_alloc),
            slots: Slots::new(config.rx_ring),
            count,
            mapper: DmaMapper::new(domain, config.rx_ring, 1 << 16)?,
            cache,
            return_ring,
            spare: Vec::with_capacity(usize::from(count)),
            chain: u16::from(config.rx_buffers),
            linked: config.soc.family == Family::Pktdma && config.rx_buffers > 1,
            posted: 0,
        })
    }

    /// Number of descriptors.
    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// Number of free descriptors.
    pub(super) fn free(&self) -> usize {
        self.pool.len()
    }

    /// Number of elements on the free ring.
    #[inline]
    pub(super) fn posted(&self) -> u32 {
        self.posted
    }

    /// Number of buffers of a frame, at most.
    #[inline]
    pub(super) fn chain(&self) -> u16 {
        self.chain
    }

    /// Whether the driver links descriptors to chains.
    #[inline]
    pub(super) fn is_linked(&self) -> bool {
        self.linked
    }

    /// Number of descriptors behind each element of the free ring.
    #[inline]
    pub(super) fn per_element(&self) -> u16 {
        if self.linked { self.chain } else { 1 }
    }

    /// Number of descriptors with a buffer that the device does not have.
    #[inline]
    pub(super) fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Allocates buffers; returns their number.
    #[inline]
    pub(super) fn alloc(&mut self, buffers: &mut Batch<64>, n: usize) -> usize {
        self.cache.alloc_bulk(buffers, n)
    }

    /// Frees a packet.
    pub(super) fn free_packet(&mut self, packet: Packet) {
        self.cache.free(packet);
    }

    /// Frees packets.
    pub(super) fn free_packets<const N: usize>(&mut self, packets: &mut Batch<N>) {
        self.cache.free_bulk(packets);
    }

    /// Maps a buffer and gives it a descriptor; `None` if that fails.
    pub(super) fn attach(&mut self, buffer: Packet) -> Option<u16> {
        let buffer = InFlight::<FromDevice>::post(buffer).ok()?;
        let Ok(mapped) = self.mapper.map_from_device(&buffer) else {
            self.cache.free(buffer.complete(0));
            return None;
        };
        let Some(index) = self.pool.alloc() else {
            let _ = self.mapper.unmap(mapped);
            self.cache.free(buffer.complete(0));
            return None;
        };
        if let Some(slot) = self.slots.get_mut(u32::from(index)) {
            *slot = RxSlot { buffer: Some(buffer), mapped: Some(mapped), next: NO_DESC, queued: false };
        }
        Some(index)
    }

    /// Keeps a descriptor with its buffer for a chain.
    pub(super) fn add_spare(&mut self, index: u16) {
        self.spare.push(index);
    }

    /// Links the last `n` spare descriptors; returns the first of the chain.
    pub(super) fn link(&mut self, n: usize) -> u16 {
        let mut next = NO_DESC;
        for index in self.spare.drain(self.spare.len().saturating_sub(n)..) {
            if let Some(slot) = self.slots.get_mut(u32::from(index)) {
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
        while let Some(slot) = self.slots.get_mut(u32::from(index)) {
            let (Some(buffer), Some(mapped)) = (&slot.buffer, &slot.mapped) else { break };
            let pointer = BufferPtr { iova: mapped.iova(), len: buffer.room() as u32 };
            let next = (slot.next != NO_DESC).then_some(slot.next);
            slot.queued = index == first;
            self.descriptors.write_free(index, pointer, self.return_ring, next);
            index = next.unwrap_or(NO_DESC);
        }
        self.posted += 1;
        self.descriptors.element(first)
    }

    /// Whether a descriptor has a buffer in flight.
    #[inline]
    pub(super) fn is_in_flight(&mut self, index: u16) -> bool {
        self.slots.get_mut(u32::from(index)).is_some_and(|slot| slot.buffer.is_some())
    }

    /// The next descriptor of a frame; to be called before the buffer of `index` is taken.
    pub(super) fn next(&mut self, index: u16, desc: RxBufferDesc) -> u16 {
        let next = if self.linked {
            self.slots.get_mut(u32::from(index)).map_or(NO_DESC, |slot| slot.next)
        } else {
            self.descriptors.index(desc.next).unwrap_or(NO_DESC)
        };
        if next != index && self.is_in_flight(next) { next } else { NO_DESC }
    }

    /// Keeps the rest of a chain, mapped as it is, for the next frames.
    pub(super) fn keep_rest(&mut self, mut index: u16) {
        while let Some(slot) = self.slots.get_mut(u32::from(index)) {
            self.spare.push(index);
            index = std::mem::replace(&mut slot.next, NO_DESC);
        }
    }

    /// Takes a buffer back from the device, which wrote `len` bytes, and frees the descriptor.
    #[inline]
    pub(super) fn take(&mut self, index: u16, len: usize) -> Option<InFlight<FromDevice>> {
        let slot = self.slots.get_mut(u32::from(index))?;
        let (buffer, mapped) = (slot.buffer.take()?, slot.mapped.take()?);
        self.posted -= u32::from(std::mem::take(&mut slot.queued));
        self.mapper.sync_for_cpu(&mapped, len.min(buffer.room()));
        let unmapped = self.mapper.unmap(mapped);
        self.pool.free(index);
        // A buffer that the device may still write to is dropped in flight, which leaks it.
        unmapped.is_ok().then_some(buffer)
    }

    /// Waits, if the policy demands it, until the device can't reach the buffers that were taken;
    /// false if that can't be shown.
    pub(super) fn sync_iotlb(&mut self) -> bool {
        self.mapper.sync_iotlb().is_ok()
    }

    /// Takes all buffers back, of a channel that has been torn down.
    pub(super) fn drain(&mut self) {
        self.spare.clear();
        for index in 0..self.count {
            if let Some(buffer) = self.take(index, 0)
                && self.sync_iotlb()
            {
                self.cache.free(buffer.complete(0));
            }
        }
        let _ = self.mapper.flush();
    }
}
