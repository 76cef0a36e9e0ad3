//! The transmit queue: frees and counts packets; with `verify=on` it checks their tags for loss,
//! order and duplicates, flow by flow.

use super::tag::{self, Tag};
use crate::null::NullTx;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::port::{TxQueue, Wake};
use towpath_packet::{Batch, Counters, Offloads, Packet};
use towpath_wire::{LinkKind, dissect};

/// A transmit queue of the generator.
#[derive(Debug)]
pub struct GenTx {
    sink: NullTx,
    verifier: Option<Verifier>,
    found: Arc<Verification>,
}

impl GenTx {
    pub(super) fn new(sink: NullTx, verifier: Option<Verifier>) -> GenTx {
        GenTx { sink, verifier, found: Arc::default() }
    }

    /// The result of the check; `None` without `verify=on`.
    pub fn verification(&self) -> Option<&Arc<Verification>> {
        self.verifier.as_ref().map(|_| &self.found)
    }
}

impl TxQueue for GenTx {
    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if let Some(verifier) = &mut self.verifier {
            batch.iter().for_each(|packet| verifier.check(packet, &self.found));
        }
        self.sink.tx(batch)
    }

    fn offloads(&self) -> Offloads {
        self.sink.offloads()
    }

    fn wake(&self) -> Wake {
        Wake::Never
    }

    fn counters(&self) -> &Arc<Counters> {
        self.sink.counters()
    }
}

/// Flows that a transmit queue tracks at least; sixteen bytes each.
const FLOWS: usize = 1 << 16;

/// Counters of a transmit queue with `verify=on`; one writer, any number of readers.
///
/// A flow is tracked from its first packet that arrives; losses before it are unknown. Each flow
/// must stay on one queue. Packets that are 64 or more places late count as duplicates.
#[derive(Debug, Default)]
pub struct Verification {
    span: AtomicU64,
    arrived: AtomicU64,
    late: AtomicU64,
    duplicates: AtomicU64,
    foreign: AtomicU64,
}

/// Values of [`Verification`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verified {
    /// Packets with a tag, each counted once.
    pub arrived: u64,
    /// Packets missing between the first and the last that arrived of their flow.
    pub lost: u64,
    /// Packets that arrived after a later one of their flow.
    pub late: u64,
    /// Packets that arrived again.
    pub duplicates: u64,
    /// Packets without a tag, or of a flow that is not tracked.
    pub foreign: u64,
}

impl Verification {
    /// The values now.
    pub fn snapshot(&self) -> Verified {
        // The writer updates the span first, so that a reader never sees a negative loss.
        let arrived = self.arrived.load(Relaxed);
        Verified {
            arrived,
            lost: self.span.load(Relaxed).saturating_sub(arrived),
            late: self.late.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            foreign: self.foreign.load(Relaxed),
        }
    }
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// The last 64 numbers of a flow, as a sliding window.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    /// The highest number that arrived, plus 1.
    next: u32,
    /// Numbers before `next` that are part of the span, at most 64; 0 before the first packet.
    width: u32,
    /// Bit `k`: `next - 1 - k` arrived.
    seen: u64,
}

/// Checks the tags of packets.
#[derive(Debug)]
pub(super) struct Verifier {
    windows: Vec<Window>,
    link: LinkKind,
}

impl Verifier {
    pub(super) fn new(flows: u32, link: LinkKind) -> Verifier {
        Verifier { windows: vec![Window::default(); FLOWS.max(flows as usize)], link }
    }

    /// Checks the tags of a packet, one for each of its segments.
    pub(super) fn check(&mut self, packet: &Packet, totals: &Verification) {
        let found = dissect(packet.linear(), self.link);
        let payload = usize::from(found.payload);
        let step = packet.gso().map_or(usize::MAX, |gso| usize::from(gso.size.max(1)));
        let mut at = payload;
        while at == payload || at < packet.len() {
            let mut bytes = [0; tag::LEN];
            let whole = packet.copy_to(at, &mut bytes) == tag::LEN;
            match Tag::read(&bytes).filter(|_| whole) {
                Some(tag) => self.note(tag, totals),
                None => add(&totals.foreign, 1),
            }
            at = at.saturating_add(step);
        }
    }

    fn note(&mut self, Tag { flow, number }: Tag, totals: &Verification) {
        let Some(window) = self.windows.get_mut(flow as usize) else {
            return add(&totals.foreign, 1);
        };
        if window.width == 0 {
            window.next = number;
        }
        let ahead = number.wrapping_sub(window.next);
        if ahead < 1 << 31 {
            let steps = ahead + 1;
            *window = Window {
                next: number.wrapping_add(1),
                width: window.width.saturating_add(steps).min(u64::BITS),
                seen: window.seen.checked_shl(steps).unwrap_or(0) | 1,
            };
            add(&totals.span, u64::from(steps));
            return add(&totals.arrived, 1);
        }
        let back = window.next.wrapping_sub(number);
        match 1u64.checked_shl(back - 1).filter(|bit| window.seen & bit == 0) {
            Some(bit) => {
                window.seen |= bit;
                // The span of the flow begins earlier than its first arrival.
                add(&totals.span, u64::from(back.saturating_sub(window.width)));
                window.width = window.width.max(back);
                add(&totals.late, 1);
                add(&totals.arrived, 1);
            }
            None => add(&totals.duplicates, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(numbers: impl IntoIterator<Item = u32>) -> Verified {
        let (mut verifier, totals) = (Verifier::new(1, LinkKind::Ip), Verification::default());
        numbers.into_iter().for_each(|number| verifier.note(Tag { flow: 3, number }, &totals));
        totals.snapshot()
    }

    #[test]
    fn numbers_in_order_are_neither_lost_nor_late_even_across_the_wrap() {
        let numbers = (0..1000).map(|i| (u32::MAX - 500).wrapping_add(i));
        assert_eq!(verdict(numbers), Verified { arrived: 1000, ..Verified::default() });
    }

    #[test]
    fn gaps_are_lost_until_they_are_filled_late() {
        assert_eq!(verdict([0, 1, 5]), Verified { arrived: 3, lost: 3, ..Verified::default() });
        assert_eq!(verdict([0, 1, 5, 3, 2, 4]), Verified { arrived: 6, late: 3, ..Verified::default() });
    }

    #[test]
    fn a_flow_that_began_with_a_later_packet_is_tracked_from_the_earliest() {
        assert_eq!(verdict([5, 2, 6]), Verified { arrived: 3, late: 1, lost: 2, ..Verified::default() });
    }

    #[test]
    fn a_packet_that_arrives_again_is_a_duplicate() {
        assert_eq!(verdict([0, 1, 1, 0, 2]), Verified { arrived: 3, duplicates: 2, ..Verified::default() });
        let late = verdict((0..100).chain([10]));
        assert_eq!(late, Verified { arrived: 100, duplicates: 1, ..Verified::default() });
    }

    #[test]
    fn a_flow_outside_the_table_is_foreign() {
        let (mut verifier, totals) = (Verifier::new(1, LinkKind::Ip), Verification::default());
        verifier.note(Tag { flow: u32::MAX, number: 0 }, &totals);
        assert_eq!(totals.snapshot(), Verified { foreign: 1, ..Verified::default() });
    }
}
