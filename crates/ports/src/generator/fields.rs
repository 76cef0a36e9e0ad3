//! The fields of headers that options give, and their place in a frame that is there already.

use super::config::Config;
use super::sweep::{self, Field, Sweep, addresses, range};
use crate::uri::{Options, parse_number};
use std::net::IpAddr;
use towpath_packet::port::PortError;
use towpath_wire::ethernet::Mac;
use towpath_wire::ip::protocol;
use towpath_wire::{Dissected, LinkKind, checksum, dissect};

/// The fields that are given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Fields {
    /// The identifier of the 802.1Q tag.
    pub vlan: Option<Sweep<u16>>,
    /// Ethernet source.
    pub src_mac: Option<Sweep<Mac>>,
    /// Ethernet destination.
    pub dst_mac: Option<Sweep<Mac>>,
    /// Source address.
    pub src_ip: Option<Sweep<IpAddr>>,
    /// Destination address.
    pub dst_ip: Option<Sweep<IpAddr>>,
    /// Source port.
    pub src_port: Option<Sweep<u16>>,
    /// Destination port.
    pub dst_port: Option<Sweep<u16>>,
}

/// Flows of a range if none are given.
const LONGEST: u128 = 1 << 16;

const MACS: &str = "must be six bytes such as 02:00:00:00:00:01, or FIRST-LAST";
const ADDRESSES: &str = "must be an IP address, FIRST-LAST, or PREFIX/LENGTH";

fn parsed<T>(
    options: &mut Options,
    name: &'static str,
    parse: impl Fn(&str) -> Option<T>,
    rule: &str,
) -> Result<Option<T>, PortError> {
    let Some(text) = options.text(name) else { return Ok(None) };
    parse(&text).map(Some).ok_or_else(|| options.error(name, text, rule))
}

fn number(text: &str) -> Option<u16> {
    u16::try_from(parse_number(text)?).ok()
}

fn mac(text: &str) -> Option<Mac> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let digits = parts.next().filter(|d| (1..=2).contains(&d.len()) && !d.starts_with('+'))?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

impl Fields {
    /// Takes the options of all fields.
    pub(super) fn of(o: &mut Options) -> Result<Fields, PortError> {
        let ports = "must be a number from 0 to 65535, or FIRST-LAST";
        let vlans = "must be from 1 to 4094, or FIRST-LAST";
        Ok(Fields {
            vlan: parsed(o, "vlan", |text| range(text, number), vlans)?,
            src_mac: parsed(o, "src-mac", |text| range(text, mac), MACS)?,
            dst_mac: parsed(o, "dst-mac", |text| range(text, mac), MACS)?,
            src_ip: parsed(o, "src-ip", addresses, ADDRESSES)?,
            dst_ip: parsed(o, "dst-ip", addresses, ADDRESSES)?,
            src_port: parsed(o, "src-port", |text| range(text, number), ports)?,
            dst_port: parsed(o, "dst-port", |text| range(text, number), ports)?,
        })
    }

    /// The values of the longest range, at most 65536.
    pub(super) fn longest(&self) -> u32 {
        fn of<T: Field>(range: Option<Sweep<T>>) -> u128 {
            range.map_or(0, sweep::count)
        }
        let [vlan, src_port, dst_port] = [self.vlan, self.src_port, self.dst_port].map(of);
        let [src_mac, dst_mac] = [self.src_mac, self.dst_mac].map(of);
        let [src_ip, dst_ip] = [self.src_ip, self.dst_ip].map(of);
        let all = [vlan, src_port, dst_port, src_mac, dst_mac, src_ip, dst_ip];
        all.into_iter().max().unwrap_or(0).min(LONGEST) as u32
    }

    /// Replaces the fields of a generator that are given here.
    pub(super) fn apply(&self, config: &mut Config) {
        config.vlan = self.vlan.or(config.vlan);
        config.src_mac = self.src_mac.unwrap_or(config.src_mac);
        config.dst_mac = self.dst_mac.unwrap_or(config.dst_mac);
        config.src_ip = self.src_ip.unwrap_or(config.src_ip);
        config.dst_ip = self.dst_ip.unwrap_or(config.dst_ip);
        config.src_port = self.src_port.unwrap_or(config.src_port);
        config.dst_port = self.dst_port.unwrap_or(config.dst_port);
    }

