//! Names that stand for numbers, and suggestions for words that are none.
//!
//! Ports come from a table and not from `/etc/services`, so that an expression means the same on
//! every machine and in a sandbox.

use towpath_wire::ethernet::{Mac, ethertype};
use towpath_wire::ip::protocol;

/// The fields, types and flags that an index or a comparison may name.
/// <https://www.tcpdump.org/manpages/pcap-filter.7.html>
const NUMBERS: [(&str, u32); 54] = [
    ("icmptype", 0),
    ("icmpcode", 1),
    ("icmp-echoreply", 0),
    ("icmp-unreach", 3),
    ("icmp-sourcequench", 4),
    ("icmp-redirect", 5),
    ("icmp-echo", 8),
    ("icmp-routeradvert", 9),
    ("icmp-routersolicit", 10),
    ("icmp-timxceed", 11),
    ("icmp-paramprob", 12),
    ("icmp-tstamp", 13),
    ("icmp-tstampreply", 14),
    ("icmp-ireq", 15),
    ("icmp-ireqreply", 16),
    ("icmp-maskreq", 17),
    ("icmp-maskreply", 18),
    ("icmp6type", 0),
    ("icmp6code", 1),
    ("icmp6-destinationunreach", 1),
    ("icmp6-packettoobig", 2),
    ("icmp6-timeexceeded", 3),
    ("icmp6-parameterproblem", 4),
    ("icmp6-echo", 128),
    ("icmp6-echoreply", 129),
    ("icmp6-multicastlistenerquery", 130),
    ("icmp6-multicastlistenerreportv1", 131),
    ("icmp6-multicastlistenerdone", 132),
    ("icmp6-routersolicit", 133),
    ("icmp6-routeradvert", 134),
    ("icmp6-neighborsolicit", 135),
    ("icmp6-neighboradvert", 136),
    ("icmp6-redirect", 137),
    ("icmp6-routerrenum", 138),
    ("icmp6-nodeinformationquery", 139),
    ("icmp6-nodeinformationresponse", 140),
    ("icmp6-ineighbordiscoverysolicit", 141),
    ("icmp6-ineighbordiscoveryadvert", 142),
    ("icmp6-multicastlistenerreportv2", 143),
    ("icmp6-homeagentdiscoveryrequest", 144),
    ("icmp6-homeagentdiscoveryreply", 145),
    ("icmp6-mobileprefixsolicit", 146),
    ("icmp6-mobileprefixadvert", 147),
    ("icmp6-certpathsolicit", 148),
    ("icmp6-certpathadvert", 149),
    ("tcpflags", 13),
    ("tcp-fin", 0x01),
    ("tcp-syn", 0x02),
    ("tcp-rst", 0x04),
    ("tcp-push", 0x08),
    ("tcp-ack", 0x10),
    ("tcp-urg", 0x20),
    ("tcp-ece", 0x40),
    ("tcp-cwr", 0x80),
];

pub(super) fn number(name: &str) -> Option<u32> {
    NUMBERS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// The transports that a service runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Tcp,
    Udp,
    Both,
}

const SERVICES: [(&str, u16, Over); 32] = [
    ("ftp", 21, Over::Tcp),
    ("ssh", 22, Over::Tcp),
    ("telnet", 23, Over::Tcp),
    ("smtp", 25, Over::Tcp),
    ("domain", 53, Over::Both),
    ("bootps", 67, Over::Udp),
    ("bootpc", 68, Over::Udp),
    ("tftp", 69, Over::Udp),
    ("http", 80, Over::Tcp),
    ("kerberos", 88, Over::Both),
    ("pop3", 110, Over::Tcp),
    ("sunrpc", 111, Over::Both),
    ("ntp", 123, Over::Udp),
    ("imap2", 143, Over::Tcp),
    ("snmp", 161, Over::Both),
    ("snmp-trap", 162, Over::Both),
    ("bgp", 179, Over::Tcp),
    ("ldap", 389, Over::Both),
    ("https", 443, Over::Both),
    ("isakmp", 500, Over::Udp),
    ("syslog", 514, Over::Udp),
    ("ldaps", 636, Over::Both),
    ("imaps", 993, Over::Tcp),
    ("openvpn", 1194, Over::Both),
    ("radius", 1812, Over::Both),
    ("nfs", 2049, Over::Both),
    ("mysql", 3306, Over::Tcp),
    ("vxlan", 4789, Over::Udp),
    ("sip", 5060, Over::Both),
    ("mdns", 5353, Over::Udp),
    ("postgresql", 5432, Over::Tcp),
    ("wireguard", 51820, Over::Udp),
];

