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
pub enum LinkType {
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

impl LinkType {
    /// The link type of a number of <https://www.tcpdump.org/linktypes.html>; `None` if its frames
    /// can't be sent.
    pub fn from_number(number: u32) -> Option<LinkType> {
        Some(match number {
            1 => LinkType::Ethernet,
            // 12 and 14 are RAW on some systems; 228 and 229 are IPv4 and IPv6 alone.
            12 | 14 | 101 | 228 | 229 => LinkType::Ip,
            0 | 108 => LinkType::Loopback,
            8 => LinkType::Slip,
            9 | 50 => LinkType::Ppp,
            204 => LinkType::PppDirection,
            51 => LinkType::Pppoe,
            104 => LinkType::CiscoHdlc,
            107 => LinkType::FrameRelay,
            113 => LinkType::Cooked,
            276 => LinkType::Cooked2,
            105 => LinkType::Wifi,
            127 => LinkType::WifiRadiotap,
            119 => LinkType::WifiPrism,
            163 => LinkType::WifiAvs,
            192 => LinkType::WifiPpi,
            10 => LinkType::Fddi,
            6 => LinkType::TokenRing,
            // 11 on the BSDs.
            11 | 100 => LinkType::AtmLlc,
            123 => LinkType::SunAtm,
            106 => LinkType::Lane,
            242 => LinkType::Infiniband,
            281 => LinkType::BroadcomTag,
            282 => LinkType::BroadcomPrepended,
            117 => LinkType::Pflog,
            109 => LinkType::Enc,
            239 => LinkType::Nflog,
            226 => LinkType::Ipnet,
            258 => LinkType::Pktap,
            178 => LinkType::JuniperEthernet,
            179 => LinkType::JuniperPpp,
            180 => LinkType::JuniperFrameRelay,
            181 => LinkType::JuniperHdlc,
            _ => return None,
        })
    }

    /// The layer of its frames if nothing else is asked for: Ethernet if frames have an Ethernet
    /// type or a link-layer address.
    pub fn layer(self) -> Layer {
        match self {
            LinkType::Ip | LinkType::Loopback | LinkType::Slip | LinkType::Ppp | LinkType::PppDirection => Layer::Ip,
            LinkType::CiscoHdlc | LinkType::FrameRelay | LinkType::AtmLlc | LinkType::SunAtm | LinkType::Infiniband => {
                Layer::Ip
            }
            LinkType::Pflog | LinkType::Enc | LinkType::Nflog | LinkType::Ipnet => Layer::Ip,
            LinkType::JuniperPpp | LinkType::JuniperFrameRelay | LinkType::JuniperHdlc => Layer::Ip,
            _ => Layer::Ethernet,
        }
    }

    /// Whether frames are sent as they are.
    pub fn is_plain(self, layer: Layer) -> bool {
        matches!((self, layer), (LinkType::Ethernet, Layer::Ethernet) | (LinkType::Ip, Layer::Ip))
    }

    /// Whether each frame tells if a check sequence is behind it, whatever the file tells.
    pub(super) fn knows_fcs(self) -> bool {
        matches!(self, LinkType::WifiRadiotap | LinkType::WifiPpi)
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
            LinkType::Ethernet => return Ok(Payload::Ethernet(frame)),
            LinkType::BroadcomPrepended => return Ok(Payload::Ethernet(frame.skip(4)?)),
            LinkType::Cooked => return host::cooked(frame),
            LinkType::Cooked2 => return host::cooked2(frame),
            LinkType::Pktap => return host::pktap(frame),
            LinkType::JuniperEthernet => return host::juniper(frame, LinkType::Ethernet),
            LinkType::JuniperPpp => return host::juniper(frame, LinkType::Ppp),
            LinkType::JuniperFrameRelay => return host::juniper(frame, LinkType::FrameRelay),
            LinkType::JuniperHdlc => return host::juniper(frame, LinkType::CiscoHdlc),
            LinkType::AtmLlc => return lan::atm_llc(frame),
            LinkType::SunAtm => return lan::sun_atm(frame),
            LinkType::Lane => return lan::lane(frame),
            LinkType::Wifi => return wifi::payload(frame, false),
            LinkType::WifiRadiotap => return radio::radiotap(frame),
            LinkType::WifiPrism => return radio::prism(frame),
            LinkType::WifiAvs => return radio::avs(frame),
            LinkType::WifiPpi => return radio::ppi(frame),
            LinkType::Ip => Parts::ip_packet(frame)?,
            LinkType::Slip => Parts::ip_packet(frame.skip(16)?)?,
            LinkType::Enc => Parts::ip_packet(frame.skip(12)?)?,
            LinkType::Ipnet => Parts::ip_packet(frame.skip(24)?)?,
            LinkType::Pflog => host::pflog(frame)?,
            LinkType::Nflog => host::nflog(frame)?,
            LinkType::Loopback => serial::loopback(frame)?,
            LinkType::Ppp => serial::ppp_or_hdlc(frame)?,
            LinkType::PppDirection => serial::ppp(frame.skip(1)?)?,
            LinkType::Pppoe => serial::pppoe(frame)?,
            LinkType::CiscoHdlc => serial::cisco_hdlc(frame)?,
            LinkType::FrameRelay => serial::frame_relay(frame)?,
            LinkType::Fddi => lan::fddi(frame)?,
            LinkType::TokenRing => lan::token_ring(frame)?,
            LinkType::Infiniband => lan::infiniband(frame)?,
            LinkType::BroadcomTag => lan::broadcom_tag(frame)?,
        };
        Ok(Payload::One(parts))
    }
}

#[cfg(test)]
mod tests;
