//! The singletons of a burst: packets whose flow has no other packet in it.
//!
//! If everything leaves after the burst, holding a singleton opens and closes a flow in vain.
//! Finding the singletons takes one pass over the burst, which costs a third of that. Two packets
//! of different flows whose hashes end alike are not recognised as singletons: they are held in
//! vain, with no other effect.

use alloc::boxed::Box;
use core::mem::replace;

use crate::segment::Segment;

/// Packets that are examined together: as many as a word has bits.
pub(crate) const WINDOW: usize = 64;
/// Few enough for the L1 cache, and enough that of 64 packets of 64 flows all but one are
/// recognised as singletons.
const SLOTS: usize = 1 << 12;

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
    ///
    /// Two that can have the same `key`, unless one of them `stays_alone`, which is asked only of a
    /// packet with the key of another before it. Here keys that only end alike are distinguished:
    /// only then are the earlier ones searched.
    #[inline(always)]
    pub(crate) fn are_strangers<P>(
        &mut self,
        burst: &[P],
        key: impl Fn(&P) -> u64,
        stays_alone: impl Fn(&P) -> bool,
    ) -> bool {
        if burst.len() > WINDOW {
            return false;
        }
        let (seen, number) = (&mut *self.seen, self.first);
        self.first = number.wrapping_add(WINDOW as u16);
        for (n, packet) in burst.iter().enumerate() {
            let key = key(packet);
            self.hashes[n % WINDOW] = key;
            let before = replace(&mut seen[key as usize % SLOTS], number);
            // An equal number of an earlier burst costs no more than a search.
            if before == number && has(&self.hashes, n, key) && !stays_alone(packet) {
                return false;
            }
        }
        true
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
