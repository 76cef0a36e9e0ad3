//! The singletons of a burst: packets whose flow has no other packet in it.
//!
//! If everything leaves after the burst, holding a singleton opens and closes a flow without a
//! gain. Finding the singletons takes one pass over the burst, which costs a third of that. Two
//! packets of different flows whose hashes end alike are not recognised as singletons: they are
//! held without a gain, with no other effect.

use alloc::boxed::Box;
use core::mem::replace;

use crate::segment::Segment;

/// Packets that are examined together: as many as a word has bits.
pub(crate) const WINDOW: usize = 64;
/// Few enough for the L1 cache, and enough that of 64 packets of 64 flows all but one are
/// recognised as singletons.
const SLOTS: usize = 1 << 12;

/// How packets are looked at to see that none of them merges with another. Two that can merge have
/// the same key, unless one of them never merges, which is asked only of a packet with the key of
/// another before it.
pub(crate) trait Look<P>: Copy {
    /// The key of a usual packet, without a call.
    fn usual_key(&self, packet: &P) -> Option<u64>;
    /// The key of any packet.
    fn key(&self, packet: &P) -> u64;
    /// Whether a packet merges with nothing.
    fn never_merges(&self, packet: &P) -> bool;
}

/// Packets of a burst, in the order they came.
pub(crate) struct Window<S> {
    packets: [Option<S>; WINDOW],
    hashes: [u64; WINDOW],
    /// The number of the last packet, by the low bits of its hash. Numbers wrap around; a singleton
    /// may then go unrecognised.
    seen: Box<[u16; SLOTS]>,
    /// The number of the first packet.
    first: u16,
}

impl<S: Segment> Window<S> {
    pub(crate) fn new() -> Self {
        Self {
            packets: [const { None }; WINDOW],
            hashes: [0; WINDOW],
            seen: Box::new([0; SLOTS]),
            first: WINDOW as u16,
        }
    }

    /// Takes as many packets as there is room for, prefetching them. Returns how many, and a bit
    /// for each singleton among them.
    ///
    /// No packet's hash depends on another, so that cache misses overlap.
    #[inline(always)]
    pub(crate) fn fill(&mut self, burst: &mut impl Iterator<Item = S>, hash: impl Fn(&S) -> u64) -> (usize, u64) {
        let (mut n, mut shared) = (0_u16, 0_u64);
        for (slot, to) in self.packets.iter_mut().zip(&mut self.hashes) {
            let Some(packet) = burst.next() else { break };
            packet.prefetch();
            *to = hash(&packet);
            let seen = &mut self.seen[*to as usize % SLOTS];
            let before = seen.wrapping_sub(self.first);
            *seen = self.first.wrapping_add(n);
            if before < n {
                shared |= 1 << n | 1 << before;
            }
            *slot = Some(packet);
            n += 1;
        }
        self.first = self.first.wrapping_add(WINDOW as u16);
        (n.into(), !shared)
    }

    /// Whether no two packets of a burst can merge. `false` also if they are more than a window's.
    #[inline(always)]
    pub(crate) fn are_unmatched<P>(&mut self, burst: &[P], look: impl Look<P>) -> bool {
        if burst.len() > WINDOW {
            return false;
        }
        let number = self.first;
        self.first = number.wrapping_add(WINDOW as u16);
        let mut from = 0;
        while let Some(at) = self.first_odd(burst, from, number, look) {
            if !self.is_unmatched(burst, at, number, look) {
                return false;
            }
            from = at + 1;
        }
        true
    }

    /// The first packet from `from` on that needs more than the shortest look. Apart, because a
    /// loop that calls nothing keeps all that it needs in registers.
    #[inline(always)]
    fn first_odd<P>(&mut self, burst: &[P], from: usize, number: u16, look: impl Look<P>) -> Option<usize> {
        let (seen, rest) = (&mut *self.seen, burst.get(from..)?);
        for (n, (packet, to)) in rest.iter().zip(self.hashes.get_mut(from..)?).enumerate() {
            let Some(key) = look.usual_key(packet) else { return Some(from + n) };
            let last = &mut seen[key as usize % SLOTS];
            // An equal number of an earlier burst costs no more than a search.
            if *last == number {
                return Some(from + n);
            }
            (*last, *to) = (number, key);
        }
        None
    }

    /// Whether packet `at` merges with none before it. Keys that only end alike are distinguished
    /// here: only now are the earlier ones searched.
    #[inline(never)]
    fn is_unmatched<P>(&mut self, burst: &[P], at: usize, number: u16, look: impl Look<P>) -> bool {
        let Some(packet) = burst.get(at) else { return true };
        let key = look.key(packet);
        self.hashes[at % WINDOW] = key;
        let before = replace(&mut self.seen[key as usize % SLOTS], number);
        before != number || !has(&self.hashes, at, key) || look.never_merges(packet)
    }

    /// Takes a packet out, with its hash.
    #[inline(always)]
    pub(crate) fn take(&mut self, at: usize) -> Option<(S, u64)> {
        let at = at % WINDOW;
        Some((self.packets[at].take()?, self.hashes[at]))
    }
}

/// Whether a key is among the first `n`.
#[cold]
#[inline(never)]
fn has(keys: &[u64], n: usize, key: u64) -> bool {
    keys.iter().take(n).any(|before| *before == key)
}
