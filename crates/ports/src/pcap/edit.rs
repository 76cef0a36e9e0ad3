//! Edits of replayed frames: addresses, ports, VLAN tag, as `tcprewrite` makes them.
//!
//! ```text
//!   frame ─► dmac, smac ─► vlan ─► behind the tags: IPv4, IPv6 or ARP
//!                                    addresses ─► IP checksum ─► TCP, UDP, ICMPv6 checksum
//!                                    ports ─────────────────────► TCP, UDP checksum
//! ```
//!
//! Checksums are updated by the difference ([RFC 1624](https://www.rfc-editor.org/rfc/rfc1624)):
//! a right one stays right and a wrong one wrong, and a frame that is cut short needs no payload. A
//! UDP checksum of zero stays zero. Of a fragment only the first has ports and a checksum. Packets
//! inside of others (tunnels, ICMP errors) stay as they are. `src` maps also apply to the sender's
//! address of an ARP packet, `dst` maps to the target's.

mod options;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_packet::port::Layer;
use towpath_wire::checksum::{update_bytes, update16};
use towpath_wire::ethernet::Mac;

/// What is changed in each frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Edits {
    /// The Ethernet source.
    pub smac: Option<Mac>,
    /// The Ethernet destination.
    pub dmac: Option<Mac>,
    /// The VLAN tag.
    pub vlan: Option<VlanEdit>,
    /// Prefixes of source addresses; the first that matches applies.
    pub src: Vec<PrefixMap>,
    /// Prefixes of destination addresses.
    pub dst: Vec<PrefixMap>,
    /// Source ports of TCP and UDP.
    pub sport: Vec<PortMap>,
    /// Destination ports of TCP and UDP.
    pub dport: Vec<PortMap>,
}

/// A change of the VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VlanEdit {
    /// The outer tag has this ID, 1 to 4094; a frame without a tag gets one.
    Set(u16),
    /// The outer tag is removed.
    Strip,
}

/// A port and its replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortMap {
    /// The port in the capture.
    pub old: u16,
    /// The port that is sent.
    pub new: u16,
}

/// A prefix and its replacement of the same length; the other bits of an address stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixMap {
    old: IpAddr,
    len: u8,
    new: IpAddr,
}

impl PrefixMap {
    /// Maps the first `len` bits of `old` to those of `new`; `None` if the two are of different
    /// versions, or have not as many bits.
    pub fn new(old: IpAddr, len: u8, new: IpAddr) -> Option<PrefixMap> {
        let bits = if old.is_ipv4() { 32 } else { 128 };
        (old.is_ipv4() == new.is_ipv4() && len <= bits).then_some(PrefixMap { old, len, new })
    }

    /// From `OLD/LEN:NEW`.
    pub fn parse(text: &str) -> Option<PrefixMap> {
        let (old, rest) = text.split_once('/')?;
        let (len, new) = rest.split_once(':')?;
        PrefixMap::new(old.parse().ok()?, len.parse().ok()?, new.parse().ok()?)
    }

    fn v4(&self, address: u32) -> Option<u32> {
        let (IpAddr::V4(old), IpAddr::V4(new)) = (self.old, self.new) else { return None };
        let mask = u32::MAX.checked_shl(32 - u32::from(self.len)).unwrap_or(0);
        let rest = address & !mask;
        ((address ^ old.to_bits()) & mask == 0).then_some(new.to_bits() & mask | rest)
    }

    fn v6(&self, address: u128) -> Option<u128> {
        let (IpAddr::V6(old), IpAddr::V6(new)) = (self.old, self.new) else { return None };
        let mask = u128::MAX.checked_shl(128 - u32::from(self.len)).unwrap_or(0);
        let rest = address & !mask;
        ((address ^ old.to_bits()) & mask == 0).then_some(new.to_bits() & mask | rest)
    }
}

/// The replacement of an address, if a prefix matches.
fn mapped4(maps: &[PrefixMap], address: [u8; 4]) -> Option<[u8; 4]> {
    let address = Ipv4Addr::from(address).to_bits();
    maps.iter().find_map(|map| map.v4(address)).map(u32::to_be_bytes)
}

