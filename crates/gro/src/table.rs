//! Flows that hold a packet, found by hash and left in the order they came.
//!
//! ```text
//! hash ──▶ sets: [tag × 8 | flow × 8]  32 bytes each        8 ways; ways for twice the flows
//!                          │
//!                          ▼
//!          flows: [ Flow | Flow | Flow | ... ]              a line each with an 8-byte handle
//!                          ▲
//! oldest ─▶ log:  (flow, generation), in the order of arrival
//! ```
//!
//! Nothing is searched and nothing is cleared. A flow that ends leaves its entry in the log, where
//! its generation no longer matches. Free flows are taken most recently used first, so few flows
//! use few cache lines. Every operation is O(1), compaction of the log amortised: at least half of
//! its entries are stale then.

use crate::predict::Expected;
use crate::shape::Shape;

const WAYS: usize = 8;
/// The tag of a way that is free.
const VACANT: u16 = 0;
/// Flow numbers are 16 bits.
const MAX_FLOWS: usize = 1 << 15;

#[derive(Clone, Copy, Default)]
#[repr(align(32))]
struct Set {
    tags: [u16; WAYS],
    flows: [u16; WAYS],
}

const EACH: u64 = 0x0001_0001_0001_0001;

impl Set {
    /// The first way with this tag. Four tags are compared at once, as the lanes of a word.
    #[inline(always)]
    fn find(&self, tag: u16) -> Option<usize> {
        let [a, b, c, d, e, f, g, h] = self.tags.map(u64::from);
        // The lowest lane found is zero; those above it may be found by a borrow.
        let zero = |x: u64| x.wrapping_sub(EACH) & !x & (EACH << 15);
        let wanted = u64::from(tag) * EACH;
        let low = zero((a | b << 16 | c << 32 | d << 48) ^ wanted);
        if low != 0 {
            return Some(low.trailing_zeros() as usize / 16);
        }
        let high = zero((e | f << 16 | g << 32 | h << 48) ^ wanted);
        (high != 0).then(|| 4 + high.trailing_zeros() as usize / 16)
    }
}

/// One held packet or aggregate.
#[repr(align(64))]
pub(crate) struct Flow<S> {
    pub(crate) segment: Option<S>,
    pub(crate) opening: Opening,
    /// Packets.
    pub(crate) count: u16,
    /// FIN and PSH of those merged.
    pub(crate) flags: u8,
    /// The way of its set that it has.
    way: u8,
    /// Identifications count up; otherwise they stay, or there are none. Inner and outer.
    pub(crate) counts: bool,
    pub(crate) outer_counts: bool,
    /// Of the next packet, if there is more than one.
    pub(crate) expected: Expected,
    pub(crate) shape: Shape,
    /// Header and data of a full-sized packet; the header alone.
    pub(crate) full_len: u16,
    pub(crate) header: u16,
    /// How many more full-sized packets may join.
    pub(crate) room: u16,
    set: u16,
    generation: u32,
}

/// What is known of a packet when it begins to be held.
#[derive(Clone, Copy, Default)]
pub(crate) struct Opening {
    pub(crate) now: u64,
    /// [`crate::layout::Layout::pack`]ed; 0 if it is a common one that nobody asked for yet.
    pub(crate) layout: u64,
    /// Bytes, headers included.
    pub(crate) len: u32,
    /// Payload bytes of each packet.
    pub(crate) size: u16,
}

/// Where a flow can be put.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    set: u16,
    way: u8,
    tag: u16,
}

pub(crate) struct Table<S> {
    sets: Box<[Set]>,
    flows: Box<[Flow<S>]>,
    free: Vec<u16>,
    log: Vec<(u16, u32)>,
    /// Entries of the log before this one are stale.
    first: usize,
}

