//! The engine.
//!
//! ```text
//! packet ─▶ key ─▶ table ─┬─ not held ──▶ rules::first ─┬─▶ held
//!                         │                             └─▶ leaves at once
//!                         └─ held ──▶ rules::next ─┬─▶ appended; leaves if that ends it
//!                                                  └─▶ what is held leaves, then as if not held
//! ```
//!
//! A packet leaves after everything of its flow that came before it, whatever becomes of it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::auto::Auto;
use crate::finish::finish;
use crate::key::Hasher;
use crate::layout::{self, Layout, Link, Outer, Unknown};
use crate::mask::Masks;
use crate::predict::Expected;
use crate::rules::{self, Next};
use crate::segment::{Appended, Segment, Sink};
use crate::shape::Shape;
use crate::stats::{Flush, Stats};
use crate::table::{Flow, Opening, Table};

/// The largest IP packet: what its length field can say.
const MAX_IP: u32 = 65_535;
/// The largest aggregate the kernel takes from itself (`GRO_MAX_SIZE`).
const MAX_BIG_TCP: u32 = 8 * 65_535;
/// The most datagrams of one UDP aggregate that every kernel with `GSO_UDP_L4` takes.
const MAX_DATAGRAMS: u16 = 64;
/// Packets that are prefetched before the one that is pushed.
const DISTANCE: usize = 8;

/// How the engine is to work.
#[derive(Clone, Debug)]
pub struct Config {
    /// What packets begin with.
    pub link: Link,
    /// Flows that can be held at a time, rounded up to a power of two, at most 32768.
    pub flows: usize,
    /// Largest aggregate, as its (outer) IP header says: up to 65535. Above that, up to 524280, for
    /// TCP outside tunnels only, the length field of aggregates longer than 65535 is 0 ("BIG TCP"):
    /// only for an egress that takes such packets, as [`crate::Split`] does.
    pub max_size: u32,
    /// Most packets in an aggregate. UDP never has more than 64.
    pub max_packets: u16,
    /// Coalesce UDP.
    pub udp: bool,
    /// Look into VXLAN, GENEVE, GRE and IP in IP. Without it what is in UDP is data and the others
    /// pass.
    pub tunnels: bool,
    /// Step aside while nothing merges, see [`Auto`].
    pub auto: bool,
    /// Makes flow hashes unpredictable. The default is random.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            link: Link::Ethernet,
            flows: 2048,
            max_size: MAX_IP,
            max_packets: 128,
            udp: true,
            tunnels: true,
            auto: false,
            seed: RandomState::new().hash_one(0),
        }
    }
}

/// Coalesces packets. One per thread: it has no locks and knows no clock; `now` and ages are
/// nanoseconds of whatever clock the caller has.
///
/// Nothing is allocated after [`new`](Self::new). Dropping the engine drops what it holds: flush it
/// first.
pub struct Gro<S> {
    config: Config,
    hasher: Hasher,
    table: Table<S>,
    masks: Masks,
    stats: Stats,
    auto: Auto,
}

