//! Offloads of a packet: the context that describes it, the command of its descriptors, and the
//! work on its headers before that.
//!
//! | packet | device | otherwise |
//! |---|---|---|
//! | partial checksum, not in a tunnel | context with its position (§7.2.10) | in software |
//! | TCP super-packet | context with lengths and segment size (§7.2.4) | dropped: not offered |
//! | customer tag beside the packet | inserted (§7.2.11) | in software |
//!
//! The ring may have no room for a planned packet. Until there is room, a packet is changed only in
//! ways that leave it the same packet: gathering headers, completing a checksum, inserting a tag.
//! The headers of a super-packet are [written](Segmentation::write_headers) at the last moment.

use super::descriptors::{Command, Context, tx};
use towpath_packet::{Checksum, DropReason, Gso, GsoKind, Packet, Vlan};
use towpath_wire::dissect::Stop;
use towpath_wire::{LinkKind, checksum, dissect, ethernet, ip};

/// Bytes of headers that segmentation takes, at most: the buffer for them on the chip (§7.2.4.2).
const MAX_HEADERS: usize = 240;
/// Payload bytes in the first descriptor, after the headers: the 82571 family hangs if it holds the
/// headers alone (Linux: `e1000_xmit_frame`).
const PULLED: usize = 4;
/// A segment size must be larger than this (§7.2.4.5).
const MIN_SEGMENT: u16 = 16;
/// Bytes of a super-packet, at most: QEMU takes no longer one.
const MAX_SUPER: usize = 65_535 + ethernet::HEADER_LEN;

/// Offloads of this port.
#[derive(Debug, Clone, Copy)]
pub(super) struct TxAbilities {
    pub(super) csum: bool,
    pub(super) tso: bool,
    pub(super) vlan: bool,
    pub(super) max_frame: usize,
}

/// How a packet is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) command: Command,
    pub(super) context: Option<Context>,
    pub(super) segment: Option<Segmentation>,
}

/// Why a packet can't be sent as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It never can be sent.
    Drop(DropReason),
    /// A copy in the port's buffers can be sent.
    Copy,
}

/// A super-packet: the positions of its headers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segmentation {
    l3: usize,
    l4: usize,
    ip4: bool,
}

/// Plans how to send a packet with offloads.
pub(super) fn plan(packet: &mut Packet, can: TxAbilities) -> Result<Plan, Refusal> {
    let mut command = Command::PLAIN;
    if let Some(vlan) = packet.vlan() {
        if can.vlan && !vlan.service {
            command = command.with_vlan(vlan.tci);
        } else if packet.insert_vlan(vlan).is_err() {
            return Err(Refusal::Copy);
        }
    }
    if let Some(gso) = packet.gso() {
        return segment(packet, gso, command, can);
    }
    let Checksum::Partial { start, offset } = packet.csum() else {
        return Ok(Plan { command, context: None, segment: None });
    };
    let (start, offset) = (usize::from(start), usize::from(offset));
    if start + offset + 2 > packet.len() {
        return Err(Refusal::Drop(DropReason::Malformed));
    }
    match checksum_context(packet, start, offset).filter(|_| can.csum) {
        Some(context) => Ok(Plan { command: Command(command.0 | tx::TXSM), context: Some(context), segment: None }),
        None => complete_checksum(packet, start, offset).map(|()| Plan { command, context: None, segment: None }),
    }
}

/// The context for a partial checksum, if every implementation computes it right: some parse the
/// packet and not the context, and find the outermost headers.
fn checksum_context(packet: &Packet, start: usize, offset: usize) -> Option<Context> {
    /// Enough for tags and IPv6, and for IPv4 with all options.
    const HEADERS: usize = 82;
    let mut gathered = [0; HEADERS];
    let head = if packet.linear().len() >= HEADERS.min(packet.len()) {
        packet.linear()
    } else {
        let n = packet.copy_to(0, &mut gathered);
        gathered.get(..n)?
    };
    let found = dissect(head, LinkKind::Ethernet);
    let tcp = match (found.flow.protocol, offset) {
        (ip::protocol::TCP, 16) => true,
        (ip::protocol::UDP, 6) => false,
        _ => return None,
    };
    if usize::from(found.l4) != start || found.is_fragment() {
        return None;
    }
    let (l3, l4, field) = (u8::try_from(found.l3).ok()?, u8::try_from(start).ok()?, u8::try_from(start + offset).ok()?);
    // The IPv4 checksum is not requested, but some implementations find the packet's kind by these
    // fields.
    let ip4 = found.is_ipv4();
    let end = if ip4 { u16::from(l4) - 1 } else { 0 };
    Some(Context { ip: (l3, l3 + 10, end), l4: (l4, field), tcp, ip4, segment: None })
}

