//! Link types: the frames of a capture become Ethernet frames or IP packets.
//!
//! ```text
//!   link type              header                          as Ethernet                 as IP
//!   Ethernet               14 bytes, tags                  as it is                    behind header and tags
//!   raw IP, NULL, LOOP,    none, a family, HDLC,           a header is made            behind the header
//!   PPP, HDLC, SLIP, FR    a protocol
//!   SLL, SLL2 (any)        protocol, source address        source kept                 behind the header
//!   PPPoE without Ethernet 6 bytes                         a header is made            behind PPP
//!   802.11, radiotap, PPI, addresses, 802.2; A-MSDUs       addresses kept, a frame     behind 802.2
//!   Prism, AVS                                             of each subframe
//!   FDDI, Token Ring, ATM  addresses, 802.2                addresses kept              behind 802.2
//!   pflog, ENC, NFLOG,     a firewall's record             a header is made            behind the header
//!   ipnet, IPoIB
//!   PKTAP, Juniper, LANE,  a header before another frame   that of the other frame
//!   Broadcom's tags
//! ```
//!
//! A made header has the addresses [`MADE_SOURCE`] and [`MADE_DESTINATION`] of
//! [RFC 7042](https://www.rfc-editor.org/rfc/rfc7042), or the address of a group if IP or the
//! cooked header names one. `smac=` and `dmac=` set others. A frame that has no such form (LCP on
//! PPP, a beacon, ARP for an egress of IP packets) is named by [`Unfit`]; nothing else happens to
//! it.
//!
//! | file | |
//! |---|---|
//! | `parts.rs` | the captured bytes; addresses, type and rest of a frame, and the frame of them |
//! | `serial.rs` | loopbacks, PPP, HDLC, Frame Relay |
//! | `lan.rs` | 802.2: FDDI, Token Ring, ATM; Ethernet behind or around tags |
//! | `host.rs` | cooked captures, firewalls, PKTAP, Juniper |
//! | `radio.rs`, `wifi.rs` | radiotap and its like; 802.11 |

mod host;
mod lan;
mod parts;
mod radio;
mod serial;
mod wifi;

use parts::{Captured, Parts};
use towpath_packet::port::Layer;
use towpath_wire::ethernet::Mac;

/// Source of a made Ethernet header.
pub const MADE_SOURCE: Mac = [0x00, 0x00, 0x5e, 0x00, 0x53, 0x01];
/// Destination of a made Ethernet header.
pub const MADE_DESTINATION: Mac = [0x00, 0x00, 0x5e, 0x00, 0x53, 0x02];

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
    /// 802.11.
    Wifi,
    /// 802.11 behind a radiotap header.
    WifiRadiotap,
    /// 802.11 behind a Prism header, or AVS'.
    WifiPrism,
    /// 802.11 behind the header of AVS.
    WifiAvs,
    /// Per-Packet Information, mostly of 802.11.
    WifiPpi,
    /// FDDI.
    Fddi,
    /// Token Ring.
    TokenRing,
    /// ATM: RFC 2684 with 802.2.
    AtmLlc,
    /// ATM of Sun's interfaces.
    SunAtm,
    /// LAN emulation over ATM.
    Lane,
    /// IP over InfiniBand.
    Infiniband,
    /// Ethernet with Broadcom's tag behind the addresses.
    BroadcomTag,
    /// Ethernet behind Broadcom's tag.
    BroadcomPrepended,
    /// The firewall of OpenBSD and its heirs.
    Pflog,
    /// OpenBSD's packets within IPsec.
    Enc,
    /// Linux' NFLOG.
    Nflog,
    /// Solaris' IP observability.
    Ipnet,
    /// Apple's PKTAP, of any other link.
    Pktap,
    /// Juniper's header before Ethernet.
    JuniperEthernet,
    /// Juniper's header before PPP.
    JuniperPpp,
    /// Juniper's header before Frame Relay.
    JuniperFrameRelay,
    /// Juniper's header before Cisco's HDLC.
    JuniperHdlc,
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
    /// It is within another, and of a link type that is not converted.
    #[error("a frame within another whose link type is not converted")]
    OtherLink,
    /// A beacon or another frame for the management of an 802.11 network.
    #[error("an 802.11 management frame")]
    Management,
    /// An acknowledgement or another frame for the control of an 802.11 medium.
    #[error("an 802.11 control frame")]
    Control,
    /// An 802.11 data frame without a body.
    #[error("an 802.11 frame without data")]
    NoData,
    /// An 802.11 frame whose body is encrypted.
    #[error("an encrypted 802.11 frame")]
    Encrypted,
    /// A part of an 802.11 frame.
    #[error("a fragment of an 802.11 frame")]
    Fragment,
    /// The card found an error in the 802.11 frame.
    #[error("an 802.11 frame whose check sequence is wrong")]
    BadFcs,
}

