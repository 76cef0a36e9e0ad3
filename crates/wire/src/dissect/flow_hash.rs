//! The hash of a frame's flow, without the rest of the dissection.
//!
//! A choice by flow needs addresses, ports and protocol, but no offsets, tags or flags. For TCP and
//! UDP without IP options or extension headers, not fragmented, behind at most one tag, they are at
//! constant offsets. Other frames are dissected. What the dissector's key does not depend on is not
//! looked at either: the bytes behind the ports, and whether the frame is as long as it says.

use super::{dissect, link};
use crate::ethernet::{self, ethertype};
use crate::hash::FlowKey;
use crate::ip::{self, protocol};
use crate::offload::LinkKind;
use crate::{ipv4, ipv6, tcp, udp};
use core::net::Ipv6Addr;

/// The hash that both directions of a frame's flow share: that of [`dissect`],
/// [`Dissected::symmetric_hash`](super::Dissected::symmetric_hash), with less work.
#[inline]
#[must_use]
pub fn symmetric_hash(frame: &[u8], kind: LinkKind, seed: u64) -> u32 {
    match kind {
        LinkKind::Ethernet => ethernet(frame, seed),
        LinkKind::Ip => bare_ip(frame, seed),
    }
}

/// The hash of any frame.
#[cold]
#[inline(never)]
fn dissected(frame: &[u8], kind: LinkKind, seed: u64) -> u32 {
    dissect(frame, kind).symmetric_hash(seed)
}

/// Bytes of the shortest IPv4 packet with ports, and of the shortest one over IPv6.
const SHORTEST_V4: usize = ipv4::HEADER_LEN + udp::HEADER_LEN;
const SHORTEST_V6: usize = ipv6::HEADER_LEN + udp::HEADER_LEN;

#[inline(always)]
fn ethernet(frame: &[u8], seed: u64) -> u32 {
    // The check of the shortest frame with ports is that of its headers.
    if frame.len() >= link::UNTAGGED + SHORTEST_V4
        && let Ok((header, packet)) = ethernet::Header::split(frame)
    {
        match header.ethertype() {
            ethertype::IPV4 => {
                if let Some(hash) = ipv4(packet, seed) {
                    return hash;
                }
            }
            ethertype::IPV6 => return untagged_ipv6(frame, packet, seed),
            tpid => return tagged(frame, tpid, seed),
        }
    }
    dissected(frame, LinkKind::Ethernet, seed)
}

/// A function of its own, like the next two, so that the first has few registers to save.
#[inline(never)]
fn untagged_ipv6(frame: &[u8], packet: &[u8], seed: u64) -> u32 {
    ipv6(packet, seed).unwrap_or_else(|| dissected(frame, LinkKind::Ethernet, seed))
}

#[inline(never)]
fn tagged(frame: &[u8], tpid: u16, seed: u64) -> u32 {
    let found = match (link::tag_at(frame, link::UNTAGGED, tpid), frame.get(link::TAGGED..)) {
        (Some((_, ethertype::IPV4)), Some(packet)) => ipv4(packet, seed),
        (Some((_, ethertype::IPV6)), Some(packet)) => ipv6(packet, seed),
        _ => None,
    };
    found.unwrap_or_else(|| dissected(frame, LinkKind::Ethernet, seed))
}

#[inline(never)]
fn bare_ip(packet: &[u8], seed: u64) -> u32 {
    let found = match ip::version(packet) {
        4 => ipv4(packet, seed),
        6 => ipv6(packet, seed),
        _ => None,
    };
    found.unwrap_or_else(|| dissected(packet, LinkKind::Ip, seed))
}

#[inline(always)]
fn ipv4(packet: &[u8], seed: u64) -> Option<u32> {
    if packet.len() < SHORTEST_V4 {
        return None;
    }
    let (ip, segment) = ipv4::Header::split(packet).ok()?;
    if ip.version_ihl() != 0x45 || ip.is_fragment() {
        return None;
    }
    has_ports(ip.protocol(), segment, ip.total_len(), ipv4::HEADER_LEN)?;
    hash(ip::mapped(ip.src()), ip::mapped(ip.dst()), ip.protocol(), segment, seed)
}

#[inline(always)]
fn ipv6(packet: &[u8], seed: u64) -> Option<u32> {
    if packet.len() < SHORTEST_V6 {
        return None;
    }
    let (ip, segment) = ipv6::Header::split(packet).ok()?;
    if ip.version() != 6 {
        return None;
    }
    has_ports(ip.next_header(), segment, ip.payload_len(), 0)?;
    hash(ip.src(), ip.dst(), ip.next_header(), segment, seed)
}

/// A key has ports if the transport header is inside the frame and inside the packet, whose IP
/// header says that it is `len` bytes long, with `before` of them in front of `segment`.
#[inline(always)]
fn has_ports(protocol: u8, segment: &[u8], len: u16, before: usize) -> Option<()> {
    let inside = |header: usize| segment.len() >= header && usize::from(len) >= before + header;
    let has = match protocol {
        protocol::TCP => inside(tcp::HEADER_LEN),
        protocol::UDP => inside(udp::HEADER_LEN),
        _ => false,
    };
    has.then_some(())
}

#[inline(always)]
fn hash(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, segment: &[u8], seed: u64) -> Option<u32> {
    let &[s0, s1, d0, d1] = segment.first_chunk()?;
    let (src_port, dst_port) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
    Some(FlowKey { src, dst, src_port, dst_port, protocol }.symmetric_hash(seed))
}
