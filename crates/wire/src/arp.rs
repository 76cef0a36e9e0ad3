//! ARP for IPv4 over Ethernet ([RFC 826](https://www.rfc-editor.org/rfc/rfc826)).

use crate::Error;
use crate::ethernet::ethertype;
use core::net::Ipv4Addr;

/// Operation: request the hardware address of a protocol address.
pub const REQUEST: u16 = 1;
/// Operation: reply.
pub const REPLY: u16 = 2;

/// Hardware type of Ethernet.
pub const ETHERNET: u16 = 1;

header! {
    Arp: 28 bytes;
    /// Hardware type.
    0 HARDWARE: u16, hardware, set_hardware;
    /// Protocol type, an ethertype.
    2 PROTOCOL: u16, protocol, set_protocol;
    /// Length of hardware addresses.
    4 HARDWARE_LEN: u8, hardware_len, set_hardware_len;
    /// Length of protocol addresses.
    5 PROTOCOL_LEN: u8, protocol_len, set_protocol_len;
    /// Operation: [`REQUEST`] or [`REPLY`].
    6 OPERATION: u16, operation, set_operation;
    /// Sender's Ethernet address.
    8 SENDER_MAC: [u8; 6], sender_mac, set_sender_mac;
    /// Sender's IPv4 address.
    14 SENDER_IP: Ipv4Addr, sender_ip, set_sender_ip;
    /// Target's Ethernet address, ignored in requests.
    18 TARGET_MAC: [u8; 6], target_mac, set_target_mac;
    /// Target's IPv4 address.
    24 TARGET_IP: Ipv4Addr, target_ip, set_target_ip;
}

/// An ARP message for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug)]
pub struct Arp<'a> {
    header: Header<&'a [u8; HEADER_LEN]>,
}

impl<'a> Arp<'a> {
    /// Reads the message at the beginning of `bytes`; Ethernet padding may follow.
    ///
    /// # Errors
    /// [`Error::Truncated`]; [`Error::Unsupported`] for other hardware or protocols.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, _) = Header::split(bytes)?;
        let kind = (header.hardware(), header.protocol());
        let lengths = (header.hardware_len(), header.protocol_len());
        if kind != (ETHERNET, ethertype::IPV4) || lengths != (6, 4) {
            return Err(Error::Unsupported);
        }
        Ok(Self { header })
    }
}