    /// Writes the values of flow `index` to a frame. Checksums over them change by the difference:
    /// those that are right stay right.
    ///
    /// # Errors
    /// The option that has no place in the frame, and the rule.
    pub(super) fn write(&self, frame: &mut [u8], link: LinkKind, index: u32) -> Result<(), (&'static str, String)> {
        let found = dissect(frame, link);
        let missing = |option: &'static str, what: &str| Err((option, format!("needs {what} in the frame")));
        let macs = [("dst-mac", self.dst_mac, 0), ("src-mac", self.src_mac, 6)];
        for (option, range, at) in macs.into_iter().filter_map(|(o, range, at)| Some((o, range?, at))) {
            let bytes = sweep::at(range, index);
            match frame.get_mut(at..at + 6).filter(|_| link == LinkKind::Ethernet) {
                Some(field) => field.copy_from_slice(&bytes),
                None => return missing(option, "an Ethernet header"),
            }
        }
        if let Some(range) = self.vlan {
            let tagged = found.tags[0].tpid != 0;
            let Some(tci) = frame.get_mut(14..16).filter(|_| tagged) else {
                return missing("vlan", "an 802.1Q tag");
            };
            let id = sweep::at(range, index);
            tci.copy_from_slice(&(u16::from_be_bytes([tci[0], tci[1]]) & 0xf000 | id & 0xfff).to_be_bytes());
        }
        for (option, range, source) in [("src-ip", self.src_ip, true), ("dst-ip", self.dst_ip, false)] {
            let Some(range) = range else { continue };
            let l3 = usize::from(found.l3);
            let replaced = match sweep::at(range, index) {
                IpAddr::V4(ip) if found.is_ipv4() => {
                    let header = Some(l3 + 10);
                    replace(frame, l3 + if source { 12 } else { 16 }, &ip.octets(), [header, transport(&found)])
                }
                IpAddr::V6(ip) if found.is_ipv6() => {
                    replace(frame, l3 + if source { 8 } else { 24 }, &ip.octets(), [transport(&found), None])
                }
                IpAddr::V4(_) => return missing(option, "an IPv4 header"),
                IpAddr::V6(_) => return missing(option, "an IPv6 header"),
            };
            if replaced.is_none() {
                return missing(option, "a whole IP header");
            }
        }
        for (option, range, at) in [("src-port", self.src_port, 0), ("dst-port", self.dst_port, 2)] {
            let Some(range) = range else { continue };
            let port = sweep::at(range, index).to_be_bytes();
            let place = transport(&found).map(|check| (usize::from(found.l4) + at, check));
            let replaced = place.and_then(|(at, check)| replace(frame, at, &port, [Some(check), None]));
            if replaced.is_none() {
                return missing(option, "a UDP or TCP header");
            }
        }
        Ok(())
    }
}

/// The offset of the transport's checksum, of UDP and TCP.
pub(super) fn transport(found: &Dissected) -> Option<usize> {
    let l4 = usize::from(found.l4);
    match found.flow.protocol {
        _ if l4 == 0 || found.payload <= found.l4 => None,
        protocol::UDP => Some(l4 + 6),
        protocol::TCP => Some(l4 + 16),
        _ => None,
    }
}

/// Replaces bytes at an even offset of what the checksums at `checks` cover. A UDP checksum that is
/// left out stays so.
fn replace(frame: &mut [u8], at: usize, new: &[u8], checks: [Option<usize>; 2]) -> Option<()> {
    let old = frame.get(at..at + new.len())?.to_vec();
    for check in checks.into_iter().flatten() {
        let field = frame.get_mut(check..)?.first_chunk_mut::<2>()?;
        let before = u16::from_be_bytes(*field);
        if before != 0 {
            let after = checksum::update_bytes(before, &old, new);
            // Zero is no checksum for UDP, and all ones has the same sum everywhere.
            *field = (if after == 0 { 0xffff } else { after }).to_be_bytes();
        }
    }
    frame.get_mut(at..at + new.len())?.copy_from_slice(new);
    Some(())
}