impl<S> Table<S> {
    /// Room for `flows` flows, rounded up to a power of two of at least 8.
    pub(crate) fn new(flows: usize) -> Self {
        let flows = flows.clamp(WAYS, MAX_FLOWS).next_power_of_two();
        let vacant = || Flow {
            segment: None,
            opening: Opening::default(),
            count: 0,
            flags: 0,
            way: 0,
            counts: false,
            outer_counts: false,
            expected: Expected::default(),
            shape: Shape::ANY,
            full_len: 0,
            header: 0,
            room: 0,
            set: 0,
            generation: 0,
        };
        Self {
            sets: vec![Set::default(); flows * 2 / WAYS].into(),
            flows: (0..flows).map(|_| vacant()).collect(),
            free: (0..flows as u16).rev().collect(),
            log: Vec::with_capacity(flows * 2),
            first: 0,
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.flows.len() - self.free.len()
    }

    #[inline]
    fn address(&self, hash: u64) -> (usize, u16) {
        ((hash >> 32) as usize & (self.sets.len() - 1), hash as u16 | 1)
    }

    /// The flow with this hash.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64) -> Option<usize> {
        let (set, tag) = self.address(hash);
        let set = self.sets.get(set)?;
        set.flows.get(set.find(tag)?).map(|flow| usize::from(*flow))
    }

    #[inline]
    pub(crate) fn flow(&mut self, at: usize) -> Option<&mut Flow<S>> {
        self.flows.get_mut(at)
    }

    /// Where a flow with this hash, which is not held, can be put. `Err` is a flow that has to be
    /// closed before: the oldest of its set, or the oldest of all.
    #[inline(always)]
    pub(crate) fn place(&mut self, hash: u64) -> Result<Place, usize> {
        let (set, tag) = self.address(hash);
        let way = self.sets.get(set).and_then(|set| set.find(VACANT));
        match way {
            Some(way) if !self.free.is_empty() => Ok(Place { set: set as u16, way: way as u8, tag }),
            _ => Err(self.victim(set, way.is_some())),
        }
    }

    #[cold]
    fn victim(&mut self, set: usize, any: bool) -> usize {
        if any {
            return self.oldest().unwrap_or(0);
        }
        let flows = self.sets.get(set).map_or([0; WAYS], |set| set.flows).map(usize::from);
        let opened = |at: &usize| self.flows.get(*at).map(|flow| flow.opening.now);
        flows.into_iter().min_by_key(opened).unwrap_or(0)
    }

    /// Holds a packet at its [place](Self::place). Without one it comes back.
    #[inline(always)]
    pub(crate) fn open(&mut self, place: Place, segment: S, opening: Opening) -> Option<S> {
        if self.log.len() == self.log.capacity() {
            self.compact();
        }
        let Some(at) = self.free.pop() else { return Some(segment) };
        let Some(set) = self.sets.get_mut(usize::from(place.set)) else { return Some(segment) };
        let Some(flow) = self.flows.get_mut(usize::from(at)) else { return Some(segment) };
        set.tags[usize::from(place.way) % WAYS] = place.tag;
        set.flows[usize::from(place.way) % WAYS] = at;
        flow.segment = Some(segment);
        flow.opening = opening;
        flow.count = 1;
        flow.flags = 0;
        flow.set = place.set;
        flow.way = place.way;
        self.log.push((at, flow.generation));
        None
    }

    /// Makes a flow's place free. What it held is still in it, to be taken.
    #[inline]
    pub(crate) fn close(&mut self, at: usize) -> Option<&mut Flow<S>> {
        let flow = self.flows.get_mut(at)?;
        flow.generation = flow.generation.wrapping_add(1);
        self.sets.get_mut(usize::from(flow.set))?.tags[usize::from(flow.way) % WAYS] = VACANT;
        if self.free.len() < self.free.capacity() {
            self.free.push(at as u16);
        }
        Some(flow)
    }

    /// When a flow was opened.
    #[inline]
    pub(crate) fn opened(&self, at: usize) -> Option<u64> {
        self.flows.get(at).map(|flow| flow.opening.now)
    }

    /// The flow that was opened first.
    #[inline]
    pub(crate) fn oldest(&mut self) -> Option<usize> {
        while let Some((at, generation)) = self.log.get(self.first) {
            let at = usize::from(*at);
            if self.flows.get(at).is_some_and(|flow| flow.generation == *generation) {
                return Some(at);
            }
            self.first += 1;
        }
        self.log.clear();
        self.first = 0;
        None
    }

    #[cold]
    fn compact(&mut self) {
        let flows = &self.flows;
        self.log.drain(..self.first);
        self.log
            .retain(|(at, generation)| flows.get(usize::from(*at)).is_some_and(|flow| flow.generation == *generation));
        self.first = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_with_a_handle_is_one_cache_line() {
        assert_eq!(size_of::<Flow<Box<u8>>>(), 64);
    }
}
