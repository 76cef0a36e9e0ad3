//! What makes a copy of a template one particular packet: lengths, identification, numbers, checksums.
//!
//! The field positions are constants behind the IP header's, and each checksum is one folding of sums that are known
//! already, so a packet costs the same whatever its length.

use super::flow::{Flow, Plan, Shape};
use super::tag::{self, fold, words};
use towpath_packet::{Checksum, Packet};
use towpath_wire::{checksum, ipv4, ipv6, tcp, udp};

/// Writes the IP header's own words; returns what is behind it.
#[inline]
fn network<'a, const V6: bool>(bytes: &'a mut [u8], flow: &Flow, shape: &Shape) -> Option<&'a mut [u8]> {
    if V6 {
        let (mut ip, rest) = ipv6::Header::split_mut(bytes).ok()?;
        ip.set_payload_len(shape.network_len);
        return Some(rest);
    }
    let (mut ip, rest) = ipv4::Header::split_mut(bytes).ok()?;
    ip.set_total_len(shape.network_len);
    ip.set_id(flow.id);
    let sum = flow.network_sum + u32::from(shape.network_len) + u32::from(flow.id);
    ip.set_checksum(checksum::finish(fold(sum)));
    Some(rest)
}

/// Writes the transport header's own words with the checksum `check`; returns what is behind it.
#[inline]
fn transport<'a, const TCP: bool>(bytes: &'a mut [u8], flow: &Flow, shape: &Shape, check: u16) -> Option<&'a mut [u8]> {
    if TCP {
        let (mut tcp, rest) = tcp::Header::split_mut(bytes).ok()?;
        tcp.set_seq(flow.tcp_seq);
        tcp.set_checksum(check);
        return Some(rest);
    }
    let (mut udp, rest) = udp::Header::split_mut(bytes).ok()?;
    udp.set_length(shape.transport_len);
    udp.set_checksum(check);
    Some(rest)
}

/// Makes a copy of the flow's template its next packet, with all checksums, and moves the flow on. `None` if the bytes
/// end within the headers.
#[inline]
pub(super) fn packet<const V6: bool, const TCP: bool>(
    bytes: &mut [u8],
    flow: &mut Flow,
    shape: &Shape,
    plan: &Plan,
) -> Option<()> {
    let rest = network::<V6>(bytes.get_mut(plan.l3..)?, flow, shape)?;
    let mut sum = flow.pseudo_sum + flow.transport_sum + shape.sum;
    if TCP {
        sum += words(flow.tcp_seq);
    }
    if plan.tagged {
        sum += words(flow.number);
    }
    let check = match TCP {
        true => checksum::finish(fold(sum)),
        // None at all (RFC 768).
        false if plan.stale => 0,
        false => checksum::finish_udp(fold(sum)),
    };
    let payload = transport::<TCP>(rest, flow, shape, check)?;
    if plan.tagged {
        *payload.get_mut(tag::NUMBER..)?.first_chunk_mut()? = flow.number.to_be_bytes();
    }
    flow.number = flow.number.wrapping_add(1);
    flow.id = flow.id.wrapping_add(1);
    flow.tcp_seq = flow.tcp_seq.wrapping_add(shape.payload as u32);
    Some(())
}

/// Makes a copy of the flow's template its next super-packet of `segs` segments: the transport checksum is left to
/// whoever cuts it. `None` if the bytes end within the headers.
pub(super) fn super_packet<const V6: bool, const TCP: bool>(
    packet: &mut Packet,
    flow: &mut Flow,
    shape: &Shape,
    plan: &Plan,
    segs: u16,
) -> Option<()> {
    let rest = network::<V6>(packet.linear_mut().get_mut(plan.l3..)?, flow, shape)?;
    let start = plan.l4;
    // The field holds the sum of the pseudo-header, not complemented.
    let check = fold(flow.pseudo_sum + u32::from(shape.transport_len));
    transport::<TCP>(rest, flow, shape, check)?;
    let offset = if TCP { tcp::offset::CHECKSUM } else { udp::offset::CHECKSUM };
    packet.set_csum(Checksum::Partial { start: start as u16, offset: offset as u8 });
    flow.number = flow.number.wrapping_add(u32::from(segs));
    flow.id = flow.id.wrapping_add(segs);
    flow.tcp_seq = flow.tcp_seq.wrapping_add(shape.payload as u32);
    Some(())
}
