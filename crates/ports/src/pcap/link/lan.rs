//! Links with 802.2 headers or whole Ethernet frames: LANs other than Ethernet, ATM, ports of
//! switches.

use super::parts::{Captured, FIRST_TYPE, LLC, Parts};
use super::{Payload, Unfit};
use towpath_wire::ethernet::Mac;

/// 802.2 of a frame with these addresses. SNAP of
/// [RFC 1042](https://www.rfc-editor.org/rfc/rfc1042) or of 802.1H (a bridge's tunnel) becomes an
/// Ethernet type, as `ieee80211_data_to_8023` of Linux does it: but for AARP and IPX, which 802.1H
/// tells apart from their frames without SNAP.
pub(super) fn llc(frame: Captured<'_>, destination: Option<Mac>, source: Option<Mac>) -> Result<Parts<'_>, Unfit> {
    let (kind, rest) = match frame.bytes(0) {
        Ok([0xaa, 0xaa, 0x03, 0, 0, tunnel @ (0 | 0xf8), high, low]) => {
            let kind = u16::from_be_bytes([high, low]);
            let apart = tunnel == 0 && matches!(kind, 0x80f3 | 0x8137);
            if kind < FIRST_TYPE || apart { (LLC, frame) } else { (kind, frame.skip(8)?) }
        }
        // The capture cut it before its type.
        Err(_) if frame.missing > 0 || frame.data.is_empty() => return Err(Unfit::Cut),
        _ => (LLC, frame),
    };
    Ok(Parts { source, destination, kind, rest })
}

/// FDDI: frame control, destination, source, 802.2.
pub(super) fn fddi(frame: Captured<'_>) -> Result<Parts<'_>, Unfit> {
    // Tokens and station management have no 802.2.
    if frame.byte(0)? & 0xf0 != 0x50 {
        return Err(Unfit::NoType);
    }
    llc(frame.skip(13)?, Some(frame.bytes(1)?), Some(frame.bytes(7)?))
}

/// Token Ring: access control, frame control, destination, source, a route if the source's first
/// bit is set, 802.2.
pub(super) fn token_ring(frame: Captured<'_>) -> Result<Parts<'_>, Unfit> {
    if frame.byte(1)? >> 6 != 1 {
        return Err(Unfit::NoType);
    }
    let mut source: Mac = frame.bytes(8)?;
    let route = if source[0] & 0x80 == 0 { 0 } else { usize::from(frame.byte(14)? & 0x1f) };
    source[0] &= 0x7f;
    llc(frame.skip(14 + route)?, Some(frame.bytes(2)?), Some(source))
}

/// ATM by [RFC 2684](https://www.rfc-editor.org/rfc/rfc2684): 802.2, or a bridged Ethernet frame
/// behind a SNAP header and two bytes of padding.
pub(super) fn atm_llc(frame: Captured<'_>) -> Result<Payload<'_>, Unfit> {
    match frame.bytes(0) {
        // With the frame check sequence, and without.
        Ok([0xaa, 0xaa, 0x03, 0x00, 0x80, 0xc2, 0, 1]) => Ok(Payload::Ethernet(frame.skip(10)?.drop_end(4)?)),
        Ok([0xaa, 0xaa, 0x03, 0x00, 0x80, 0xc2, 0, 7]) => Ok(Payload::Ethernet(frame.skip(10)?)),
        _ => llc(frame, None, None).map(Payload::One),
    }
}

/// SunATM: the kind of traffic, the channel, the frame.
pub(super) fn sun_atm(frame: Captured<'_>) -> Result<Payload<'_>, Unfit> {
    match frame.byte(0)? & 0x0f {
        1 => lane(frame.skip(4)?),
        2 => atm_llc(frame.skip(4)?),
        _ => Err(Unfit::NoType),
    }
}

/// LAN emulation over ATM: the client, or the mark of a control frame; an Ethernet frame.
pub(super) fn lane(frame: Captured<'_>) -> Result<Payload<'_>, Unfit> {
    if frame.word(0)? == 0xff00 { Err(Unfit::NoType) } else { Ok(Payload::Ethernet(frame.skip(2)?)) }
}

/// IP over InfiniBand: a global routing header, an Ethernet type, two bytes.
pub(super) fn infiniband(frame: Captured<'_>) -> Result<Parts<'_>, Unfit> {
    Ok(Parts::typed(frame.word(40)?, frame.skip(44)?))
}

/// Ethernet with Broadcom's tag of four bytes between source and type.
pub(super) fn broadcom_tag(frame: Captured<'_>) -> Result<Parts<'_>, Unfit> {
    let (kind, rest) = match (frame.word(16)?, frame.skip(18)?) {
        (len, rest) if len < FIRST_TYPE => (LLC, rest.limit(len.into())),
        typed => typed,
    };
    Ok(Parts { source: Some(frame.bytes(6)?), destination: Some(frame.bytes(0)?), kind, rest })
}
