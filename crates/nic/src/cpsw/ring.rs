//! Rings of descriptor pointers, 8 bytes an element, and their doorbells.
//!
//! ```text
//!   SubmitRing       driver: store elements ► doorbell +n ──► engine fetches
//!   CompletionRing   engine completes ──► driver: occupancy ► load elements ► doorbell −n
//! ```
//!
//! With PKTDMA both are sides of one ring: the engine stores nothing, and the element in slot `i`
//! completes as the `i`-th. With UDMA they are two rings, and the engine stores completed elements.
//!
//! [`RingSide`] alone writes doorbells. The count of a doorbell is a signed byte: one doorbell
//! pushes at most 127 elements (0x80 would be −128). A negative count is written as its low byte
//! only, because bit 31 of the reverse doorbell acknowledges teardown. Larger counts are split. The
//! acknowledgement is a method of its own and never carries a count.

use super::desc_pool::{DescTable, NO_DESC};
use super::descriptors::Descriptors;
use super::regs::{Regions, ring};
use super::soc::Family;
use crate::common::ring::next;
use towpath_bus::barrier::dma_rmb;
use towpath_bus::{Coherent, Dma, Domain, MapError, Mmio, Reg};

/// Elements that one doorbell can announce.
pub(super) const MAX_COUNT: u32 = 127;

/// One side of one ring: its doorbell and its occupancy.
#[derive(Debug, Clone)]
pub(super) struct RingSide<M> {
    bar: M,
    doorbell: Reg,
    occupancy: Reg,
}

impl<M: Mmio> RingSide<M> {
    /// The side of ring `number` with these registers, doorbell and occupancy.
    fn new(regions: &Regions<M>, number: u16, (doorbell, occupancy): (Reg, Reg)) -> RingSide<M> {
        let of_ring = |register: Reg| register.nth(u32::from(number), regions.ring_stride);
        RingSide { bar: regions.rings.clone(), doorbell: of_ring(doorbell), occupancy: of_ring(occupancy) }
    }

    /// Pops `n` elements that were loaded; returns the number of doorbells.
    #[inline]
    fn pop(&self, n: u32) -> u64 {
        // The loads of the elements are ordered before the doorbell that frees their slots.
        dma_rmb();
        self.ring(n, |count| count.wrapping_neg() & 0xff)
    }

    #[inline]
    fn ring(&self, mut n: u32, encode: impl Fn(u32) -> u32) -> u64 {
        let mut doorbells = 0;
        while n > 0 {
            let count = n.min(MAX_COUNT);
            self.doorbell.write(&self.bar, encode(count));
            n -= count;
            doorbells += 1;
        }
        doorbells
    }

    /// Acknowledges that teardown is complete.
    pub(super) fn acknowledge_teardown(&self) {
        self.doorbell.write(&self.bar, ring::TEARDOWN);
    }

    /// The number of elements that can be popped, and whether teardown is complete. A register that
    /// cannot be read (all ones) reports neither.
    #[inline]
    fn occupancy(&self) -> (u32, bool) {
        let word = self.occupancy.read(&self.bar);
        if word == u32::MAX {
            return (0, false);
        }
        // The count is read before the elements that it covers.
        dma_rmb();
        (word & ring::COUNT, word & ring::TEARDOWN != 0)
    }
}

/// The ring on which a channel or flow hands descriptors to the engine.
pub(super) struct SubmitRing<M> {
    side: RingSide<M>,
    /// The ring's memory.
    pub(super) elements: Coherent,
    /// Slot of the next element.
    head: u32,
    size: u32,
}

impl<M: Mmio> SubmitRing<M> {
    pub(super) fn new<D: Dma>(
        domain: &Domain<D>,
        regions: &Regions<M>,
        number: u16,
        size: u32,
    ) -> Result<SubmitRing<M>, MapError> {
        let elements = Coherent::new(domain, size as usize * 8)?;
        Ok(SubmitRing { side: RingSide::new(regions, number, ring::FORWARD), elements, head: 0, size })
    }

    /// Stores an element in the next slot, which is free; returns the slot.
    #[inline]
    pub(super) fn store(&mut self, element: u64) -> u32 {
        let slot = self.head;
        self.elements.store64(slot as usize * 8, element);
        self.head = next(slot, self.size);
        slot
    }