fn mapped6(maps: &[PrefixMap], address: [u8; 16]) -> Option<[u8; 16]> {
    let address = Ipv6Addr::from(address).to_bits();
    maps.iter().find_map(|map| map.v6(address)).map(u128::to_be_bytes)
}

const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP6: u8 = 58;
/// Most IPv6 extension headers in front of a transport header.
const MAX_EXTENSIONS: usize = 8;

impl Edits {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        *self == Edits::default()
    }

    /// The first option that needs an Ethernet header.
    pub(super) fn needs_ethernet(&self) -> Option<&'static str> {
        let named = [("smac", self.smac.is_some()), ("dmac", self.dmac.is_some()), ("vlan", self.vlan.is_some())];
        named.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    /// Changes a frame whose first header is that of `layer`. Headers that are cut short stay as
    /// they are.
    pub fn apply(&self, frame: &mut Vec<u8>, layer: Layer) {
        if layer == Layer::Ip {
            let kind = match frame.first().map(|byte| byte >> 4) {
                Some(4) => 0x0800,
                Some(6) => 0x86dd,
                _ => 0,
            };
            return self.network(kind, frame);
        }
        if let Some(mac) = self.dmac
            && let Some(field) = frame.get_mut(..6)
        {
            field.copy_from_slice(&mac);
        }
        if let Some(mac) = self.smac
            && let Some(field) = frame.get_mut(6..12)
        {
            field.copy_from_slice(&mac);
        }
        if let Some(vlan) = self.vlan {
            tag(frame, vlan);
        }
        let mut at = 12;
        let mut kind = word(frame, at);
        // A third tag is nothing that the datapath looks behind.
        for _ in 0..2 {
            if kind.is_some_and(|kind| TAGS.contains(&kind)) {
                at += 4;
                kind = word(frame, at);
            }
        }
        if let Some(kind) = kind
            && let Some(packet) = frame.get_mut(at + 2..)
        {
            self.network(kind, packet);
        }
    }

    fn network(&self, kind: u16, packet: &mut [u8]) {
        match kind {
            0x0800 => drop(self.v4(packet)),
            0x86dd => drop(self.v6(packet)),
            0x0806 => drop(self.arp(packet)),
            _ => {}
        }
    }

    /// ARP of IPv4 on Ethernet.
    fn arp(&self, packet: &mut [u8]) -> Option<()> {
        let fields = packet.get_mut(..28)?;
        if fields.get(..6)? != [0, 1, 8, 0, 6, 4] {
            return None;
        }
        for (at, maps) in [(14, &self.src), (24, &self.dst)] {
            let field = fields.get_mut(at..)?.first_chunk_mut::<4>()?;
            *field = mapped4(maps, *field).unwrap_or(*field);
        }
        Some(())
    }

    fn v4(&self, packet: &mut [u8]) -> Option<()> {
        let first = *packet.first()?;
        let header = usize::from(first & 0x0f) * 4;
        if first >> 4 != 4 || header < 20 || packet.len() < 20 {
            return None;
        }
        let mut changes = Changes::default();
        for (at, maps) in [(12, &self.src), (16, &self.dst)] {
            let field = packet.get_mut(at..)?.first_chunk_mut::<4>()?;
            if let Some(new) = mapped4(maps, *field) {
                changes.add(field, &new);
                *field = new;
            }
        }
        if !changes.is_empty() {
            let check = packet.get_mut(10..)?.first_chunk_mut::<2>()?;
            *check = changes.update(u16::from_be_bytes(*check)).to_be_bytes();
        }
        // A later fragment has no transport header.
        if word(packet, 6)? & 0x1fff != 0 {
            return None;
        }
        let protocol = *packet.get(9)?;
        self.transport(protocol, packet.get_mut(header..)?, changes)
    }

    fn v6(&self, packet: &mut [u8]) -> Option<()> {
        if packet.first()? >> 4 != 6 || packet.len() < 40 {
            return None;
        }
        let [mut source, mut destination] = [Changes::default(); 2];
        for (at, maps, changes) in [(8, &self.src, &mut source), (24, &self.dst, &mut destination)] {
            let field = packet.get_mut(at..)?.first_chunk_mut::<16>()?;
            if let Some(new) = mapped6(maps, *field) {
                changes.add(field, &new);
                *field = new;
            }
        }
        let (mut next, mut at) = (*packet.get(6)?, 40);
        for _ in 0..MAX_EXTENSIONS {
            let len = match next {
                // Hop-by-hop, routing, destination, mobility.
                0 | 43 | 60 | 135 => {
                    // The sum has the last address of a route, which is not the header's yet.
                    if next == 43 && *packet.get(at + 3)? != 0 {
                        destination = Changes::default();
                    }
                    (usize::from(*packet.get(at + 1)?) + 1) * 8
                }
                // A fragment; a later one has no transport header.
                44 if word(packet, at + 2)? & 0xfff8 != 0 => return None,
                44 => 8,
                // Authentication.
                51 => (usize::from(*packet.get(at + 1)?) + 2) * 4,
                _ => {
                    source.join(destination);
                    return self.transport(next, packet.get_mut(at..)?, source);
                }
            };
            next = *packet.get(at)?;
            at += len;
        }
        None
    }

    /// The transport header, under whose checksum the addresses changed by `changes`.
    fn transport(&self, protocol: u8, segment: &mut [u8], mut changes: Changes) -> Option<()> {
        let at = match protocol {
            TCP => 16,
            UDP => 6,
            // Of ICMP over IPv4 the sum leaves the addresses out.
            ICMP6 => 2,
            _ => return None,
        };
        if protocol != ICMP6 {
            for (at, maps) in [(0, &self.sport), (2, &self.dport)] {
                let field = segment.get_mut(at..)?.first_chunk_mut::<2>()?;
                let old = u16::from_be_bytes(*field);
                if let Some(map) = maps.iter().find(|map| map.old == old) {
                    let new = map.new.to_be_bytes();
                    changes.add(field, &new);
                    *field = new;
                }
            }
        }
        let field = segment.get_mut(at..)?.first_chunk_mut::<2>()?;
        let old = u16::from_be_bytes(*field);
        if changes.is_empty() || protocol == UDP && old == 0 {
            return None;
        }
        let mut new = changes.update(old);
        if protocol == UDP && new == 0 {
            new = 0xffff;
        }
        *field = new.to_be_bytes();
        Some(())
    }
}

