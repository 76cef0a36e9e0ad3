//! Bursts in which nothing, or hardly anything, merges.

use towpath_wire::offload::LinkKind;

use super::Gro;
use crate::burst::{Look, WINDOW};
use crate::key::{Hasher, is_v6};
use crate::rules;
use crate::segment::{Segment, Sink};

impl<S: Segment> Gro<S> {
    /// Whether a burst may stay where it is, instead of [`push_and_flush`](Self::push_and_flush),
    /// because nothing of it would merge. Then its packets are accounted for, and the caller sends
    /// them in their order. Otherwise nothing happened.
    ///
    /// `head` returns the [head](Segment::head) of a packet. It is called only if nothing is held,
    /// and if nothing merged in the burst before. True for bursts of up to 64 packets each of which
    /// is of a flow of its own, or merges with nothing, as TCP without data does.
    pub fn pass_unmatched<P>(&mut self, burst: &[P], head: impl Fn(&P) -> &[u8]) -> bool {
        if !self.unmatched || self.held() > 0 || self.is_bypassed() {
            return false;
        }
        let unmatched = match self.config.link {
            LinkKind::Ethernet => self.are_unmatched::<14, P>(burst, head),
            LinkKind::Ip => self.are_unmatched::<0, P>(burst, head),
        };
        if unmatched {
            self.stats.packets += burst.len() as u64;
            self.stats.passed += burst.len() as u64;
            if self.config.auto {
                self.auto.observe(burst.len(), 0);
            }
        }
        unmatched
    }

    #[inline(always)]
    fn are_unmatched<const L3: usize, P>(&mut self, burst: &[P], head: impl Fn(&P) -> &[u8]) -> bool {
        let (hasher, udp) = (self.hasher, self.config.udp);
        // Most packets of a burst have the version of its first one.
        if burst.first().is_some_and(|packet| is_v6::<L3>(head(packet)) == Some(true)) {
            self.window.are_unmatched(burst, Heads::<L3, true, _> { head: &head, hasher, udp })
        } else {
            self.window.are_unmatched(burst, Heads::<L3, false, _> { head: &head, hasher, udp })
        }
    }

    #[inline(always)]
    pub(super) fn take_windows<const L3: usize>(
        &mut self,
        burst: &mut impl Iterator<Item = S>,
        out: &mut impl Sink<S>,
    ) -> usize {
        let (mut packets, hasher) = (0, self.hasher);
        loop {
            // A singleton of a window may not be one of the burst.
            let ends = burst.size_hint().1.is_some_and(|most| most <= WINDOW);
            let (n, singletons) =
                self.window.fill(burst, |packet| hasher.guess::<L3>(packet.head(), packet.vlan()).unwrap_or(0));
            let singletons = if ends { singletons } else { 0 };
            for at in 0..n {
                let Some((packet, hash)) = self.window.take(at) else { continue };
                if singletons >> at & 1 != 0 && self.would_merge_with_nothing::<L3>(&packet, hash) {
                    self.pass(packet, out);
                } else {
                    self.push_unexpected::<L3>(packet, out);
                }
            }
            packets += n;
            if n < WINDOW {
                return packets;
            }
        }
    }

    /// Whether a singleton of the rest of its burst has no aggregate to join.
    ///
    /// A common packet's guessed hash is that of its flow, and it merges only with common packets.
    /// For any other packet the guess has no meaning.
    #[inline(always)]
    fn would_merge_with_nothing<const L3: usize>(&self, packet: &S, hash: u64) -> bool {
        self.hasher.common::<L3>(packet.head()).is_some() && self.table.find(hash).is_err()
    }
}

/// Packets of which only the beginnings are known. IP begins at `L3`, and most of it is of version
/// 6 if `V6`.
struct Heads<'a, const L3: usize, const V6: bool, H> {
    head: &'a H,
    hasher: Hasher,
    udp: bool,
}

impl<const L3: usize, const V6: bool, H> Clone for Heads<'_, L3, V6, H> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<const L3: usize, const V6: bool, H> Copy for Heads<'_, L3, V6, H> {}

impl<const L3: usize, const V6: bool, P, H: Fn(&P) -> &[u8]> Look<P> for Heads<'_, L3, V6, H> {
    #[inline(always)]
    fn usual_key(&self, packet: &P) -> Option<u64> {
        self.hasher.usual_key::<L3, V6>((self.head)(packet))
    }

    #[inline(always)]
    fn key(&self, packet: &P) -> u64 {
        self.hasher.key::<L3>((self.head)(packet))
    }

    #[inline(always)]
    fn never_merges(&self, packet: &P) -> bool {
        rules::never_merges::<L3>((self.head)(packet), &self.hasher, self.udp)
    }
}
