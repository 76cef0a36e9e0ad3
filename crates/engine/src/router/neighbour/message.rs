//! ARP and neighbour discovery: what messages say, and the messages of a router.
//!
//! A message is checked before it is used: lengths, checksum, hop limit 255, and that addresses are
//! of one station (RFC 826, RFC 4861 sections 7.1.1 and 7.1.2).

use super::super::icmp::{fill_checksum6, is_valid6};
use super::{Key, Solicitation};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_wire::ethernet::{self, BROADCAST, Mac, ethertype};
use towpath_wire::icmp::v6;
use towpath_wire::ip::protocol;
use towpath_wire::{Arp, arp, icmp, ipv6};

/// Longest message of [`Discovery`].
pub(in super::super) const MAX_MESSAGE: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + 32;
/// The hop limit of discovery: a message that was routed has another one.
const HOP_LIMIT: u8 = 255;
/// Options: the Ethernet address of a message's sender, and of its target.
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
/// Flags of an advertisement.
const ROUTER: u32 = 1 << 31;
const SOLICITED: u32 = 1 << 30;
const OVERRIDE: u32 = 1 << 29;

/// What a message says of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// The neighbour.
    pub key: Key,
    /// Its address, if the message has one.
    pub mac: Option<Mac>,
    /// It answers a solicitation.
    pub solicited: bool,
    /// It may replace a known address.
    pub overrides: bool,
    /// It makes an entry if there is none: a solicitation to the router itself.
    pub creates: bool,
    /// It came by ARP.
    pub is_arp: bool,
}

/// A message, as the router acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Discovery {
    /// What it says.
    pub heard: Option<Heard>,
    /// The answer that it requests.
    pub advertisement: Option<Advertisement>,
}

/// The answer to a solicitation: an ARP reply, or a neighbour advertisement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advertisement {
    /// The address of the router that was asked for.
    target: IpAddr,
    /// Where it goes; the unspecified address: to all.
    from: IpAddr,
    mac: Mac,
}

fn is_one(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != Mac::default()
}

/// The group of the nodes that may have an address (RFC 4291 section 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let low = u128::from(address) & 0xff_ffff;
    Ipv6Addr::from(0xff02_0000_0000_0000_0000_0001_ff00_0000 | low)
}

/// The Ethernet group of an IPv6 group.
fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

impl Discovery {
    /// Reads an ARP message: `payload` is what follows the Ethernet header of a frame that came by
    /// `port`, `to_all` if the frame was for all stations. `is_own`: whether an address is the
    /// router's. `None` for a message that a router ignores.
    pub fn arp(payload: &[u8], port: u16, to_all: bool, is_own: impl Fn(IpAddr) -> bool) -> Option<Discovery> {
        let message = Arp::parse(payload).ok()?;
        let operation = message.operation();
        let (sender, target, mac) = (message.sender_ip(), message.target_ip(), message.sender_mac());
        let is_known = matches!(operation, arp::REQUEST | arp::REPLY);
        let is_legal = |address: Ipv4Addr| !address.is_multicast() && !address.is_loopback() && !address.is_broadcast();
        if !is_known || !is_one(mac) || !is_legal(sender) || !is_legal(target) || is_own(sender.into()) {
            return None;
        }
        let is_request = operation == arp::REQUEST && is_own(target.into());
        let advertisement = is_request.then(|| Advertisement { target: target.into(), from: sender.into(), mac });
        if sender.is_unspecified() {
            // A station that looks whether an address is free (RFC 5227).
            return advertisement.map(|advertisement| Discovery { heard: None, advertisement: Some(advertisement) });
        }
        let is_announcement = sender == target;
        let heard = Heard {
            key: Key { port, address: sender.into() },
            mac: Some(mac),
            solicited: operation == arp::REPLY && !to_all && !is_announcement,
            overrides: is_announcement,
            creates: is_request,
            is_arp: true,
        };
        Some(Discovery { heard: Some(heard), advertisement })
    }

