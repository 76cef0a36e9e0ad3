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
//! Every operation is O(1), provided that hashes are as good as random.

use alloc::boxed::Box;
use alloc::vec;
use core::mem::swap;

use crate::layout::Layout;
use crate::predict::Expected;
use crate::shape::Shape;

/// Number of chains. With the most flows that there can be, each has four.
const HEADS: usize = 1 << 13;
/// Flow numbers are 16 bits.
const MAX_FLOWS: usize = 1 << 15;
const MIN_FLOWS: usize = 8;
/// Slots in the ring for each flow that can be held at a time; the others are those of closed
/// flows.
const SLOTS_PER_FLOW: usize = 2;

/// One held packet or aggregate.
#[repr(align(64))]
pub(crate) struct Flow<S> {
    /// `None` if the flow is closed.
    pub(crate) segment: Option<S>,
    /// The predicted packet's tag and length, [together](tag_and_len); no length if none is
    /// predicted.
    pub(crate) expects: u64,
    /// Possibly 0; kept when the flow is closed.
    hash: u32,
    /// The prediction of the next packet.
    pub(crate) expected: Expected,
    /// Bytes before the payload of the predicted packet.
    pub(crate) header: u16,
    /// Payload bytes of each packet.
    pub(crate) size: u16,
    /// How many full-sized packets it can have. 0 until the second one came: this field and the
    /// prediction are unknown until then.
    most: u16,
    /// How many of them are missing; -1 until the second one came, so that the difference of the
    /// two is always the number of packets.
    left: u16,
    /// With a shape: the sum of the constant fields in a full-sized packet's transport header and
    /// pseudo-header; 0 until it is first needed.
    pub(crate) constant_sum: u16,
    /// The next flow of its chain; itself if it is the last.
    chain: u16,
    /// Its own slot, and that of the flow whose packet came after a packet of this flow the last
    /// time. It stays when the slot gets another flow, because flows often come in the order of the
    /// burst before.
    trail: Trail,
    pub(crate) shape: Shape,
    /// FIN and PSH of those merged.
    pub(crate) flags: u8,
    /// Identifications count up, as predicted of the second packet; otherwise they repeat, or there
    /// are none. Inner and outer.
    pub(crate) counts: bool,
    pub(crate) outer_counts: bool,
    /// Its shape [is usual](Shape::is_usual), and identifications count up.
    pub(crate) usual: bool,
    /// It was [opened again](Table::reopen): what its second packet decides is assumed to be as
    /// before.
    pub(crate) reopened: bool,
}

impl<S> Flow<S> {
    /// The layout, valid once there is a second packet.
    #[inline(always)]
    pub(crate) fn layout(&self) -> Layout {
        if self.shape == Shape::ANY { Layout::unpack(self.expected.layout()) } else { self.shape.layout() }
    }

    /// What is expected after its packet.
    #[inline(always)]
    pub(crate) fn trail(&self) -> Trail {
        self.trail
    }

    /// The VLAN tag beside its packets.
    #[inline(always)]
    pub(crate) fn vlan(&self) -> u32 {
        (self.expects >> 32) as u32
    }

    /// Predicts packets of `header` bytes before the payload, or none.
    #[inline(always)]
    pub(crate) fn expect(&mut self, header: Option<u16>) {
        let len = header.map_or(0, |header| usize::from(header) + usize::from(self.size));
        self.header = header.unwrap_or(0);
        self.expects = tag_and_len(self.vlan(), len);
    }

    /// Whether it has as many full-sized packets as fit, and one of `size` payload bytes is not
    /// shorter.
    #[inline(always)]
    pub(crate) fn has_no_room_for(&self, size: u16) -> bool {
        self.has_begun() && self.is_full() && size >= self.size
    }

    /// Packets.
    #[inline(always)]
    pub(crate) fn count(&self) -> u16 {
        self.most.wrapping_sub(self.left)
    }

    /// Whether the second packet came.
    #[inline(always)]
    pub(crate) fn has_begun(&self) -> bool {
        self.most > 0
    }

    /// Whether what the second packet decides is unknown or assumed.
    #[inline(always)]
    pub(crate) fn is_undecided(&self) -> bool {
        !self.has_begun() || (self.reopened && self.count() == 1)
    }

    /// Limits an aggregate of one packet to `most` full-sized ones, at least one.
    #[inline(always)]
    pub(crate) fn set_most(&mut self, most: u16) {
        (self.most, self.left) = (most, most.wrapping_sub(1));
    }

    /// Counts a packet. A shorter one behind the last that fits is counted too; it is the last.
    #[inline(always)]
    pub(crate) fn add_one(&mut self) {
        self.left = self.left.wrapping_sub(1);
    }

    /// Whether it has all full-sized packets that it can have.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.left == 0
    }
}

