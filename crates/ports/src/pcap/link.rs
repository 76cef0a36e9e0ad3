//! Link types: a frame of a capture becomes an Ethernet frame or an IP packet.
//!
//! ```text
//!   link type              header                          as Ethernet                 as IP
//!   Ethernet               14 bytes, tags                  as it is                    behind header and tags
//!   raw IP, NULL, LOOP,    none, a family, HDLC,           a header is made            behind the header
//!   PPP, HDLC, SLIP, FR    a protocol
//!   SLL, SLL2 (any)        protocol, source address        source kept                 behind the header
//!   PPPoE without Ethernet 6 bytes                         a header is made            behind PPP
//! ```
//!
//! A made header has the addresses [`MADE_SOURCE`] and [`MADE_DESTINATION`] of
//! [RFC 7042](https://www.rfc-editor.org/rfc/rfc7042), or the address of a group if IP or the
//! cooked header names one. `smac=` and `dmac=` set others. A frame that has no such form (LCP on
//! PPP, ARP for an egress of IP packets) is named by [`Unfit`]; nothing else happens to it.

use towpath_packet::port::Layer;
use towpath_wire::ethernet::Mac;

/// Source of a made Ethernet header.
pub const MADE_SOURCE: Mac = [0x00, 0x00, 0x5e, 0x00, 0x53, 0x01];
/// Destination of a made Ethernet header.
pub const MADE_DESTINATION: Mac = [0x00, 0x00, 0x5e, 0x00, 0x53, 0x02];

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const MPLS: u16 = 0x8847;
const MPLS_MULTICAST: u16 = 0x8848;
const PPPOE_DISCOVERY: u16 = 0x8863;
const PPPOE_SESSION: u16 = 0x8864;
/// Lower numbers are lengths of 802.3 frames.
const FIRST_TYPE: u16 = 0x0600;

/// A link type whose frames can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Link {
    /// Ethernet.
    Ethernet,
    /// IP without a link header.
    Ip,
    /// BSD's loopback: an address family in either byte order.
    Loopback,
    /// SLIP: 16 bytes of direction and compressed header.
    Slip,
    /// PPP, or Cisco's HDLC, as the first byte shows.
    Ppp,
    /// PPP behind a byte of direction.
    PppDirection,
    /// A PPPoE header.
    Pppoe,
    /// Cisco's HDLC.
    CiscoHdlc,
    /// Frame Relay: RFC 2427 or Cisco's.
    FrameRelay,
    /// Linux' cooked capture.
    Cooked,
    /// Linux' cooked capture, version 2.
    Cooked2,
}

/// Why a frame can't be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// It ends within its headers.
    #[error("a frame that ends within its headers")]
    Cut,
    /// It is no IP packet, and the egress takes no other.
    #[error("a frame that is no IP packet")]
    NotIp,
    /// Ethernet has no type for its protocol.
    #[error("a frame whose protocol has no Ethernet type")]
    NoType,
}

/// A frame as it is to be sent: an Ethernet header that was made, and the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The made header.
    pub head: Option<[u8; 14]>,
    /// The bytes behind it.
    pub rest: &'a [u8],
}

/// What a link header holds.
struct Parts<'a> {
    source: Option<Mac>,
    group: Option<Mac>,
    /// Ethernet type; below [`FIRST_TYPE`] the rest is an 802.3 frame.
    kind: u16,
    rest: &'a [u8],
}

impl Link {
    /// The link type of a number of <https://www.tcpdump.org/linktypes.html>; `None` if its frames
    /// can't be sent.
    pub fn from_number(number: u32) -> Option<Link> {
        Some(match number {
            1 => Link::Ethernet,
            // 12 and 14 are RAW on some systems; 228 and 229 are IPv4 and IPv6 alone.
            12 | 14 | 101 | 228 | 229 => Link::Ip,
            0 | 108 => Link::Loopback,
            8 => Link::Slip,
            9 | 50 => Link::Ppp,
            204 => Link::PppDirection,
            51 => Link::Pppoe,
            104 => Link::CiscoHdlc,
            107 => Link::FrameRelay,
            113 => Link::Cooked,
            276 => Link::Cooked2,
            _ => return None,
        })
    }

    /// The layer of its frames if nothing else is asked for: Ethernet if frames have an Ethernet
    /// type or a link-layer address.
    pub fn layer(self) -> Layer {
        match self {
            Link::Ethernet | Link::Cooked | Link::Cooked2 | Link::Pppoe => Layer::Ethernet,
            _ => Layer::Ip,
        }
    }