    /// Reads a neighbour solicitation or advertisement: `packet` is the whole IPv6 packet.
    pub fn nd(packet: &[u8], port: u16, is_own: impl Fn(IpAddr) -> bool) -> Option<Discovery> {
        let (header, message) = ipv6::Header::split(packet).ok()?;
        let message = message.get(..usize::from(header.payload_len()))?;
        let (src, dst) = (header.src(), header.dst());
        let (fixed, rest) = icmp::Header::split(message).ok()?;
        let is_sound = header.next_header() == protocol::ICMPV6
            && header.hop_limit() == HOP_LIMIT
            && fixed.code() == 0
            && is_valid6(src, dst, message);
        let (target, options) = rest.split_first_chunk::<16>()?;
        let target = Ipv6Addr::from(*target);
        if !is_sound || target.is_multicast() {
            return None;
        }
        match fixed.kind() {
            v6::NEIGHBOUR_SOLICITATION => {
                let mac = link_option(options, SOURCE_LINK)?;
                if !is_own(target.into()) {
                    return None;
                }
                if src.is_unspecified() {
                    // Its sender looks whether the address is free (RFC 4862).
                    let is_sound = mac.is_none() && dst == solicited_node(target);
                    let advertisement = Advertisement { target: target.into(), from: src.into(), mac: Mac::default() };
                    return is_sound.then_some(Discovery { heard: None, advertisement: Some(advertisement) });
                }
                if src.is_multicast() || is_own(src.into()) {
                    return None;
                }
                let key = Key { port, address: src.into() };
                let heard = mac.map(|mac| Heard {
                    key,
                    mac: Some(mac),
                    solicited: false,
                    overrides: true,
                    creates: true,
                    is_arp: false,
                });
                let advertisement =
                    Advertisement { target: target.into(), from: src.into(), mac: mac.unwrap_or_default() };
                Some(Discovery { heard, advertisement: Some(advertisement) })
            }
            v6::NEIGHBOUR_ADVERTISEMENT => {
                let flags = fixed.rest();
                let solicited = flags & SOLICITED != 0;
                if solicited && dst.is_multicast() || is_own(target.into()) {
                    return None;
                }
                let mac = link_option(options, TARGET_LINK)?;
                let overrides = flags & OVERRIDE != 0;
                let key = Key { port, address: target.into() };
                let heard = Heard { key, mac, solicited, overrides, creates: false, is_arp: false };
                Some(Discovery { heard: Some(heard), advertisement: None })
            }
            _ => None,
        }
    }
}

/// The address in an option; `None` for options that make a message invalid.
#[allow(clippy::option_option)] // an invalid message, or one without the option
fn link_option(mut options: &[u8], kind: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while !options.is_empty() {
        let len = usize::from(*options.get(1)?) * 8;
        let option = options.get(..len).filter(|option| !option.is_empty())?;
        if option.first() == Some(&kind)
            && let Some(mac) = option.get(2..8).and_then(|mac| Mac::try_from(mac).ok())
        {
            if !is_one(mac) {
                return None;
            }
            found = Some(mac);
        }
        options = options.get(len..)?;
    }
    Some(found)
}

fn ethernet(out: &mut [u8], dst: Mac, src: Mac, ethertype: u16) -> Option<&mut [u8]> {
    let (mut header, rest) = ethernet::Header::split_mut(out).ok()?;
    header.set_dst(dst);
    header.set_src(src);
    header.set_ethertype(ethertype);
    Some(rest)
}

/// Fields of an ARP message.
struct ArpFields {
    operation: u16,
    sender: (Mac, Ipv4Addr),
    target: (Mac, Ipv4Addr),
}

fn write_arp(out: &mut [u8], to: Mac, fields: &ArpFields) -> Option<usize> {
    let rest = ethernet(out, to, fields.sender.0, ethertype::ARP)?;
    let (mut message, _) = arp::Header::split_mut(rest).ok()?;
    message.set_hardware(arp::ETHERNET);
    message.set_protocol(ethertype::IPV4);
    message.set_hardware_len(6);
    message.set_protocol_len(4);
    message.set_operation(fields.operation);
    message.set_sender_mac(fields.sender.0);
    message.set_sender_ip(fields.sender.1);
    message.set_target_mac(fields.target.0);
    message.set_target_ip(fields.target.1);
    Some(ethernet::HEADER_LEN + arp::HEADER_LEN)
}

/// A neighbour discovery message: type, the four bytes behind the checksum, target, one option.
struct NdFields {
    kind: u8,
    four: u32,
    target: Ipv6Addr,
    option: u8,
}

