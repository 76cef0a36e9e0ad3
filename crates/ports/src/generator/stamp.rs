//! The fields that differ from packet to packet: lengths, identification, numbers, checksums.
//!
//! Their offsets are constants behind the IP header, and each checksum is one fold of precomputed
//! sums. So the cost does not depend on the packet's length.

use super::flow::{Flow, HEAD, Plan, Sizes};
use super::tag::{self, Stamp, fold, words};
use towpath_packet::{Checksum, Packet};
use towpath_wire::{checksum, ipv4, ipv6, tcp, udp};

/// Bytes from the IP header on in which fields are written, at most: headers, and the number of the
/// tag.
const FIELDS: usize = ipv6::HEADER_LEN + tcp::HEADER_LEN + tag::LEN;

/// Writes the IP header's fields; returns the bytes behind it.
#[inline]
fn network<'a, const V6: bool>(bytes: &'a mut [u8], flow: &Flow, sizes: &Sizes) -> Option<&'a mut [u8]> {
    if V6 {
        let (mut ip, rest) = ipv6::Header::split_mut(bytes).ok()?;
        ip.set_payload_len(sizes.network_len);
        return Some(rest);
    }
    let (mut ip, rest) = ipv4::Header::split_mut(bytes).ok()?;
    ip.set_total_len(sizes.network_len);
    ip.set_id(flow.id);
    let sum = flow.network_sum + u32::from(sizes.network_len) + u32::from(flow.id);
    ip.set_checksum(checksum::finish(fold(sum)));
    Some(rest)
}

/// Writes the transport header's fields with the checksum `check`; returns the bytes behind it.
#[inline]
fn transport<'a, const TCP: bool>(bytes: &'a mut [u8], flow: &Flow, sizes: &Sizes, check: u16) -> Option<&'a mut [u8]> {
    if TCP {
        let (mut tcp, rest) = tcp::Header::split_mut(bytes).ok()?;
        tcp.set_seq(flow.tcp_seq);
        tcp.set_checksum(check);
        return Some(rest);
    }
    let (mut udp, rest) = udp::Header::split_mut(bytes).ok()?;
    udp.set_length(sizes.transport_len);
    udp.set_checksum(check);
    Some(rest)
}

/// Turns a copy of the flow's head into that of its next packet, with all checksums, and advances
/// the flow. `None` if the headers are truncated.
#[inline]
pub(super) fn packet<const V6: bool, const TCP: bool>(
    head: &mut [u8; HEAD],
    flow: &mut Flow,
    sizes: &Sizes,
    plan: &Plan,
) -> Option<()> {
    // So the one check of a bound is here.
    let bytes: &mut [u8; FIELDS] = head.get_mut(plan.l3..)?.first_chunk_mut()?;
    let rest = network::<V6>(bytes, flow, sizes)?;
    let check = if plan.stale && !TCP {
        // No checksum ([RFC 768](https://www.rfc-editor.org/rfc/rfc768)).
        0
    } else {
        let number = if plan.tagged { words(flow.number) } else { 0 };
        let seq = if TCP { words(flow.tcp_seq) } else { 0 };
        let sum = fold(flow.pseudo_sum + flow.transport_sum + sizes.sum + number + seq);
        if TCP { checksum::finish(sum) } else { checksum::finish_udp(sum) }
    };
    let payload = transport::<TCP>(rest, flow, sizes, check)?;
    if plan.tagged {
        *payload.get_mut(tag::NUMBER..)?.first_chunk_mut()? = flow.number.to_be_bytes();
    }
    flow.number = flow.number.wrapping_add(1);
    flow.id = flow.id.wrapping_add(1);
    if TCP {
        flow.tcp_seq = flow.tcp_seq.wrapping_add(sizes.payload as u32);
    }
    Some(())
}

/// Turns a copy of the flow's template into its next super-packet of `segs` segments, with a
/// partial transport checksum. `None` if the headers are truncated.
pub(super) fn super_packet<const V6: bool, const TCP: bool>(
    packet: &mut Packet,
    flow: &mut Flow,
    sizes: &Sizes,
    plan: &Plan,
    segs: u16,
) -> Option<()> {
    let rest = network::<V6>(packet.linear_mut().get_mut(plan.l3..)?, flow, sizes)?;
    let start = plan.l4;
    // The field holds the sum of the pseudo-header, not complemented.
    let check = fold(flow.pseudo_sum + u32::from(sizes.transport_len));
    transport::<TCP>(rest, flow, sizes, check)?;
    let offset = if TCP { tcp::offset::CHECKSUM } else { udp::offset::CHECKSUM };
    packet.set_csum(Checksum::Partial { start: start as u16, offset: offset as u8 });
    flow.number = flow.number.wrapping_add(u32::from(segs));
    flow.id = flow.id.wrapping_add(segs);
    flow.tcp_seq = flow.tcp_seq.wrapping_add(sizes.payload as u32);
    Some(())
}

/// Writes trial and time to the tag of a complete packet, and adds them to its checksum; the fields
/// are zero. Does nothing if the packet is truncated.
pub(super) fn time<const TCP: bool>(bytes: &mut [u8], stamp: Stamp, plan: &Plan) {
    let check = plan.l4 + if TCP { tcp::offset::CHECKSUM } else { udp::offset::CHECKSUM };
    write_time(bytes, stamp, plan.headers, (!plan.stale).then_some((check, !TCP)));
}

/// Writes trial and time to the tag at `tag`. The checksum at `check.0`, which the fields are zero
/// for, gets their sum; `check.1`: it is UDP's, in which zero means none.
#[inline]
pub(super) fn write_time(bytes: &mut [u8], stamp: Stamp, tag: usize, check: Option<(usize, bool)>) {
    let Some(field) = bytes.get_mut(tag + tag::TRIAL..).and_then(<[u8]>::first_chunk_mut) else { return };
    *field = stamp.bytes();
    let Some((at, is_udp)) = check else { return };
    let Some(check) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) else { return };
    *check = added(u16::from_be_bytes(*check), stamp.sum(), is_udp).to_be_bytes();
}

/// A checksum with `sum` added to the bytes that it covers
/// ([RFC 1624](https://www.rfc-editor.org/rfc/rfc1624#section-3)).
#[inline]
pub(super) fn added(check: u16, sum: u32, is_udp: bool) -> u16 {
    let sum = fold(sum + u32::from(!check));
    if is_udp { checksum::finish_udp(sum) } else { checksum::finish(sum) }
}