    /// Announces the last `n` elements that were stored; returns the number of doorbells.
    #[inline]
    pub(super) fn announce(&self, n: u32) -> u64 {
        self.side.ring(n, |count| count)
    }

    /// Pops the elements that the engine has not fetched, at most `max`, of a channel that has been
    /// torn down.
    pub(super) fn drain(&mut self, max: u32) {
        self.side.pop(self.side.occupancy().0.min(max));
        self.head = 0;
    }
}

/// An element that has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Completion {
    /// The first descriptor of a packet; [`NO_DESC`] for an element that is no descriptor.
    Desc(u16),
    /// UDMA's record of the end of a teardown.
    Teardown,
}

/// The ring on which the engine returns descriptors.
pub(super) struct CompletionRing<M> {
    pub(super) side: RingSide<M>,
    /// UDMA: the elements that the engine stores.
    pub(super) elements: Option<Coherent>,
    /// PKTDMA: the first descriptor in each slot of the submission side.
    submitted: Box<[u16]>,
    /// Slot of the next completion.
    tail: u32,
    /// Number of slots.
    pub(super) size: u32,
    /// Scratch space: the descriptors in flight that were popped last.
    pub(super) popped: Vec<u16>,
}

impl<M: Mmio> CompletionRing<M> {
    /// The completions of submission ring `submit`, which has `slots` slots. With UDMA they have
    /// ring `completion`, which has `size` slots.
    pub(super) fn new<D: Dma>(
        domain: &Domain<D>,
        regions: &Regions<M>,
        family: Family,
        (submit, completion): (u16, u16),
        (slots, size): (u32, u32),
    ) -> Result<CompletionRing<M>, MapError> {
        let (side, elements, submitted, size) = match family {
            Family::Pktdma => {
                (RingSide::new(regions, submit, ring::REVERSE), None, vec![NO_DESC; slots as usize], slots)
            }
            Family::Udma => {
                let elements = Coherent::new(domain, size as usize * 8)?;
                (RingSide::new(regions, completion, ring::FORWARD), Some(elements), Vec::new(), size)
            }
        };
        let popped = Vec::with_capacity(MAX_COUNT as usize);
        Ok(CompletionRing { side, elements, submitted: submitted.into(), tail: 0, size, popped })
    }

    /// Notes the descriptor that was stored in a slot of the submission ring.
    #[inline]
    pub(super) fn note(&mut self, slot: u32, first: u16) {
        if let Some(submitted) = self.submitted.get_mut(slot as usize) {
            *submitted = first;
        }
    }

    /// The number of completions that can be popped, and whether PKTDMA's flag shows that teardown
    /// is complete.
    #[inline]
    pub(super) fn occupancy(&self) -> (u32, bool) {
        let (count, torn_down) = self.side.occupancy();
        (count, torn_down && self.elements.is_none())
    }

    /// Pops the next `n` completions, which the occupancy has shown: `popped` then holds the
    /// descriptors in flight among them, and the others go to `other`. Returns the number of
    /// doorbells.
    #[inline]
    pub(super) fn pop<D: Dma, T, N: Default>(
        &mut self,
        n: u32,
        table: &mut DescTable<D, T, N>,
        mut other: impl FnMut(Completion),
    ) -> u64 {
        self.popped.clear();
        for _ in 0..n {
            match self.load(&table.descriptors) {
                Completion::Desc(first) if table.is_in_flight(first) => self.popped.push(first),
                completion => other(completion),
            }
        }
        self.side.pop(n)
    }

    /// Loads the next completion.
    #[inline]
    fn load(&mut self, descriptors: &Descriptors) -> Completion {
        let slot = self.tail as usize;
        self.tail = next(self.tail, self.size);
        Completion::Desc(match &self.elements {
            None => self.submitted.get_mut(slot).map_or(NO_DESC, |first| std::mem::replace(first, NO_DESC)),
            Some(elements) => {
                let element = elements.load64(slot * 8);
                if element & 0xf == 1 {
                    return Completion::Teardown;
                }
                descriptors.index(element).unwrap_or(NO_DESC)
            }
        })
    }

    /// Forgets the slots of a channel that has been torn down.
    pub(super) fn reset(&mut self) {
        self.tail = 0;
        self.submitted.fill(NO_DESC);
    }
}
