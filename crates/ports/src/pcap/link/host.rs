//! Headers that a host's capture writes before a packet: Linux' cooked ones, those of firewalls,
//! Apple's and Juniper's.

use super::parts::{Captured, Parts};
use super::{LinkType, Payload, Unfit};
use towpath_wire::ethernet::Mac;

/// A cooked header: hardware type, address, protocol and what is behind.
pub(super) fn cooked(frame: Captured<'_>) -> Result<Payload<'_>, Unfit> {
    let fields = Cooked {
        kind: frame.word(0)?,
        hardware: frame.word(2)?,
        address_len: frame.word(4)?,
        address: frame.bytes(6)?,
        protocol: frame.word(14)?,
    };
    fields.payload(frame.skip(16)?)
}

/// A cooked header of version 2.
pub(super) fn cooked2(frame: Captured<'_>) -> Result<Payload<'_>, Unfit> {
    let fields = Cooked {
        kind: frame.byte(10)?.into(),
        hardware: frame.word(8)?,
        address_len: frame.byte(11)?.into(),
        address: frame.bytes(12)?,
        protocol: frame.word(0)?,
    };
    fields.payload(frame.skip(20)?)
}

struct Cooked {
    kind: u16,
    hardware: u16,
    address_len: u16,
    address: Mac,
    protocol: u16,
}

impl Cooked {
    fn payload(self, rest: Captured<'_>) -> Result<Payload<'_>, Unfit> {
        match self.hardware {
            // The whole frame is behind the header, and the protocol tells nothing.
            801 => return LinkType::Wifi.payload(rest),
            802 => return LinkType::WifiPrism.payload(rest),
            803 => return LinkType::WifiRadiotap.payload(rest),
            // Of Frame Relay and netlink the protocol is no Ethernet type.
            770 | 824 => return Err(Unfit::NoType),
            _ => {}
        }
        let is_source = self.address_len == 6 && self.address != [0; 6] && self.address[0] & 1 == 0;
        let source = is_source.then_some(self.address);
        // 1 is a frame to all.
        let destination = (self.kind == 1).then_some([0xff; 6]);
        Ok(Payload::One(Parts { source, destination, kind: self.protocol, rest }))
    }
}

/// OpenBSD's pflog: a header that begins with its length, padded to words; a packet.
pub(super) fn pflog(frame: Captured<'_>) -> Result<Parts<'_>, Unfit> {
    let header = usize::from(frame.byte(0)?).next_multiple_of(4);
    Parts::ip_packet(frame.skip(header)?)
}

/// Linux' NFLOG: a header, then attributes in the byte order of the machine that captured.
pub(super) fn nflog(frame: Captured<'_>) -> Result<Parts<'_>, Unfit> {
    const PAYLOAD: u16 = 9;
    let mut rest = frame.skip(4)?;
    loop {
        // No type of an attribute needs the upper byte.
        let (len, kind) = (rest.bytes(0)?, rest.bytes(2)?);
        let (len, kind) = match u16::from_le_bytes(kind) {
            kind @ ..0x100 => (u16::from_le_bytes(len), kind),
            _ => (u16::from_be_bytes(len), u16::from_be_bytes(kind)),
        };
        let value = usize::from(len).checked_sub(4).ok_or(Unfit::Cut)?;
        if kind == PAYLOAD {
            return Parts::ip_packet(rest.skip(4)?.limit(value));
        }
        rest = rest.skip(4 + value.next_multiple_of(4))?;
    }
}

/// Apple's PKTAP: its length, the kind of record, the link type of what is behind.
pub(super) fn pktap(frame: Captured<'_>) -> Result<Payload<'_>, Unfit> {
    // The order is that of the machine which captured; no length needs the upper half.
    let [len, kind, link] = [frame.bytes(0)?, frame.bytes(4)?, frame.bytes(8)?];
    let is_little = u32::from_le_bytes(len) < u32::from_be_bytes(len);
    let number = |bytes| if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) };
    match number(kind) {
        1 => nested(number(link), frame.skip(number(len) as usize)?),
        _ => Err(Unfit::NoType),
    }
}

/// A frame of the link type `number` behind another header.
pub(super) fn nested(number: u32, frame: Captured<'_>) -> Result<Payload<'_>, Unfit> {
    match LinkType::from_number(number) {
        // Without these, which name the link behind them, the depth has an end.
        None | Some(LinkType::Pktap | LinkType::WifiPpi) => Err(Unfit::OtherLink),
        Some(link) => link.payload(frame),
    }
}

/// Juniper's: a mark, flags, extensions if there are any, then a frame of `link`, or a packet
/// without its link header behind a protocol.
pub(super) fn juniper(frame: Captured<'_>, link: LinkType) -> Result<Payload<'_>, Unfit> {
    let [b'M', b'G', b'C', flags] = frame.bytes(0)? else { return Err(Unfit::NoType) };
    let extensions = if flags & 0x80 == 0 { 0 } else { 2 + usize::from(frame.word(4)?) };
    let rest = frame.skip(4 + extensions)?;
    if flags & 0x02 == 0 { link.payload(rest) } else { Parts::ip_packet(rest.skip(4)?).map(Payload::One) }
}
