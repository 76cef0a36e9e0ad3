//! The latest numbers of each flow, of which a window remembers which ones arrived.
//!
//! ```text
//!   numbers of a flow     0 ────────────── first ──────────────────────────── highest
//!                         └ before_first ┘        └ too_old ┘└── window ──────┘
//!                                                             one bit a number
//! ```
//!
//! A number above the highest of its flow advances the window; those in between are lost until they
//! arrive. A number within the window is late if its bit is clear, else it arrives twice. One
//! behind the window could be either. Memory is fixed: at most [`MEMORY`] bytes of bits, divided
//! among the flows, of which the kernel provides the pages that are used.
//!
//! A histogram has the latencies of packets to three digits.

use super::tag::Tag;
use hdrhistogram::Histogram;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use towpath_packet::port::Verified;

/// Flows that are tracked at least.
const FLOWS: u32 = 1 << 16;
/// Bytes of all windows.
const MEMORY: usize = 32 << 20;
/// The longest latency, in nanoseconds, that is distinguished from a longer one: a minute.
const LONGEST: u64 = 60_000_000_000;

/// Counters; written with the windows locked, read by any thread.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// The sum of the highest numbers, plus 1 for each flow.
    span: AtomicU64,
    arrived: AtomicU64,
    before_first: AtomicU64,
    late: AtomicU64,
    late_extent: AtomicU64,
    twice: AtomicU64,
    too_old: AtomicU64,
    foreign: AtomicU64,
    other_trial: AtomicU64,
}

/// The latest numbers of each flow.
#[derive(Debug)]
pub(super) struct Windows {
    flows: Vec<Flow>,
    /// `words` for each flow, a power of two: bit `n % width` is set if number `n` arrived.
    bits: Vec<u64>,
    words: usize,
    /// Nanoseconds; made with the first sample.
    latency: Option<Histogram<u64>>,
}

/// Numbers are extended to 64 bits: those of tags wrap around.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    /// The highest number that arrived, plus 1; 0 before the first packet.
    next: u64,
    /// The lowest number that arrived.
    first: u64,
}

impl Totals {
    /// The result up to now, with `expected` packets in all.
    pub(super) fn read(&self, expected: Option<u64>) -> Verified {
        // The writer updates the span first, so that a reader never sees a negative loss.
        let arrived = self.arrived.load(Relaxed);
        let span = self.span.load(Relaxed);
        let mut found = Verified::default();
        found.arrived = arrived;
        found.lost = span.saturating_sub(arrived);
        found.before_first = self.before_first.load(Relaxed);
        found.outstanding = expected.unwrap_or(0).saturating_sub(span);
        found.late = self.late.load(Relaxed);
        found.late_extent = self.late_extent.load(Relaxed);
        found.twice = self.twice.load(Relaxed);
        found.too_old = self.too_old.load(Relaxed);
        found.foreign = self.foreign.load(Relaxed);
        found.other_trial = self.other_trial.load(Relaxed);
        found
    }

    /// Forgets what was counted.
    pub(super) fn restart(&self) {
        let all = [
            &self.span,
            &self.arrived,
            &self.before_first,
            &self.late,
            &self.late_extent,
            &self.twice,
            &self.too_old,
            &self.foreign,
            &self.other_trial,
        ];
        all.into_iter().for_each(|counter| counter.store(0, Relaxed));
    }

    /// A packet without a tag.
    #[inline]
    pub(super) fn count_foreign(&self) {
        add(&self.foreign, 1);
    }

    /// A packet of another trial.
    #[inline]
    pub(super) fn count_other_trial(&self) {
        add(&self.other_trial, 1);
    }
}

