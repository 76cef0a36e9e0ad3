//! When may a packet begin an aggregate, and when may it join one?
//!
//! The rules are those of the Linux kernel (`net/ipv4/tcp_offload.c`, `udp_offload.c`,
//! `net/ipv4/af_inet.c`, `net/ipv6/ip6_offload.c`), so that what is coalesced here can be segmented
//! there, and the other way round.
//!
//! Headers are compared as a whole by [`Mask::same`]. What it leaves out is looked at here.

use towpath_wire::checksum::{VALID, add};

use crate::bytes::{array, be16, be32, sum, u8_at};
use crate::fixup;
use crate::gso::MIN_TCP_SIZE;
use crate::layout::{Layout, Outer, UDP};
use crate::mask::{MAX_TEMPLATE, Mask, Masks};
use crate::offload::Checksum;
use crate::predict::Expected;
use crate::segment::Segment;
use crate::stats::Flush;
use crate::table::Flow;

pub(crate) const FIN_PSH: u8 = 0x09;
const ACK: u8 = 0x10;
/// FIN, SYN, RST, PSH, ACK, URG.
const CONTROL: u8 = 0x3f;
/// Don't fragment, in the first byte of the IPv4 fragment word.
const DF: u8 = 0x40;

/// May a packet of `len` bytes begin an aggregate? Data, nothing but data, and lengths that agree.
/// Returns how many bytes of data. Checksums are looked at when a [`second`] packet comes.
pub(crate) fn first(b: &[u8], len: usize, layout: &Layout) -> Option<u16> {
    let lengths =
        ip_length(b, len, layout.l3, layout.v6) && (layout.outer == Outer::None || outer_lengths(b, len, layout));
    if !lengths || usize::from(layout.header) > MAX_TEMPLATE {
        return None;
    }
    transport(b, len, layout.l4.into(), layout.udp).map(|(_, payload)| payload)
}

/// As [`first`], for a packet whose hash is a common one ([`crate::key::Hasher::common`]): TCP or UDP
/// over IP without options at `l3`.
#[inline(always)]
pub(crate) fn first_common(b: &[u8], len: usize, l3: usize) -> Option<(bool, u16)> {
    let ip: &[u8; 20] = array(b, l3)?;
    let (l4, protocol, end) = if ip[0] >> 4 == 4 {
        // More fragments, or the reserved bit.
        if ip[6] & 0xa0 != 0 {
            return None;
        }
        (l3 + 20, ip[9], l3 + usize::from(word(ip, 2)))
    } else {
        (l3 + 40, ip[6], l3 + 40 + usize::from(word(ip, 4)))
    };
    if end != len {
        return None;
    }
    transport(b, len, l4, protocol == UDP)
}

/// Whether it is UDP, and the length of its data.
#[inline(always)]
fn transport(b: &[u8], len: usize, l4: usize, is_udp: bool) -> Option<(bool, u16)> {
    if is_udp {
        let udp: &[u8; 8] = array(b, l4)?;
        let payload = word(udp, 4).checked_sub(8)?;
        let ok = word(udp, 6) != 0 && payload > 0 && l4 + 8 + usize::from(payload) == len;
        return ok.then_some((true, payload));
    }
    let tcp: &[u8; 20] = array(b, l4)?;
    let options = usize::from(tcp[12] >> 4) * 4;
    let header = l4 + options;
    let payload = u16::try_from(len.checked_sub(header)?).ok()?;
    // Smaller segments than that cannot be said in a virtio-net header.
    let ok = tcp[13] & CONTROL == ACK && payload >= MIN_TCP_SIZE && options >= 20 && header <= b.len();
    ok.then_some((false, payload))
}

/// A packet that may join.
pub(crate) struct Next {
    pub(crate) payload: u16,
    /// FIN and PSH.
    pub(crate) flags: u8,
    /// What the sum of the payload is to be verified against.
    pub(crate) verify: Option<u16>,
    /// Its fields that the next one's are foretold from, if they were not foretold.
    pub(crate) fields: Option<Expected>,
}

impl Next {
    /// A packet that is as foretold.
    #[inline(always)]
    pub(crate) fn foretold<S>(flow: &Flow<S>, verify: Option<u16>) -> Self {
        Self { payload: flow.opening.size, flags: 0, verify, fields: None }
    }
}

/// Is `packet` just what was foretold? If so, what its payload is to be verified against. If not,
/// [`next`] has the last word.
#[inline(always)]
pub(crate) fn expected<S: Segment>(flow: &Flow<S>, packet: &S, masks: &mut Masks) -> Option<Option<u16>> {
    let held = flow.segment.as_ref()?;
    let b = packet.head();
    let offload = packet.offload();
    if packet.packet_len() != usize::from(flow.full_len) || packet.vlan() != held.vlan() || offload.gso.is_some() {
        return None;
    }
    match flow.shape.follows(held.head(), b, &flow.expected) {
        Some(false) => None,
        Some(true) if offload.checksum == Checksum::Verified => Some(None),
        Some(true) => verify(offload.checksum, b, packet.packet_len(), &masks.get(flow.opening.layout).layout).ok(),
        None => expected_any(flow, held.head(), packet, masks.get(flow.opening.layout)),
    }
}

