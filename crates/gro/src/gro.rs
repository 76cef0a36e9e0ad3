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

use towpath_wire::offload::LinkKind;

use crate::auto::Auto;
use crate::burst::{WINDOW, Window};
use crate::config::{GroConfig, MAX_BIG_TCP};
use crate::finish::finish;
use crate::join::{Joined, append_predicted, begin, join};
use crate::key::{Common, Hasher};
use crate::layout::Unknown;
use crate::mask::Masks;
use crate::rules::{self, First, Shaped};
use crate::segment::{Segment, Sink};
use crate::shape::Shape;
use crate::stats::{Flush, Stats};
use crate::table::{Chain, Opening, Table};

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
    strange: bool,
    window: Window<S>,
}

impl<S: Segment> Gro<S> {
    /// Packets are handles, a word or two. To pass a larger one from function to function costs as
    /// much as the hash that it would save, so flows are not expected then.
    const HANDLES: bool = size_of::<S>() <= 2 * size_of::<usize>();

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
            strange: false,
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
        self.strange = merged == 0;
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

    /// Whether a burst may stay where it is, instead of [`push_and_flush`](Self::push_and_flush),
    /// because nothing of it would merge. Then its packets are accounted for, and the caller sends
    /// them in their order. Otherwise nothing happened.
    ///
    /// `head` returns the [head](Segment::head) of a packet. It is called only if nothing is held,
    /// and if nothing merged in the burst before. True for bursts of up to 64 packets each of which
    /// is of a flow of its own, or merges with nothing, as TCP without data does.
    pub fn pass_strangers<P>(&mut self, burst: &[P], head: impl Fn(&P) -> &[u8]) -> bool {
        if !self.strange || self.held() > 0 || self.is_bypassed() {
            return false;
        }
        let strangers = match self.config.link {
            LinkKind::Ethernet => self.are_strangers::<14, P>(burst, head),
            LinkKind::Ip => self.are_strangers::<0, P>(burst, head),
        };
        if strangers {
            self.stats.packets += burst.len() as u64;
            self.stats.passed += burst.len() as u64;
            if self.config.auto {
                self.auto.observe(burst.len(), 0);
            }
        }
        strangers
    }

    #[inline(always)]
    fn are_strangers<const L3: usize, P>(&mut self, burst: &[P], head: impl Fn(&P) -> &[u8]) -> bool {
        let (hasher, udp) = (self.hasher, self.config.udp);
        self.window.are_strangers(
            burst,
            |packet| hasher.key::<L3>(head(packet)),
            |packet| rules::stays_alone::<L3>(head(packet), &hasher, udp),
        )
    }

