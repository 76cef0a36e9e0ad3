//! Links between two ends: loopbacks, PPP, HDLC, Frame Relay.

use super::Unfit;
use super::parts::{Captured, IPV4, IPV6, PPPOE_DISCOVERY, PPPOE_SESSION, Parts};

const MPLS: u16 = 0x8847;
const MPLS_MULTICAST: u16 = 0x8848;

/// NULL and LOOP: an address family, then the packet.
pub(super) fn loopback(frame: Captured<'_>) -> Result<Parts<'_>, Unfit> {
    let family = frame.bytes(0)?;
    // The order is that of the machine which captured; no family needs the other half.
    let kind = match u32::from_le_bytes(family).min(u32::from_be_bytes(family)) {
        2 => IPV4,
        // Linux, the BSDs, FreeBSD, Darwin.
        10 | 24 | 28 | 30 => IPV6,
        _ => return Err(Unfit::NotIp),
    };
    Ok(Parts::typed(kind, frame.skip(4)?))
}

/// PPP, or Cisco's HDLC as its first bytes show.
pub(super) fn ppp_or_hdlc(frame: Captured<'_>) -> Result<Parts<'_>, Unfit> {
    match frame.data {
        [0x0f | 0x8f, 0, ..] => cisco_hdlc(frame),
        _ => ppp(frame),
    }
}

/// PPP: address and control if they are there, then a protocol of one byte or two.
pub(super) fn ppp(frame: Captured<'_>) -> Result<Parts<'_>, Unfit> {
    let frame = frame.skip_prefix(&[0xff, 0x03]);
    let first = frame.byte(0)?;
    let (protocol, rest) =
        if first & 1 == 1 { (u16::from(first), frame.skip(1)?) } else { (frame.word(0)?, frame.skip(2)?) };
    let kind = match protocol {
        0x0021 => IPV4,
        0x0057 => IPV6,
        0x0281 => MPLS,
        0x0283 => MPLS_MULTICAST,
        _ => return Err(Unfit::NoType),
    };
    Ok(Parts::typed(kind, rest))
}

/// A PPPoE header, as it is behind an Ethernet type.
pub(super) fn pppoe(frame: Captured<'_>) -> Result<Parts<'_>, Unfit> {
    let kind = if frame.byte(1)? == 0 { PPPOE_SESSION } else { PPPOE_DISCOVERY };
    Ok(Parts::typed(kind, frame))
}

/// Cisco's HDLC: address, control, Ethernet type.
pub(super) fn cisco_hdlc(frame: Captured<'_>) -> Result<Parts<'_>, Unfit> {
    Ok(Parts::typed(frame.word(2)?, frame.skip(4)?))
}

/// Frame Relay: an address of two to four bytes, then RFC 2427's NLPID or Cisco's Ethernet type.
pub(super) fn frame_relay(frame: Captured<'_>) -> Result<Parts<'_>, Unfit> {
    let end = frame.data.iter().take(4).position(|byte| byte & 1 == 1).ok_or(Unfit::Cut)? + 1;
    let rest = frame.skip(end)?;
    if rest.byte(0)? != 0x03 {
        return Ok(Parts::typed(rest.word(0)?, rest.skip(2)?));
    }
    let rest = rest.skip(1)?.skip_prefix(&[0]);
    match rest.byte(0)? {
        0xcc => Ok(Parts::typed(IPV4, rest.skip(1)?)),
        0x8e => Ok(Parts::typed(IPV6, rest.skip(1)?)),
        // SNAP, of Ethernet types.
        0x80 if rest.bytes(1)? == [0; 3] => Ok(Parts::typed(rest.word(4)?, rest.skip(6)?)),
        _ => Err(Unfit::NoType),
    }
}
