//! When may a packet begin an aggregate, and when may it join one?
//!
//! The rules are those of the Linux kernel (`net/ipv4/tcp_offload.c`, `udp_offload.c`,
//! `net/ipv4/af_inet.c`, `net/ipv6/ip6_offload.c`), so that what is coalesced here can be segmented
//! there, and the other way round.
//!
//! Headers are compared as a whole by [`Mask::same`]. What it leaves out is looked at here.

use towpath_wire::checksum::{VALID, add};

use crate::bytes::{array, be16, sum, u8_at};
use crate::fixup;
use crate::gso::MIN_TCP_SIZE;
use crate::layout::{Layout, Outer, UDP};
use crate::mask::{MAX_TEMPLATE, Mask};
use crate::offload::Checksum;
use crate::segment::Segment;
use crate::stats::Flush;
use crate::table::Flow;

pub(crate) const FIN_PSH: u8 = 0x09;
const ACK: u8 = 0x10;
/// FIN, SYN, RST, PSH, ACK, URG.
const CONTROL: u8 = 0x3f;
/// Don't fragment, in the first byte of the IPv4 fragment word.
const DF: u8 = 0x40;

/// The first packet of an aggregate.
pub(crate) struct First {
    pub(crate) next_seq: u32,
    pub(crate) size: u16,
}

/// May a packet of `len` bytes begin an aggregate? Data, nothing but data, and lengths that agree.
/// Its checksums are looked at when a [`second`] packet comes.
#[inline]
pub(crate) fn first(b: &[u8], len: usize, layout: &Layout) -> Option<First> {
    let header = usize::from(layout.header);
    let payload = u16::try_from(len.checked_sub(header)?).ok()?;
    let lengths =
        ip_length(b, len, layout.l3, layout.v6) && (layout.outer == Outer::None || outer_lengths(b, len, layout));
    if payload == 0 || header > MAX_TEMPLATE || !lengths {
        return None;
    }
    if layout.udp {
        let udp: &[u8; 8] = array(b, layout.l4.into())?;
        let ok = word(udp, 6) != 0 && usize::from(word(udp, 4)) == usize::from(payload) + 8;
        return ok.then_some(First { next_seq: 0, size: payload });
    }
    let tcp: &[u8; 20] = array(b, layout.l4.into())?;
    let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    // Smaller segments than that cannot be said in a virtio-net header.
    (tcp[13] & CONTROL == ACK && payload >= MIN_TCP_SIZE)
        .then_some(First { next_seq: seq.wrapping_add(payload.into()), size: payload })
}

/// A packet that may join.
pub(crate) struct Next {
    pub(crate) payload: u16,
    /// FIN and PSH.
    pub(crate) flags: u8,
    /// What the sum of the payload is to be verified against.
    pub(crate) verify: Option<u16>,
}

/// May `packet`, which has the hash of `flow`, join what it holds, that being `held`?
#[inline(always)]
pub(crate) fn next<S: Segment>(flow: &Flow<S>, held: &[u8], packet: &S, vlan: u32, mask: &Mask) -> Result<Next, Flush> {
    let layout = &mask.layout;
    let b = packet.head();
    let len = packet.packet_len();
    if !mask.same(held, b) || vlan != flow.opening.vlan {
        return Err(differ(held, b, layout));
    }
    // Equal headers are equally long, and both are inside their packets.
    let payload = len.saturating_sub(layout.header.into());
    if layout.v6 {
        if !ip_length(b, len, layout.l3, true) {
            return Err(Flush::Header);
        }
    } else {
        ipv4(held, b, len, layout.l3, flow.count & flow.id_mask)?;
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
        if u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]) != flow.opening.next_seq {
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
    let verify = match packet.offload().checksum {
        Checksum::Verified => None,
        Checksum::Partial { start, offset } if (start, offset) == (layout.l4, layout.checksum_offset()) => None,
        Checksum::Partial { .. } => return Err(Flush::Checksum),
        Checksum::Unverified => {
            let header = sum(b, layout.l4.into(), layout.header.into());
            Some(add(header, pseudo(b, len, layout)))
        }
    };
    Ok(Next { payload: payload as u16, flags, verify })
}

/// What is found out when a second packet comes: are the first one's checksums right, and do
/// identifications count up or stay? Returns the masks for them, the innermost first.
///
/// Those of a packet that may be fragmented may not stay (RFC 6864). What `b` is to this is not
/// trusted: [`next`] compares the headers after it.
#[cold]
#[inline(never)]
pub(crate) fn second<S: Segment>(packet: &S, b: &[u8], layout: &Layout) -> Option<(u16, u16)> {
    let a = packet.head();
    let len = packet.packet_len();
    let ip = |v6: bool, l3: u16| v6 || sum(a, l3.into(), usize::from(l3) + 20) == VALID;
    let tunnel = layout.outer == Outer::None || (ip(layout.outer_v6, layout.outer_l3) && outer_valid(a, len, layout));
    let transport = || match packet.offload().checksum {
        Checksum::Verified => true,
        Checksum::Partial { start, offset } => (start, offset) == (layout.l4, layout.checksum_offset()),
        Checksum::Unverified => add(packet.sum(layout.l4.into()), pseudo(a, len, layout)) == VALID,
    };
    if !ip(layout.v6, layout.l3) || !tunnel || !transport() {
        return None;
    }
    let id_mask = |present: bool, l3: u16| {
        let l3 = usize::from(l3);
        let stays = be16(a, l3 + 4) == be16(b, l3 + 4) && u8_at(a, l3 + 6).is_some_and(|flags| flags & DF != 0);
        if present && stays { 0 } else { u16::MAX }
    };
    let outer = layout.outer != Outer::None && !layout.outer_v6;
    Some((id_mask(!layout.v6, layout.l3), id_mask(outer, layout.outer_l3)))
}

#[inline]
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

#[inline(never)]
fn outer<S>(flow: &Flow<S>, held: &[u8], b: &[u8], len: usize, layout: &Layout) -> Result<(), Flush> {
    if !outer_lengths(b, len, layout) {
        return Err(Flush::Header);
    }
    if !layout.outer_v6 {
        ipv4(held, b, len, layout.outer_l3, flow.count & flow.outer_id_mask)?;
    }
    if outer_summed(held, layout) != outer_summed(b, layout) || !outer_valid(b, len, layout) {
        return Err(Flush::Checksum);
    }
    Ok(())
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
