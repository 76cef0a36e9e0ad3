//! Used chains are unmapped and freed; and the end of the ring, when all chains are.

use super::super::control::Fault;
use super::{BURST, TxRing, TxSlot};
use crate::common::end::EndedRing;
use towpath_bus::Dma;
use towpath_packet::{Batch, DropReason, InFlight, ToDevice};
use towpath_virtio::RingError;

impl<D: Dma> TxRing<D> {
    /// Frees the packets that were sent; returns how many.
    ///
    /// # Errors
    /// [`RingError`] if the device uses chains that it was not given.
    #[inline]
    pub(super) fn reclaim(&mut self) -> Result<usize, RingError> {
        let result = loop {
            let (n, taken) = self.driver.take_used(&mut self.used);
            for i in 0..n {
                self.take(self.used[i].id);
            }
            if n < BURST {
                break taken;
            }
        };
        let freed = if self.unmapped.is_empty() { 0 } else { self.free(None) };
        result.map(|()| freed)
    }

    /// Unmaps a chain whose descriptors are free again.
    #[inline(always)]
    fn take(&mut self, id: u16) {
        let Some(slot) = self.slots.get_mut(usize::from(id)) else { return };
        let Some(frame) = slot.frame.take() else { return };
        self.pending -= 1;
        // Memory stays mapped, and the header is in front.
        if slot.mapped.is_none() && slot.header.is_none() {
            self.in_front += self.header as u64;
            self.unmapped.push(frame);
            return;
        }
        self.unmap(id, frame);
    }

    /// Unmaps the pieces of a chain, and frees the place of its header.
    #[inline(never)]
    fn unmap(&mut self, id: u16, frame: InFlight<ToDevice>) {
        let Some(slot) = self.slots.get_mut(usize::from(id)) else { return };
        let TxSlot { header, mut mapped, mut more, .. } = std::mem::take(slot);
        let (mut lost, front) = (false, if header.is_none() { self.header as u64 } else { 0 });
        while let Some(mapped) = mapped.take().or_else(|| self.mappings.pop(&mut more)) {
            lost |= self.mapper.unmap(mapped).is_err();
        }
        if let Some(place) = header {
            self.headers.free(place);
        }
        if lost {
            let bytes = self.leak(frame) - front;
            self.counters.moved(1, bytes);
        } else {
            self.in_front += front;
            self.unmapped.push(frame);
        }
    }

    /// Frees the packets of unmapped chains: they were sent, or are dropped for `reason`. Returns
    /// how many.
    #[inline]
    fn free(&mut self, reason: Option<DropReason>) -> usize {
        let frames = self.unmapped.len();
        let bytes = if self.mapper.sync_iotlb().is_ok() { self.free_all() } else { self.leak_all() };
        let bytes = bytes - std::mem::take(&mut self.in_front);
        match reason {
            None => self.counters.moved(frames as u64, bytes),
            Some(reason) => self.counters.dropped(reason, frames as u64),
        }
        frames
    }

    /// Frees them; returns their bytes, headers in front included.
    #[inline]
    fn free_all(&mut self) -> u64 {
        let mut bytes = 0;
        let mut freed: Batch = Batch::new();
        for frame in self.unmapped.drain(..) {
            let packet = frame.complete();
            bytes += packet.len() as u64;
            if let Err(packet) = freed.push(packet) {
                self.cache.free_bulk(&mut freed);
                let _ = freed.push(packet);
            }
        }
        self.cache.free_bulk(&mut freed);
        bytes
    }

    /// No packet was sent for a while: flushes what was unmapped, and unmaps external memory that
    /// is no longer used.
    #[cold]
    pub(super) fn idle(&mut self) {
        let _ = self.mapper.flush_iotlb();
        self.mapper.unmap_unused();
    }

    /// The device was reset, and has no chain: drops the packets that were in the ring, after
    /// those that it had used.
    #[cold]
    pub(super) fn restart(&mut self, reason: DropReason) {
        let _ = self.reclaim();
        for id in 0..self.slots.len() {
            self.take(id as u16);
        }
        self.driver.reset(|_| {});
        self.driver.disable_calls();
        self.headers.reset();
        self.free(Some(reason));
    }

    /// The same if the device may read them for ever.
    #[cold]
    fn leak_all(&mut self) -> u64 {
        std::mem::take(&mut self.unmapped).into_iter().map(|frame| self.leak(frame)).sum()
    }

    /// A packet that the device may read for ever; returns its bytes, the header included.
    #[cold]
    fn leak(&self, frame: InFlight<ToDevice>) -> u64 {
        self.control.fault(Fault::Leaked);
        // The packet of an `InFlight` that is dropped does not return to its pool.
        frame.chunks().map(|chunk| chunk.len() as u64).sum()
    }
}

impl<D: Dma> EndedRing for TxRing<D> {
    #[cold]
    fn release(mut self) {
        self.restart(DropReason::Stopped);
        let _ = self.mapper.flush_iotlb();
    }

    #[cold]
    fn abandon(mut self) {
        for slot in std::mem::take(&mut self.slots) {
            if let Some(frame) = slot.frame {
                self.leak(frame);
                self.counters.dropped(DropReason::Stopped, 1);
            }
        }
        std::mem::forget((self.mapper, self.driver));
    }
}
