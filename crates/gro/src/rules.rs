//! The rules: which packets begin an aggregate, and which join one.
//!
//! They follow the Linux kernel (`net/ipv4/tcp_offload.c`, `udp_offload.c`, `net/ipv4/af_inet.c`,
//! `net/ipv6/ip6_offload.c`), so that the kernel can segment every aggregate made here, and the
//! other way round. They are stricter in these points:
//!
//! * A TCP segment has at least [`MIN_TCP_SIZE`] bytes of payload: Linux coalesces shorter ones,
//!   but refuses to segment them.
//! * TCP flags other than FIN and PSH are equal, CWR included: Linux before its support of AccECN
//!   let segments without CWR join one that has it.
//! * Headers are compared as a whole, so that fields without a rule of their own are equal too:
//!   TCP's urgent pointer, reserved fields and options of VXLAN and GENEVE, reserved bits.
//! * Outer IPv4 identifications are checked as the inner ones are.
//!
//! Headers are compared by [`crate::mask::Bits::same`]. The fields that it leaves out are checked
//! here.

use towpath_wire::checksum::{VALID, add};
use towpath_wire::offload::Checksum;

use crate::bytes::{array, be16, be32, sum, u8_at};
use crate::fixup;
use crate::gso::MIN_TCP_SIZE;
use crate::key::{Common, Hasher, is_v6};
use crate::layout::{FIN_PSH, Layout, Outer, PORT_GENEVE, PORT_VXLAN, TCP, UDP};
use crate::mask::{MAX_TEMPLATE, Mask};
use crate::segment::{Segment, is_handle};
use crate::shape::{Shape, changing_sum_usual, follows_usual};
use crate::stats::Flush;
use crate::table::{Flow, tag_and_len};

const ACK: u8 = 0x10;
/// FIN, SYN, RST, PSH, ACK, URG.
const CONTROL: u8 = 0x3f;
/// Don't fragment, in the first byte of the IPv4 fragment word.
const DF: u8 = 0x40;

/// A packet that may begin an aggregate.
pub(crate) struct First {
    pub(crate) udp: bool,
    /// Payload bytes.
    pub(crate) size: u16,
    /// Bytes of the transport header.
    pub(crate) transport: usize,
}

/// Whether a packet of `len` bytes may begin an aggregate: plain data, and lengths that agree. Its
/// checksums [are verified](is_right) when a second packet comes.
pub(crate) fn first(b: &[u8], len: usize, layout: &Layout) -> Option<First> {
    let lengths =
        ip_length(b, len, layout.l3, layout.v6) && (layout.outer == Outer::None || outer_lengths(b, len, layout));
    if !lengths || usize::from(layout.header) > MAX_TEMPLATE {
        return None;
    }
    transport(b, len, layout.l4.into(), layout.udp)
}

/// As [`first`], for a [common](crate::key::Hasher::common) packet.
#[inline(always)]
pub(crate) fn first_common<const L3: usize>(b: &[u8], len: usize, common: Common) -> Option<First> {
    let Common { v6, udp } = common;
    let ip: &[u8; 8] = array(b, L3)?;
    // IPv4 without more fragments or the reserved bit.
    let (l4, end) = if v6 {
        (L3 + 40, L3 + 40 + usize::from(word(ip, 4)))
    } else {
        (L3 + 20, if ip[6] & 0xa0 == 0 { L3 + usize::from(word(ip, 2)) } else { return None })
    };
    if end != len {
        return None;
    }
    transport(b, len, l4, udp)
}

/// Whether a packet neither begins an aggregate nor joins one, by its own headers alone: TCP
/// without data, or with flags that forbid it; neither TCP nor UDP. `udp`: UDP merges.
#[inline(never)]
pub(crate) fn never_merges<const L3: usize>(b: &[u8], hasher: &Hasher, udp: bool) -> bool {
    let Some(common) = hasher.common::<L3>(b) else { return hasher.any(b, 0).is_err() };
    if common.udp {
        return !udp;
    }
    let (l4, len, before) = if common.v6 { (L3 + 40, L3 + 4, 0) } else { (L3 + 20, L3 + 2, 20) };
    let (Some(len), Some(tcp)) = (be16(b, len), array::<20>(b, l4)) else { return false };
    let header = before + usize::from(tcp[12] >> 4) * 4;
    tcp[13] & CONTROL & !FIN_PSH != ACK || usize::from(len) <= header
}

/// A packet that has a shape and may begin an aggregate.
pub(crate) struct Shaped {
    pub(crate) shape: Shape,
    pub(crate) udp: bool,
    /// Payload bytes.
    pub(crate) size: u16,
}

