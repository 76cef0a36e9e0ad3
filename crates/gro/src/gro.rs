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
use crate::bytes::{be16, length_field, put16};
use crate::fixup::{self, OuterUdp};
use crate::key::Hasher;
use crate::layout::{self, Layout, Link, Outer, Unknown};
use crate::mask::Masks;
use crate::offload::{Checksum, Gso, GsoKind, Offload, Tunnel, TunnelKind};
use crate::rules;
use crate::segment::{Appended, Segment, Sink};
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
                self.push(packet, now, out);
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
        self.stats.packets += packets as u64;
        self.stats.aside += packets as u64;
        self.auto.observe(packets, 0);
    }

    /// Takes one packet. Always coalesces: stepping aside is for bursts.
    #[inline]
    pub fn push(&mut self, packet: S, now: u64, out: &mut impl Sink<S>) {
        self.stats.packets += 1;
        let vlan = packet.vlan();
        let Some(hash) = self.hasher.common(packet.head(), vlan) else {
            return self.push_uncommon(packet, vlan, now, out);
        };
        let packet = match self.table.find(hash) {
            Some(at) => match self.join(at, packet, vlan, out) {
                Ok(()) => return,
                Err(packet) => packet,
            },
            None => packet,
        };
        self.open_common(packet, vlan, hash, now, out);
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

    #[inline(never)]
    fn push_uncommon(&mut self, packet: S, vlan: u32, now: u64, out: &mut impl Sink<S>) {
        let (hash, walk) = match self.hasher.any(packet.head(), vlan) {
            Ok(found) => found,
            Err(unknown) => return self.pass_unknown(packet, unknown, out),
        };
        let packet = match self.table.find(hash) {
            Some(at) => match self.join(at, packet, vlan, out) {
                Ok(()) => return,
                Err(packet) => packet,
            },
            None => packet,
        };
        self.open(packet, vlan, hash, walk.plain.then_some(walk.layout), now, out);
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

    #[inline(never)]
    fn open_common(&mut self, packet: S, vlan: u32, hash: u64, now: u64, out: &mut impl Sink<S>) {
        let layout = layout::plain(packet.head(), self.config.link);
        self.open(packet, vlan, hash, layout, now, out);
    }

    /// Holds a packet of whose flow nothing is held, or lets it pass.
    #[inline(always)]
    fn open(&mut self, packet: S, vlan: u32, hash: u64, layout: Option<Layout>, now: u64, out: &mut impl Sink<S>) {
        let Some(opening) = layout.and_then(|layout| self.opening(&packet, vlan, &layout, now)) else {
            return self.pass(packet, out);
        };
        let place = match self.table.place(hash) {
            Ok(place) => Ok(place),
            Err(oldest) => {
                self.end(oldest, Flush::Evict, out);
                self.table.place(hash)
            }
        };
        let Ok(place) = place else { return self.pass(packet, out) };
        if let Some(packet) = self.table.open(place, packet, opening) {
            self.pass(packet, out);
        }
    }

    #[inline(always)]
    fn opening(&self, packet: &S, vlan: u32, layout: &Layout, now: u64) -> Option<Opening> {
        let len = packet.packet_len();
        let first = rules::first(packet.head(), len, layout)?;
        if packet.offload().gso.is_some() || (layout.udp && !self.config.udp) {
            return None;
        }
        let layout = layout.pack();
        Some(Opening { now, layout, len: len as u32, next_seq: first.next_seq, vlan, size: first.size })
    }

    /// A packet of a flow of which something is held becomes part of it, or comes back after it has
    /// left.
    #[inline(always)]
    fn join(&mut self, at: usize, packet: S, vlan: u32, out: &mut impl Sink<S>) -> Result<(), S> {
        let (packet, reason) = match self.append(at, packet, vlan, out) {
            Ok(None) => return Ok(()),
            Ok(Some(reason)) => (None, reason),
            Err((packet, reason)) => (Some(packet), reason),
        };
        self.end(at, reason, out);
        packet.map_or(Ok(()), Err)
    }

    /// Appends a packet to what is held: `Ok` says why that ends it, if it does.
    #[inline(always)]
    fn append(&mut self, at: usize, packet: S, vlan: u32, out: &mut impl Sink<S>) -> Result<Option<Flush>, (S, Flush)> {
        let Some(flow) = self.table.flow(at) else { return Err((packet, Flush::Unknown)) };
        let Some(held) = &flow.segment else { return Err((packet, Flush::Unknown)) };
        if packet.offload().gso.is_some() {
            return Err((packet, Flush::Gso));
        }
        let mask = self.masks.get(flow.opening.layout);
        if flow.count == 1 {
            let Some((id_mask, outer_id_mask)) = rules::second(held, packet.head(), &mask.layout) else {
                return Err((packet, Flush::Checksum));
            };
            (flow.id_mask, flow.outer_id_mask) = (id_mask, outer_id_mask);
        }
        let next = match rules::next(flow, held.head(), &packet, vlan, mask) {
            Ok(next) => next,
            Err(reason) => return Err((packet, reason)),
        };
        let limit = Limit::of(&mask.layout, &self.config);
        let len = flow.opening.len + u32::from(next.payload);
        if len > limit.len || flow.count >= limit.count {
            return Err((packet, Flush::Full));
        }
        let Some(held) = &mut flow.segment else { return Err((packet, Flush::Unknown)) };
        match held.append(packet, mask.layout.header.into(), next.verify) {
            Appended::Chained => {}
            Appended::Copied(rest) => out.spent(rest),
            Appended::Full(packet) => return Err((packet, Flush::Full)),
            Appended::Corrupt(packet) => return Err((packet, Flush::Checksum)),
        }
        self.stats.merged += 1;
        flow.count += 1;
        flow.flags = next.flags;
        let opening = &mut flow.opening;
        opening.len = len;
        opening.next_seq = opening.next_seq.wrapping_add(next.payload.into());
        Ok(if next.flags != 0 {
            Some(Flush::Push)
        } else if next.payload < opening.size {
            Some(Flush::Short)
        } else if flow.count >= limit.count || len + u32::from(opening.size) > limit.len {
            Some(Flush::Full)
        } else {
            None
        })
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

/// How large an aggregate may become.
#[derive(Clone, Copy)]
struct Limit {
    /// With all headers.
    len: u32,
    count: u16,
}

impl Limit {
    #[inline(always)]
    fn of(layout: &Layout, config: &Config) -> Self {
        let plain = layout.outer == Outer::None;
        let l3 = if plain { layout.l3 } else { layout.outer_l3 };
        let size = if plain && !layout.udp { config.max_size } else { config.max_size.min(MAX_IP) };
        let count = if layout.udp { config.max_packets.min(MAX_DATAGRAMS) } else { config.max_packets };
        Self { len: size + u32::from(l3), count }
    }
}

/// Makes an aggregate a legal super-packet.
#[inline(never)]
fn finish<S: Segment>(segment: &mut S, flow: &Flow<S>) {
    let layout = Layout::unpack(flow.opening.layout);
    let len = flow.opening.len as usize;
    let (l3, l4) = (usize::from(layout.l3), usize::from(layout.l4));
    let h = segment.head_mut();
    fixup::ip(h, l3, l4, layout.v6, len - l3, None);
    if layout.udp {
        put16(h, l4 + 4, length_field(len - l4));
    } else if let Some(flags) = h.get_mut(l4 + 13) {
        *flags |= flow.flags;
    }
    let addresses = fixup::addresses(h, l3, layout.v6);
    let pseudo = fixup::pseudo(addresses, layout.protocol(), len - l4);
    put16(h, l4 + usize::from(layout.checksum_offset()), pseudo);
    fixup::outer(h, &layout, len, None, OuterUdp::Partial);
    let tunnel = tunnel(h, &layout);
    segment.set_offload(Offload {
        checksum: Checksum::Partial { start: layout.l4, offset: layout.checksum_offset() },
        gso: Some(Gso {
            kind: match (layout.udp, layout.v6) {
                (true, _) => GsoKind::Udp,
                (false, false) => GsoKind::Tcp4,
                (false, true) => GsoKind::Tcp6,
            },
            size: flow.opening.size,
            segs: flow.count,
            header_len: layout.header,
            ecn: false,
            fixed_id: flow.id_mask == 0,
            outer_fixed_id: flow.outer_id_mask == 0,
            tunnel,
        }),
    });
}

fn tunnel(h: &[u8], layout: &Layout) -> Option<Tunnel> {
    let (kind, checksum) = match layout.outer {
        Outer::None => return None,
        Outer::Udp => (TunnelKind::Udp, be16(h, usize::from(layout.outer_l4) + 6) != Some(0)),
        Outer::Gre { checksum } => (TunnelKind::Gre, checksum),
        Outer::Ip => (TunnelKind::Ip, false),
    };
    let Layout { outer_v6, outer_l4, l3, .. } = *layout;
    Some(Tunnel { kind, outer_v6, checksum, outer_l4, inner_l3: l3 })
}
