//! Buffers that are mapped one by one, by a system call each.
//!
//! ```text
//!   addresses   slot 0        slot 1        slot 2     each as long as the pages that a buffer can touch
//!   mapped      ████          ████████      ··          at the buffer's offset in its page
//! ```
//!
//! The kernel's call to unmap returns when the device's translations are invalidated, so it is strict by nature. To give
//! [`Flush::Deferred`](crate::Flush::Deferred) its meaning, and strict bursts their single wait, [`unmap`](Window::unmap)
//! only notes the slot and [`flush`](Window::flush) makes the calls: one for each run of slots that follow each other.
//!
//! Unlike with lasting mappings, children of the process inherit the memory: kernels from 5.12 on copy pages that a device
//! writes at `fork`.

use super::space::Space;
use crate::dma::{Access, Iova, MapError, Window};
use std::ptr::NonNull;
use std::sync::Arc;

/// What a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    Mapped,
    /// Unmapped by its user, not yet by the kernel.
    Noted,
}

/// Addresses for buffers that are mapped one by one.
#[derive(Debug)]
pub struct VfioWindow {
    space: Arc<Space>,
    base: u64,
    /// Bytes from one slot to the next.
    stride: u64,
    slots: Vec<Slot>,
    noted: Vec<u32>,
}

impl VfioWindow {
    pub(super) fn new(space: Arc<Space>, slots: u32, bytes: usize) -> Result<VfioWindow, MapError> {
        let limits = space.limits();
        if !limits.iommu {
            return Err(MapError::NoIommu);
        }
        if let Some(limit) = limits.mappings.filter(|&limit| limit < u64::from(slots)) {
            return Err(MapError::Mappings { limit });
        }
        let too_long = MapError::Range { len: bytes };
        // A buffer that begins with the last byte of a page touches one page more than its length says.
        let pages = bytes.max(1).checked_add(limits.granule - 1).map(|end| end.div_ceil(limits.granule));
        let stride = pages.and_then(|pages| pages.checked_mul(limits.granule)).ok_or(too_long)? as u64;
        let len = stride.checked_mul(u64::from(slots.max(1))).ok_or(MapError::Range { len: bytes })?;
        let base = space.take(len, 0)?;
        let noted = Vec::with_capacity(slots as usize);
        Ok(VfioWindow { space, base, stride, slots: vec![Slot::Free; slots as usize], noted })
    }

    fn len(&self) -> u64 {
        self.stride * self.slots.len().max(1) as u64
    }

    fn address(&self, slot: u32) -> u64 {
        self.base + self.stride * u64::from(slot)
    }

    fn slot(&mut self, slot: u32, was: Slot) -> Result<&mut Slot, MapError> {
        let wrong = MapError::Refused("the slot is not what it should be for this");
        self.slots.get_mut(slot as usize).filter(|slot| **slot == was).ok_or(wrong)
    }
}

impl Window for VfioWindow {
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
        // The page's first byte; arithmetic on the address alone, it is only named to the kernel.
        let page = NonNull::new(at.as_ptr().wrapping_sub(offset)).ok_or(MapError::Foreign)?;
        let iova = self.address(slot);
        self.space.map(iova, page, pages, access)?;
        *self.slot(slot, Slot::Free)? = Slot::Mapped;
        Iova::new(iova + offset as u64).ok_or(MapError::Range { len })
    }

    fn unmap(&mut self, slot: u32) -> Result<(), MapError> {
        *self.slot(slot, Slot::Mapped)? = Slot::Noted;
        self.noted.push(slot);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), MapError> {
        self.noted.sort_unstable();
        while let Some(&last) = self.noted.last() {
            let run = run(&self.noted);
            let first = last - (run - 1);
            // Slots that have other neighbours are never touched: what lies between the ends was noted, all of it.
            if self.space.unmap(self.address(first), self.stride * u64::from(run))? == 0 {
                return Err(MapError::Refused("the kernel found nothing to unmap"));
            }
            for slot in first..=last {
                *self.slot(slot, Slot::Noted)? = Slot::Free;
            }
            self.noted.truncate(self.noted.len() - run as usize);
        }
        Ok(())
    }
}

/// How many numbers at the end of an ordered list follow each other, with the last.
fn run(ordered: &[u32]) -> u32 {
    let follow = |pair: &&[u32]| matches!(pair, [a, b] if a + 1 == *b);
    1 + ordered.windows(2).rev().take_while(follow).count() as u32
}

impl Drop for VfioWindow {
    fn drop(&mut self) {
        // Addresses that the device may still use are never given to anybody else.
        let empty = self.slots.iter().all(|&slot| slot == Slot::Free);
        if empty || self.space.unmap(self.base, self.len()).is_ok() {
            self.space.give(self.base, self.len());
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