    /// Whether frames are sent as they are.
    pub fn is_plain(self, layer: Layer) -> bool {
        matches!((self, layer), (Link::Ethernet, Layer::Ethernet) | (Link::Ip, Layer::Ip))
    }

    /// The frame for an egress of `layer`.
    ///
    /// # Errors
    /// [`Unfit`] if it has no such form.
    pub fn frame(self, data: &[u8], layer: Layer) -> Result<Frame<'_>, Unfit> {
        if self.is_plain(layer) {
            return Ok(Frame { head: None, rest: data });
        }
        let parts = self.parts(data).ok_or(Unfit::Cut)??;
        if layer == Layer::Ip { parts.ip() } else { parts.ethernet() }
    }

    /// `None` if the frame ends within its header.
    fn parts(self, data: &[u8]) -> Option<Result<Parts<'_>, Unfit>> {
        match self {
            Link::Ethernet => Some(Ok(Parts::typed(word(data, 12)?, data.get(14..)?))),
            Link::Ip => Some(by_version(data)),
            Link::Slip => Some(by_version(data.get(16..)?)),
            Link::Loopback => {
                let family: [u8; 4] = data.first_chunk().copied()?;
                // The order is that of the machine which captured; no family needs the other half.
                let [low, high] = [u32::from_le_bytes(family), u32::from_be_bytes(family)];
                let kind = match low.min(high) {
                    2 => IPV4,
                    // Linux, the BSDs, FreeBSD, Darwin.
                    10 | 24 | 28 | 30 => IPV6,
                    _ => return Some(Err(Unfit::NotIp)),
                };
                Some(Ok(Parts::typed(kind, data.get(4..)?)))
            }
            Link::Ppp => match data {
                [0x0f | 0x8f, 0, ..] => Link::CiscoHdlc.parts(data),
                _ => ppp(data),
            },
            Link::PppDirection => ppp(data.get(1..)?),
            Link::Pppoe => {
                let kind = if *data.get(1)? == 0 { PPPOE_SESSION } else { PPPOE_DISCOVERY };
                Some(Ok(Parts::typed(kind, data)))
            }
            Link::CiscoHdlc => Some(Ok(Parts::typed(word(data, 2)?, data.get(4..)?))),
            Link::FrameRelay => frame_relay(data),
            Link::Cooked => {
                let (hardware, len) = (word(data, 2)?, word(data, 4)?);
                Some(cooked(word(data, 0)?, hardware, len, data.get(6..12)?, word(data, 14)?, data.get(16..)?))
            }
            Link::Cooked2 => {
                let [kind, len] = [10, 11].map(|at| data.get(at).copied().map(u16::from));
                Some(cooked(kind?, word(data, 8)?, len?, data.get(12..18)?, word(data, 0)?, data.get(20..)?))
            }
        }
    }
}

impl<'a> Parts<'a> {
    fn typed(kind: u16, rest: &'a [u8]) -> Parts<'a> {
        Parts { source: None, group: None, kind, rest }
    }

    /// The frame with a made Ethernet header.
    fn ethernet(self) -> Result<Frame<'a>, Unfit> {
        let kind = match self.kind {
            // 802.2 behind a length; IPX in 802.3 has no header of its own.
            1 | 4 => u16::try_from(self.rest.len()).ok().filter(|n| *n < FIRST_TYPE).ok_or(Unfit::NoType)?,
            kind if kind < FIRST_TYPE => return Err(Unfit::NoType),
            kind => kind,
        };
        let destination = self.group.or_else(|| group(kind, self.rest)).unwrap_or(MADE_DESTINATION);
        let mut head = [0; 14];
        head[..6].copy_from_slice(&destination);
        head[6..12].copy_from_slice(&self.source.unwrap_or(MADE_SOURCE));
        head[12..].copy_from_slice(&kind.to_be_bytes());
        Ok(Frame { head: Some(head), rest: self.rest })
    }