/// [`first`] for a packet that has a shape, IP beginning at `L3`; `None` also for a packet without
/// one. A packet that has one is [common](crate::key::Hasher::common). `tunnels`: UDP may carry a
/// tunnel.
#[inline(always)]
pub(crate) fn first_shaped<const L3: usize>(b: &[u8], len: usize, tunnels: bool) -> Option<Shaped> {
    // Version 4 without options, no fragment, the reserved bit clear.
    const WHICH: u64 = u64::from_ne_bytes([0xff, 0, 0, 0, 0, 0, 0xbf, 0xff]);
    const PLAIN: u64 = u64::from_ne_bytes([0x45, 0, 0, 0, 0, 0, 0, 0]);
    if is_v6::<L3>(b)? {
        let ip: &[u8; 40] = array(b, L3)?;
        if ip[0] >> 4 != 6 || L3 + 40 + usize::from(word(ip, 4)) != len {
            return None;
        }
        return transport_shaped::<L3>(b, len, L3 + 40, ip[6], tunnels);
    }
    let ip: &[u8; 20] = array(b, L3)?;
    let fields = ip.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
    if fields & WHICH != PLAIN || L3 + usize::from(word(ip, 2)) != len {
        return None;
    }
    transport_shaped::<L3>(b, len, L3 + 20, ip[9], tunnels)
}

/// `l4` is a constant.
#[inline(always)]
fn transport_shaped<const L3: usize>(b: &[u8], len: usize, l4: usize, protocol: u8, tunnels: bool) -> Option<Shaped> {
    // The header length, and the flags that matter.
    const WHICH: u16 = 0xf000 | CONTROL as u16;
    const PLAIN: u16 = 0x5000 | ACK as u16;
    const TIMESTAMPS: u16 = 0x8000 | ACK as u16;
    let v6 = l4 - L3 == 40;
    if protocol == TCP {
        let transport = match u16::from_be_bytes(*array(b, l4 + 12)?) & WHICH {
            TIMESTAMPS => 32,
            PLAIN => 20,
            _ => return None,
        };
        let size = len.checked_sub(l4 + transport)? as u16;
        let ok = size >= MIN_TCP_SIZE && b.len() >= l4 + transport;
        return ok.then_some(Shaped { shape: Shape::new::<L3>(v6, false, transport), udp: false, size });
    }
    let first = if protocol == UDP { transport(b, len, l4, true)? } else { return None };
    let port = u16::from_be_bytes(*array(b, l4 + 2)?);
    let plain = !tunnels || (port != PORT_VXLAN && port != PORT_GENEVE);
    plain.then_some(Shaped { shape: Shape::new::<L3>(v6, true, 8), udp: true, size: first.size })
}

#[inline(always)]
fn transport(b: &[u8], len: usize, l4: usize, is_udp: bool) -> Option<First> {
    if is_udp {
        let udp: &[u8; 8] = array(b, l4)?;
        let size = word(udp, 4).checked_sub(8)?;
        let ok = word(udp, 6) != 0 && size > 0 && l4 + 8 + usize::from(size) == len;
        return ok.then_some(First { udp: true, size, transport: 8 });
    }
    let tcp: &[u8; 20] = array(b, l4)?;
    let transport = usize::from(tcp[12] >> 4) * 4;
    let header = l4 + transport;
    let size = u16::try_from(len.checked_sub(header)?).ok()?;
    // The kernel refuses to segment smaller sizes.
    let ok = tcp[13] & CONTROL == ACK && size >= MIN_TCP_SIZE && transport >= 20 && header <= b.len();
    ok.then_some(First { udp: false, size, transport })
}

/// A packet that may join.
pub(crate) struct Next {
    pub(crate) payload: u16,
    /// FIN and PSH.
    pub(crate) flags: u8,
    /// The sum to verify the payload against.
    pub(crate) verify: Option<u16>,
}

/// Whether `packet`, whose beginning is `b`, equals the prediction. If so, returns the sum to
/// verify its payload against, and predicts the next one. Otherwise, or if it has no shape,
/// [`predicted_any`] and [`next`] decide.
#[inline(always)]
pub(crate) fn predicted<const L3: usize, S: Segment>(
    flow: &mut Flow<S>,
    packet: &S,
    b: &[u8],
    vlan: u32,
) -> Option<Option<u16>> {
    let len = packet.packet_len();
    if flow.expects != tag_and_len(vlan, len) || !follows::<L3, S>(flow, b) {
        return None;
    }
    let offload = packet.offload();
    if offload.gso.is_some() {
        return None;
    }
    match offload.checksum {
        Checksum::Verified => Some(None),
        Checksum::Unknown => Some(Some(header_sum::<L3, S>(flow, b, len))),
        partial => verify(partial, b, len, &flow.shape.layout()).ok(),
    }
}

