//! Headers that a wireless card writes before an 802.11 frame.
//!
//! ```text
//!   radiotap   little endian   version, length, bitmaps of what follows     flags: FCS, padding
//!   PPI        little endian   version, length, link type, fields           flags: FCS
//!   Prism      either          0x44, length (144)                           none
//!   AVS        big endian      0x80211001, length                           none
//! ```

use super::parts::Captured;
use super::{Payload, Unfit, host, wifi};

/// Bytes of a frame check sequence.
const FCS: usize = 4;

/// The header of <https://www.radiotap.org>.
pub(super) fn radiotap(frame: Captured<'_>) -> Result<Payload<'_>, Unfit> {
    const HAS_FCS: u8 = 0x10;
    const PADDED: u8 = 0x20;
    const BAD_FCS: u8 = 0x40;
    if frame.byte(0)? != 0 {
        return Err(Unfit::NoType);
    }
    let len = usize::from(u16::from_le_bytes(frame.bytes(2)?));
    let header = Captured { data: frame.data.get(..len).ok_or(Unfit::Cut)?, missing: 0 };
    let first = u32::from_le_bytes(header.bytes(4)?);
    let mut at = 8;
    // The highest bit of a bitmap is that of a further one.
    let mut bitmap = first;
    while bitmap & 1 << 31 != 0 {
        bitmap = u32::from_le_bytes(header.bytes(at)?);
        at += 4;
    }
    // Fields are in the order of their bits: a time of eight bytes at a multiple of eight, flags.
    if first & 1 != 0 {
        at = at.next_multiple_of(8) + 8;
    }
    let flags = if first & 2 != 0 { header.byte(at)? } else { 0 };
    if flags & BAD_FCS != 0 {
        return Err(Unfit::BadFcs);
    }
    let behind = frame.skip(len)?.drop_end(if flags & HAS_FCS != 0 { FCS } else { 0 })?;
    wifi::payload(behind, flags & PADDED != 0)
}

/// Per-Packet Information of CACE. Frames of other links are converted as such.
pub(super) fn ppi(frame: Captured<'_>) -> Result<Payload<'_>, Unfit> {
    const COMMON_80211: u16 = 2;
    const HAS_FCS: u16 = 1;
    // A wrong check sequence, a damaged signal.
    const BAD: u16 = 4 | 8;
    let len = usize::from(u16::from_le_bytes(frame.bytes(2)?));
    let header = Captured { data: frame.data.get(..len).ok_or(Unfit::Cut)?, missing: 0 };
    let link = u32::from_le_bytes(header.bytes(4)?);
    let mut fields = header.skip(8)?;
    let mut flags = 0;
    while let (Ok(kind), Ok(size)) = (fields.bytes(0), fields.bytes(2)) {
        if u16::from_le_bytes(kind) == COMMON_80211 {
            flags = u16::from_le_bytes(fields.bytes(4 + 8)?);
            break;
        }
        // Fields are padded to words if the header's flag says so.
        let size = usize::from(u16::from_le_bytes(size));
        let size = if header.byte(1)? & 1 != 0 { size.next_multiple_of(4) } else { size };
        fields = fields.skip(4 + size)?;
    }
    if flags & BAD != 0 {
        return Err(Unfit::BadFcs);
    }
    host::nested(link, frame.skip(len)?.drop_end(if flags & HAS_FCS != 0 { FCS } else { 0 })?)
}

/// The header of Prism cards, or AVS' in its place.
pub(super) fn prism(frame: Captured<'_>) -> Result<Payload<'_>, Unfit> {
    let (kind, len) = (frame.bytes(0)?, frame.bytes(4)?);
    if is_avs(u32::from_be_bytes(kind)) {
        return avs(frame);
    }
    // The order is that of the machine which captured; no length needs the upper half.
    let len = u32::from_le_bytes(len).min(u32::from_be_bytes(len));
    wifi::payload(frame.skip(len as usize)?, false)
}

/// The header of the linux-wlan project.
pub(super) fn avs(frame: Captured<'_>) -> Result<Payload<'_>, Unfit> {
    if !is_avs(u32::from_be_bytes(frame.bytes(0)?)) {
        return Err(Unfit::NoType);
    }
    wifi::payload(frame.skip(u32::from_be_bytes(frame.bytes(4)?) as usize)?, false)
}

fn is_avs(cookie: u32) -> bool {
    matches!(cookie, 0x8021_1001 | 0x8021_1002)
}