/// Adds to a counter that is written with a lock held.
#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Windows {
    /// The windows of `flows` flows, or more.
    pub(super) fn new(flows: u32) -> Windows {
        let flows = flows.max(FLOWS) as usize;
        Windows::with_words(flows, 1 << (MEMORY / 8 / flows).max(1).ilog2())
    }

    fn with_words(flows: usize, words: usize) -> Windows {
        debug_assert!(words.is_power_of_two(), "a number's word is found by a mask");
        Windows { flows: vec![Flow::default(); flows], bits: vec![0; flows * words], words, latency: None }
    }

    /// Forgets all packets. Bits behind the highest number of a flow are cleared before they are
    /// read.
    pub(super) fn restart(&mut self) {
        self.flows.fill(Flow::default());
        if let Some(latency) = &mut self.latency {
            latency.reset();
        }
    }

    /// Notes a latency.
    #[inline]
    pub(super) fn sample(&mut self, nanos: u64) {
        if self.latency.is_none() {
            self.latency = Histogram::new_with_bounds(1, LONGEST, 3).ok();
        }
        if let Some(latency) = &mut self.latency {
            latency.saturating_record(nanos.max(1));
        }
    }

    /// The latencies; `None` without a sample.
    pub(super) fn latency(&self) -> Option<&Histogram<u64>> {
        self.latency.as_ref().filter(|histogram| !histogram.is_empty())
    }

    /// Numbers in a window.
    #[inline]
    fn width(&self) -> u64 {
        self.words as u64 * u64::from(u64::BITS)
    }

    /// Notes a packet; whether it arrived for the first time.
    #[inline]
    pub(super) fn note(&mut self, Tag { flow, number }: Tag, totals: &Totals) -> bool {
        let (width, at) = (self.width(), flow as usize);
        let words = self.bits.chunks_exact_mut(self.words).nth(at);
        let (Some(flow), Some(words)) = (self.flows.get_mut(at), words) else {
            add(&totals.foreign, 1);
            return false;
        };
        let back = u64::from((flow.next as u32).wrapping_sub(number));
        let is_behind = (1..=1 << 31).contains(&back) && back <= flow.next;
        if !is_behind {
            let number = flow.next + u64::from(number.wrapping_sub(flow.next as u32));
            if flow.next == 0 {
                flow.first = number;
                add(&totals.before_first, number);
            }
            clear(words, flow.next, number + 1 - flow.next);
            add(&totals.span, number + 1 - flow.next);
            flow.next = number + 1;
            set(words, number);
            add(&totals.arrived, 1);
            return true;
        }
        let number = flow.next - back;
        if back > width {
            add(&totals.too_old, 1);
            false
        } else if set(words, number) {
            add(&totals.twice, 1);
            false
        } else {
            let extent = arrived_between(words, number + 1, flow.next);
            totals.late_extent.store(extent.max(totals.late_extent.load(Relaxed)), Relaxed);
            add(&totals.before_first, number.min(flow.first).wrapping_sub(flow.first));
            flow.first = flow.first.min(number);
            add(&totals.late, 1);
            add(&totals.arrived, 1);
            true
        }
    }
}

/// The numbers of `from..to` that arrived, of a window that has them all.
fn arrived_between(words: &[u64], from: u64, to: u64) -> u64 {
    let bits = u64::from(u64::BITS);
    let (mut at, mut sum) = (from, 0);
    while at < to {
        let (word, bit) = place(words, at);
        let n = (bits - at % bits).min(to - at);
        let mask = if n == bits { u64::MAX } else { ((1 << n) - 1) * bit };
        sum += u64::from((words[word] & mask).count_ones());
        at += n;
    }
    sum
}

/// The word and the bit of a number.
#[inline]
fn place(words: &[u64], number: u64) -> (usize, u64) {
    let bit = number % u64::from(u64::BITS);
    ((number / u64::from(u64::BITS)) as usize & (words.len() - 1), 1 << bit)
}

/// Sets the bit of a number; whether it was set.
#[inline]
fn set(words: &mut [u64], number: u64) -> bool {
    let (word, bit) = place(words, number);
    let was = words[word] & bit != 0;
    words[word] |= bit;
    was
}

/// Clears the bits of `n` numbers from `from` on.
#[inline]
fn clear(words: &mut [u64], from: u64, n: u64) {
    if n >= words.len() as u64 * u64::from(u64::BITS) {
        return words.fill(0);
    }
    for number in from..from + n {
        let (word, bit) = place(words, number);
        words[word] &= !bit;
    }
}

