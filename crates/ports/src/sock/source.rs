//! Source filters: the addresses that applications may send from, by `source=`.
//!
//! ```text
//!   source=1000:02:00:00:00:00:01 10.0.0.2 2001:db8::/64+*:any
//!          user MAC               addresses              the next entry: any user, any frame
//! ```
//!
//! A frame must fit one entry of its user. With the option, a user without an entry can send
//! nothing. Ethernet's source address is compared, and, if the entry has IP addresses, the source
//! address of IPv4, of IPv6, or of ARP's sender, behind at most two VLAN tags; no other type passes
//! then. ARP's sender must have the MAC address as well. Not compared: what lies behind the IP
//! header (neighbour discovery, tunnels), and ARP's target.
//!
//! Headers in an application's page could change after the comparison. So the first
//! [`HEADERS`] bytes of each frame of such a session are copied, and the copy is compared and sent.
//! A checksum that the application asks for must begin behind the header that was compared, else
//! it would be written over an address.

use crate::sock::limits::parse_user;
use crate::uri::Options;
use towpath_engine::rules::{Match, Prefix, Rule};
use towpath_packet::port::PortError;
use towpath_packet::{Checksum, Packet};
use towpath_wire::ethernet::{self, Mac, ethertype};

/// Bytes that are copied: Ethernet, two tags, and the longest header in front of an address.
pub(super) const HEADERS: usize = 64;

const _: () = assert!(ethernet::HEADER_LEN + 2 * TAG + IPV6 <= HEADERS);

/// Bytes of a VLAN tag, and of the headers with addresses.
const TAG: usize = 4;
const IPV4: usize = 20;
const IPV6: usize = 40;
const ARP: usize = 28;

/// ARP for IPv4 on Ethernet, without the operation.
const ARP_ETHERNET: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Source addresses that a user's frames may have, one entry of `source=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The user; `None` for any.
    pub user: Option<u32>,
    /// The MAC address; `None` for any.
    pub mac: Option<Mac>,
    /// The IP addresses; empty for any.
    pub addresses: Vec<Prefix>,
}

impl Source {
    /// Takes the entries of `source=`, separated by `+`.
    pub(super) fn from_options(options: &mut Options) -> Result<Option<Vec<Source>>, PortError> {
        let Some(text) = options.text("source") else { return Ok(None) };
        let one = |entry: &str| Source::parse(entry.trim()).map_err(|rule| options.error("source", &text, rule));
        text.split('+').map(one).collect::<Result<_, _>>().map(Some)
    }

    fn parse(entry: &str) -> Result<Source, String> {
        let form = "must be USER:MAC ADDRESS… entries separated by +, such as 1000:02:00:00:00:00:01 10.0.0.2+0:any";
        let (user, what) = entry.split_once(':').ok_or(form)?;
        let user = parse_user(user).ok_or(form)?;
        let mut words = what.split_whitespace();
        let field = |name: &str, word: &str| {
            let rule = format!("pass {name} {word}").parse::<Rule>().map_err(|error| error.to_string())?;
            Ok::<Match, String>(rule.matches)
        };
        let mac = match words.next().ok_or(form)? {
            "any" => None,
            word => field("smac", word)?.src_mac,
        };
        let addresses = words.map(|word| Ok(field("src", word)?.src)).collect::<Result<Vec<_>, String>>()?;
        Ok(Source { user, mac, addresses: addresses.into_iter().flatten().collect() })
    }

    /// Whether it admits any frame.
    fn is_any(&self) -> bool {
        self.mac.is_none() && self.addresses.is_empty()
    }

    fn permits(&self, headers: &Headers) -> bool {
        let mac = |given: Option<Mac>| self.mac.is_none() || given.is_none() || self.mac == given;
        let address = match headers.address {
            _ if self.addresses.is_empty() => true,
            Some(address) => self.addresses.iter().any(|prefix| prefix.contains_address(address)),
            None => false,
        };
        mac(Some(headers.mac)) && mac(headers.arp_mac) && address
    }
}

/// The sources of one session.
#[derive(Debug)]
pub(super) struct Sources(Box<[Source]>);

impl Sources {
    /// The sources for a user; `None` if frames need not be looked at.
    pub(super) fn of(user: u32, entries: Option<&[Source]>) -> Option<Sources> {
        let own = entries?.iter().filter(|entry| entry.user.is_none_or(|only| only == user));
        let own: Box<[Source]> = own.cloned().collect();
        (!own.iter().any(Source::is_any)).then_some(Sources(own))
    }

    /// Whether a packet with a linear copy of its headers may be sent.
    pub(super) fn permit(&self, packet: &Packet) -> bool {
        Headers::read(packet.linear()).is_some_and(|headers| {
            let keeps = match packet.csum() {
                Checksum::Partial { start, .. } => usize::from(start) >= headers.end,
                _ => true,
            };
            keeps && self.0.iter().any(|source| source.permits(&headers))
        })
    }
}

/// The source addresses of a frame.
#[derive(Debug, PartialEq, Eq)]
struct Headers {
    mac: Mac,
    arp_mac: Option<Mac>,
    address: Option<std::net::IpAddr>,
    /// The first byte behind the headers that have them.
    end: usize,
}

