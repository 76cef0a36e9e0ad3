//! The table of held flows, found by hash and flushed in the order of their arrival.
//!
//! ```text
//!         ┌──────────── chain ────────────┐
//!         ▼                               │
//! flows: [ Flow | Flow | closed | Flow | Flow | free ... ]   two lines each with an 8-byte handle
//!          ▲ first                        ▲      ▲ next
//!          oldest                         │
//! hash ─▶ heads: [ ... | last opened with this end of its hash | ... ]
//! ```
//!
//! Flows form a ring in the order they were opened, so that order costs nothing. The slot of a
//! closed flow is reused once all flows before it are closed. Flows whose hashes end alike are
//! chained, the youngest first. Nothing is searched and nothing is cleared: a head is valid if the
//! flow it names is held and of its chain, which one comparison shows. Whenever nothing is held,
//! the ring restarts at slot 0, so that few flows use few cache lines.
//!
//! A packet finds its flow without a hash if flows come in the order in which they came before:
//! each flow names the one whose packet followed ([`Trail`]). Its predicted header shows whether it
//! is the right one.
//!
//! A flow that was flushed with all others keeps its slot's state, and goes on where it ended if
//! its predicted packet comes: it is opened again ([`Table::reopen`]) without a look at the rules.
//! If another slot is next, the two closed flows change slots.
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`Table`]: the ring and its chains |
//! | `flow` | [`Flow`] |
//! | `expect` | [`Trail`]: the flow that the next packet is expected to join |
//! | `again` | flows that are flushed together and opened again |
//!
//! Every operation is O(1), provided that hashes are as good as random.

use alloc::boxed::Box;
use alloc::vec;

mod again;
mod expect;
mod flow;

use crate::shape::Shape;
use expect::{Doubt, Trail};

pub(crate) use flow::{Flow, tag_and_len};

/// Number of chains. With the most flows that there can be, each has four.
pub(crate) const HEADS: usize = 1 << 13;
/// Flow numbers are 16 bits.
const MAX_FLOWS: usize = 1 << 15;
const MIN_FLOWS: usize = 8;
/// Slots in the ring for each flow that can be held at a time; the others are those of closed
/// flows.
const SLOTS_PER_FLOW: usize = 2;

/// The state of a flow when it is opened, as in [`Flow`].
#[derive(Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) vlan: u32,
    pub(crate) shape: Shape,
    /// [`Layout::pack`]ed; 0 with a shape, or until it is first needed.
    pub(crate) layout: u64,
    pub(crate) size: u16,
}

/// The youngest flow of a chain.
#[derive(Clone, Copy)]
pub(crate) struct Chain(Option<u16>);

/// Held flows and free slots.
pub(crate) struct Table<S> {
    heads: Box<[u16; HEADS]>,
    /// The slots; a power of two.
    flows: Box<[Flow<S>]>,
    /// When each was opened; separate, because it is seldom read.
    opened: Box<[u64]>,
    /// Counts slots from the start of the ring. Those before it are free.
    first: usize,
    /// Slots from this one on are free.
    next: usize,
    held: usize,
    /// What is expected of the next packet.
    trail: Trail,
    doubt: Doubt,
    /// The caller's clock.
    now: u64,
}

impl<S> Table<S> {
    /// Room for `flows` flows, rounded up to a power of two of at least 8.
    pub(crate) fn new(flows: usize) -> Self {
        let slots = flows.clamp(MIN_FLOWS, MAX_FLOWS).next_power_of_two() * SLOTS_PER_FLOW;
        Self {
            heads: Box::new([0; HEADS]),
            flows: (0..slots).map(|slot| Flow::free(slot as u16)).collect(),
            opened: vec![0; slots].into_boxed_slice(),
            first: 0,
            next: 0,
            held: 0,
            trail: Trail::of(0),
            doubt: Doubt::default(),
            now: 0,
        }
    }

    #[inline]
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// The index of the `n`th slot.
    #[inline(always)]
    fn slot(&self, n: usize) -> usize {
        n & (self.flows.len() - 1)
    }

    /// Sets the time at which flows are opened from now on.
    #[inline]
    pub(crate) fn set_now(&mut self, now: u64) {
        self.now = now;
    }

    /// The flow with this hash, if it was the last of its chain to be opened. It may be closed.
    #[inline(always)]
    pub(crate) fn youngest(&mut self, hash: u64) -> Option<(u16, &mut Flow<S>)> {
        let at = self.heads[hash as usize % HEADS];
        let flow = self.flows.get_mut(usize::from(at))?;
        (flow.hash == hash as u32).then_some((at, flow))
    }

