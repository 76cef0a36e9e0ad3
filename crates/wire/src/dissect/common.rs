//! The fast path, for nearly all traffic: TCP and UDP over IPv4 without options or IPv6 without
//! extension headers, whole and not fragmented.
//!
//! It makes the result in one expression, from values in registers. Other packets take the general
//! path, which has the same result for those that the fast path takes.

use super::{Dissected, Flags, LinkLayer, Stop, general};
use crate::hash::FlowKey;
use crate::ip::{self, protocol};
use crate::{ipv4, ipv6, tcp, udp};

/// Bytes up to and including TCP's control bits.
const NEEDED: usize = tcp::offset::FLAGS + 1;

/// Finds the headers of an IPv4 packet.
#[inline(always)]
pub(super) fn ipv4(frame: &[u8], link: LinkLayer) -> Dissected {
    match plain_ipv4(frame, link) {
        Some(found) => found,
        None => general::ipv4(frame, link.l3, link.tags),
    }
}

/// Finds the headers of an IPv6 packet.
#[inline(always)]
pub(super) fn ipv6(frame: &[u8], link: LinkLayer) -> Dissected {
    match plain_ipv6(frame, link) {
        Some(found) => found,
        None => general::ipv6(frame, link.l3, link.tags),
    }
}

#[inline(always)]
fn plain_ipv4(frame: &[u8], link: LinkLayer) -> Option<Dissected> {
    let packet = packet::<{ ipv4::HEADER_LEN + NEEDED }>(frame, link)?;
    let (ip, _) = ipv4::Header::split(packet).ok()?;
    if ip.version_ihl() != 0x45 || ip.is_fragment() {
        return None;
    }
    let (src, dst) = (ip::mapped(ip.src()), ip::mapped(ip.dst()));
    let flow = FlowKey { src, dst, src_port: 0, dst_port: 0, protocol: ip.protocol() };
    let len = usize::from(ip.total_len());
    transport(link, flow, packet, ipv4::HEADER_LEN, len, Flags::IPV4)
}

#[inline(always)]
fn plain_ipv6(frame: &[u8], link: LinkLayer) -> Option<Dissected> {
    let packet = packet::<{ ipv6::HEADER_LEN + NEEDED }>(frame, link)?;
    let (ip, _) = ipv6::Header::split(packet).ok()?;
    if ip.version() != 6 {
        return None;
    }
    let (src, dst, protocol) = (ip.src(), ip.dst(), ip.next_header());
    let flow = FlowKey { src, dst, src_port: 0, dst_port: 0, protocol };
    let len = ipv6::HEADER_LEN + usize::from(ip.payload_len());
    transport(link, flow, packet, ipv6::HEADER_LEN, len, Flags::IPV6)
}

/// The packet behind the link header, if it has at least `N` bytes: one check, from which follow
/// those of all headers.
#[inline(always)]
fn packet<const N: usize>(frame: &[u8], link: LinkLayer) -> Option<&[u8]> {
    let l3 = usize::from(link.l3);
    if frame.len() < l3 + N { None } else { frame.get(l3..) }
}

/// `packet` begins with an IP header of `header_len` and says that it is `len` bytes long.
#[inline(always)]
fn transport(
    link: LinkLayer,
    flow: FlowKey,
    packet: &[u8],
    header_len: usize,
    len: usize,
    version: Flags,
) -> Option<Dissected> {
    let &[s0, s1, d0, d1, .., data_offset, flags] = packet.get(header_len..)?.first_chunk::<NEEDED>()?;
    let (transport_len, tcp_flags) = match flow.protocol {
        protocol::TCP if data_offset < 5 << 4 => return None,
        protocol::TCP => (usize::from(data_offset >> 4) * 4, flags),
        protocol::UDP => (udp::HEADER_LEN, 0),
        _ => return None,
    };
    if header_len + transport_len > len || len > packet.len() {
        return None;
    }
    let (src_port, dst_port) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
    let padded = if len < packet.len() { Flags::PADDED } else { Flags::default() };
    let l3 = usize::from(link.l3);
    let l4 = l3 + header_len;
    Some(Dissected {
        flow: FlowKey { src_port, dst_port, ..flow },
        tags: link.tags,
        ethertype: link.ethertype,
        l3: link.l3,
        l4: l4 as u16,
        payload: (l4 + transport_len) as u16,
        end: (l3 + len) as u32,
        flags: version | Flags::PORTS | padded,
        tcp_flags,
        stop: Stop::Complete,
    })
}
