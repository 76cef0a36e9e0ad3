//! A rule as data, and its text form.

use super::Verdict;
use std::fmt;
use std::net::IpAddr;
use towpath_wire::ethernet::{Mac, MacText, ethertype};
use towpath_wire::ip::protocol;

/// A verdict, and the packets that get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The verdict.
    pub verdict: Verdict,
    /// The packets that get it.
    pub matches: Match,
}

/// The required fields: all that are not `None`. The default matches everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Match {
    /// The type behind all tags.
    pub ethertype: Option<u16>,
    /// Transport protocol of an IP packet, behind extension headers.
    pub protocol: Option<u8>,
    /// Source address.
    pub src: Option<Prefix>,
    /// Destination address.
    pub dst: Option<Prefix>,
    /// Source port; matches no fragment and nothing without ports.
    pub src_port: Option<Span>,
    /// Destination port, likewise.
    pub dst_port: Option<Span>,
    /// Identifier of any of the packet's VLAN tags.
    pub vlan: Option<Span>,
    /// Source MAC address.
    pub src_mac: Option<Mac>,
    /// Destination MAC address.
    pub dst_mac: Option<Mac>,
    /// Only fragments of IP packets.
    pub fragment: bool,
}

/// An IP address prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// The first `len` bits of `address`; `None` if the address has fewer bits, or if a later bit
    /// is set.
    pub fn new(address: IpAddr, len: u8) -> Option<Prefix> {
        Prefix::covering(address, len).filter(|prefix| prefix.address == address)
    }

    /// The prefix of `len` bits that contains `address`; `None` if the address has fewer bits.
    pub fn covering(address: IpAddr, len: u8) -> Option<Prefix> {
        let address = match address {
            IpAddr::V4(v4) => {
                let host = u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
                (len <= 32).then_some(IpAddr::V4((v4.to_bits() & !host).into()))?
            }
            IpAddr::V6(v6) => {
                let host = u128::MAX.checked_shr(u32::from(len)).unwrap_or(0);
                (len <= 128).then_some(IpAddr::V6((v6.to_bits() & !host).into()))?
            }
        };
        Some(Prefix { address, len })
    }

    /// The address; bits beyond the prefix are 0.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The prefix length in bits.
    #[allow(clippy::len_without_is_empty)] // a prefix of no bits is not empty: it holds every address
    pub fn len(&self) -> u8 {
        self.len
    }

    /// Whether it is a single address.
    pub fn is_host(&self) -> bool {
        self.len == if self.address.is_ipv4() { 32 } else { 128 }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_host() { write!(f, "{}", self.address) } else { write!(f, "{}/{}", self.address, self.len) }
    }
}

/// A range of numbers, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    first: u16,
    last: u16,
}

impl Span {
    /// From `first` to `last`, both included; `None` if `last` is smaller.
    pub fn new(first: u16, last: u16) -> Option<Span> {
        (first <= last).then_some(Span { first, last })
    }

    /// The first number.
    pub fn first(self) -> u16 {
        self.first
    }

    /// The last number.
    pub fn last(self) -> u16 {
        self.last
    }
}

impl From<u16> for Span {
    fn from(number: u16) -> Span {
        Span { first: number, last: number }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// Protocols with a keyword of their own.
pub(super) const PROTOCOLS: [(&str, u8); 5] = [
    ("tcp", protocol::TCP),
    ("udp", protocol::UDP),
    ("sctp", protocol::SCTP),
    ("icmp", protocol::ICMP),
    ("icmp6", protocol::ICMPV6),
];

/// Ethertypes with a keyword of their own.
pub(super) const ETHERTYPES: [(&str, u16); 3] =
    [("ip", ethertype::IPV4), ("ip6", ethertype::IPV6), ("arp", ethertype::ARP)];

/// The text form; it [parses](super::Rules::parse) to the same rule.
impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Match::default() {
            return f.write_str("any");
        }
        let mut space = "";
        let mut word = |name: &str, value: Option<&dyn fmt::Display>| {
            write!(f, "{space}{name}")?;
            space = " ";
            value.map_or(Ok(()), |value| write!(f, " {value}"))
        };
        if let Some(number) = self.ethertype {
            match ETHERTYPES.iter().find(|(_, known)| *known == number) {
                Some((name, _)) => word(name, None)?,
                None => word("ether", Some(&format_args!("{number:#06x}")))?,
            }
        }
        if let Some(number) = self.protocol {
            match PROTOCOLS.iter().find(|(_, known)| *known == number) {
                Some((name, _)) => word(name, None)?,
                None => word("proto", Some(&number))?,
            }
        }
        for (name, prefix) in [("src", &self.src), ("dst", &self.dst)] {
            prefix.as_ref().map_or(Ok(()), |prefix| word(name, Some(prefix)))?;
        }
        for (name, span) in [("sport", &self.src_port), ("dport", &self.dst_port), ("vlan", &self.vlan)] {
            span.as_ref().map_or(Ok(()), |span| word(name, Some(span)))?;
        }
        for (name, mac) in [("smac", self.src_mac), ("dmac", self.dst_mac)] {
            mac.map_or(Ok(()), |mac| word(name, Some(&MacText(mac))))?;
        }
        if self.fragment { word("frag", None) } else { Ok(()) }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verdict, self.matches)
    }
}
