//! Free descriptors with buffers, on their way to the device.

use super::super::descriptor::Piece;
use super::super::doorbell::MOST;
use super::super::regs::window;
use super::{Free, NONE, RxFlow, Shadow};
use towpath_bus::{Bus, Mmio};
use towpath_packet::{Batch, FromDevice, InFlight, Packet};

impl<B: Bus> RxFlow<B> {
    /// Hands buffers to the device: when as many as a batch are missing, or the device is about to run short. Returns how many
    /// elements that were.
    #[inline]
    pub(crate) fn refill(&mut self, batch: u8) -> usize {
        let all = self.size / u32::from(self.per_element());
        let missing = all - self.posted;
        let worth = u32::from(batch).min((all / 2).max(1));
        if missing < worth && !self.singly {
            return 0;
        }
        self.post(missing)
    }

    /// Descriptors that an element of the ring of free ones stands for.
    #[inline]
    fn per_element(&self) -> u16 {
        if self.linked { self.chain } else { 1 }
    }

    pub(super) fn post(&mut self, mut missing: u32) -> usize {
        let (mut staged, mut total) = (0, 0);
        let mut buffers = Batch::<64>::new();
        let each = usize::from(self.per_element());
        while missing > 0 {
            let elements = if self.singly { 1 } else { missing.min(64).min(MOST - staged) as usize };
            let want = (elements * each).saturating_sub(self.kept.len()).min(64);
            let got = self.cache.alloc_bulk(&mut buffers, want);
            let mut made = 0;
            for buffer in buffers.drain_front(got) {
                let Some(index) = self.furnish(buffer) else { continue };
                if each > 1 {
                    self.kept.push(index);
                } else {
                    self.stage(index);
                    made += 1;
                }
            }
            while each > 1 && made < elements as u32 && self.kept.len() >= each {
                let first = self.link(each);
                self.stage(first);
                made += 1;
            }
            staged += made;
            missing = missing.saturating_sub(if each > 1 { made } else { got as u32 });
            // None to be had, or none that the device can reach.
            let dry = got < want || (each > 1 && made == 0 && self.kept.len() < each);
            // A window has no doorbell: the element was handed over when it was written.
            if staged == MOST || dry || missing == 0 || self.singly {
                if let Free::Ring { side, .. } = &self.free {
                    self.counts.free_writes += side.push(staged);
                }
                total += std::mem::take(&mut staged);
            }
            if dry {
                break;
            }
        }
        self.counts.posted += u64::from(total);
        total as usize
    }

    /// A descriptor for a buffer, which is mapped; none if that can't be.
    fn furnish(&mut self, buffer: Packet) -> Option<u16> {
        let loan = InFlight::<FromDevice>::post(buffer).ok()?;
        let Ok(mapped) = self.mapper.map_from_device(&loan) else {
            self.cache.free(loan.complete(0));
            return None;
        };
        let Some(index) = self.recycler.take() else {
            let _ = self.mapper.unmap(mapped);
            self.cache.free(loan.complete(0));
            return None;
        };
        if let Some(shadow) = self.shadows.get_mut(usize::from(index)) {
            *shadow = Shadow { loan: Some(loan), mapped: Some(mapped), next: NONE, listed: false };
        }
        Some(index)
    }

    /// Links the last `n` of the descriptors that are kept; returns the first of the chain.
    fn link(&mut self, n: usize) -> u16 {
        let mut next = NONE;
        for index in self.kept.drain(self.kept.len().saturating_sub(n)..) {
            if let Some(shadow) = self.shadows.get_mut(usize::from(index)) {
                shadow.next = next;
            }
            next = index;
        }
        next
    }

    /// Writes a descriptor, and those that it is linked to; puts it into the ring of free ones.
    #[inline]
    fn stage(&mut self, first: u16) {
        let mut index = first;
        while let Some(shadow) = self.shadows.get_mut(usize::from(index)) {
            let (Some(loan), Some(mapped)) = (&shadow.loan, &shadow.mapped) else { break };
            let piece = Piece { at: mapped.iova(), len: loan.room() as u32 };
            let next = (shadow.next != NONE).then_some(shadow.next);
            shadow.listed = index == first;
            self.descriptors.write_free(index, piece, self.return_ring, next);
            index = next.unwrap_or(NONE);
        }
        let element = self.descriptors.element(first);
        match &mut self.free {
            Free::Ring { slots, head, .. } => {
                slots.store64(*head as usize * 8, element);
                if let Some(order) = self.order.get_mut(*head as usize) {
                    *order = first;
                }
                *head = if *head + 1 == self.size { 0 } else { *head + 1 };
            }
            Free::Window { bar, at, .. } => {
                // The write comes after the stores to the descriptor, as the register traits promise.
                bar.w64(*at + window::PUSH_TAIL, element);
                self.counts.free_writes += 1;
            }
        }
        self.posted += 1;
    }
}