/// [`expected`], for layouts the compiler does not know.
#[inline(never)]
fn expected_any<S: Segment>(flow: &Flow<S>, held: &[u8], packet: &S, mask: &Mask) -> Option<Option<u16>> {
    let layout = &mask.layout;
    let b = packet.head();
    let len = packet.packet_len();
    if !mask.rest.same(held, b, layout.header.into())
        || !flow.expected.is(b, layout)
        || (layout.udp && be16(b, usize::from(layout.l4) + 6) == Some(0))
        || (layout.outer != Outer::None && !outer_sums(held, b, len, layout))
    {
        return None;
    }
    verify(packet.offload().checksum, b, len, layout).ok()
}

/// What the payload is to be verified against, by what is said of the packet.
#[inline(always)]
fn verify(checksum: Checksum, b: &[u8], len: usize, layout: &Layout) -> Result<Option<u16>, Flush> {
    match checksum {
        Checksum::Verified => Ok(None),
        Checksum::Partial { start, offset } if (start, offset) == (layout.l4, layout.checksum_offset()) => Ok(None),
        Checksum::Partial { .. } => Err(Flush::Checksum),
        // Everything under the checksum but the payload.
        Checksum::Unverified => Ok(Some(add(sum(b, layout.l4.into(), layout.header.into()), pseudo(b, len, layout)))),
    }
}

/// May `packet`, which has the hash of `flow`, join what it holds? Not fast: what is as expected does
/// not come here.
#[inline(never)]
pub(crate) fn next<S: Segment>(flow: &Flow<S>, packet: &S, mask: &Mask) -> Result<Next, Flush> {
    let held = flow.segment.as_ref().ok_or(Flush::Unknown)?;
    let layout = &mask.layout;
    let b = packet.head();
    let len = packet.packet_len();
    let same_vlan = packet.vlan() == held.vlan();
    let held = held.head();
    if !mask.kin.same(held, b, layout.header.into()) || !same_vlan {
        return Err(differ(held, b, layout));
    }
    // Equal headers are equally long, and both are inside their packets.
    let payload = len.saturating_sub(layout.header.into());
    if layout.v6 {
        if !ip_length(b, len, layout.l3, true) {
            return Err(Flush::Header);
        }
    } else {
        ipv4(held, b, len, layout.l3, if flow.counts { flow.count } else { 0 })?;
    }
    if layout.outer != Outer::None {
        outer(flow, held, b, len, layout)?;
    }
    let mut flags = 0;
    if layout.udp {
        let udp: &[u8; 8] = array(b, layout.l4.into()).ok_or(Flush::Header)?;
        if word(udp, 6) == 0 {
            return Err(Flush::Checksum);
        }
        if usize::from(word(udp, 4)) != payload + 8 {
            return Err(Flush::Header);
        }
    } else {
        let tcp: &[u8; 20] = array(b, layout.l4.into()).ok_or(Flush::Header)?;
        let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let before = u32::from(flow.opening.size) * u32::from(flow.count);
        if be32(held, usize::from(layout.l4) + 4).map(|held| held.wrapping_add(before)) != Some(seq) {
            return Err(Flush::Order);
        }
        flags = tcp[13] & FIN_PSH;
    }
    if payload == 0 {
        return Err(Flush::Flags);
    }
    if payload > flow.opening.size.into() {
        return Err(Flush::Size);
    }
    let verify = verify(packet.offload().checksum, b, len, layout)?;
    Ok(Next { payload: payload as u16, flags, verify, fields: Some(Expected::of(b, layout)) })
}

/// What is found out when a second packet comes: are the first one's checksums right, and do
/// identifications count up? Inner and outer.
///
/// Those of a packet that may be fragmented may not stay (RFC 6864). What `b` is to this is not
/// trusted: [`next`] compares the headers after it.
#[inline(never)]
pub(crate) fn second<S: Segment>(packet: &S, b: &[u8], layout: &Layout) -> Option<(bool, bool)> {
    let a = packet.head();
    let len = packet.packet_len();
    let ip = |v6: bool, l3: u16| v6 || fixup::is_right(a, l3.into());
    let tunnel = layout.outer == Outer::None || (ip(layout.outer_v6, layout.outer_l3) && outer_valid(a, len, layout));
    let transport = || match packet.offload().checksum {
        Checksum::Verified => true,
        Checksum::Partial { start, offset } => (start, offset) == (layout.l4, layout.checksum_offset()),
        Checksum::Unverified => add(packet.sum(layout.l4.into()), pseudo(a, len, layout)) == VALID,
    };
    if !ip(layout.v6, layout.l3) || !tunnel || !transport() {
        return None;
    }
    let counts = |l3: u16| {
        let l3 = usize::from(l3);
        be16(a, l3 + 4) != be16(b, l3 + 4) || u8_at(a, l3 + 6).is_none_or(|flags| flags & DF == 0)
    };
    let outer = layout.outer != Outer::None && !layout.outer_v6;
    Some((!layout.v6 && counts(layout.l3), outer && counts(layout.outer_l3)))
}