    #[inline(always)]
    fn take_windows<const L3: usize>(&mut self, burst: &mut impl Iterator<Item = S>, out: &mut impl Sink<S>) -> usize {
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
    /// For any other packet the guess says nothing.
    #[inline(always)]
    fn would_merge_with_nothing<const L3: usize>(&self, packet: &S, hash: u64) -> bool {
        self.hasher.common::<L3>(packet.head()).is_some() && self.table.find(hash).is_err()
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

    /// The fast path: an ordinary packet, which is the predicted one of the expected flow. No hash
    /// is needed, because its headers are that flow's.
    #[inline(always)]
    fn push_one<const L3: usize, const EXPECTS: bool>(&mut self, packet: S, out: &mut impl Sink<S>) {
        if !EXPECTS {
            return self.push_hashed::<L3, false>(packet, out);
        }
        if !packet.is_ordinary() {
            return self.push_other::<L3>(packet, out);
        }
        if let Some(flow) = self.table.expected()
            && rules::predicted_ordinary::<L3, S>(flow, &packet)
        {
            if flow.segment.is_none() {
                return self.push_again::<L3>(packet, out);
            }
            match append_predicted(flow, packet, None, &self.config, out) {
                Ok(None) => {
                    let trail = flow.trail();
                    self.table.came_as_expected(trail);
                    self.stats.merged += 1;
                }
                joined => self.after_expected::<L3>(joined, out),
            }
            return;
        }
        self.push_unexpected::<L3>(packet, out);
    }

    /// The same for other packets: their checksums are to be verified, or tags are beside them.
    #[inline(never)]
    fn push_other<const L3: usize>(&mut self, packet: S, out: &mut impl Sink<S>) {
        if let Some(flow) = self.table.expected()
            && flow.segment.is_some()
            && let Some(verify) = rules::predicted::<L3, S>(flow, &packet, packet.head(), packet.vlan())
        {
            match append_predicted(flow, packet, verify, &self.config, out) {
                Ok(None) => {
                    let trail = flow.trail();
                    self.table.came_as_expected(trail);
                    self.stats.merged += 1;
                }
                joined => self.after_expected::<L3>(joined, out),
            }
            return;
        }
        self.push_hashed::<L3, true>(packet, out);
    }

    /// The predicted packet of the expected flow, which was flushed: it begins the next aggregate.
    #[inline(never)]
    fn push_again<const L3: usize>(&mut self, packet: S, out: &mut impl Sink<S>) {
        match self.table.reopen(self.table.expected_slot(), packet) {
            None => self.table.opened_as_expected(),
            Some(packet) => self.push_unexpected::<L3>(packet, out),
        }
    }

    /// A packet that may be the predicted one of a flow that was flushed.
    #[inline(never)]
    fn push_closed<const L3: usize>(&mut self, packet: S, hash: u64, at: u16, out: &mut impl Sink<S>) {
        let packet = if packet.is_ordinary()
            && let Some(flow) = self.table.flow(at)
            && rules::predicted_ordinary::<L3, S>(flow, &packet)
        {
            let Some(packet) = self.table.reopen(at, packet) else { return };
            packet
        } else {
            packet
        };
        self.push_unpredicted::<L3>(packet, hash, out);
    }

    #[inline(never)]
    fn after_expected<const L3: usize>(&mut self, joined: Joined<S>, out: &mut impl Sink<S>) {
        let at = self.table.expected_slot();
        self.table.came(at, self.stats.merged);
        self.after::<L3>(at, joined, out);
    }

    #[inline(never)]
    fn push_unexpected<const L3: usize>(&mut self, packet: S, out: &mut impl Sink<S>) {
        self.push_hashed::<L3, true>(packet, out);
    }

    /// The second path: the predicted packet of any flow, found by its hash. `EXPECTS`: it tells
    /// which flow is expected next.
    #[inline(always)]
    fn push_hashed<const L3: usize, const EXPECTS: bool>(&mut self, packet: S, out: &mut impl Sink<S>) {
        let (b, vlan) = (packet.head(), packet.vlan());
        let Some(hash) = self.hasher.guess::<L3>(b, vlan) else {
            return self.push_uncommon::<L3>(packet, out);
        };
        if let Some((at, flow)) = self.table.youngest(hash)
            && (flow.has_begun() || begin(flow, b, &self.config))
            && let Some(verify) = rules::predicted::<L3, S>(flow, &packet, b, vlan)
        {
            let joined = append_predicted(flow, packet, verify, &self.config, out);
            if EXPECTS {
                self.table.came(at, self.stats.merged);
            }
            return match joined {
                Ok(None) => self.stats.merged += 1,
                joined => self.after::<L3>(at, joined, out),
            };
        }
        if let Some(at) = self.table.closed::<L3>(hash, b) {
            return self.push_closed::<L3>(packet, hash, at, out);
        }
        self.push_first::<L3>(packet, hash, vlan, out);
    }

    /// The third path: the first packet of an aggregate.
    #[inline(always)]
    fn push_first<const L3: usize>(&mut self, packet: S, hash: u64, vlan: u32, out: &mut impl Sink<S>) {
        let (b, len) = (packet.head(), packet.packet_len());
        let Some(first) = rules::first_shaped::<L3>(b, len, self.config.tunnels) else {
            return self.push_unpredicted::<L3>(packet, hash, out);
        };
        let Shaped { shape, udp, size } = first;
        let chain = match self.table.find(hash) {
            Err(chain) => chain,
            Ok(at) if self.table.flow(at).is_some_and(|flow| flow.has_no_room_for(size)) => {
                self.end_full(at, out);
                self.table.chain(hash)
            }
            Ok(_) => return self.push_unpredicted::<L3>(packet, hash, out),
        };
        let opening = Opening { vlan, shape, layout: 0, size };
        self.open(packet, hash, chain, udp, opening, out);
    }

    /// The slow path: an unpredicted packet, which is the first of an aggregate, the last, or
    /// belongs to none.
    #[inline(never)]
    fn push_unpredicted<const L3: usize>(&mut self, packet: S, hash: u64, out: &mut impl Sink<S>) {
        let b = packet.head();
        let Some(common) = self.hasher.common::<L3>(b) else {
            return self.push_uncommon::<L3>(packet, out);
        };
        match self.table.find(hash) {
            Err(chain) => self.open_common::<L3>(packet, hash, chain, common, out),
            Ok(at) => self.join_common::<L3>(at, packet, out),
        }
    }

    #[inline(never)]
    fn join_common<const L3: usize>(&mut self, at: u16, packet: S, out: &mut impl Sink<S>) {
        let joined = self.join::<L3>(at, packet, out);
        self.after::<L3>(at, joined, out);
    }

    /// Handles the result of an attempt to join. A refused packet may open a flow of its own.
    #[inline(never)]
    fn after<const L3: usize>(&mut self, at: u16, joined: Joined<S>, out: &mut impl Sink<S>) {
        let Some(packet) = self.account_join(at, joined, out) else { return };
        let (b, vlan) = (packet.head(), packet.vlan());
        match (self.hasher.common::<L3>(b), self.hasher.guess::<L3>(b, vlan)) {
            (Some(common), Some(hash)) if let Err(chain) = self.table.find(hash) => {
                self.open_common::<L3>(packet, hash, chain, common, out);
            }
            _ => self.pass(packet, out),
        }
    }

    /// Counts the result of an attempt to join. Returns a refused packet, after the aggregate has
    /// left.
    #[inline(always)]
    fn account_join(&mut self, at: u16, joined: Joined<S>, out: &mut impl Sink<S>) -> Option<S> {
        let (packet, ends) = match joined {
            Ok(ends) => {
                self.stats.merged += 1;
                (None, ends)
            }
            Err((packet, reason)) => (Some(packet), Some(reason)),
        };
        if let Some(reason) = ends {
            self.end(at, reason, out);
        }
        packet
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

    /// A packet whose flow is found by walking its headers.
    #[inline(never)]
    fn push_uncommon<const L3: usize>(&mut self, packet: S, out: &mut impl Sink<S>) {
        let (hash, walk) = match self.hasher.any(packet.head(), packet.vlan()) {
            Ok(found) => found,
            Err(unknown) => return self.pass_unknown(packet, unknown, out),
        };
        let (packet, chain) = match self.table.find(hash) {
            Err(chain) => (packet, chain),
            Ok(at) => {
                let joined = self.join::<L3>(at, packet, out);
                let Some(packet) = self.account_join(at, joined, out) else { return };
                let Err(chain) = self.table.find(hash) else { return self.pass(packet, out) };
                (packet, chain)
            }
        };
        let layout = walk.layout;
        let first = if walk.plain { rules::first(packet.head(), packet.packet_len(), &layout) } else { None };
        let Some(First { udp, size, .. }) = first else { return self.pass(packet, out) };
        let opening = Opening { vlan: packet.vlan(), shape: Shape::ANY, layout: layout.pack(), size };
        self.open(packet, hash, chain, udp, opening, out);
    }

    #[cold]
    fn pass_unknown(&mut self, packet: S, unknown: Unknown, out: &mut impl Sink<S>) {
        let scattered = packet.head().len() < packet.packet_len();
        if unknown == Unknown::Fragment || (unknown == Unknown::Short && scattered) {
            self.flush_because(Flush::Unknown, out);
        }
        self.pass(packet, out);
    }

    #[inline]
    fn pass(&mut self, packet: S, out: &mut impl Sink<S>) {
        self.stats.passed += 1;
        out.packet(packet);
    }

    fn open_common<const L3: usize>(
        &mut self,
        packet: S,
        hash: u64,
        chain: Chain,
        common: Common,
        out: &mut impl Sink<S>,
    ) {
        let (b, len) = (packet.head(), packet.packet_len());
        let Some(First { udp, size, transport }) = rules::first_common::<L3>(b, len, common) else {
            return self.pass(packet, out);
        };
        let shape = Shape::new::<L3>(common.v6, udp, transport);
        let opening = Opening { vlan: packet.vlan(), shape, layout: 0, size };
        self.open(packet, hash, chain, udp, opening, out);
    }

    /// Holds a packet that may begin an aggregate; nothing of its flow is held.
    #[inline(always)]
    fn open(&mut self, packet: S, hash: u64, mut chain: Chain, udp: bool, opening: Opening, out: &mut impl Sink<S>) {
        if (udp && !self.config.udp) || packet.offload().gso.is_some() {
            return self.pass(packet, out);
        }
        if let Some(victim) = self.table.victim() {
            self.end(victim, Flush::Evict, out);
            chain = self.table.chain(hash);
        }
        if let Some(packet) = self.table.open(hash, chain, packet, opening) {
            self.pass(packet, out);
        }
    }

    /// Appends a packet to the aggregate of its flow, if all rules permit.
    #[inline(always)]
    fn join<const L3: usize>(&mut self, at: u16, packet: S, out: &mut impl Sink<S>) -> Joined<S> {
        match self.table.flow(at) {
            Some(flow) => join::<L3, S>(flow, packet, &mut self.masks, &self.config, out),
            None => Err((packet, Flush::Unknown)),
        }
    }

    #[inline(never)]
    fn end_full(&mut self, at: u16, out: &mut impl Sink<S>) {
        self.end(at, Flush::Full, out);
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