/// What was found, by its fields; the others are zero.
#[cfg(test)]
macro_rules! verified {
    ($($field:ident: $value:expr),*) => {{
        let mut found = towpath_packet::port::Verified::default();
        $(found.$field = $value;)*
        found
    }};
}
#[cfg(test)]
pub(super) use verified;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Windows of 128 numbers.
    fn verdict(numbers: impl IntoIterator<Item = (u32, u32)>) -> Verified {
        let (mut windows, totals) = (Windows::with_words(4, 2), Totals::default());
        numbers.into_iter().for_each(|(flow, number)| {
            windows.note(Tag { flow, number }, &totals);
        });
        totals.read(None)
    }

    fn one(numbers: impl IntoIterator<Item = u32>) -> Verified {
        verdict(numbers.into_iter().map(|number| (3, number)))
    }

    #[test]
    fn numbers_in_order_are_neither_lost_nor_late_even_across_the_wrap() {
        let before_first = u64::from(u32::MAX - 500);
        let numbers = (0..1000).map(|i| (u32::MAX - 500).wrapping_add(i));
        assert_eq!(one(numbers), verified! { arrived: 1000, lost: before_first, before_first: before_first });
        assert_eq!(one(0..1000), verified! { arrived: 1000 });
    }

    #[test]
    fn a_late_packet_is_overtaken_by_those_above_it_that_arrived_before() {
        // The bits of 3 to 5 and of 200 lie around the end of a word.
        assert_eq!(one([0, 1, 5, 3, 2, 4]).late_extent, 2);
        let found = one((0..60).chain(61..80).chain([60]));
        assert_eq!(found, verified! { arrived: 80, late: 1, late_extent: 19 });
    }

    #[test]
    fn gaps_are_lost_until_they_are_filled_late() {
        assert_eq!(one([0, 1, 5]), verified! { arrived: 3, lost: 3 });
        assert_eq!(one([0, 1, 5, 3, 2, 4]), verified! { arrived: 6, late: 3, late_extent: 2 });
    }

    #[test]
    fn what_precedes_the_first_arrival_is_lost_and_told_apart_until_it_comes() {
        assert_eq!(one([5]), verified! { arrived: 1, lost: 5, before_first: 5 });
        let found = one([5, 2, 6]);
        assert_eq!(found, verified! { arrived: 3, late: 1, late_extent: 1, lost: 4, before_first: 2 });
    }

    #[test]
    fn a_packet_that_arrives_again_is_counted_once_and_as_twice() {
        assert_eq!(one([0, 1, 1, 0, 2]), verified! { arrived: 3, twice: 2 });
        assert_eq!(one((0..128).chain([0])), verified! { arrived: 128, twice: 1 });
        assert_eq!(one((0..129).chain([0])), verified! { arrived: 129, too_old: 1 });
        let gap = one((0..128).chain([1000, 999, 999, 800]));
        assert_eq!(gap, verified! { arrived: 130, lost: 871, late: 1, late_extent: 1, twice: 1, too_old: 1 });
    }

    #[test]
    fn a_flow_outside_the_table_is_foreign() {
        assert_eq!(verdict([(4, 0), (u32::MAX, 0)]), verified! { foreign: 2 });
    }

    #[test]
    fn the_memory_of_a_million_flows_is_that_of_a_few() {
        for flows in [1, 1 << 16, 100_000, 1 << 20] {
            let windows = Windows::new(flows);
            assert!((MEMORY / 2..=MEMORY).contains(&(windows.bits.len() * 8)));
            assert!(windows.width() >= 256 && windows.width().is_power_of_two());
        }
    }

    /// The slow and obvious verifier: it remembers every number.
    fn oracle(numbers: &[(u32, u32)], width: u64) -> Verified {
        let mut seen: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        let mut found = Verified::default();
        for &(flow, number) in numbers {
            let (seen, number) = (seen.entry(flow).or_default(), u64::from(number));
            let next = seen.last().map_or(0, |last| last + 1);
            if number + width < next {
                found.too_old += 1;
            } else if !seen.insert(number) {
                found.twice += 1;
            } else {
                found.arrived += 1;
                found.late += u64::from(number < next);
                found.late_extent = found.late_extent.max(seen.range(number + 1..).count() as u64);
            }
        }
        for seen in seen.values() {
            let (first, last) = (*seen.first().unwrap(), *seen.last().unwrap());
            found.lost += (0..=last).filter(|number| !seen.contains(number)).count() as u64;
            found.before_first += first;
        }
        found
    }

    /// What becomes of a packet on its way.
    #[derive(Debug, Clone, Copy)]
    enum Fate {
        Arrives,
        Lost,
        /// So many later packets overtake it.
        Late(usize),
        /// It comes again after so many.
        Twice(usize),
    }

    fn fate() -> impl Strategy<Value = Fate> {
        prop_oneof![
            10 => Just(Fate::Arrives),
            2 => Just(Fate::Lost),
            2 => prop_oneof![1..20usize, 1..600usize].prop_map(Fate::Late),
            2 => prop_oneof![0..20usize, 0..600usize].prop_map(Fate::Twice),
        ]
    }

    proptest! {
        #[test]
        fn it_finds_what_a_verifier_that_remembers_every_number_finds(
            fates in prop::collection::vec((0..4u32, fate()), 1..1200), starts in prop::array::uniform4(0..300u32),
        ) {
            let mut next = starts;
            let mut arrivals = Vec::new();
            for (at, (flow, fate)) in fates.into_iter().enumerate() {
                let number = next[flow as usize];
                next[flow as usize] += 1;
                match fate {
                    Fate::Arrives => arrivals.push((at, flow, number)),
                    Fate::Lost => {}
                    Fate::Late(n) => arrivals.push((at + n, flow, number)),
                    Fate::Twice(n) => arrivals.extend([(at, flow, number), (at + n, flow, number)]),
                }
            }
            arrivals.sort_by_key(|&(at, ..)| at);
            let numbers: Vec<_> = arrivals.into_iter().map(|(_, flow, number)| (flow, number)).collect();
            prop_assert_eq!(verdict(numbers.iter().copied()), oracle(&numbers, 128));
        }
    }
}