    /// The IP packet, without the link's padding.
    fn ip(mut self) -> Result<Frame<'a>, Unfit> {
        // Two tags, as the rest of the datapath looks behind.
        for _ in 0..2 {
            if matches!(self.kind, 0x8100 | 0x88a8 | 0x9100) {
                self.kind = word(self.rest, 2).ok_or(Unfit::Cut)?;
                self.rest = self.rest.get(4..).ok_or(Unfit::Cut)?;
            }
        }
        if self.kind == PPPOE_SESSION {
            self = ppp(self.rest.get(6..).ok_or(Unfit::Cut)?).ok_or(Unfit::Cut)??;
        }
        let len = match (self.kind, self.rest.first().map(|byte| byte >> 4)) {
            (IPV4, Some(4)) => usize::from(word(self.rest, 2).ok_or(Unfit::Cut)?),
            (IPV6, Some(6)) => 40 + usize::from(word(self.rest, 4).ok_or(Unfit::Cut)?),
            _ => return Err(Unfit::NotIp),
        };
        // A length of zero is that of a super-packet or a jumbogram.
        let has_length = len >= 20 && len != 40 || self.kind == IPV4 && len == 40;
        let whole = self.rest.get(..len).filter(|_| has_length);
        Ok(Frame { head: None, rest: whole.unwrap_or(self.rest) })
    }
}

/// The big-endian number at `at`.
fn word(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// An IP packet by its version.
fn by_version(data: &[u8]) -> Result<Parts<'_>, Unfit> {
    match data.first().map(|byte| byte >> 4) {
        Some(4) => Ok(Parts::typed(IPV4, data)),
        Some(6) => Ok(Parts::typed(IPV6, data)),
        Some(_) => Err(Unfit::NotIp),
        None => Err(Unfit::Cut),
    }
}

/// PPP: address and control if they are there, then a protocol of one byte or two.
fn ppp(data: &[u8]) -> Option<Result<Parts<'_>, Unfit>> {
    let data = data.strip_prefix(&[0xff, 0x03]).unwrap_or(data);
    let first = *data.first()?;
    let (protocol, rest) =
        if first & 1 == 1 { (u16::from(first), data.get(1..)?) } else { (word(data, 0)?, data.get(2..)?) };
    let kind = match protocol {
        0x0021 => IPV4,
        0x0057 => IPV6,
        0x0281 => MPLS,
        0x0283 => MPLS_MULTICAST,
        _ => return Some(Err(Unfit::NoType)),
    };
    Some(Ok(Parts::typed(kind, rest)))
}

/// Frame Relay: an address of two to four bytes, then RFC 2427's NLPID or Cisco's Ethernet type.
fn frame_relay(data: &[u8]) -> Option<Result<Parts<'_>, Unfit>> {
    let end = data.iter().take(4).position(|byte| byte & 1 == 1)? + 1;
    let rest = data.get(end..)?;
    let Some(rest) = rest.strip_prefix(&[0x03]) else {
        return Some(Ok(Parts::typed(word(rest, 0)?, rest.get(2..)?)));
    };
    let rest = rest.strip_prefix(&[0]).unwrap_or(rest);
    Some(match *rest.first()? {
        0xcc => Ok(Parts::typed(IPV4, rest.get(1..)?)),
        0x8e => Ok(Parts::typed(IPV6, rest.get(1..)?)),
        // SNAP, of Ethernet types.
        0x80 if rest.get(1..4)? == [0; 3] => Ok(Parts::typed(word(rest, 4)?, rest.get(6..)?)),
        _ => Err(Unfit::NoType),
    })
}

