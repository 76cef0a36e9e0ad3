//! What the conversion of a frame works on: the captured bytes, and what its link header holds.

use super::{Frame, MADE_DESTINATION, MADE_SOURCE, Unfit, serial};
use towpath_packet::port::Layer;
use towpath_wire::ethernet::Mac;

pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
pub(super) const PPPOE_DISCOVERY: u16 = 0x8863;
pub(super) const PPPOE_SESSION: u16 = 0x8864;
/// Lower numbers are lengths of 802.3 frames.
pub(super) const FIRST_TYPE: u16 = 0x0600;
/// A [`Parts::kind`]: 802.2 without an Ethernet type, behind an 802.3 length.
pub(super) const LLC: u16 = 4;

/// The captured bytes of a frame. The capture may have cut it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Captured<'a> {
    pub(super) data: &'a [u8],
    /// Bytes of the frame behind `data` that the capture does not have.
    pub(super) missing: usize,
}

impl<'a> Captured<'a> {
    /// The `N` bytes at `at`.
    pub(super) fn bytes<const N: usize>(self, at: usize) -> Result<[u8; N], Unfit> {
        self.data.get(at..).and_then(|rest| rest.first_chunk().copied()).ok_or(Unfit::Cut)
    }

    pub(super) fn byte(self, at: usize) -> Result<u8, Unfit> {
        self.bytes(at).map(|[byte]| byte)
    }

    /// The big-endian number at `at`.
    pub(super) fn word(self, at: usize) -> Result<u16, Unfit> {
        self.bytes(at).map(u16::from_be_bytes)
    }

    /// The rest behind `len` bytes.
    pub(super) fn skip(self, len: usize) -> Result<Captured<'a>, Unfit> {
        Ok(Captured { data: self.data.get(len..).ok_or(Unfit::Cut)?, ..self })
    }

    /// The rest behind `prefix`, or all if it does not begin so.
    pub(super) fn skip_prefix(self, prefix: &[u8]) -> Captured<'a> {
        Captured { data: self.data.strip_prefix(prefix).unwrap_or(self.data), ..self }
    }

    /// The first `len` bytes of the frame, of which some may be missing; all if it is shorter.
    pub(super) fn limit(self, len: usize) -> Captured<'a> {
        let data = self.data.get(..len).unwrap_or(self.data);
        Captured { data, missing: self.missing.min(len - data.len()) }
    }

    /// The frame behind its first `len` bytes, of which some may be missing; nothing if it is
    /// shorter.
    pub(super) fn behind(self, len: usize) -> Captured<'a> {
        let data = self.data.get(len..).unwrap_or_default();
        Captured { data, missing: self.len().saturating_sub(len) - data.len() }
    }

    /// The frame without its last `len` bytes, of which some may be missing.
    pub(super) fn drop_end(self, len: usize) -> Result<Captured<'a>, Unfit> {
        Ok(self.limit(self.len().checked_sub(len).ok_or(Unfit::Cut)?))
    }

    /// Bytes of the frame, with the missing ones.
    pub(super) fn len(self) -> usize {
        self.data.len() + self.missing
    }
}

/// What a link header holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) source: Option<Mac>,
    pub(super) destination: Option<Mac>,
    /// Ethernet type; [`LLC`] and 1 are 802.3 frames, the other numbers below [`FIRST_TYPE`] have
    /// no form on Ethernet.
    pub(super) kind: u16,
    pub(super) rest: Captured<'a>,
}

impl<'a> Parts<'a> {
    pub(super) fn typed(kind: u16, rest: Captured<'a>) -> Parts<'a> {
        Parts { source: None, destination: None, kind, rest }
    }

    /// An IP packet by its version.
    pub(super) fn ip_packet(rest: Captured<'a>) -> Result<Parts<'a>, Unfit> {
        match rest.byte(0)? >> 4 {
            4 => Ok(Parts::typed(IPV4, rest)),
            6 => Ok(Parts::typed(IPV6, rest)),
            _ => Err(Unfit::NotIp),
        }
    }

    /// A whole Ethernet frame.
    pub(super) fn ethernet_frame(frame: Captured<'a>) -> Result<Parts<'a>, Unfit> {
        Ok(Parts::typed(frame.word(12)?, frame.skip(14)?))
    }

    pub(super) fn frame(self, layer: Layer) -> Result<Frame<'a>, Unfit> {
        if layer == Layer::Ip { self.ip() } else { self.ethernet() }
    }

    /// The frame with a made Ethernet header.
    fn ethernet(self) -> Result<Frame<'a>, Unfit> {
        let kind = match self.kind {
            // 802.2 behind a length; IPX in 802.3 has no header of its own.
            1 | LLC => u16::try_from(self.rest.len()).ok().filter(|n| *n < FIRST_TYPE).ok_or(Unfit::NoType)?,
            kind if kind < FIRST_TYPE => return Err(Unfit::NoType),
            kind => kind,
        };
        let destination = self.destination.or_else(|| group(kind, self.rest.data)).unwrap_or(MADE_DESTINATION);
        let mut head = [0; 14];
        head[..6].copy_from_slice(&destination);
        head[6..12].copy_from_slice(&self.source.unwrap_or(MADE_SOURCE));
        head[12..].copy_from_slice(&kind.to_be_bytes());
        Ok(Frame { head: Some(head), rest: self.rest.data, missing: self.rest.missing })
    }

    /// The IP packet, without the link's padding.
    fn ip(mut self) -> Result<Frame<'a>, Unfit> {
        // Two tags, as the rest of the datapath looks behind.
        for _ in 0..2 {
            if matches!(self.kind, 0x8100 | 0x88a8 | 0x9100) {
                self = Parts::typed(self.rest.word(2)?, self.rest.skip(4)?);
            }
        }
        if self.kind == PPPOE_SESSION {
            self = serial::ppp(self.rest.skip(6)?)?;
        }
        let len = match (self.kind, self.rest.data.first().map(|byte| byte >> 4)) {
            (IPV4, Some(4)) => usize::from(self.rest.word(2)?),
            (IPV6, Some(6)) => 40 + usize::from(self.rest.word(4)?),
            _ => return Err(Unfit::NotIp),
        };
        // A length of zero is that of a super-packet or a jumbogram.
        let has_length = len >= 20 && len != 40 || self.kind == IPV4 && len == 40;
        let packet = if has_length { self.rest.limit(len) } else { self.rest };
        Ok(Frame { head: None, rest: packet.data, missing: packet.missing })
    }
}

/// The address of the group that an IP packet is for, if it is for one.
fn group(kind: u16, packet: &[u8]) -> Option<Mac> {
    match kind {
        IPV4 => match *packet.get(16..)?.first_chunk()? {
            [255, 255, 255, 255] => Some([0xff; 6]),
            [a, b, c, d] if a & 0xf0 == 0xe0 => Some([0x01, 0x00, 0x5e, b & 0x7f, c, d]),
            _ => None,
        },
        IPV6 => match *packet.get(24..)?.first_chunk::<16>()? {
            [0xff, .., a, b, c, d] => Some([0x33, 0x33, a, b, c, d]),
            _ => None,
        },
        _ => None,
    }
}