pub(super) fn service(name: &str) -> Option<(u16, Over)> {
    SERVICES.iter().find(|(known, ..)| *known == name).map(|(_, port, over)| (*port, *over))
}

pub(super) fn services() -> impl Iterator<Item = &'static str> {
    SERVICES.iter().map(|(name, ..)| *name)
}

/// Names behind `ip proto`, `ip6 proto` and `proto`.
const PROTOCOLS: [(&str, u8); 18] = [
    ("icmp", protocol::ICMP),
    ("igmp", 2),
    ("ipip", 94),
    ("tcp", protocol::TCP),
    ("udp", protocol::UDP),
    ("ipv6", 41),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("ipv6-icmp", protocol::ICMPV6),
    ("icmp6", protocol::ICMPV6),
    ("eigrp", 88),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", protocol::SCTP),
    ("udplite", 136),
];

pub(super) fn ip_protocol(name: &str) -> Option<u8> {
    PROTOCOLS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// Names behind `ether proto`; below 0x0600 it is the SAP of an 802.2 header.
const ETHERTYPES: [(&str, u16); 15] = [
    ("ip", ethertype::IPV4),
    ("ip6", ethertype::IPV6),
    ("arp", ethertype::ARP),
    ("rarp", 0x8035),
    ("aarp", 0x80f3),
    ("atalk", 0x809b),
    ("decnet", 0x6003),
    ("lat", 0x6004),
    ("sca", 0x6007),
    ("moprc", 0x6002),
    ("mopdl", 0x6001),
    ("loopback", 0x9000),
    ("iso", 0xfe),
    ("stp", 0x42),
    ("netbeui", 0xf0),
];

pub(super) fn ether_type(name: &str) -> Option<u16> {
    ETHERTYPES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// A MAC address as `02:00:00:00:00:01`, `02-00-00-00-00-01`, `0200.0000.0001` or `020000000001`.
pub(super) fn mac(text: &str) -> Option<Mac> {
    let (parts, digits): (Vec<&str>, _) = match text {
        _ if text.contains(':') => (text.split(':').collect(), 2),
        _ if text.contains('-') => (text.split('-').collect(), 2),
        _ if text.contains('.') => (text.split('.').collect(), 4),
        _ => (vec![text], 12),
    };
    let hex = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lengths = parts.iter().all(|part| match digits {
        2 => (1..=2).contains(&part.len()),
        _ => part.len() == digits,
    });
    if parts.len() * digits != 12 || !lengths || !parts.iter().all(hex) {
        return None;
    }
    let value =
        parts.iter().try_fold(0u64, |value, part| Some(value << (digits * 4) | u64::from_str_radix(part, 16).ok()?))?;
    let [_, _, mac @ ..] = value.to_be_bytes();
    Some(mac)
}

/// The candidate that `word` most likely means: at most two letters are different, missing, too
/// many, or exchanged with their neighbours.
pub(super) fn closest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = if word.len() < 4 { 1 } else { 2 };
    // Words that are much longer than any candidate cost nothing.
    let near = candidates.filter(|candidate| word.len().abs_diff(candidate.len()) <= most);
    let near = near.map(|candidate| (strsim::osa_distance(word, candidate), candidate));
    near.filter(|(distance, _)| *distance <= most).min_by_key(|(distance, _)| *distance).map(|(_, near)| near)
}