#[inline(always)]
fn word<const N: usize>(h: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([h[at], h[at + 1]])
}

fn pseudo(b: &[u8], len: usize, layout: &Layout) -> u16 {
    let addresses = fixup::addresses(b, layout.l3.into(), layout.v6);
    fixup::pseudo(addresses, layout.protocol(), len - usize::from(layout.l4))
}

/// Does the IP header at `l3` end where the packet ends? Padding is not data.
#[inline]
fn ip_length(b: &[u8], len: usize, l3: u16, v6: bool) -> bool {
    let l3 = usize::from(l3);
    let (at, after) = if v6 { (l3 + 4, l3 + 40) } else { (l3 + 2, l3) };
    be16(b, at).is_some_and(|field| usize::from(field) + after == len)
}

fn outer_lengths(b: &[u8], len: usize, layout: &Layout) -> bool {
    let l4 = usize::from(layout.outer_l4);
    ip_length(b, len, layout.outer_l3, layout.outer_v6)
        && (layout.outer != Outer::Udp || be16(b, l4 + 4).is_some_and(|field| usize::from(field) + l4 == len))
}

/// IPv4 headers equal under the mask: is the second's length that of its packet, its identification
/// `step` after the first's, and its checksum right if the first's is?
#[inline(always)]
fn ipv4(a: &[u8], b: &[u8], len: usize, l3: u16, step: u16) -> Result<(), Flush> {
    let (Some(a), Some(b)) = (array::<20>(a, l3.into()), array::<20>(b, l3.into())) else {
        return Err(Flush::Header);
    };
    if usize::from(word(b, 2)) + usize::from(l3) != len {
        return Err(Flush::Header);
    }
    if word(b, 4).wrapping_sub(word(a, 4)) != step {
        return Err(Flush::Order);
    }
    // What differs must sum to the same, because what is equal does.
    let differing = |h: &[u8; 20]| u32::from(word(h, 2)) + u32::from(word(h, 4)) + u32::from(word(h, 10));
    if (differing(a) + 3 * 0xffff - differing(b)) % 0xffff == 0 { Ok(()) } else { Err(Flush::Checksum) }
}

/// The outer headers, in so far as the mask leaves them out.
#[inline(never)]
fn outer<S>(flow: &Flow<S>, held: &[u8], b: &[u8], len: usize, layout: &Layout) -> Result<(), Flush> {
    if !outer_lengths(b, len, layout) {
        return Err(Flush::Header);
    }
    if !layout.outer_v6 {
        ipv4(held, b, len, layout.outer_l3, if flow.outer_counts { flow.count } else { 0 })?;
    }
    if outer_sums(held, b, len, layout) { Ok(()) } else { Err(Flush::Checksum) }
}

/// Have both headers an outer checksum or neither, and is the second's right?
fn outer_sums(held: &[u8], b: &[u8], len: usize, layout: &Layout) -> bool {
    outer_summed(held, layout) == outer_summed(b, layout) && outer_valid(b, len, layout)
}

fn outer_summed(b: &[u8], layout: &Layout) -> bool {
    match layout.outer {
        Outer::Udp => be16(b, usize::from(layout.outer_l4) + 6).is_some_and(|check| check != 0),
        Outer::Gre { checksum } => checksum,
        _ => false,
    }
}

/// Is the outer checksum right, provided that the inner one is? If the port verified the outer one
/// only, this being true makes the inner one right too.
fn outer_valid(b: &[u8], len: usize, layout: &Layout) -> bool {
    if !outer_summed(b, layout) {
        return true;
    }
    let inside = fixup::from_outer(b, layout, len);
    if layout.outer != Outer::Udp {
        return inside == VALID;
    }
    let addresses = fixup::addresses(b, layout.outer_l3.into(), layout.outer_v6);
    let pseudo = fixup::pseudo(addresses, UDP, len - usize::from(layout.outer_l4));
    add(inside, pseudo) == VALID
}

/// Headers of one flow that are not the same under the mask: TCP flags, or something else?
#[cold]
#[inline(never)]
fn differ(a: &[u8], b: &[u8], layout: &Layout) -> Flush {
    let flags = |h| u8_at(h, usize::from(layout.l4) + 13).map(|flags| flags & !FIN_PSH);
    if !layout.udp && flags(a) != flags(b) { Flush::Flags } else { Flush::Header }
}
