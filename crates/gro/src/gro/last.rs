//! A burst after which everything leaves.

use towpath_wire::offload::LinkKind;

use super::Gro;
use crate::alone::WINDOW;
use crate::segment::{Segment, Sink};

impl<S: Segment> Gro<S> {
    /// As [`push_batch`](Self::push_batch), and then everything leaves, as by [`flush_all`](Self::flush_all): for those who hold
    /// packets no longer than a burst. It makes the same of them, and costs less while most of them merge with nothing: those
    /// are not held, so they may leave before packets of other flows that came earlier.
    pub fn push_and_flush(&mut self, burst: impl IntoIterator<Item = S>, out: &mut impl Sink<S>) {
        let mut burst = burst.into_iter();
        if self.merging || self.auto.is_aside() {
            self.push_batch(burst, 0, out);
        } else {
            let before = self.stats.merged;
            let packets = match self.config.link {
                LinkKind::Ethernet => self.take_windows::<14>(&mut burst, out),
                LinkKind::Ip => self.take_windows::<0>(&mut burst, out),
            };
            self.settle_batch(packets, before, out);
        }
        self.flush_all(out);
    }

    #[inline(always)]
    fn take_windows<const L3: usize>(&mut self, burst: &mut impl Iterator<Item = S>, out: &mut impl Sink<S>) -> usize {
        let (mut packets, hasher) = (0, self.hasher);
        loop {
            // A packet that is alone in a window may not be so in the burst.
            let ends = burst.size_hint().1.is_some_and(|most| most <= WINDOW);
            let (n, alone) =
                self.window.fill(burst, |packet| hasher.guess::<L3>(packet.head(), packet.vlan()).unwrap_or(0));
            let alone = if ends { alone } else { 0 };
            for at in 0..n {
                let Some((packet, hash)) = self.window.take(at) else { continue };
                if alone >> at & 1 != 0 && self.would_merge_with_nothing::<L3>(&packet, hash) {
                    self.pass(packet, out);
                } else {
                    self.push_later::<L3>(packet, 0, out);
                }
            }
            packets += n;
            if n < WINDOW {
                return packets;
            }
        }
    }

    /// Is nothing held of the flow of a packet that is alone in what is left of its burst?
    ///
    /// A common packet's hash is that of its flow, and what it could merge with is common too. Any other packet may be of any flow.
    #[inline(always)]
    fn would_merge_with_nothing<const L3: usize>(&self, packet: &S, hash: u64) -> bool {
        self.hasher.common::<L3>(packet.head()).is_some() && self.table.find(hash).is_err()
    }
}
