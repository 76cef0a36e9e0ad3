//! The parts that IPv4 and IPv6 have in common.

use core::net::{Ipv4Addr, Ipv6Addr};

/// Protocol numbers (IANA "Protocol Numbers"): IPv4's protocol and IPv6's next header field.
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// IPv4 inside IP ([RFC 2003](https://www.rfc-editor.org/rfc/rfc2003)).
    pub const IPV4: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 inside IP ([RFC 4213](https://www.rfc-editor.org/rfc/rfc4213),
    /// [RFC 2473](https://www.rfc-editor.org/rfc/rfc2473)).
    pub const IPV6: u8 = 41;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// GRE.
    pub const GRE: u8 = 47;
    /// IPsec encapsulating security payload.
    pub const ESP: u8 = 50;
    /// IPsec authentication header.
    pub const AH: u8 = 51;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: nothing follows.
    pub const NO_NEXT: u8 = 59;
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
}

/// An IPv4 address as an IPv4-mapped IPv6 address, `::ffff:a.b.c.d`
/// ([RFC 4291 section 2.5.5.2](https://www.rfc-editor.org/rfc/rfc4291#section-2.5.5.2)).
#[inline]
#[must_use]
pub fn mapped(v4: Ipv4Addr) -> Ipv6Addr {
    Ipv6Addr::from((0xffff << 80 | u128::from(u32::from_le_bytes(v4.octets())) << 96).to_le_bytes())
}

/// The version in the first byte of an IP packet; 0 if there is none.
#[inline]
#[must_use]
pub fn version(packet: &[u8]) -> u8 {
    packet.first().map_or(0, |byte| byte >> 4)
}
