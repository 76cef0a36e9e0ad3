//! Checksums: the receive descriptor's report, and the insertion by a transmit context;
//! segmentation.

use super::regs::*;
use super::settings::Settings;
use towpath_wire::verify::Check;
use towpath_wire::{Dissected, LinkKind, checksum, verify};

/// The checksum status and errors of a received frame (82574 datasheet §7.1.10).
pub(crate) fn receive(settings: &Settings, frame: &[u8], found: &Dissected) -> u32 {
    let (v4, v6) = (found.is_ipv4(), found.is_ipv6());
    if !(v4 || v6 && settings.rfctl & RFCTL_IPV6_DIS == 0) {
        return rxd::IXSM;
    }
    let verdict = verify::verify(frame, LinkKind::Ethernet);
    let mut bits = match (v4, verdict.transport) {
        (true, Check::Absent) => rxd::TYPE_IPV4,
        (true, _) => rxd::TYPE_IPV4_L4,
        (false, Check::Absent) => rxd::TYPE_IPV6,
        (false, _) => rxd::TYPE_IPV6_L4,
    };
    if v4 && settings.rxcsum & RXCSUM_IPOFLD != 0 {
        bits |= rxd::IPCS | if verdict.network == Check::Bad { rxd::IPE } else { 0 };
    }
    let l4 = match found.flow.protocol {
        6 => rxd::TCPCS,
        17 => rxd::TCPCS | rxd::UDPCS,
        _ => 0,
    };
    let v6_off = v6 && settings.rfctl & RFCTL_IPV6_XSUM_DIS != 0;
    if l4 != 0 && settings.rxcsum & RXCSUM_TUOFLD != 0 && !v6_off && verdict.transport != Check::Absent {
        bits |= l4 | if verdict.transport == Check::Bad { rxd::TCPE } else { 0 };
    }
    if bits & (rxd::IPCS | rxd::TCPCS) == 0 {
        bits |= rxd::IXSM;
    }
    bits
}

/// A transmit context, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Context {
    pub(crate) ip_start: usize,
    pub(crate) ip_at: usize,
    pub(crate) ip_end: usize,
    pub(crate) l4_start: usize,
    pub(crate) l4_at: usize,
    pub(crate) l4_end: usize,
    pub(crate) payload: usize,
    pub(crate) tcp: bool,
    pub(crate) ipv4: bool,
    pub(crate) tse: bool,
    pub(crate) header: usize,
    pub(crate) mss: usize,
}

impl Context {
    pub(crate) fn new([low, high]: [u64; 2]) -> Context {
        let byte = |word: u64, at: u32| (word >> at & 0xff) as usize;
        let half = |word: u64, at: u32| (word >> at & 0xffff) as usize;
        Context {
            ip_start: byte(low, 0),
            ip_at: byte(low, 8),
            ip_end: half(low, 16),
            l4_start: byte(low, 32),
            l4_at: byte(low, 40),
            l4_end: half(low, 48),
            payload: (high & txd::LEN) as usize,
            tcp: high & txd::TCP != 0,
            ipv4: high & txd::IPV4 != 0,
            tse: high & txd::TSE != 0,
            header: byte(high, 40),
            mss: half(high, 48),
        }
    }
}

/// Stores the complement of the sum of `start..=end` (to the end of the frame if `end` is 0) at
/// `at`; does nothing if that is out of bounds. The field itself is part of the sum: it holds the
/// sum of the pseudo-header.
pub(crate) fn insert(frame: &mut [u8], start: usize, at: usize, end: usize, zero_is_none: bool) {
    let end = if end == 0 { frame.len() } else { (end + 1).min(frame.len()) };
    let Some(sum) = frame.get(start..end).map(checksum::sum) else { return };
    let check = if zero_is_none { checksum::finish_udp(sum) } else { checksum::finish(sum) };
    if let Some(field) = frame.get_mut(at..).and_then(|f| f.first_chunk_mut()) {
        *field = check.to_be_bytes();
    }
}

/// Inserts the checksums that the options of a data descriptor demand.
pub(crate) fn insert_all(frame: &mut [u8], context: &Context, options: u64) {
    if options & txd::IXSM != 0 {
        insert(frame, context.ip_start, context.ip_at, context.ip_end, false);
    }
    if options & txd::TXSM != 0 {
        insert(frame, context.l4_start, context.l4_at, context.l4_end, !context.tcp);
    }
}

fn set16(frame: &mut [u8], at: usize, n: usize) {
    if let Some(field) = frame.get_mut(at..).and_then(|f| f.first_chunk_mut::<2>()) {
        *field = (n as u16).to_be_bytes();
    }
}

fn add16(frame: &mut [u8], at: usize, n: usize) {
    if let Some(field) = frame.get_mut(at..).and_then(|f| f.first_chunk_mut::<2>()) {
        *field = u16::from_be_bytes(*field).wrapping_add(n as u16).to_be_bytes();
    }
}

/// Segments a frame (82574 datasheet §7.2.4.7): each segment is built in `segment` and passed to
/// `emit`. Returns the number of segments.
pub(crate) fn segment(
    frame: &[u8],
    context: &Context,
    options: u64,
    segment: &mut Vec<u8>,
    mut emit: impl FnMut(&mut Vec<u8>),
) -> usize {
    let Some((header, payload)) = frame.split_at_checked(context.header).filter(|_| context.mss > 0) else { return 0 };
    let mut count = 0;
    for (i, piece) in payload.chunks(context.mss).enumerate() {
        let last = (i + 1) * context.mss >= payload.len();
        segment.clear();
        segment.extend_from_slice(header);
        segment.extend_from_slice(piece);
        let l4_len = header.len().saturating_sub(context.l4_start) + piece.len();
        if context.ipv4 {
            set16(segment, context.ip_start + 2, header.len().saturating_sub(context.ip_start) + piece.len());
            add16(segment, context.ip_start + 4, i);
        } else {
            set16(segment, context.ip_start + 4, header.len().saturating_sub(context.ip_start + 40) + piece.len());
        }
        if context.tcp {
            let sequence = segment.get_mut(context.l4_start + 4..).and_then(|f| f.first_chunk_mut::<4>());
            if let Some(field) = sequence {
                let moved = u32::from_be_bytes(*field).wrapping_add((i * context.mss) as u32);
                *field = moved.to_be_bytes();
            }
            if let Some(flags) = segment.get_mut(context.l4_start + 13).filter(|_| !last) {
                // Only the last segment has FIN and PSH.
                *flags &= !0x09;
            }
        } else {
            set16(segment, context.l4_start + 4, l4_len);
        }
        // The driver's sum of the pseudo-header does not include the length.
        if let Some(field) = segment.get_mut(context.l4_at..).and_then(|f| f.first_chunk_mut::<2>()) {
            *field = checksum::add(u16::from_be_bytes(*field), l4_len as u16).to_be_bytes();
        }
        insert_all(segment, context, options);
        emit(segment);
        count += 1;
    }
    count
}
