//! The GRO engine.
//!
//! ```text
//! packet ─▶ key ─▶ table ─┬─ not held ─▶ rules::first ─┬─▶ held
//!                         │                            └─▶ leaves at once
//!                         └─ held ─▶ rules::next ─┬─▶ appended; if complete, the aggregate leaves
//!                                                 └─▶ the aggregate leaves; then as if not held
//! ```
//!
//! The predicted packet of the expected flow is appended without a key.
//!
//! Every packet leaves after all packets of its flow that came before it.
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`Gro`]: bursts in, flushed aggregates out |
//! | `paths` | the paths of a packet |
//! | `unmatched` | bursts in which nothing, or hardly anything, merges |

mod paths;
mod unmatched;

use towpath_wire::offload::LinkKind;

use crate::auto::Auto;
use crate::burst::Window;
use crate::config::{GroConfig, MAX_BIG_TCP};
use crate::finish::finish;
use crate::key::Hasher;
use crate::mask::Masks;
use crate::segment::{Segment, Sink, is_handle};
use crate::stats::{Flush, Stats};
use crate::table::Table;

/// Packets that are prefetched ahead of the one that is pushed.
const DISTANCE: usize = 8;

/// Coalesces packets. One per thread: it has no locks and no clock; `now` and ages are nanoseconds
/// of the caller's clock.
///
/// Nothing is allocated after [`new`](Self::new). Dropping the engine drops the packets that it
/// holds: flush it first.
pub struct Gro<S> {
    config: GroConfig,
    hasher: Hasher,
    table: Table<S>,
    masks: Masks,
    stats: Stats,
    auto: Auto,
    /// At least half of the last batch merged.
    merging: bool,
    /// Nothing of it did.
    unmatched: bool,
    window: Window<S>,
}

impl<S: Segment> Gro<S> {
    /// To pass a packet that is no handle from function to function costs as much as the hash that
    /// it would save, so flows are not expected then.
    const HANDLES: bool = is_handle::<S>();

    /// Makes an empty engine.
    #[must_use]
    pub fn new(config: GroConfig) -> Self {
        let config = GroConfig { max_size: config.max_size.min(MAX_BIG_TCP), ..config };
        Self {
            hasher: Hasher { seed: config.seed, link: config.link, tunnels: config.tunnels },
            table: Table::new(config.flows),
            masks: Masks::new(),
            stats: Stats::default(),
            auto: Auto::default(),
            merging: false,
            unmatched: false,
            window: Window::new(),
            config,
        }
    }

    /// Counters since [`new`](Self::new).
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Number of held flows.
    #[must_use]
    pub fn held(&self) -> usize {
        self.table.held()
    }

    /// Whether packets bypass the engine, because nothing merged ([`GroConfig::auto`]).
    #[must_use]
    pub fn is_bypassed(&self) -> bool {
        self.auto.is_bypassed()
    }

    /// Takes a burst in the order it came, prefetching some packets ahead. Complete aggregates
    /// leave through `out`; others are held until they are flushed.
    pub fn push_batch(&mut self, burst: impl IntoIterator<Item = S>, now: u64, out: &mut impl Sink<S>) {
        if self.auto.is_bypassed() {
            return self.pass_batch(burst, out);
        }
        self.table.set_now(now);
        let before = self.stats.merged;
        let burst = burst.into_iter();
        let packets = match (self.config.link, Self::HANDLES && self.table.expects()) {
            (LinkKind::Ethernet, true) => self.take_batch::<14, true>(burst, out),
            (LinkKind::Ethernet, false) => self.take_batch::<14, false>(burst, out),
            (LinkKind::Ip, true) => self.take_batch::<0, true>(burst, out),
            (LinkKind::Ip, false) => self.take_batch::<0, false>(burst, out),
        };
        self.account_batch(packets, before, out);
    }

    /// Counts a batch; `before` is the number of packets merged before it.
    fn account_batch(&mut self, packets: usize, before: u64, out: &mut impl Sink<S>) {
        self.stats.packets += packets as u64;
        let merged = (self.stats.merged - before) as usize;
        self.merging = 2 * merged >= packets;
        self.unmatched = merged == 0;
        if self.config.auto {
            self.auto.observe(packets, merged);
            if self.auto.is_bypassed() {
                // Nothing may be held during a bypass.
                self.flush_all(out);
            }
        }
    }

