//! A rule as a masked compare.
//!
//! ```text
//!   word   0          1                2 3     4 5          6                 7
//!          protocol,  destination MAC, source  destination  source MAC, type  tags
//!          ports      flags
//!          └──── compared under the rule's mask, up to the first mismatch ───┘ └ by range
//! ```
//!
//! The most selective words stand first, so that a rule that does not match costs one or two
//! compares and one cache line. The second half of an address stands first, because all IPv4
//! addresses differ there.
//!
//! A missing field reads as zero. A flag per field distinguishes it from a real zero, and a rule
//! about the field requires the flag as well: without it `src 0.0.0.0/0` would match ARP.

use super::{Rule, Span, Verdict};
use std::net::{IpAddr, Ipv6Addr};
use towpath_packet::Packet;
use towpath_wire::dissect::Flags;
use towpath_wire::ethernet::{self, Mac};
use towpath_wire::vlan::{Tag, Tci};
use towpath_wire::{Dissected, ip};

const WORDS: usize = 8;
/// Words that are compared under a mask.
const MASKED: usize = 7;

const PROTOCOL: usize = 0;
const DESTINATION_MAC: usize = 1;
const SOURCE: usize = 2;
const DESTINATION: usize = 4;
const SOURCE_MAC: usize = 6;
const TAGS: usize = 7;

/// Position of the ethertype, above the source MAC address.
const TYPE_SHIFT: u32 = 48;
/// Position of the flags, above the destination MAC address.
const FLAGS_SHIFT: u32 = 48;
const SRC_PORT_SHIFT: u32 = 16;
const DST_PORT_SHIFT: u32 = 32;

/// The frame has MAC addresses. The dissector's flags use lower bits only.
const ETHERNET: u16 = 1 << 15;
/// The packet has an IP header of either version.
const IP: u16 = 1 << 14;
/// The packet has a VLAN tag.
const TAGGED: u16 = 1 << 13;

/// The value of an absent tag; no identifier is as large.
const NO_TAG: u16 = u16::MAX;
const NO_TAGS: u64 = u64::MAX >> 16;

/// The fields of one packet that rules compare.
#[repr(C, align(64))]
pub(super) struct Key([u64; WORDS]);

fn mac_word(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// The second half, then the first.
fn address_words(address: Ipv6Addr) -> [u64; 2] {
    let bits = address.to_bits();
    [bits as u64, (bits >> 64) as u64]
}

impl Key {
    /// `macs`: whether any rule matches MAC addresses.
    #[inline(always)]
    pub(super) fn new(packet: &Packet, found: &Dissected, macs: bool) -> Key {
        let mut flags = found.flags.bits();
        if found.flags.intersects(Flags::IPV4 | Flags::IPV6) {
            flags |= IP;
        }
        let (mut src_mac, mut dst_mac) = (0, 0);
        if macs && usize::from(found.l3) >= ethernet::HEADER_LEN {
            let [dst, src] = addresses(packet);
            (src_mac, dst_mac) = (mac_word(src), mac_word(dst));
            flags |= ETHERNET;
        }
        let vid = |tag: Tag| if tag.tpid == 0 { NO_TAG } else { tag.tci.vid() };
        let beside = packet.vlan().map_or(NO_TAG, |tag| Tci(tag.tci).vid());
        let [outer, inner] = found.tags;
        let flow = &found.flow;
        let [src_0, src_1] = address_words(flow.src);
        let [dst_0, dst_1] = address_words(flow.dst);
        let protocol = u64::from(flow.protocol)
            | u64::from(flow.src_port) << SRC_PORT_SHIFT
            | u64::from(flow.dst_port) << DST_PORT_SHIFT;
        let tags = u64::from(beside) | u64::from(vid(outer)) << 16 | u64::from(vid(inner)) << 32;
        if tags != NO_TAGS {
            flags |= TAGGED;
        }
        let dst_mac = dst_mac | u64::from(flags) << FLAGS_SHIFT;
        let src_mac = src_mac | u64::from(found.ethertype) << TYPE_SHIFT;
        Key([protocol, dst_mac, src_0, src_1, dst_0, dst_1, src_mac, tags])
    }
}

/// Destination and source address of a frame.
#[inline]
fn addresses(packet: &Packet) -> [Mac; 2] {
    let mut bytes = [0; 12];
    match packet.linear().first_chunk() {
        Some(linear) => bytes = *linear,
        None => {
            packet.copy_to(0, &mut bytes);
        }
    }
    let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
    [[a, b, c, d, e, f], [g, h, i, j, k, l]]
}

/// A range that is tested by one subtraction and one comparison.
#[derive(Debug, Clone, Copy)]
struct Width {
    first: u16,
    width: u16,
}

impl Width {
    fn new(first: u16, last: u16) -> Width {
        Width { first, width: last.saturating_sub(first) }
    }

    #[inline(always)]
    fn holds(self, number: u64) -> bool {
        (number as u16).wrapping_sub(self.first) <= self.width
    }
}

/// The required value of a word under a mask.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    mask: u64,
    value: u64,
}