/// A frame as it is to be sent: an Ethernet header that was made, and the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The made header.
    pub head: Option<[u8; 14]>,
    /// The bytes behind it.
    pub rest: &'a [u8],
    /// Bytes behind `rest` that the capture cut.
    pub missing: usize,
}

impl<'a> Frame<'a> {
    fn whole(frame: Captured<'a>) -> Frame<'a> {
        Frame { head: None, rest: frame.data, missing: frame.missing }
    }

    /// Its bytes, in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.head.iter().flatten().chain(self.rest).copied().collect()
    }
}

/// The frames of a record: one, or those of an 802.11 aggregate (A-MSDU). Each is a frame or the
/// reason why it can't be sent; there is at least one.
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    layer: Layer,
    one: Option<Result<Frame<'a>, Unfit>>,
    aggregate: Option<wifi::Subframes<'a>>,
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, Unfit>;

    fn next(&mut self) -> Option<Self::Item> {
        let layer = self.layer;
        self.one.take().or_else(|| Some(self.aggregate.as_mut()?.next()?.and_then(|parts| parts.frame(layer))))
    }
}

/// What is behind the headers of a link.
enum Payload<'a> {
    One(Parts<'a>),
    /// A whole Ethernet frame.
    Ethernet(Captured<'a>),
    Aggregate(wifi::Subframes<'a>),
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
            105 => Link::Wifi,
            127 => Link::WifiRadiotap,
            119 => Link::WifiPrism,
            163 => Link::WifiAvs,
            192 => Link::WifiPpi,
            10 => Link::Fddi,
            6 => Link::TokenRing,
            // 11 on the BSDs.
            11 | 100 => Link::AtmLlc,
            123 => Link::SunAtm,
            106 => Link::Lane,
            242 => Link::Infiniband,
            281 => Link::BroadcomTag,
            282 => Link::BroadcomPrepended,
            117 => Link::Pflog,
            109 => Link::Enc,
            239 => Link::Nflog,
            226 => Link::Ipnet,
            258 => Link::Pktap,
            178 => Link::JuniperEthernet,
            179 => Link::JuniperPpp,
            180 => Link::JuniperFrameRelay,
            181 => Link::JuniperHdlc,
            _ => return None,
        })
    }

    /// The layer of its frames if nothing else is asked for: Ethernet if frames have an Ethernet
    /// type or a link-layer address.
    pub fn layer(self) -> Layer {
        match self {
            Link::Ip | Link::Loopback | Link::Slip | Link::Ppp | Link::PppDirection => Layer::Ip,
            Link::CiscoHdlc | Link::FrameRelay | Link::AtmLlc | Link::SunAtm | Link::Infiniband => Layer::Ip,
            Link::Pflog | Link::Enc | Link::Nflog | Link::Ipnet => Layer::Ip,
            Link::JuniperPpp | Link::JuniperFrameRelay | Link::JuniperHdlc => Layer::Ip,
            _ => Layer::Ethernet,
        }
    }

    /// Whether frames are sent as they are.
    pub fn is_plain(self, layer: Layer) -> bool {
        matches!((self, layer), (Link::Ethernet, Layer::Ethernet) | (Link::Ip, Layer::Ip))
    }

    /// Whether each frame tells if a check sequence is behind it, whatever the file tells.
    pub(super) fn knows_fcs(self) -> bool {
        matches!(self, Link::WifiRadiotap | Link::WifiPpi)
    }

    /// The frames of a record for an egress of `layer`. `original` is the length of the record
    /// before the capture cut it to `data`.
    pub fn frames(self, data: &[u8], original: usize, layer: Layer) -> Frames<'_> {
        let record = Captured { data, missing: original.saturating_sub(data.len()) };
        if self.is_plain(layer) {
            return Frames { layer, one: Some(Ok(Frame::whole(record))), aggregate: None };
        }
        let one = match self.payload(record) {
            Ok(Payload::Aggregate(aggregate)) => return Frames { layer, one: None, aggregate: Some(aggregate) },
            Ok(Payload::One(parts)) => parts.frame(layer),
            Ok(Payload::Ethernet(frame)) => Parts::ethernet_frame(frame).and_then(|parts| match layer {
                Layer::Ip => parts.frame(layer),
                _ => Ok(Frame::whole(frame)),
            }),
            Err(unfit) => Err(unfit),
        };
        Frames { layer, one: Some(one), aggregate: None }
    }

    fn payload(self, frame: Captured<'_>) -> Result<Payload<'_>, Unfit> {
        let parts = match self {
            Link::Ethernet => return Ok(Payload::Ethernet(frame)),
            Link::BroadcomPrepended => return Ok(Payload::Ethernet(frame.skip(4)?)),
            Link::Cooked => return host::cooked(frame),
            Link::Cooked2 => return host::cooked2(frame),
            Link::Pktap => return host::pktap(frame),
            Link::JuniperEthernet => return host::juniper(frame, Link::Ethernet),
            Link::JuniperPpp => return host::juniper(frame, Link::Ppp),
            Link::JuniperFrameRelay => return host::juniper(frame, Link::FrameRelay),
            Link::JuniperHdlc => return host::juniper(frame, Link::CiscoHdlc),
            Link::AtmLlc => return lan::atm_llc(frame),
            Link::SunAtm => return lan::sun_atm(frame),
            Link::Lane => return lan::lane(frame),
            Link::Wifi => return wifi::payload(frame, false),
            Link::WifiRadiotap => return radio::radiotap(frame),
            Link::WifiPrism => return radio::prism(frame),
            Link::WifiAvs => return radio::avs(frame),
            Link::WifiPpi => return radio::ppi(frame),
            Link::Ip => Parts::ip_packet(frame)?,
            Link::Slip => Parts::ip_packet(frame.skip(16)?)?,
            Link::Enc => Parts::ip_packet(frame.skip(12)?)?,
            Link::Ipnet => Parts::ip_packet(frame.skip(24)?)?,
            Link::Pflog => host::pflog(frame)?,
            Link::Nflog => host::nflog(frame)?,
            Link::Loopback => serial::loopback(frame)?,
            Link::Ppp => serial::ppp_or_hdlc(frame)?,
            Link::PppDirection => serial::ppp(frame.skip(1)?)?,
            Link::Pppoe => serial::pppoe(frame)?,
            Link::CiscoHdlc => serial::cisco_hdlc(frame)?,
            Link::FrameRelay => serial::frame_relay(frame)?,
            Link::Fddi => lan::fddi(frame)?,
            Link::TokenRing => lan::token_ring(frame)?,
            Link::Infiniband => lan::infiniband(frame)?,
            Link::BroadcomTag => lan::broadcom_tag(frame)?,
        };
        Ok(Payload::One(parts))
    }
}

#[cfg(test)]
mod tests;