/// The sums of the bytes that changed: before and after.
#[derive(Debug, Clone, Copy, Default)]
struct Changes {
    /// A checksum field of zero, updated by all changes so far.
    field: u16,
    any: bool,
}

impl Changes {
    fn add(&mut self, old: &[u8], new: &[u8]) {
        (self.field, self.any) = (update_bytes(self.field, old, new), true);
    }

    fn join(&mut self, other: Changes) {
        if other.any {
            (self.field, self.any) = (other.update(self.field), true);
        }
    }

    fn is_empty(self) -> bool {
        !self.any
    }

    /// A checksum field after the changes.
    fn update(self, check: u16) -> u16 {
        // From a field of zero to this one: the sum without the field goes the other way.
        update16(check, !0, !self.field)
    }
}

/// Sets, adds or removes the outer tag.
fn tag(frame: &mut Vec<u8>, vlan: VlanEdit) {
    let Some(kind) = word(frame, 12) else { return };
    let tagged = TAGS.contains(&kind) && frame.len() >= 16;
    match vlan {
        VlanEdit::Strip if tagged => drop(frame.drain(12..16)),
        VlanEdit::Strip => {}
        VlanEdit::Set(id) => {
            if !tagged {
                frame.splice(12..12, [0x81, 0, 0, 0]);
            }
            if let Some(field) = frame.get_mut(14..).and_then(|rest| rest.first_chunk_mut::<2>()) {
                let kept = u16::from_be_bytes(*field) & 0xf000;
                *field = (kept | id & 0x0fff).to_be_bytes();
            }
        }
    }
}

/// The big-endian number at `at`.
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests;