    /// The flow with this hash; if there is none, the chain that it would join.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64) -> Result<u16, Chain> {
        let chain = self.chain(hash);
        let mut next = chain.0;
        while let Some(at) = next
            && let Some(flow) = self.flows.get(usize::from(at))
        {
            if flow.hash == hash as u32 {
                return Ok(at);
            }
            next = (flow.chain != at).then_some(flow.chain);
        }
        Err(chain)
    }

    /// The chain of this hash.
    #[inline(always)]
    pub(crate) fn chain(&self, hash: u64) -> Chain {
        let at = self.heads[hash as usize % HEADS];
        let is_its =
            |flow: &Flow<S>| ((flow.hash ^ hash as u32) as usize).is_multiple_of(HEADS) & flow.segment.is_some();
        Chain(self.flows.get(usize::from(at)).is_some_and(is_its).then_some(at))
    }

    #[inline(always)]
    pub(crate) fn flow(&mut self, at: u16) -> Option<&mut Flow<S>> {
        self.flows.get_mut(usize::from(at))
    }

    /// Whether a flow can be opened.
    #[inline(always)]
    fn has_room(&self) -> bool {
        let slots = self.flows.len();
        self.next - self.first < slots && self.held < slots / SLOTS_PER_FLOW
    }

    /// If the table is full, the flow to close before another can be opened: the oldest.
    #[inline(always)]
    pub(crate) fn victim(&mut self) -> Option<u16> {
        if self.has_room() { None } else { self.make_room() }
    }

    #[cold]
    #[inline(never)]
    fn make_room(&mut self) -> Option<u16> {
        let oldest = self.oldest();
        let slots = self.flows.len();
        oldest.filter(|_| self.next - self.first == slots || self.held == slots / SLOTS_PER_FLOW)
    }

    /// Opens a flow with its first packet. Returns the packet if there is no room.
    #[inline(always)]
    pub(crate) fn open(&mut self, hash: u64, chain: Chain, segment: S, opening: Opening) -> Option<S> {
        let at = self.slot(self.next);
        let Some(flow) = self.flows.get_mut(at).filter(|flow| flow.segment.is_none()) else {
            return Some(segment);
        };
        self.heads[hash as usize % HEADS] = at as u16;
        flow.segment = Some(segment);
        flow.hash = hash as u32;
        flow.expects = tag_and_len(opening.vlan, 0);
        flow.size = opening.size;
        (flow.most, flow.left) = (0, u16::MAX);
        flow.chain = chain.0.unwrap_or(at as u16);
        flow.shape = opening.shape;
        flow.flags = 0;
        flow.reopened = false;
        if opening.shape == Shape::ANY {
            flow.expected.set_layout(opening.layout);
        }
        if let Some(opened) = self.opened.get_mut(at) {
            *opened = self.now;
        }
        self.next += 1;
        self.held += 1;
        None
    }

    /// Closes a flow, of which no packet is predicted any more. Returns its packet and its state.
    #[inline]
    pub(crate) fn close(&mut self, at: u16) -> Option<(S, &Flow<S>)> {
        let segment = self.flows.get_mut(usize::from(at))?.segment.take()?;
        self.unchain(at);
        let flow = self.flows.get_mut(usize::from(at))?;
        flow.expects = 0;
        self.held -= 1;
        if self.held == 0 {
            (self.first, self.next) = (0, 0);
        }
        Some((segment, flow))
    }

    /// Takes a flow out of its chain.
    #[inline]
    fn unchain(&mut self, at: u16) {
        let Some(&Flow { hash, chain, .. }) = self.flows.get(usize::from(at)) else { return };
        let head = &mut self.heads[hash as usize % HEADS];
        if *head == at {
            *head = chain;
        } else {
            let before = *head;
            self.unchain_after(before, at, chain);
        }
    }

    #[cold]
    #[inline(never)]
    fn unchain_after(&mut self, mut before: u16, at: u16, chain: u16) {
        while let Some(flow) = self.flows.get_mut(usize::from(before)) {
            if flow.chain == at {
                flow.chain = if chain == at { before } else { chain };
                return;
            }
            if flow.chain == before {
                return;
            }
            before = flow.chain;
        }
    }

    /// When the flow was opened.
    #[inline]
    pub(crate) fn opened(&self, at: u16) -> Option<u64> {
        self.opened.get(usize::from(at)).copied()
    }

    /// The flow that was opened first.
    #[inline]
    pub(crate) fn oldest(&mut self) -> Option<u16> {
        while self.first < self.next {
            let at = self.slot(self.first);
            if self.flows.get(at)?.segment.is_some() {
                return Some(at as u16);
            }
            self.first += 1;
        }
        (self.first, self.next) = (0, 0);
        None
    }
}

#[cfg(test)]
mod tests;
