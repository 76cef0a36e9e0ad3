//! ARP and IP headers.

use crate::ethernet::{Mac, ethertype};
use crate::{Error, arp, checksum, ipv4, ipv6};
use core::net::{Ipv4Addr, Ipv6Addr};

/// An ARP message for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// [`arp::REQUEST`] or [`arp::REPLY`].
    pub operation: u16,
    /// Sender's Ethernet address.
    pub sender_mac: Mac,
    /// Sender's IPv4 address.
    pub sender_ip: Ipv4Addr,
    /// Target's Ethernet address.
    pub target_mac: Mac,
    /// Target's IPv4 address.
    pub target_ip: Ipv4Addr,
}

impl Default for Arp {
    fn default() -> Self {
        let (mac, ip) = (Mac::default(), Ipv4Addr::UNSPECIFIED);
        Self { operation: 0, sender_mac: mac, sender_ip: ip, target_mac: mac, target_ip: ip }
    }
}

impl Arp {
    pub(super) fn write(&self, packet: &mut [u8]) -> Result<(), Error> {
        let (mut header, _) = arp::Header::split_mut(packet)?;
        header.set_hardware(arp::ETHERNET);
        header.set_protocol(ethertype::IPV4);
        header.set_hardware_len(6);
        header.set_protocol_len(4);
        header.set_operation(self.operation);
        header.set_sender_mac(self.sender_mac);
        header.set_sender_ip(self.sender_ip);
        header.set_target_mac(self.target_mac);
        header.set_target_ip(self.target_ip);
        Ok(())
    }
}

/// Source and destination, which also choose the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpAddresses {
    /// IPv4.
    V4 {
        /// Source.
        src: Ipv4Addr,
        /// Destination.
        dst: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Source.
        src: Ipv6Addr,
        /// Destination.
        dst: Ipv6Addr,
    },
}

/// An IP header without options or extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source and destination.
    pub addresses: IpAddresses,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// IPv4 identification.
    pub id: u16,
    /// IPv4 flags and fragment offset, see [`ipv4::DONT_FRAGMENT`].
    pub fragment: u16,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

impl Ip {
    /// IPv4, TTL 64, not to be fragmented.
    #[must_use]
    pub fn v4(src: impl Into<Ipv4Addr>, dst: impl Into<Ipv4Addr>) -> Self {
        Self::new(IpAddresses::V4 { src: src.into(), dst: dst.into() })
    }

    /// IPv6, hop limit 64.
    #[must_use]
    pub fn v6(src: impl Into<Ipv6Addr>, dst: impl Into<Ipv6Addr>) -> Self {
        Self::new(IpAddresses::V6 { src: src.into(), dst: dst.into() })
    }

    const fn new(addresses: IpAddresses) -> Self {
        Self { addresses, ttl: 64, tos: 0, id: 0, fragment: ipv4::DONT_FRAGMENT, flow_label: 0 }
    }

    /// Whether this is IPv4.
    #[must_use]
    pub const fn is_v4(&self) -> bool {
        matches!(self.addresses, IpAddresses::V4 { .. })
    }

    /// Length of the header.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        if self.is_v4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN }
    }

    /// The sum of the pseudo-header for `len` bytes of `protocol`.
    #[must_use]
    pub fn pseudo_sum(&self, protocol: u8, len: u32) -> u16 {
        match self.addresses {
            IpAddresses::V4 { src, dst } => checksum::pseudo_v4(src, dst, protocol, len),
            IpAddresses::V6 { src, dst } => checksum::pseudo_v6(src, dst, protocol, len),
        }
    }

    /// Writes the header of a packet that fills `packet`, returns what is behind it.
    pub(super) fn write<'a>(&self, packet: &'a mut [u8], protocol: u8) -> Result<&'a mut [u8], Error> {
        let len = packet.len();
        match self.addresses {
            IpAddresses::V4 { src, dst } => {
                let (mut header, rest) = ipv4::Header::split_mut(packet)?;
                header.set_version_ihl(0x45);
                header.set_tos(self.tos);
                header.set_total_len(len.try_into().map_err(|_| Error::Length)?);
                header.set_id(self.id);
                header.set_fragment(self.fragment);
                header.set_ttl(self.ttl);
                header.set_protocol(protocol);
                header.set_src(src);
                header.set_dst(dst);
                header.fill_checksum();
                Ok(rest)
            }
            IpAddresses::V6 { src, dst } => {
                let (mut header, rest) = ipv6::Header::split_mut(packet)?;
                header.set_class_and_flow(self.tos, self.flow_label);
                header.set_payload_len(rest.len().try_into().map_err(|_| Error::Length)?);
                header.set_next_header(protocol);
                header.set_hop_limit(self.ttl);
                header.set_src(src);
                header.set_dst(dst);
                Ok(rest)
            }
        }
    }
}
