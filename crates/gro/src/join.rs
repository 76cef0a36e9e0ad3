//! Appends a packet to the aggregate of its flow.

use crate::config::{GroConfig, MAX_IP};
use crate::layout::{self, Layout, Outer};
use crate::mask::Masks;
use crate::rules::{self, Next};
use crate::segment::{Appended, Segment, Sink};
use crate::shape::{Shape, WithLayout};
use crate::stats::Flush;
use crate::table::Flow;

/// Most datagrams of one UDP aggregate: every kernel with `GSO_UDP_L4` takes as many.
const MAX_DATAGRAMS: u16 = 64;

/// `Ok` has the reason if the aggregate is complete; `Err` has the reason why the packet cannot
/// join.
pub(crate) type Joined<S> = Result<Option<Flush>, (S, Flush)>;

/// Appends a packet, if all rules permit.
#[inline(always)]
pub(crate) fn join<const L3: usize, S: Segment>(
    flow: &mut Flow<S>,
    packet: S,
    masks: &mut Masks,
    config: &GroConfig,
    out: &mut impl Sink<S>,
) -> Joined<S> {
    if packet.offload().gso.is_some() {
        return Err((packet, Flush::Gso));
    }
    if flow.is_undecided() && !begin(flow, packet.head(), config) {
        return Err((packet, Flush::Checksum));
    }
    if let Some(verify) = rules::predicted::<L3, S>(flow, &packet, packet.head(), packet.vlan()) {
        return append_predicted(flow, packet, verify, config, out);
    }
    let layout = flow.layout();
    let mask = masks.get(layout.pack());
    if flow.shape == Shape::ANY
        && let Some(verify) = rules::predicted_any(flow, &packet, mask)
    {
        flow.expected.advance_fields(flow.size, flow.counts);
        return append_predicted(flow, packet, verify, config, out);
    }
    let next = match rules::next(flow, &packet, mask) {
        Ok(next) => next,
        Err(reason) => return Err((packet, reason)),
    };
    append(flow, packet, &next, config, out)
}

/// Completes the flow's state when its second packet comes, and predicts that packet, whose
/// beginning is `b`. Returns `false` if the first one's checksums are wrong.
#[inline(never)]
pub(crate) fn begin<S: Segment>(flow: &mut Flow<S>, b: &[u8], config: &GroConfig) -> bool {
    if flow.shape == Shape::ANY && flow.expected.layout() == 0 {
        let layout = flow.segment.as_ref().and_then(|held| layout::plain(held.head(), config.link));
        flow.expected.set_layout(layout.unwrap_or_default().pack());
    }
    flow.shape.with_layout(flow.expected.layout(), Begin { flow, b, config })
}

struct Begin<'a, S> {
    flow: &'a mut Flow<S>,
    b: &'a [u8],
    config: &'a GroConfig,
}

impl<S: Segment> WithLayout for Begin<'_, S> {
    type Output = bool;

    #[inline(always)]
    fn with(self, layout: &Layout) -> bool {
        let Self { flow, b, config } = self;
        let Some(held) = &flow.segment else { return false };
        if !rules::is_right(held, layout) {
            return false;
        }
        let a = held.head();
        (flow.counts, flow.outer_counts) = rules::counts(a, b, layout);
        flow.constant_sum = 0;
        flow.reopened = false;
        let most = Limit::of(layout, config).most(held.packet_len(), flow.size);
        flow.usual = flow.shape.is_usual() && flow.counts;
        flow.expected.follow(a, flow.shape, layout, flow.size, flow.counts);
        flow.set_most(most);
        // Packets too long for the field, and those without room, have no expected length and go
        // through the rules.
        let fits = !flow.is_full() && layout.header.checked_add(flow.size).is_some();
        flow.expect(fits.then_some(layout.header));
        true
    }
}

/// Appends a full-sized packet that equals the prediction; there is room for it.
#[inline(always)]
pub(crate) fn append_predicted<S: Segment>(
    flow: &mut Flow<S>,
    packet: S,
    verify: Option<u16>,
    config: &GroConfig,
    out: &mut impl Sink<S>,
) -> Joined<S> {
    let Some(held) = &mut flow.segment else { return Err((packet, Flush::Unknown)) };
    match held.append(packet, flow.header.into(), verify) {
        Appended::Chained => {}
        Appended::Copied(rest) => out.recycle(rest),
        Appended::Full(packet) => return Err((packet, Flush::Full)),
        Appended::Corrupt(packet) => return Err((packet, Flush::Checksum)),
    }
    flow.add_one();
    Ok(if flow.is_full() { filled(flow, config) } else { None })
}

/// Ends an aggregate that has no room for another full-sized packet, unless a shorter one may fill
/// it.
#[inline(never)]
fn filled<S: Segment>(flow: &mut Flow<S>, config: &GroConfig) -> Option<Flush> {
    let limit = Limit::of(&flow.layout(), config);
    let len = flow.segment.as_ref().map_or(0, Segment::packet_len);
    // A full-sized packet is not predicted any more.
    flow.expect(None);
    (flow.count() >= limit.count || len >= limit.len).then_some(Flush::Full)
}

/// Appends a packet that may join, if there is room for it.
#[inline(never)]
fn append<S: Segment>(
    flow: &mut Flow<S>,
    packet: S,
    next: &Next,
    config: &GroConfig,
    out: &mut impl Sink<S>,
) -> Joined<S> {
    let limit = Limit::of(&flow.layout(), config);
    flow.expected.follow(packet.head(), flow.shape, &flow.layout(), flow.size, flow.counts);
    let count = flow.count();
    let Some(held) = &mut flow.segment else { return Err((packet, Flush::Unknown)) };
    if count >= limit.count || held.packet_len() + usize::from(next.payload) > limit.len {
        return Err((packet, Flush::Full));
    }
    let header = packet.packet_len() - usize::from(next.payload);
    match held.append(packet, header, next.verify) {
        Appended::Chained => {}
        Appended::Copied(rest) => out.recycle(rest),
        Appended::Full(packet) => return Err((packet, Flush::Full)),
        Appended::Corrupt(packet) => return Err((packet, Flush::Checksum)),
    }
    flow.add_one();
    flow.flags = next.flags;
    Ok(if next.flags != 0 {
        Some(Flush::Push)
    } else if next.payload < flow.size {
        Some(Flush::Short)
    } else if flow.is_full() {
        filled(flow, config)
    } else {
        None
    })
}

/// How large an aggregate may become.
#[derive(Clone, Copy)]
struct Limit {
    /// With all headers.
    len: usize,
    count: u16,
}

impl Limit {
    #[inline(always)]
    fn of(layout: &Layout, config: &GroConfig) -> Self {
        let plain = layout.outer == Outer::None;
        let l3 = if plain { layout.l3 } else { layout.outer_l3 };
        let size = if plain && !layout.udp { config.max_size } else { config.max_size.min(MAX_IP) };
        let count = if layout.udp { config.max_packets.min(MAX_DATAGRAMS) } else { config.max_packets };
        Self { len: size as usize + usize::from(l3), count }
    }

    /// How many packets of `size` payload bytes an aggregate can have, including one packet of
    /// `len` bytes.
    #[inline(always)]
    fn most(&self, len: usize, size: u16) -> u16 {
        let others = self.len.saturating_sub(len) as u32 / u32::from(size.max(1));
        u16::try_from(others + 1).unwrap_or(u16::MAX).min(self.count.max(1))
    }
}
