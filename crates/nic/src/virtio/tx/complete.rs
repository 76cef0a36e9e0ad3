//! Used chains are unmapped and freed; and the end of the ring, when all chains are.

use super::super::control::Fault;
use super::{BURST, HeaderAt, TxRing, TxSlot};
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
    #[inline]
    fn take(&mut self, id: u16) {
        let Some(place) = self.slots.get_mut(usize::from(id)) else { return };
        let TxSlot { frame, header, mapped, mut more } = std::mem::take(place);
        let mut lost = false;
        if let Some(mapped) = mapped {
            lost |= self.mapper.unmap(mapped).is_err();
        }
        while let Some(mapped) = self.mappings.pop(&mut more) {
            lost |= self.mapper.unmap(mapped).is_err();
        }
        let front = match header {
            Some(HeaderAt::Place(place)) => {
                self.headers.free(place);
                0
            }
            _ => self.header as u32,
        };
        let Some(frame) = frame else { return };
        self.pending -= 1;
        if lost {
            self.leak(frame, front, None);
        } else {
            self.unmapped.push((frame, front));
        }
    }

    /// Frees the packets of unmapped chains: they were sent, or are dropped for `reason`.
    #[inline]
    fn free(&mut self, reason: Option<DropReason>) -> usize {
        if self.mapper.sync_iotlb().is_err() {
            return self.leak_all(reason);
        }
        let (frames, mut bytes) = (self.unmapped.len(), 0);
        let mut freed: Batch = Batch::new();
        for (frame, front) in self.unmapped.drain(..) {
            let packet = frame.complete();
            bytes += packet.len() as u64 - u64::from(front);
            if let Err(packet) = freed.push(packet) {
                self.cache.free_bulk(&mut freed);
                let _ = freed.push(packet);
            }
        }
        self.cache.free_bulk(&mut freed);
        match reason {
            None => self.counters.moved(frames as u64, bytes),
            Some(reason) => self.counters.dropped(reason, frames as u64),
        }
        frames
    }

    /// No packet was sent for a while: flushes what was unmapped, and unmaps external memory that
    /// is no longer used.
    #[cold]
    pub(super) fn idle(&mut self) {
        let _ = self.mapper.flush();
        self.mapper.unmap_unused();
    }

    /// The device was reset, and knows no chain: drops the packets that were in the ring, after
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

    #[cold]
    fn leak_all(&mut self, reason: Option<DropReason>) -> usize {
        let frames = std::mem::take(&mut self.unmapped);
        let n = frames.len();
        frames.into_iter().for_each(|(frame, front)| self.leak(frame, front, reason));
        n
    }

    /// A packet that the device may read for ever.
    #[cold]
    fn leak(&self, frame: InFlight<ToDevice>, front: u32, reason: Option<DropReason>) {
        self.control.fault(Fault::Leaked);
        let bytes = frame.chunks().map(|chunk| chunk.len() as u64).sum::<u64>();
        match reason {
            None => self.counters.moved(1, bytes - u64::from(front)),
            Some(reason) => self.counters.dropped(reason, 1),
        }
        // The packet of an `InFlight` that is dropped does not return to its pool.
        drop(frame);
    }
}

impl<D: Dma> EndedRing for TxRing<D> {
    #[cold]
    fn release(mut self) {
        self.restart(DropReason::Stopped);
        let _ = self.mapper.flush();
    }

    #[cold]
    fn abandon(mut self) {
        for slot in std::mem::take(&mut self.slots) {
            if let Some(frame) = slot.frame {
                self.leak(frame, 0, Some(DropReason::Stopped));
            }
        }
        std::mem::forget((self.mapper, self.driver));
    }
}
