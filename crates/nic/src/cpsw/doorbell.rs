//! The only place where doorbells are rung.
//!
//! The count is a signed byte: 127 is the most that can be pushed at once (0x80 would be −128), and a negative count is written
//! as its low byte alone, because bit 31 of the reverse doorbell acknowledges teardown. Larger numbers are split; the
//! acknowledgement is a call of its own and never carries a count.

use super::regs::{Regions, ring};
use std::sync::atomic::{Ordering, fence};
use towpath_bus::{Mmio, Reg};

/// Elements that one doorbell can announce.
pub(super) const MOST: u32 = 127;

/// One side of one ring: its doorbell and its count.
#[derive(Debug, Clone)]
pub(super) struct Side<M> {
    bar: M,
    doorbell: Reg,
    occupancy: Reg,
}

impl<M: Mmio> Side<M> {
    /// A one-sided ring, or the side of a two-sided one that is pushed to.
    pub(super) fn forward(regions: &Regions<M>, number: u16) -> Side<M> {
        Side {
            bar: regions.rings.clone(),
            doorbell: regions.ring(ring::DOORBELL, number),
            occupancy: regions.ring(ring::OCCUPANCY, number),
        }
    }

    /// The side of a two-sided ring that gives back.
    pub(super) fn reverse(regions: &Regions<M>, number: u16) -> Side<M> {
        Side {
            bar: regions.rings.clone(),
            doorbell: regions.ring(ring::REVERSE_DOORBELL, number),
            occupancy: regions.ring(ring::REVERSE_OCCUPANCY, number),
        }
    }

    /// Announces `n` elements that were stored; returns the number of doorbells.
    #[inline]
    pub(super) fn push(&self, n: u32) -> u64 {
        // Elements and descriptors before the count.
        fence(Ordering::Release);
        self.ring(n, |count| count)
    }

    /// Gives up `n` elements that were read; returns the number of doorbells.
    #[inline]
    pub(super) fn pop(&self, n: u32) -> u64 {
        // Reads of the elements before their slots are free.
        fence(Ordering::Release);
        self.ring(n, |count| count.wrapping_neg() & 0xff)
    }

    #[inline]
    fn ring(&self, mut n: u32, coded: impl Fn(u32) -> u32) -> u64 {
        let mut doorbells = 0;
        while n > 0 {
            let count = n.min(MOST);
            self.doorbell.write(&self.bar, coded(count));
            n -= count;
            doorbells += 1;
        }
        doorbells
    }

    /// Acknowledges that teardown is complete.
    pub(super) fn acknowledge_teardown(&self) {
        self.doorbell.write(&self.bar, ring::TEARDOWN);
    }

    /// Elements that can be popped, and whether teardown is complete. A register that cannot be read (all ones) has neither.
    #[inline]
    pub(super) fn occupancy(&self) -> (u32, bool) {
        let word = self.occupancy.read(&self.bar);
        if word == u32::MAX {
            return (0, false);
        }
        // The count before the elements that it is about.
        fence(Ordering::Acquire);
        (word & ring::COUNT, word & ring::TEARDOWN != 0)
    }
}