/// A compiled rule.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(super) struct Compiled {
    words: [Word; MASKED],
    src_port: Width,
    dst_port: Width,
    vlan: Width,
    verdict: Verdict,
}

const _: () = assert!(size_of::<Compiled>() == 128);

impl Compiled {
    pub(super) fn new(rule: &Rule) -> Compiled {
        let matches = &rule.matches;
        let all = Width { first: 0, width: u16::MAX };
        // Identifiers end at 4095. Capping ranges below NO_TAG only excludes absent tags.
        let vlan = |span: Span| Width::new(span.first().min(NO_TAG - 1), span.last().min(NO_TAG - 1));
        let port = |span: Span| Width::new(span.first(), span.last());
        let mut compiled = Compiled {
            words: [Word::default(); MASKED],
            src_port: matches.src_port.map_or(all, port),
            dst_port: matches.dst_port.map_or(all, port),
            vlan: matches.vlan.map_or(all, vlan),
            verdict: rule.verdict,
        };
        let mut flags = 0;
        for (word, prefix) in [(SOURCE, matches.src), (DESTINATION, matches.dst)] {
            let Some(prefix) = prefix else { continue };
            let (address, bits) = match prefix.address() {
                IpAddr::V4(v4) => (ip::mapped(v4), 96 + u32::from(prefix.len())),
                IpAddr::V6(v6) => (v6, u32::from(prefix.len())),
            };
            flags |= if prefix.address().is_ipv4() { Flags::IPV4.bits() } else { Flags::IPV6.bits() };
            let mask = !u128::MAX.checked_shr(bits).unwrap_or(0);
            let masks = address_words(mask.into());
            for (at, (mask, value)) in masks.into_iter().zip(address_words(address)).enumerate() {
                compiled.require(word + at, mask, value);
            }
        }
        for (word, mac) in [(SOURCE_MAC, matches.src_mac), (DESTINATION_MAC, matches.dst_mac)] {
            if let Some(mac) = mac {
                compiled.require(word, u64::MAX >> 16, mac_word(mac));
                flags |= ETHERNET;
            }
        }
        if let Some(ethertype) = matches.ethertype {
            compiled.require(SOURCE_MAC, 0xffff << TYPE_SHIFT, u64::from(ethertype) << TYPE_SHIFT);
        }
        if let Some(protocol) = matches.protocol {
            compiled.require(PROTOCOL, 0xff, u64::from(protocol));
            flags |= IP;
        }
        for (shift, span) in [(SRC_PORT_SHIFT, matches.src_port), (DST_PORT_SHIFT, matches.dst_port)] {
            let Some(span) = span else { continue };
            flags |= Flags::PORTS.bits();
            // The range would suffice, but most rules name one port, and the masked compare happens
            // anyway.
            if span.first() == span.last() {
                compiled.require(PROTOCOL, 0xffff << shift, u64::from(span.first()) << shift);
            }
        }
        if matches.vlan.is_some() {
            flags |= TAGGED;
        }
        if matches.fragment {
            flags |= Flags::FRAGMENT.bits();
        }
        let flags = u64::from(flags) << FLAGS_SHIFT;
        compiled.require(DESTINATION_MAC, flags, flags);
        compiled
    }

    fn require(&mut self, word: usize, mask: u64, value: u64) {
        if let Some(word) = self.words.get_mut(word) {
            word.mask |= mask;
            word.value |= value & mask;
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether the rule matches the packet of this key.
    #[inline(always)]
    pub(super) fn matches(&self, key: &Key) -> bool {
        key.0.iter().zip(&self.words).all(|(key, word)| key & word.mask == word.value) && self.spans_hold(key)
    }

    #[inline(always)]
    fn spans_hold(&self, key: &Key) -> bool {
        let (ports, tags) = (key.0[PROTOCOL], key.0[TAGS]);
        let vlan = self.vlan.holds(tags) | self.vlan.holds(tags >> 16) | self.vlan.holds(tags >> 32);
        self.src_port.holds(ports >> SRC_PORT_SHIFT) & self.dst_port.holds(ports >> DST_PORT_SHIFT) & vlan
    }
}