fn write_nd(out: &mut [u8], to: (Mac, Ipv6Addr), from: (Mac, Ipv6Addr), fields: &NdFields) -> Option<usize> {
    let rest = ethernet(out, to.0, from.0, ethertype::IPV6)?;
    let (mut header, rest) = ipv6::Header::split_mut(rest).ok()?;
    let message = rest.get_mut(..32)?;
    header.set_class_and_flow(0, 0);
    header.set_payload_len(32);
    header.set_next_header(protocol::ICMPV6);
    header.set_hop_limit(HOP_LIMIT);
    header.set_src(from.1);
    header.set_dst(to.1);
    let (mut fixed, rest) = icmp::Header::split_mut(message).ok()?;
    fixed.set_kind(fields.kind);
    fixed.set_code(0);
    fixed.set_rest(fields.four);
    rest.get_mut(..16)?.copy_from_slice(&fields.target.octets());
    rest.get_mut(16..18)?.copy_from_slice(&[fields.option, 1]);
    rest.get_mut(18..24)?.copy_from_slice(&from.0);
    fill_checksum6(from.1, to.1, message);
    Some(MAX_MESSAGE)
}

impl Solicitation {
    /// Writes it as a frame from `mac` and `source`, an address of the interface; returns its
    /// length.
    pub(in super::super) fn write(&self, out: &mut [u8; MAX_MESSAGE], mac: Mac, source: IpAddr) -> Option<usize> {
        match (self.key.address, source) {
            (IpAddr::V4(target), IpAddr::V4(source)) => {
                let target = (Mac::default(), target);
                let fields = ArpFields { operation: arp::REQUEST, sender: (mac, source), target };
                write_arp(out, self.to.unwrap_or(BROADCAST), &fields)
            }
            (IpAddr::V6(target), IpAddr::V6(source)) => {
                let group = solicited_node(target);
                let to = self.to.map_or((group_mac(group), group), |mac| (mac, target));
                let fields = NdFields { kind: v6::NEIGHBOUR_SOLICITATION, four: 0, target, option: SOURCE_LINK };
                write_nd(out, to, (mac, source), &fields)
            }
            _ => None,
        }
    }
}

impl Advertisement {
    /// Writes it as a frame from `mac`; returns its length. `frame_source`: the other station's
    /// address, if the solicitation did not have it; `None` if that is no station's either.
    pub(in super::super) fn write(&self, out: &mut [u8; MAX_MESSAGE], mac: Mac, frame_source: Mac) -> Option<usize> {
        match (self.target, self.from) {
            (IpAddr::V4(target), IpAddr::V4(from)) => {
                let fields = ArpFields { operation: arp::REPLY, sender: (mac, target), target: (self.mac, from) };
                write_arp(out, self.mac, &fields)
            }
            (IpAddr::V6(target), IpAddr::V6(from)) => {
                let option = TARGET_LINK;
                let kind = v6::NEIGHBOUR_ADVERTISEMENT;
                if from.is_unspecified() {
                    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
                    let fields = NdFields { kind, four: ROUTER | OVERRIDE, target, option };
                    return write_nd(out, (group_mac(group), group), (mac, target), &fields);
                }
                let to = [self.mac, frame_source].into_iter().find(|mac| is_one(*mac))?;
                let fields = NdFields { kind, four: ROUTER | SOLICITED | OVERRIDE, target, option };
                write_nd(out, (to, from), (mac, target), &fields)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_a_solicitation_without_an_address_goes_to_the_station_that_sent_it_and_to_no_group() {
        let [target, from] = ["fd00::1", "fd00::2"].map(|address| address.parse().unwrap());
        let advertisement = Advertisement { target, from, mac: Mac::default() };
        let to = |frame_source| {
            let mut out = [0; MAX_MESSAGE];
            advertisement.write(&mut out, [2, 0, 0, 0, 0, 1], frame_source).map(|_| out[..6].to_vec())
        };
        assert_eq!(to([2, 0, 0, 0, 0, 9]), Some(vec![2, 0, 0, 0, 0, 9]));
        assert_eq!([to([3, 0, 0, 0, 0, 9]), to(BROADCAST), to(Mac::default())], [None, None, None]);
    }
}