impl<S: Segment> Gro<S> {
    /// An engine that holds nothing.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let config = Config { max_size: config.max_size.min(MAX_BIG_TCP), ..config };
        Self {
            hasher: Hasher { seed: config.seed, link: config.link, tunnels: config.tunnels },
            table: Table::new(config.flows),
            masks: Masks::new(),
            stats: Stats::default(),
            auto: Auto::default(),
            config,
        }
    }

    /// Counters since [`new`](Self::new).
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// How many flows are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.table.held()
    }

    /// Packets are passing without being looked at, because nothing merged ([`Config::auto`]).
    #[must_use]
    pub fn is_aside(&self) -> bool {
        self.auto.is_aside()
    }

    /// Takes a burst in the order it came, prefetching some packets ahead. What ends leaves through
    /// `out`; what does not is held until it is flushed.
    pub fn push_batch(&mut self, burst: impl IntoIterator<Item = S>, now: u64, out: &mut impl Sink<S>) {
        if self.auto.is_aside() {
            return self.pass_batch(burst, out);
        }
        let before = self.stats.merged;
        let mut ahead: [Option<S>; DISTANCE] = [const { None }; DISTANCE];
        let mut at = 0;
        for packet in burst {
            packet.prefetch();
            if let Some(packet) = ahead[at % DISTANCE].replace(packet) {
                self.push_one(packet, now, out);
            }
            at += 1;
        }
        for later in at..at + DISTANCE {
            if let Some(packet) = ahead[later % DISTANCE].take() {
                self.push(packet, now, out);
            }
        }
        if self.config.auto {
            self.auto.observe(at, (self.stats.merged - before) as usize);
            if self.auto.is_aside() {
                // Nothing may be held while packets pass by.
                self.flush_all(out);
            }
        }
    }

    fn pass_batch(&mut self, burst: impl IntoIterator<Item = S>, out: &mut impl Sink<S>) {
        let mut packets = 0;
        for packet in burst {
            out.packet(packet);
            packets += 1;
        }
        self.account_passed(packets);
    }

    /// Accounts for packets that went by without being handed over, which is how to treat them while the engine
    /// [stands aside](Self::is_aside): nothing is held then that they could overtake.
    pub fn account_passed(&mut self, packets: usize) {
        self.stats.packets += packets as u64;
        self.stats.aside += packets as u64;
        self.auto.observe(packets, 0);
    }

    /// Takes one packet. Always coalesces: stepping aside is for bursts.
    #[inline(never)]
    pub fn push(&mut self, packet: S, now: u64, out: &mut impl Sink<S>) {
        self.push_one(packet, now, out);
    }

    #[inline(always)]
    fn push_one(&mut self, packet: S, now: u64, out: &mut impl Sink<S>) {
        self.stats.packets += 1;
        let vlan = packet.vlan();
        let Some(hash) = self.hasher.common(packet.head(), vlan) else {
            return self.push_uncommon(packet, vlan, now, out);
        };
        let Some(at) = self.table.find(hash) else {
            return self.open_common(packet, hash, now, out);
        };
        if let Some(flow) = self.table.flow(at)
            && flow.count > 1
            && let Some(verify) = rules::expected(flow, &packet, &mut self.masks)
        {
            let next = Next::foretold(flow, verify);
            match merge(flow, packet, &next, out) {
                Ok(None) => self.stats.merged += 1,
                other => self.after(at, other, hash, now, out),
            }
            return;
        }
        self.push_unexpected(at, packet, hash, now, out);
    }

    /// A packet that is not as foretold: the second of an aggregate, its last, or a stranger.
    #[inline(never)]
    fn push_unexpected(&mut self, at: usize, packet: S, hash: u64, now: u64, out: &mut impl Sink<S>) {
        let merged = self.join(at, packet, out);
        self.after(at, merged, hash, now, out);
    }

    /// A packet that comes back begins anew.
    #[cold]
    #[inline(never)]
    fn after(&mut self, at: usize, merged: Merged<S>, hash: u64, now: u64, out: &mut impl Sink<S>) {
        if let Some(packet) = self.settle(at, merged, out) {
            self.open_common(packet, hash, now, out);
        }
    }

    /// Counts what became of a packet that was to join. One that did not comes back, after what is
    /// held has left.
    #[inline(always)]
    fn settle(&mut self, at: usize, merged: Merged<S>, out: &mut impl Sink<S>) -> Option<S> {
        let (packet, ends) = match merged {
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

    /// Everything that was opened at `older_than` or before leaves, in the order it came.
    pub fn flush(&mut self, older_than: u64, out: &mut impl Sink<S>) {
        while let Some(at) = self.table.oldest() {
            if self.table.opened(at).is_none_or(|opened| opened > older_than) {
                break;
            }
            self.end(at, Flush::Age, out);
        }
    }

    /// Everything leaves, in the order it came.
    pub fn flush_all(&mut self, out: &mut impl Sink<S>) {
        self.flush_because(Flush::End, out);
    }

    fn flush_because(&mut self, reason: Flush, out: &mut impl Sink<S>) {
        while let Some(at) = self.table.oldest() {
            self.end(at, reason, out);
        }
    }

    /// A packet whose headers have to be walked to know its flow.
    #[inline(never)]
    fn push_uncommon(&mut self, packet: S, vlan: u32, now: u64, out: &mut impl Sink<S>) {
        let (hash, walk) = match self.hasher.any(packet.head(), vlan) {
            Ok(found) => found,
            Err(unknown) => return self.pass_unknown(packet, unknown, out),
        };
        let packet = match self.table.find(hash) {
            Some(at) => {
                let merged = self.join(at, packet, out);
                self.settle(at, merged, out)
            }
            None => Some(packet),
        };
        let Some(packet) = packet else { return };
        let layout = walk.layout;
        let first = if walk.plain { rules::first(packet.head(), packet.packet_len(), &layout) } else { None };
        let opening = Opening { now, layout: layout.pack(), ..Opening::default() };
        self.open(packet, hash, first.map(|size| (layout.udp, size)), opening, out);
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

    #[inline(always)]
    fn open_common(&mut self, packet: S, hash: u64, now: u64, out: &mut impl Sink<S>) {
        let l3 = match self.config.link {
            Link::Ethernet => 14,
            Link::Ip => 0,
        };
        let first = rules::first_common(packet.head(), packet.packet_len(), l3);
        self.open(packet, hash, first, Opening { now, ..Opening::default() }, out);
    }

    /// Holds a packet of whose flow nothing is held, or lets it pass. `first` is whether it is UDP
    /// and the length of its data if it can begin an aggregate.
    #[inline(always)]
    fn open(&mut self, packet: S, hash: u64, first: Option<(bool, u16)>, opening: Opening, out: &mut impl Sink<S>) {
        let Some((udp, size)) = first else { return self.pass(packet, out) };
        if (udp && !self.config.udp) || packet.offload().gso.is_some() {
            return self.pass(packet, out);
        }
        let place = match self.table.place(hash) {
            Ok(place) => place,
            Err(oldest) => {
                self.end(oldest, Flush::Evict, out);
                let Ok(place) = self.table.place(hash) else { return self.pass(packet, out) };
                place
            }
        };
        let opening = Opening { size, len: packet.packet_len() as u32, ..opening };
        if let Some(packet) = self.table.open(place, packet, opening) {
            self.pass(packet, out);
        }
    }

    /// Appends a packet to what is held, if all rules allow it.
    fn join(&mut self, at: usize, packet: S, out: &mut impl Sink<S>) -> Merged<S> {
        let Some(flow) = self.table.flow(at) else { return Err((packet, Flush::Unknown)) };
        if packet.offload().gso.is_some() {
            return Err((packet, Flush::Gso));
        }
        if flow.count == 1 {
            if !begin(flow, packet.head(), &self.config) {
                return Err((packet, Flush::Checksum));
            }
            if let (Some(verify), 1..) = (rules::expected(flow, &packet, &mut self.masks), flow.room) {
                return merge(flow, packet, &Next::foretold(flow, verify), out);
            }
        }
        let mask = self.masks.get(flow.opening.layout);
        let limit = Limit::of(&mask.layout, &self.config);
        let next = match rules::next(flow, &packet, mask) {
            Ok(next) => next,
            Err(reason) => return Err((packet, reason)),
        };
        if flow.count >= limit.count || flow.opening.len + u32::from(next.payload) > limit.len {
            return Err((packet, Flush::Full));
        }
        merge(flow, packet, &next, out)
    }

    /// What a flow holds leaves.
    #[inline]
    fn end(&mut self, at: usize, reason: Flush, out: &mut impl Sink<S>) {
        let Some(flow) = self.table.close(at) else { return };
        let Some(mut segment) = flow.segment.take() else { return };
        self.stats.count(reason);
        if flow.count > 1 {
            self.stats.aggregates += 1;
            finish(&mut segment, flow);
        }
        out.packet(segment);
    }
}

/// `Ok` says why that ends the aggregate, if it does; `Err` why the packet cannot join.
type Merged<S> = Result<Option<Flush>, (S, Flush)>;

/// Finds out what has to be known once a second packet comes, `b` being the beginning of it. `false`
/// if the first one's checksums are wrong.
#[inline(always)]
fn begin<S: Segment>(flow: &mut Flow<S>, b: &[u8], config: &Config) -> bool {
    let Some(held) = &flow.segment else { return false };
    let a = held.head();
    let layout = if flow.opening.layout == 0 {
        layout::plain(a, config.link).unwrap_or_default()
    } else {
        Layout::unpack(flow.opening.layout)
    };
    let Some((counts, outer_counts)) = rules::second(held, b, &layout) else { return false };
    let size = flow.opening.size;
    flow.opening.layout = layout.pack();
    (flow.counts, flow.outer_counts) = (counts, outer_counts);
    flow.expected = Expected::of(a, &layout);
    flow.expected.advance(size, counts, outer_counts);
    flow.shape = Shape::of(&layout);
    flow.header = layout.header;
    // Packets too long for the field have no expected length, and go through the rules.
    flow.full_len = layout.header.checked_add(size).unwrap_or(0);
    flow.room = Limit::of(&layout, config).room(flow.opening.len, size);
    true
}

/// Appends a packet that may join.
#[inline(always)]
fn merge<S: Segment>(flow: &mut Flow<S>, packet: S, next: &Next, out: &mut impl Sink<S>) -> Merged<S> {
    let Some(held) = &mut flow.segment else { return Err((packet, Flush::Unknown)) };
    let size = flow.opening.size;
    match held.append(packet, flow.header.into(), next.verify) {
        Appended::Chained => {}
        Appended::Copied(rest) => out.spent(rest),
        Appended::Full(packet) => return Err((packet, Flush::Full)),
        Appended::Corrupt(packet) => return Err((packet, Flush::Checksum)),
    }
    if let Some(fields) = next.fields {
        flow.expected = fields;
    }
    flow.expected.advance(size, flow.counts, flow.outer_counts);
    flow.count += 1;
    flow.opening.len += u32::from(next.payload);
    flow.room = flow.room.saturating_sub(1);
    flow.flags = next.flags;
    Ok(if next.flags != 0 {
        Some(Flush::Push)
    } else if next.payload < size {
        Some(Flush::Short)
    } else if flow.room == 0 {
        Some(Flush::Full)
    } else {
        None
    })
}

/// How large an aggregate may become.
#[derive(Clone, Copy)]
struct Limit {
    /// With all headers.
    len: u32,
    count: u16,
}

impl Limit {
    fn of(layout: &Layout, config: &Config) -> Self {
        let plain = layout.outer == Outer::None;
        let l3 = if plain { layout.l3 } else { layout.outer_l3 };
        let size = if plain && !layout.udp { config.max_size } else { config.max_size.min(MAX_IP) };
        let count = if layout.udp { config.max_packets.min(MAX_DATAGRAMS) } else { config.max_packets };
        Self { len: size + u32::from(l3), count }
    }

    /// How many packets with `size` bytes of data can join one of `len` bytes.
    fn room(&self, len: u32, size: u16) -> u16 {
        let by_len = self.len.saturating_sub(len) / u32::from(size.max(1));
        u16::try_from(by_len).unwrap_or(u16::MAX).min(self.count.saturating_sub(1))
    }
}