    /// IP begins at `L3`. `EXPECTS`: flows come in an order that is known. Returns the number of
    /// packets.
    #[inline(always)]
    fn take_batch<const L3: usize, const EXPECTS: bool>(
        &mut self,
        burst: impl Iterator<Item = S>,
        out: &mut impl Sink<S>,
    ) -> usize {
        let mut ahead: [Option<S>; DISTANCE] = [const { None }; DISTANCE];
        let mut packets = 0;
        for packet in burst {
            packet.prefetch();
            if self.merging {
                packet.prefetch_payload();
            }
            if let Some(packet) = ahead[packets % DISTANCE].replace(packet) {
                self.push_one::<L3, EXPECTS>(packet, out);
            }
            packets += 1;
        }
        for later in packets..packets + DISTANCE {
            if let Some(packet) = ahead[later % DISTANCE].take() {
                self.push_one::<L3, EXPECTS>(packet, out);
            }
        }
        if !EXPECTS {
            self.table.rest(packets);
        }
        packets
    }

    /// [`push_batch`](Self::push_batch) followed by [`flush_all`](Self::flush_all), for callers
    /// that hold packets no longer than a burst. The aggregates are the same. It costs less while
    /// most packets merge with nothing: those are not held, so they may leave before packets of
    /// other flows that came earlier.
    pub fn push_and_flush(&mut self, burst: impl IntoIterator<Item = S>, out: &mut impl Sink<S>) {
        let mut burst = burst.into_iter();
        if self.merging || self.auto.is_bypassed() {
            self.push_batch(burst, 0, out);
        } else {
            let before = self.stats.merged;
            let packets = match self.config.link {
                LinkKind::Ethernet => self.take_windows::<14>(&mut burst, out),
                LinkKind::Ip => self.take_windows::<0>(&mut burst, out),
            };
            self.account_batch(packets, before, out);
        }
        self.flush_all(out);
    }

    fn pass_batch(&mut self, burst: impl IntoIterator<Item = S>, out: &mut impl Sink<S>) {
        let mut packets = 0;
        for packet in burst {
            out.packet(packet);
            packets += 1;
        }
        self.account_bypassed(packets);
    }

    /// Accounts for packets that the caller did not push because the engine
    /// [is bypassed](Self::is_bypassed): nothing is held that they could overtake.
    pub fn account_bypassed(&mut self, packets: usize) {
        self.stats.packets += packets as u64;
        self.stats.bypassed += packets as u64;
        self.auto.observe(packets, 0);
    }

    /// Takes one packet. Always coalesces: only bursts bypass the engine.
    pub fn push(&mut self, packet: S, now: u64, out: &mut impl Sink<S>) {
        self.table.set_now(now);
        self.stats.packets += 1;
        match (self.config.link, Self::HANDLES) {
            (LinkKind::Ethernet, true) => self.push_one::<14, true>(packet, out),
            (LinkKind::Ethernet, false) => self.push_unexpected::<14>(packet, out),
            (LinkKind::Ip, true) => self.push_one::<0, true>(packet, out),
            (LinkKind::Ip, false) => self.push_unexpected::<0>(packet, out),
        }
        self.table.rest(1);
    }

    /// Flushes every flow that was opened at `older_than` or before, in the order of arrival.
    pub fn flush(&mut self, older_than: u64, out: &mut impl Sink<S>) {
        while let Some(at) = self.table.oldest() {
            if self.table.opened(at).is_none_or(|opened| opened > older_than) {
                break;
            }
            self.end(at, Flush::Age, out);
        }
    }

    /// Flushes every flow, in the order of arrival.
    pub fn flush_all(&mut self, out: &mut impl Sink<S>) {
        self.flush_because(Flush::End, out);
    }

    fn flush_because(&mut self, reason: Flush, out: &mut impl Sink<S>) {
        let (mut left, mut aggregates) = (0, 0);
        while let Some((mut segment, flow)) = self.table.close_all() {
            left += 1;
            if flow.count() > 1 {
                aggregates += 1;
                finish(&mut segment, flow);
            }
            out.packet(segment);
        }
        self.stats.count(reason, left);
        self.stats.aggregates += aggregates;
    }

    #[inline]
    fn pass(&mut self, packet: S, out: &mut impl Sink<S>) {
        self.stats.passed += 1;
        out.packet(packet);
    }

    /// Closes a flow and sends its aggregate out.
    #[inline(always)]
    fn end(&mut self, at: u16, reason: Flush, out: &mut impl Sink<S>) {
        let Some((mut segment, flow)) = self.table.close(at) else { return };
        self.stats.count(reason, 1);
        if flow.count() > 1 {
            self.stats.aggregates += 1;
            finish(&mut segment, flow);
        }
        out.packet(segment);
    }
}

#[cfg(test)]
mod tests;