/// Completes a partial checksum in software.
#[cold]
fn complete_checksum(packet: &mut Packet, start: usize, offset: usize) -> Result<(), Refusal> {
    let field = start + offset;
    packet.make_linear(field + 2).map_err(|_| Refusal::Copy)?;
    let mut sum = checksum::Accumulator::new();
    let mut skip = start;
    for chunk in packet.chunks() {
        let part = chunk.skip(skip);
        skip -= chunk.len() - part.len();
        // Bytes in untrusted memory may change between this sum and the device's read: `bytes`
        // refuses them.
        sum.add_bytes(part.bytes().ok_or(Refusal::Copy)?);
    }
    let check = checksum::finish_udp(sum.sum()).to_be_bytes();
    if let Some(bytes) = packet.linear_mut().get_mut(field..field + 2) {
        bytes.copy_from_slice(&check);
    }
    packet.set_csum(Checksum::Unknown);
    Ok(())
}

/// Plans the segmentation of a super-packet.
fn segment(packet: &mut Packet, gso: Gso, command: Command, can: TxAbilities) -> Result<Plan, Refusal> {
    let never = |reason| Err(Refusal::Drop(reason));
    let wanted = matches!(gso.kind, GsoKind::Tcp4 | GsoKind::Tcp6);
    if !can.tso || !wanted || gso.ecn || gso.size <= MIN_SEGMENT {
        return never(DropReason::Offload);
    }
    let mut found = dissect(packet.linear(), LinkKind::Ethernet);
    // Gathers the length that the metadata gives, and if that is not enough the longest headers.
    for gather in [usize::from(gso.hdr_len), MAX_HEADERS] {
        if found.stop != Stop::Complete && gather <= MAX_HEADERS {
            packet.make_linear(packet.len().min(gather + PULLED)).map_err(|_| Refusal::Copy)?;
            found = dissect(packet.linear(), LinkKind::Ethernet);
        }
    }
    let ip4 = gso.kind == GsoKind::Tcp4;
    let (l3, l4, headers) = (usize::from(found.l3), usize::from(found.l4), usize::from(found.payload));
    let is_tcp = found.stop == Stop::Complete && found.flow.protocol == ip::protocol::TCP && !found.is_fragment();
    if !is_tcp || found.is_ipv4() != ip4 || packet.len() <= headers || packet.len() > MAX_SUPER {
        return never(DropReason::Malformed);
    }
    if headers > MAX_HEADERS {
        return never(DropReason::Offload);
    }
    if headers + usize::from(gso.size) > can.max_frame {
        return never(DropReason::TooLong);
    }
    if packet.len() - headers <= usize::from(gso.size) {
        // A single segment is no super-packet: its lengths are right already, and not every
        // implementation would restore them.
        packet.set_gso(None);
        return plan(packet, can);
    }
    packet.make_linear(packet.len().min(headers + PULLED)).map_err(|_| Refusal::Copy)?;
    let payload = (packet.len() - headers) as u32;
    let byte = |n: usize| u8::try_from(n).map_err(|_| Refusal::Drop(DropReason::Offload));
    let context = Context {
        ip: (byte(l3)?, byte(l3 + 10)?, if ip4 { l4 as u16 - 1 } else { 0 }),
        l4: (byte(l4)?, byte(l4 + 16)?),
        tcp: true,
        ip4,
        segment: Some((byte(headers)?, payload, gso.size)),
    };
    let options = tx::TSE | tx::TXSM | if ip4 { tx::IXSM } else { 0 };
    Ok(Plan {
        command: Command(command.0 | options),
        context: Some(context),
        segment: Some(Segmentation { l3, l4, ip4 }),
    })
}

impl Segmentation {
    /// Makes the headers a pattern for those of the segments: lengths and IPv4 checksum are zero,
    /// and the TCP checksum is the sum of the pseudo-header without its length (§7.2.4.4).
    pub(super) fn write_headers(self, packet: &mut Packet) {
        let Segmentation { l3, l4, ip4 } = self;
        let head = packet.linear_mut();
        let sum = if ip4 {
            let Some(header) = head.get_mut(l3..).and_then(|bytes| bytes.first_chunk_mut::<20>()) else { return };
            header[2..4].fill(0);
            header[10..12].fill(0);
            let (mut src, mut dst) = ([0; 4], [0; 4]);
            src.copy_from_slice(&header[12..16]);
            dst.copy_from_slice(&header[16..20]);
            checksum::pseudo_v4(src.into(), dst.into(), ip::protocol::TCP, 0)
        } else {
            let Some(header) = head.get_mut(l3..).and_then(|bytes| bytes.first_chunk_mut::<40>()) else { return };
            header[4..6].fill(0);
            let (mut src, mut dst) = ([0; 16], [0; 16]);
            src.copy_from_slice(&header[8..24]);
            dst.copy_from_slice(&header[24..40]);
            checksum::pseudo_v6(src.into(), dst.into(), ip::protocol::TCP, 0)
        };
        if let Some(field) = head.get_mut(l4 + 16..l4 + 18) {
            field.copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// Gives a received packet the tag that the device stripped, beside it or in it; returns false if
/// neither is possible.
pub(super) fn receive_tag(packet: &mut Packet, tci: u16, beside: bool) -> bool {
    let vlan = Vlan { tci, service: false };
    if beside {
        packet.set_vlan(Some(vlan));
        return true;
    }
    packet.insert_vlan(vlan).is_ok()
}
