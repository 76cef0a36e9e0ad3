//! Expectation: the flow that the next packet probably joins is found without a hash.

use super::{Flow, Table};

/// Which flow the next packet is expected to join.
#[derive(Clone, Copy)]
#[repr(C, align(4))]
pub(crate) struct Trail {
    /// The slot of the flow that the last packet joined.
    last: u16,
    /// The slot of the flow whose packet came after a packet of that flow the last time.
    next: u16,
}

impl Trail {
    /// Of a slot after which none came yet.
    pub(super) const fn of(slot: u16) -> Self {
        Self { last: slot, next: slot }
    }

    /// Whether it is of the flow in this slot.
    #[cfg(test)]
    pub(super) fn is_of(self, slot: u16) -> bool {
        self.last == slot
    }
}

/// A slot that hardly any table has, and which does no harm if one has it.
const NOWHERE: u16 = u16::MAX;

/// Whether expectations pay: a wrong one costs a mispredicted branch, more than several right ones
/// save. Flows in random order, or in short trains, make most of them wrong.
#[derive(Clone, Copy, Default)]
pub(super) struct Doubt {
    /// Packets that are to be found by their hash, before something is expected again.
    rest: usize,
    /// Wrong expectations, one soon after the other.
    wrong: u8,
    /// Packets that had joined when the last one was wrong.
    merged: u64,
}

impl Doubt {
    /// Fewer right ones between two wrong ones do not pay.
    const RIGHT: u64 = 4;
    const WRONG: u8 = 4;
    const REST: usize = 512;

    /// Counts a wrong expectation. Returns whether nothing is expected for some time.
    #[inline(never)]
    fn was_wrong(&mut self, merged: u64) -> bool {
        self.wrong = if merged - self.merged <= Self::RIGHT { self.wrong + 1 } else { 0 };
        self.merged = merged;
        if self.wrong < Self::WRONG {
            return false;
        }
        (self.wrong, self.rest) = (0, Self::REST);
        true
    }
}

impl<S> Table<S> {
    /// The flow that the next packet is expected to join. It may be closed.
    #[inline(always)]
    pub(crate) fn expected(&mut self) -> Option<&mut Flow<S>> {
        self.flows.get_mut(usize::from(self.trail.next))
    }

    /// Whether any flow is expected.
    #[inline(always)]
    pub(crate) fn expects(&self) -> bool {
        self.doubt.rest == 0
    }

    /// After packets for which none was.
    #[inline]
    pub(crate) fn rest(&mut self, packets: usize) {
        if self.expects() {
            return;
        }
        self.doubt.rest = self.doubt.rest.saturating_sub(packets);
        if self.expects() {
            self.trail.next = self.trail.last;
        }
    }

    /// The slot of the [expected](Self::expected) flow.
    #[inline(always)]
    pub(crate) fn expected_slot(&self) -> u16 {
        self.trail.next
    }

    /// A packet joined the expected flow; `trail` is that flow's.
    #[inline(always)]
    pub(crate) fn joined_as_expected(&mut self, trail: Trail) {
        self.trail = trail;
    }

    /// The expected flow was opened again, in the slot before the next.
    #[inline(always)]
    pub(crate) fn opened_as_expected(&mut self) {
        if let Some(flow) = self.flows.get(self.slot(self.next.wrapping_sub(1))) {
            self.trail = flow.trail;
        }
    }

    /// A packet joined the flow at `at`, found by its hash; `merged` are all that joined before.
    #[inline(always)]
    pub(crate) fn joined(&mut self, at: u16, merged: u64) {
        if !self.expects() {
            return;
        }
        if at != self.trail.next {
            if self.doubt.was_wrong(merged) {
                self.trail.next = NOWHERE;
                return;
            }
            if let Some(last) = self.flows.get_mut(usize::from(self.trail.last)) {
                last.trail.next = at;
            }
        }
        if let Some(flow) = self.flows.get(usize::from(at)) {
            self.trail = flow.trail;
        }
    }
}
