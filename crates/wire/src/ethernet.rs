//! Ethernet II frames, without preamble and frame check sequence (IEEE 802.3 section 3).

use crate::Error;

/// A MAC address.
pub type Mac = [u8; 6];

/// A MAC address as text: `02:00:00:00:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacText(pub Mac);

impl core::fmt::Display for MacText {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The address that a text names: six bytes of two hexadecimal digits, with colons between them.
#[must_use]
pub fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = Mac::default();
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    if parts.next().is_some() { None } else { Some(mac) }
}

/// All stations.
pub const BROADCAST: Mac = [0xff; 6];

/// Bytes of the longest packet: 65535 of IP behind an Ethernet header and two tags.
pub const MAX_PACKET: usize = 65535 + HEADER_LEN + 2 * crate::vlan::HEADER_LEN;

/// Ethertypes (IANA "IEEE 802 Numbers"). Below [`MIN`](ethertype::MIN) the field is a length
/// (IEEE 802.3 LLC frames).
pub mod ethertype {
    /// The smallest value that is a type and not a length.
    pub const MIN: u16 = 0x0600;
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// Transparent Ethernet bridging: an Ethernet frame inside GRE or GENEVE.
    pub const TEB: u16 = 0x6558;
    /// An 802.1Q tag (C-tag).
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// An 802.1ad tag (S-tag), the outer one of QinQ.
    pub const QINQ: u16 = 0x88a8;
    /// The outer tag of QinQ before it was standardised.
    pub const QINQ_OLD: u16 = 0x9100;

    /// Whether a VLAN tag follows.
    #[inline]
    #[must_use]
    pub const fn is_tag(ethertype: u16) -> bool {
        matches!(ethertype, VLAN | QINQ | QINQ_OLD)
    }
}

header! {
    Ethernet: 14 bytes;
    /// Destination address.
    0 DST: [u8; 6], dst, set_dst;
    /// Source address.
    6 SRC: [u8; 6], src, set_src;
    /// The type of the payload, or its length if below [`ethertype::MIN`].
    12 ETHERTYPE: u16, ethertype, set_ethertype;
}

plain_view! {
    /// An Ethernet frame.
    Ethernet;
    /// Reads the header at the beginning of `bytes`.
    parse;
    /// The bytes after the header: tags, network packet, padding.
    payload;
}

impl<'a> Ethernet<'a> {
    /// The VLAN tags, outermost first.
    #[inline]
    #[must_use]
    pub fn tags(&self) -> crate::vlan::Tags<'a> {
        crate::vlan::Tags::new(self.ethertype(), self.payload)
    }
}