impl Headers {
    /// `None` if a header is incomplete, or contradicts the type in front of it.
    fn read(frame: &[u8]) -> Option<Headers> {
        let field = |at: usize| frame.get(at..)?.first_chunk::<2>().copied().map(u16::from_be_bytes);
        let mac = *frame.get(6..)?.first_chunk()?;
        let mut at = ethernet::HEADER_LEN;
        let mut kind = field(12)?;
        for _ in 0..2 {
            if ethertype::is_tag(kind) {
                kind = field(at + 2)?;
                at += TAG;
            }
        }
        let rest = frame.get(at..)?;
        let version = |number: u8| rest.first().is_some_and(|byte| byte >> 4 == number);
        let (address, arp_mac, len) = match kind {
            ethertype::IPV4 if version(4) => (Some((*rest.get(12..IPV4)?.first_chunk::<4>()?).into()), None, IPV4),
            ethertype::IPV6 if version(6) => (Some((*rest.get(8..IPV6)?.first_chunk::<16>()?).into()), None, IPV6),
            ethertype::ARP if rest.starts_with(&ARP_ETHERNET) => {
                let sender = rest.get(8..ARP)?;
                let address = *sender.get(6..)?.first_chunk::<4>()?;
                (Some(address.into()), sender.first_chunk().copied(), ARP)
            }
            ethertype::IPV4 | ethertype::IPV6 | ethertype::ARP => return None,
            _ => (None, None, 0),
        };
        Some(Headers { mac, arp_mac, address, end: at + len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(text: &str) -> Option<Sources> {
        let uri: crate::uri::Uri = format!("sock:/s?source={text}").parse().unwrap();
        let mut options = uri.options(crate::sock::KIND.options);
        Sources::of(7, Source::from_options(&mut options).unwrap().as_deref())
    }

    const MAC: Mac = [2, 0, 0, 0, 0, 1];

    /// A frame from [`MAC`] with these bytes behind it, in front of which are tags.
    fn frame(tags: usize, kind: u16, header: &[u8]) -> Vec<u8> {
        let mut bytes = [[0xff; 6], MAC].concat();
        (0..tags).for_each(|_| bytes.extend([0x81, 0, 0, 5]));
        bytes.extend(kind.to_be_bytes());
        bytes.extend(header);
        bytes
    }

    fn v4(source: [u8; 4]) -> Vec<u8> {
        [&[0x45; 12][..], &source, &[0; 4]].concat()
    }

    fn v6(source: u16) -> Vec<u8> {
        let address = std::net::Ipv6Addr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, source]).octets();
        [&[0x60; 8][..], &address, &[0; 16]].concat()
    }

    fn arp(mac: Mac, source: [u8; 4]) -> Vec<u8> {
        [&ARP_ETHERNET[..], &[0, 1], &mac, &source, &[0; 10]].concat()
    }

    #[test]
    fn a_frame_may_have_the_addresses_of_its_user_and_no_others() {
        let sources = sources("7:02:00:00:00:00:01 10.0.0.2 2001:db8::/126+8:any").unwrap();
        let permits = |frame: &[u8]| {
            Headers::read(frame).is_some_and(|headers| sources.0.iter().any(|source| source.permits(&headers)))
        };
        for tags in 0..3 {
            assert!(permits(&frame(tags, 0x0800, &v4([10, 0, 0, 2]))), "{tags} tags");
            assert!(!permits(&frame(tags, 0x0800, &v4([10, 0, 0, 3]))));
            assert!(permits(&frame(tags, 0x86dd, &v6(3))) && !permits(&frame(tags, 0x86dd, &v6(4))));
            assert!(permits(&frame(tags, 0x0806, &arp(MAC, [10, 0, 0, 2]))));
            assert!(!permits(&frame(tags, 0x0806, &arp(MAC, [10, 0, 0, 9]))));
            assert!(!permits(&frame(tags, 0x0806, &arp([2, 0, 0, 0, 0, 2], [10, 0, 0, 2]))));
        }
        let mut other = frame(0, 0x0800, &v4([10, 0, 0, 2]));
        other[11] = 9;
        assert!(!permits(&other), "another MAC address");
        assert!(!permits(&frame(3, 0x0800, &v4([10, 0, 0, 2]))), "three tags: the address is not found");
        assert!(!permits(&frame(0, 0x0800, &v4([10, 0, 0, 2])[..19])), "half a header");
        assert!(!permits(&frame(0, 0x0800, &v6(3))) && !permits(&frame(0, 0x88cc, &[0; 46])));
    }

    #[test]
    fn an_entry_without_addresses_pins_the_mac_alone_and_any_pins_nothing() {
        let mac = sources("7:02:00:00:00:00:01").unwrap();
        let permits =
            |frame: &[u8]| Headers::read(frame).is_some_and(|headers| mac.0.iter().any(|one| one.permits(&headers)));
        assert!(permits(&frame(0, 0x88cc, &[0; 46])) && permits(&frame(0, 0x0800, &v4([1, 2, 3, 4]))));
        assert!(!permits(&frame(0, 0x0806, &arp([2; 6], [1, 2, 3, 4]))));
        assert!(sources("7:02:00:00:00:00:01+*:any").is_none(), "nothing to look at");
        assert!(sources("8:any").unwrap().0.is_empty(), "no entry: nothing may be sent");
    }

    #[test]
    fn an_entry_that_is_wrong_is_named_with_its_form() {
        let error = |text: &str| {
            let uri: crate::uri::Uri = format!("sock:/s?source={text}").parse().unwrap();
            Source::from_options(&mut uri.options(crate::sock::KIND.options)).unwrap_err().to_string()
        };
        assert!(error("02:00:00:00:00:00:01x").contains("must be"));
        assert!(error("x:any").contains("USER:MAC"));
        assert!(error("7:").contains("USER:MAC"));
        assert!(error("7:02:00:00:00:00:01 10.0.0.300").contains("10.0.0.300"));
    }
}