/// [`predicted`] for an [ordinary](Segment::is_ordinary) packet. The flow may be closed.
#[inline(always)]
pub(crate) fn predicted_ordinary<const L3: usize, S: Segment>(flow: &mut Flow<S>, packet: &S) -> bool {
    flow.expects == tag_and_len(0, packet.packet_len()) && follows::<L3, S>(flow, packet.head())
}

/// Whether `b` is the beginning of the predicted packet, in a flow with a shape. If so, the next
/// one is predicted. The test for the usual shape saves instructions, but only handles gain time.
#[inline(always)]
fn follows<const L3: usize, S>(flow: &mut Flow<S>, b: &[u8]) -> bool {
    if is_handle::<S>() && flow.usual {
        follows_usual::<L3>(&mut flow.expected, b, flow.size)
    } else {
        flow.shape.follows::<L3>(&mut flow.expected, b, flow.size, flow.counts)
    }
}

/// [`verify`] for a predicted packet of a flow with a shape: all fields but two equal those of the
/// packet before, and so does their sum.
#[inline(always)]
pub(crate) fn header_sum<const L3: usize, S>(flow: &mut Flow<S>, b: &[u8], len: usize) -> u16 {
    let fields = if flow.usual { changing_sum_usual::<L3>(b) } else { flow.shape.changing_sum(b) };
    if flow.constant_sum == 0 {
        let layout = flow.shape.layout();
        let all = add(sum(b, layout.l4.into(), layout.header.into()), pseudo(b, len, &layout));
        // The sum is not 0, because the protocol is not.
        flow.constant_sum = add(all, !fields);
    }
    add(flow.constant_sum, fields)
}

/// [`predicted`], for a flow without a shape.
#[inline(never)]
pub(crate) fn predicted_any<S: Segment>(flow: &Flow<S>, packet: &S, mask: &Mask) -> Option<Option<u16>> {
    let held = flow.segment.as_ref()?.head();
    let layout = &mask.layout;
    let (b, len) = (packet.head(), packet.packet_len());
    if flow.expects != tag_and_len(packet.vlan(), len)
        || !mask.unpredicted.same(held, b, layout.header.into())
        || !flow.expected.fields_are(b, layout)
        || (layout.udp && be16(b, usize::from(layout.l4) + 6) == Some(0))
        || (layout.outer != Outer::None && outer(flow, held, b, len, layout).is_err())
    {
        return None;
    }
    verify(packet.offload().checksum, b, len, layout).ok()
}

/// The sum to verify the payload against, by the packet's checksum state.
#[inline(always)]
fn verify(checksum: Checksum, b: &[u8], len: usize, layout: &Layout) -> Result<Option<u16>, Flush> {
    match checksum {
        Checksum::Verified => Ok(None),
        Checksum::Partial { start, offset } if (start, offset) == (layout.l4, layout.checksum_offset()) => Ok(None),
        Checksum::Partial { .. } => Err(Flush::Checksum),
        // Everything under the checksum but the payload.
        Checksum::Unknown => Ok(Some(add(sum(b, layout.l4.into(), layout.header.into()), pseudo(b, len, layout)))),
    }
}

/// Whether `packet`, which has the hash of `flow`, may join its aggregate. The slow path: predicted
/// packets do not come here.
#[inline(never)]
pub(crate) fn next<S: Segment>(flow: &Flow<S>, packet: &S, mask: &Mask) -> Result<Next, Flush> {
    let held = flow.segment.as_ref().ok_or(Flush::Unknown)?;
    let layout = &mask.layout;
    let b = packet.head();
    let len = packet.packet_len();
    let same_vlan = packet.vlan() == flow.vlan();
    let held = held.head();
    if !mask.invariant.same(held, b, layout.header.into()) || !same_vlan {
        return Err(differ(held, b, layout));
    }
    // Equal headers are equally long, and both are inside their packets.
    let payload = len.saturating_sub(layout.header.into());
    if layout.v6 {
        if !ip_length(b, len, layout.l3, true) {
            return Err(Flush::Header);
        }
    } else {
        ipv4(held, b, len, layout.l3, if flow.counts { flow.count() } else { 0 })?;
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
        let before = u32::from(flow.size) * u32::from(flow.count());
        if be32(held, usize::from(layout.l4) + 4).map(|held| held.wrapping_add(before)) != Some(seq) {
            return Err(Flush::Order);
        }
        flags = tcp[13] & FIN_PSH;
    }
    if payload == 0 {
        return Err(Flush::Flags);
    }
    if payload > flow.size.into() {
        return Err(Flush::Size);
    }
    let verify = verify(packet.offload().checksum, b, len, layout)?;
    Ok(Next { payload: payload as u16, flags, verify })
}

