//! Which packets of a burst are alone: nothing else in it is of their flow.
//!
//! To hold one of those, if everything leaves after the burst anyway, is a flow opened and closed for nothing. To know them
//! takes a look at the whole burst, which costs a third of that. Two packets that only seem to be of one flow, because their
//! hashes end alike, count as company: they are held for nothing, and no more.

use alloc::boxed::Box;

use crate::segment::Segment;

/// Packets that are looked at together: as many as a word has bits.
pub(crate) const WINDOW: usize = 64;
/// Few enough for the nearest cache, and enough that of 64 packets of 64 flows all but one are seen to be alone.
const SLOTS: usize = 1 << 12;

/// Packets of a burst, in the order they came.
pub(crate) struct Window<S> {
    packets: [Option<S>; WINDOW],
    hashes: [u64; WINDOW],
    /// By the end of a hash, the number of the packet that had it last. Numbers begin anew after some time, and may
    /// then make a packet seem not to be alone.
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

    /// Takes as many packets as there is room for, prefetching them. Returns how many, and a bit for each that is alone among
    /// them.
    ///
    /// No packet's hash depends on another, so that while one waits for memory the next ones ask for theirs.
    #[inline(always)]
    pub(crate) fn fill(&mut self, burst: &mut impl Iterator<Item = S>, hash: impl Fn(&S) -> u64) -> (usize, u64) {
        let (mut n, mut company) = (0_u16, 0_u64);
        for (place, to) in self.packets.iter_mut().zip(&mut self.hashes) {
            let Some(packet) = burst.next() else { break };
            packet.prefetch();
            *to = hash(&packet);
            let seen = &mut self.seen[*to as usize % SLOTS];
            let before = seen.wrapping_sub(self.first);
            *seen = self.first.wrapping_add(n);
            if before < n {
                company |= 1 << n | 1 << before;
            }
            *place = Some(packet);
            n += 1;
        }
        self.first = self.first.wrapping_add(WINDOW as u16);
        (n.into(), !company)
    }

    /// Takes a packet out, with its hash.
    #[inline(always)]
    pub(crate) fn take(&mut self, at: usize) -> Option<(S, u64)> {
        let at = at % WINDOW;
        Some((self.packets[at].take()?, self.hashes[at]))
    }
}