/// Linux' cooked headers.
fn cooked<'a>(
    kind: u16,
    hardware: u16,
    len: u16,
    address: &[u8],
    protocol: u16,
    rest: &'a [u8],
) -> Result<Parts<'a>, Unfit> {
    // Of these the protocol is no Ethernet type: Frame Relay's, 802.11's, netlink.
    if matches!(hardware, 770 | 801..=803 | 824) {
        return Err(Unfit::NoType);
    }
    let source = address.first_chunk().copied().filter(|mac: &Mac| len == 6 && *mac != [0; 6] && mac[0] & 1 == 0);
    // 1 is a frame to all.
    let group = (kind == 1).then_some([0xff; 6]);
    Ok(Parts { source, group, kind: protocol, rest })
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn v4() -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 24, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend([1, 2, 3, 4]);
        packet
    }

    fn v6() -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 4, 59, 64];
        packet.extend([0x20; 16]);
        packet.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 9]);
        packet.extend([1, 2, 3, 4]);
        packet
    }

    fn cat(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn a_packet_of_each_link_is_the_same_ip_packet_and_has_the_right_type_on_ethernet() {
        let sll = [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 7, 0, 0][..]].concat();
        let table: Vec<(u32, Vec<u8>, Vec<u8>)> = vec![
            (1, vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0], vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd]),
            (
                1,
                vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0],
                vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0, 2, 0x86, 0xdd],
            ),
            (101, vec![], vec![]),
            (0, vec![2, 0, 0, 0], vec![0, 0, 0, 30]),
            (108, vec![0, 0, 0, 2], vec![24, 0, 0, 0]),
            (8, vec![0; 16], vec![1; 16]),
            (9, vec![0xff, 3, 0, 0x21], vec![0, 0x57]),
            (9, vec![0x21], vec![0x57]),
            (50, vec![0x0f, 0, 8, 0], vec![0xff, 3, 0, 0x57]),
            (204, vec![1, 0xff, 3, 0, 0x21], vec![0, 0, 0x57]),
            (51, vec![0x11, 0, 0, 1, 0, 26, 0, 0x21], vec![0x11, 0, 0, 1, 0, 46, 0, 0x57]),
            (104, vec![0x0f, 0, 8, 0], vec![0x8f, 0, 0x86, 0xdd]),
            (107, vec![0x18, 0x41, 3, 0xcc], vec![0x18, 0x41, 3, 0, 0x80, 0, 0, 0, 0x86, 0xdd]),
            (107, vec![0x18, 0x41, 8, 0], vec![0x18, 0x41, 3, 0x8e]),
            (113, cat(&[&sll, &[8, 0]]), cat(&[&sll, &[0x86, 0xdd]])),
            (
                276,
                vec![8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 7, 0, 0],
                vec![0x86, 0xdd, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 7, 0, 0],
            ),
        ];
        for (number, head4, head6) in table {
            let link = Link::from_number(number).unwrap();
            for (head, packet, group) in [(head4, v4(), MADE_DESTINATION), (head6, v6(), [0x33, 0x33, 0xff, 0, 0, 9])] {
                let data = cat(&[&head, &packet]);
                let frame = link.frame(&data, Layer::Ip).unwrap();
                assert_eq!((frame.head, frame.rest), (None, &packet[..]), "link type {number}: {head:x?}");
                // The padding of the link is left out, where there is a header to replace.
                if link != Link::Ip {
                    let padded = cat(&[&data, &[0; 9]]);
                    assert_eq!(link.frame(&padded, Layer::Ip).unwrap().rest, packet, "link type {number}");
                }
                let frame = link.frame(&data, Layer::Ethernet).unwrap();
                let kind = if number == 51 {
                    [0x88, 0x64]
                } else if packet[0] == 0x45 {
                    [8, 0]
                } else {
                    [0x86, 0xdd]
                };
                match frame.head {
                    None => assert_eq!((link, frame.rest), (Link::Ethernet, &data[..])),
                    Some(head) => {
                        let source = if number > 112 && number != 204 { [2, 0, 0, 0, 0, 7] } else { MADE_SOURCE };
                        assert_eq!(head[12..], kind, "link type {number}");
                        assert_eq!(head[6..12], source, "link type {number}");
                        assert!(number == 51 || head[..6] == group, "link type {number}");
                        assert!(number == 51 || frame.rest == packet, "link type {number}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_frame_that_has_no_such_form_is_named() {
        let unfit = |number, data: &[u8], layer| Link::from_number(number).unwrap().frame(data, layer).unwrap_err();
        let arp = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6, 0, 1];
        assert_eq!(unfit(1, &arp, Layer::Ip), Unfit::NotIp);
        assert_eq!(unfit(1, &arp[..13], Layer::Ip), Unfit::Cut);
        assert_eq!(unfit(9, &[0xff, 3, 0xc0, 0x21, 1], Layer::Ethernet), Unfit::NoType);
        assert_eq!(unfit(0, &[7, 0, 0, 0, 1], Layer::Ethernet), Unfit::NotIp);
        assert_eq!(unfit(101, &[0x10], Layer::Ethernet), Unfit::NotIp);
        let netlink = [0, 4, 0x03, 0x38, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(unfit(113, &netlink, Layer::Ethernet), Unfit::NoType);
        for refused in [105, 127, 143, 195, 9999] {
            assert_eq!(Link::from_number(refused), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_of_any_link_give_a_frame_of_their_own_bytes_or_a_reason(
            number in 0u32..300, data in vec(any::<u8>(), 0..80), ip in any::<bool>(),
        ) {
            let Some(link) = Link::from_number(number) else { return Ok(()) };
            let layer = if ip { Layer::Ip } else { Layer::Ethernet };
            if let Ok(frame) = link.frame(&data, layer) {
                prop_assert!(data.windows(frame.rest.len().max(1)).any(|w| w == frame.rest) || frame.rest.is_empty());
                prop_assert!(!ip || frame.head.is_none());
            }
        }
    }
}
