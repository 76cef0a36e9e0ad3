//! Buffers that are mapped one by one, each by a system call.
//!
//! ```text
//!   IOVAs     slot 0        slot 1        slot 2     each covers all pages that a buffer can touch
//!   mapped    ████          ████████      ··          at the buffer's offset in its page
//! ```
//!
//! The kernel's unmap returns after the IOTLB invalidation, so it is strict by nature. To implement
//! [`Flush::Deferred`](crate::Flush::Deferred), and one wait per strict burst,
//! [`unmap`](Window::unmap) only queues the slot and [`flush_iotlb`](Window::flush_iotlb) makes the
//! calls: one per run of adjacent slots.
//!
//! Unlike with persistent mappings, child processes inherit the memory: since Linux 5.12, `fork`
//! copies pages that a device writes.

use super::address_space::AddressSpace;
use crate::dma::{Access, Iova, MapError, Window};
use std::ptr::NonNull;
use std::sync::Arc;

/// The state of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    Mapped,
    /// Unmapped by the queue, not yet by the kernel.
    Pending,
}

/// The IOVAs of buffers that are mapped one by one.
#[derive(Debug)]
pub struct VfioWindow {
    space: Arc<AddressSpace>,
    base: u64,
    /// Bytes from one slot to the next.
    stride: u64,
    slots: Vec<Slot>,
    pending: Vec<u32>,
}

impl VfioWindow {
    pub(super) fn new(space: Arc<AddressSpace>, slots: u32, bytes: usize) -> Result<VfioWindow, MapError> {
        let limits = space.limits();
        if !limits.iommu {
            return Err(MapError::NoIommu);
        }
        if let Some(limit) = limits.mappings.filter(|&limit| limit < u64::from(slots)) {
            return Err(MapError::Mappings { limit });
        }
        let too_long = MapError::Range { len: bytes };
        // A buffer that begins on the last byte of a page touches one page more than its length
        // needs.
        let pages = bytes.max(1).checked_add(limits.granule - 1).map(|end| end.div_ceil(limits.granule));
        let stride = pages.and_then(|pages| pages.checked_mul(limits.granule)).ok_or(too_long)? as u64;
        let len = stride.checked_mul(u64::from(slots.max(1))).ok_or(MapError::Range { len: bytes })?;
        let base = space.alloc_iova(len, 0)?;
        let pending = Vec::with_capacity(slots as usize);
        Ok(VfioWindow { space, base, stride, slots: vec![Slot::Free; slots as usize], pending })
    }

    fn len(&self) -> u64 {
        self.stride * self.slots.len().max(1) as u64
    }

    fn address(&self, slot: u32) -> u64 {
        self.base + self.stride * u64::from(slot)
    }

    fn slot(&mut self, slot: u32, expected: Slot) -> Result<&mut Slot, MapError> {
        let error = MapError::Refused("the slot is not what it should be for this");
        self.slots.get_mut(slot as usize).filter(|slot| **slot == expected).ok_or(error)
    }
}

// SAFETY: the kernel maps the pages of the buffer for the device, and unmaps them before the call
// returns.
unsafe impl Window for VfioWindow {
    unsafe fn map(&mut self, slot: u32, at: NonNull<u8>, len: usize, access: Access) -> Result<Iova, MapError> {
        let granule = self.space.limits().granule;
        let offset = at.addr().get() % granule;
        let Some(pages) = offset.checked_add(len).filter(|&l| l > 0).and_then(|l| l.checked_next_multiple_of(granule))
        else {
            return Err(MapError::Granule { address: at.addr().get() as u64, len, granule });
        };
        if pages as u64 > self.stride {
            return Err(MapError::Range { len });
        }
        self.slot(slot, Slot::Free)?;
        // The first byte of the page. Only the address is passed to the kernel.
        let page = NonNull::new(at.as_ptr().wrapping_sub(offset)).ok_or(MapError::Foreign)?;
        let iova = self.address(slot);
        self.space.map(iova, page, pages, access)?;
        *self.slot(slot, Slot::Free)? = Slot::Mapped;
        Iova::new(iova + offset as u64).ok_or(MapError::Range { len })
    }

    fn unmap(&mut self, slot: u32) -> Result<(), MapError> {
        *self.slot(slot, Slot::Mapped)? = Slot::Pending;
        self.pending.push(slot);
        Ok(())
    }

    fn flush_iotlb(&mut self) -> Result<(), MapError> {
        self.pending.sort_unstable();
        while let Some(&last) = self.pending.last() {
            let run = run(&self.pending);
            let first = last - (run - 1);
            // The run is contiguous and all of it is pending, so no other slot is affected.
            if self.space.unmap(self.address(first), self.stride * u64::from(run))? == 0 {
                return Err(MapError::Refused("the kernel found nothing to unmap"));
            }
            for slot in first..=last {
                *self.slot(slot, Slot::Pending)? = Slot::Free;
            }
            self.pending.truncate(self.pending.len() - run as usize);
        }
        Ok(())
    }
}

/// The length of the run of consecutive numbers at the end of a sorted list.
fn run(ordered: &[u32]) -> u32 {
    let follow = |pair: &&[u32]| matches!(pair, [a, b] if a + 1 == *b);
    1 + ordered.windows(2).rev().take_while(follow).count() as u32
}

impl Drop for VfioWindow {
    fn drop(&mut self) {
        // IOVAs that the device may still use are never reused.
        let empty = self.slots.iter().all(|&slot| slot == Slot::Free);
        if empty || self.space.unmap(self.base, self.len()).is_ok() {
            self.space.free_iova(self.base, self.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slots_that_follow_each_other_share_a_call() {
        assert_eq!(run(&[7]), 1);
        assert_eq!(run(&[1, 3, 4, 5]), 3);
        assert_eq!(run(&[1, 2, 4]), 1);
        assert_eq!(run(&[0, 1, 2]), 3);
    }
}