/// Whether the checksums of an aggregate's first packet are right. Called when the second one
/// comes.
#[inline(always)]
pub(crate) fn is_right<S: Segment>(packet: &S, layout: &Layout) -> bool {
    let a = packet.head();
    let ip = |v6: bool, l3: u16| v6 || fixup::is_right(a, l3.into());
    let tunnel = || ip(layout.outer_v6, layout.outer_l3) && outer_valid(a, packet.packet_len(), layout);
    let transport = || match packet.offload().checksum {
        Checksum::Verified => true,
        Checksum::Partial { start, offset } => (start, offset) == (layout.l4, layout.checksum_offset()),
        Checksum::Unknown => sums(packet, layout),
    };
    ip(layout.v6, layout.l3) && (layout.outer == Outer::None || tunnel()) && transport()
}

#[inline(never)]
fn sums<S: Segment>(packet: &S, layout: &Layout) -> bool {
    add(packet.sum(layout.l4.into()), pseudo(packet.head(), packet.packet_len(), layout)) == VALID
}

/// Whether identifications count up from the first packet to the second, inner and outer.
///
/// A packet that may be fragmented must not repeat one
/// ([RFC 6864](https://www.rfc-editor.org/rfc/rfc6864)). `b` is not trusted: [`next`] compares the
/// headers afterwards.
#[inline(always)]
pub(crate) fn counts(a: &[u8], b: &[u8], layout: &Layout) -> (bool, bool) {
    let counts = |l3: u16| {
        let l3 = usize::from(l3);
        be16(a, l3 + 4) != be16(b, l3 + 4) || u8_at(a, l3 + 6).is_none_or(|flags| flags & DF == 0)
    };
    let outer = layout.outer != Outer::None && !layout.outer_v6;
    (!layout.v6 && counts(layout.l3), outer && counts(layout.outer_l3))
}

#[inline(always)]
fn word<const N: usize>(h: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([h[at], h[at + 1]])
}

fn pseudo(b: &[u8], len: usize, layout: &Layout) -> u16 {
    let addresses = fixup::addresses(b, layout.l3.into(), layout.v6);
    fixup::pseudo(addresses, layout.protocol(), len - usize::from(layout.l4))
}

/// Whether the IP packet at `l3` ends where the packet ends. Padding is not data.
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

/// For IPv4 headers equal under the mask: checks that the second's length is its packet's, its
/// identification is `step` after the first's, and its checksum is right if the first's is.
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
    // The differing fields must have equal sums, because the equal fields do.
    let differing = |h: &[u8; 20]| u32::from(word(h, 2)) + u32::from(word(h, 4)) + u32::from(word(h, 10));
    if (differing(a) + 3 * 0xffff - differing(b)) % 0xffff == 0 { Ok(()) } else { Err(Flush::Checksum) }
}

/// Checks the fields of the outer headers that the mask leaves out.
#[inline(never)]
fn outer<S>(flow: &Flow<S>, held: &[u8], b: &[u8], len: usize, layout: &Layout) -> Result<(), Flush> {
    if !outer_lengths(b, len, layout) {
        return Err(Flush::Header);
    }
    if !layout.outer_v6 {
        ipv4(held, b, len, layout.outer_l3, if flow.outer_counts { flow.count() } else { 0 })?;
    }
    if outer_sums(held, b, len, layout) { Ok(()) } else { Err(Flush::Checksum) }
}

/// Whether both headers have an outer checksum or neither, and the second's is right.
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

/// Whether the outer checksum is right, provided that the inner one is. If the port verified only
/// the outer one, this implies that the inner one is right.
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

/// Why headers of one flow differ under the mask: TCP flags, or another field.
#[cold]
#[inline(never)]
fn differ(a: &[u8], b: &[u8], layout: &Layout) -> Flush {
    let flags = |h| u8_at(h, usize::from(layout.l4) + 13).map(|flags| flags & !FIN_PSH);
    if !layout.udp && flags(a) != flags(b) { Flush::Flags } else { Flush::Header }
}