/// A packet's tag in the high half, its length in the low one.
#[inline(always)]
pub(crate) fn tag_and_len(vlan: u32, len: usize) -> u64 {
    u64::from(vlan) << 32 | len as u64
}

/// A slot that hardly any table has, and which does no harm if one has it.
const NOWHERE: u16 = u16::MAX;

/// Whether expectations pay: a wrong one costs a mispredicted branch, more than several right ones
/// save. Flows in random order, or in short trains, make most of them wrong.
#[derive(Clone, Copy, Default)]
struct Doubt {
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

/// Which flow the next packet is expected to join.
#[derive(Clone, Copy)]
#[repr(C, align(4))]
pub(crate) struct Trail {
    /// The slot of the flow that the last packet joined.
    last: u16,
    /// The slot of the flow whose packet came after a packet of that flow the last time.
    next: u16,
}

impl<S> Table<S> {
    /// Room for `flows` flows, rounded up to a power of two of at least 8.
    pub(crate) fn new(flows: usize) -> Self {
        let slots = flows.clamp(MIN_FLOWS, MAX_FLOWS).next_power_of_two() * SLOTS_PER_FLOW;
        let free = |slot: usize| Flow {
            segment: None,
            expects: 0,
            hash: 0,
            expected: Expected::NONE,
            header: 0,
            size: 0,
            most: 0,
            left: 0,
            constant_sum: 0,
            chain: 0,
            trail: Trail { last: slot as u16, next: slot as u16 },
            shape: Shape::ANY,
            flags: 0,
            counts: false,
            outer_counts: false,
            usual: false,
            reopened: false,
        };
        Self {
            heads: Box::new([0; HEADS]),
            flows: (0..slots).map(free).collect(),
            opened: vec![0; slots].into_boxed_slice(),
            first: 0,
            next: 0,
            held: 0,
            trail: Trail { last: 0, next: 0 },
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
    pub(crate) fn came_as_expected(&mut self, trail: Trail) {
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
    pub(crate) fn came(&mut self, at: u16, merged: u64) {
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

    /// The flow with this hash, if it is the youngest of its chain.
    #[inline(always)]
    pub(crate) fn youngest(&mut self, hash: u64) -> Option<(u16, &mut Flow<S>)> {
        let at = self.heads[hash as usize % HEADS];
        let flow = self.flows.get_mut(usize::from(at))?;
        (flow.hash == hash as u32 && flow.segment.is_some()).then_some((at, flow))
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

    /// The closed flow with this hash, if it is a [usual](Shape::is_usual) one, and `b` may be the
    /// beginning of the packet that was predicted of it: a field that differs in every packet is
    /// as predicted.
    #[inline(always)]
    pub(crate) fn closed<const L3: usize>(&self, hash: u64, b: &[u8]) -> Option<u16> {
        let at = self.heads[hash as usize % HEADS];
        let flow = self.flows.get(usize::from(at))?;
        let may_go_on = flow.hash == hash as u32 && flow.usual && flow.expected.has_ip_word::<L3>(b);
        (may_go_on && flow.segment.is_none()).then_some(at)
    }

    /// Opens the closed flow at `at` again, with the packet that was predicted when [everything was
    /// closed](Self::close_all). Its state is what it would be after its second packet. Returns the
    /// packet if there is no room, or if others of its chain are held.
    #[inline(always)]
    pub(crate) fn reopen(&mut self, at: u16, segment: S) -> Option<S> {
        let next = self.slot(self.next);
        if !self.has_room() || (usize::from(at) != next && !self.exchange(at, next)) {
            return Some(segment);
        }
        let Some(&Flow { hash, .. }) = self.flows.get(next) else { return Some(segment) };
        let Chain(None) = self.chain(hash.into()) else { return Some(segment) };
        let Some(flow) = self.flows.get_mut(next).filter(|flow| flow.segment.is_none()) else { return Some(segment) };
        self.heads[hash as usize % HEADS] = next as u16;
        flow.segment = Some(segment);
        flow.set_most(flow.most);
        flow.chain = next as u16;
        flow.flags = 0;
        flow.reopened = true;
        if let Some(opened) = self.opened.get_mut(next) {
            *opened = self.now;
        }
        self.next += 1;
        self.held += 1;
        None
    }

    /// Two closed flows change slots. What is expected after them is what was expected after the
    /// slots. `false` if they are not two.
    #[inline(never)]
    fn exchange(&mut self, at: u16, next: usize) -> bool {
        let Ok([one, other]) = self.flows.get_disjoint_mut([at.into(), next]) else { return false };
        swap(one, other);
        swap(&mut one.trail, &mut other.trail);
        // So that the other one is found as well.
        let head = &mut self.heads[one.hash as usize % HEADS];
        if usize::from(*head) == next {
            *head = at;
        }
        true
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

    /// Closes the oldest flow, on the way to closing all: chains are not maintained, so the caller
    /// repeats it until `None`. Predictions stay, to [reopen](Self::reopen) flows with.
    #[inline(always)]
    pub(crate) fn close_all(&mut self) -> Option<(S, &Flow<S>)> {
        while self.first < self.next {
            let at = self.slot(self.first);
            self.first += 1;
            if self.flows.get(at)?.segment.is_some() {
                let flow = self.flows.get_mut(at)?;
                return Some((flow.segment.take()?, flow));
            }
        }
        (self.first, self.next, self.held) = (0, 0, 0);
        None
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
mod tests {
    use super::*;

    fn open(table: &mut Table<u64>, hash: u64, now: u64) {
        let (shape, chain) = (Shape::ANY, table.chain(hash));
        table.set_now(now);
        let opening = Opening { vlan: 0, shape, layout: 0, size: 1 };
        assert_eq!(table.open(hash, chain, hash, opening), None);
    }

    fn held(table: &mut Table<u64>, hash: u64) -> Option<u64> {
        let at = table.find(hash).ok()?;
        table.flow(at)?.segment
    }

    #[test]
    fn a_flow_with_a_handle_is_two_cache_lines() {
        assert_eq!(size_of::<Flow<Box<u8>>>(), 128);
    }

    #[test]
    fn flows_of_one_chain_are_distinguished_whichever_is_closed() {
        let hashes = [1, 2, 3, 4].map(|n| n * HEADS as u64);
        for ends in hashes {
            let mut table = Table::new(8);
            for hash in hashes {
                assert_eq!(held(&mut table, hash), None);
                open(&mut table, hash, 0);
            }
            let at = table.find(ends).unwrap_or(0);
            assert_eq!(table.close(at).map(|(segment, _)| segment), Some(ends));
            for hash in hashes {
                assert_eq!(held(&mut table, hash), (hash != ends).then_some(hash));
            }
            open(&mut table, ends, 0);
            assert!(hashes.iter().all(|hash| held(&mut table, *hash) == Some(*hash)));
        }
    }

    #[test]
    fn flows_are_opened_again_in_any_order() {
        let mut table = Table::new(8);
        (1..=3).for_each(|hash| open(&mut table, hash, 0));
        while table.close_all().is_some() {}
        for hash in [3, 1, 2] {
            assert_eq!(held(&mut table, hash), None);
            let at = table.heads[hash as usize];
            assert_eq!(table.reopen(at, hash), None);
            assert_eq!(held(&mut table, hash), Some(hash));
        }
        let own = |at: u16| usize::from(table.flows[usize::from(at)].trail.last) == usize::from(at);
        assert!((0..3).all(own));
        let all: Vec<u64> = core::iter::from_fn(|| table.close_all().map(|(hash, _)| hash)).collect();
        assert_eq!(all, [3, 1, 2], "in the order of arrival");
    }

    #[test]
    fn a_flow_is_not_opened_again_beside_another_of_its_chain() {
        let mut table = Table::new(8);
        [2, 1].into_iter().for_each(|hash| open(&mut table, hash, 0));
        while table.close_all().is_some() {}
        let at = table.heads[1];
        open(&mut table, 1 + HEADS as u64, 0);
        assert_eq!((table.reopen(at, 1), table.held()), (Some(1), 1));
    }

    #[test]
    fn any_sequence_of_openings_and_closings_finds_held_flows_and_no_others() {
        let mut table = Table::new(8);
        let mut model: Vec<u64> = vec![];
        let mut random = 1_u64;
        for step in 0..100_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Few chains, and hashes that come back.
            let hash = (random >> 60) * HEADS as u64 + ((random >> 40) & 1);
            match (random >> 50) % 64 {
                0 => {
                    let all: Vec<u64> = core::iter::from_fn(|| table.close_all().map(|(hash, _)| hash)).collect();
                    assert_eq!(all, model);
                    model.clear();
                }
                1..20 => {
                    if let Ok(at) = table.find(hash) {
                        table.close(at);
                    }
                    model.retain(|held| *held != hash);
                }
                _ if !model.contains(&hash) => {
                    if let Some(victim) = table.victim() {
                        assert_eq!(table.close(victim).map(|(hash, _)| hash), Some(model.remove(0)));
                    }
                    open(&mut table, hash, step);
                    model.push(hash);
                }
                _ => {}
            }
            assert_eq!(table.held(), model.len());
            for hash in (0..16).flat_map(|high| [high * HEADS as u64, high * HEADS as u64 + 1]) {
                assert_eq!(held(&mut table, hash), model.contains(&hash).then_some(hash));
            }
        }
    }
}
