//! The offsets of a packet's headers.
//!
//! ```text
//! plain    [link | VLAN*]                                     l3: IP  l4: TCP/UDP  header: payload
//! tunnel   [link | VLAN*] outer_l3: IP  outer_l4: UDP/GRE ... l3: IP  l4: TCP/UDP  header: payload
//! ```
//!
//! [`walk`] reads a packet once. It finds the innermost transport header, whether the headers
//! permit coalescing, and a `salt` of everything outside the innermost addresses and ports that
//! distinguishes flows: VLAN tags, outer addresses, VNI or GRE key. Coalescing and segmentation
//! share it, so they agree on what a header is.
//!
//! Every offset in a [`Layout`] is below [`MAX_HEADER`] and inside the bytes that were walked.

use towpath_wire::offload::LinkKind;

use crate::bytes::{array, be16, be32, u8_at};

/// The longest header that is read, all layers together. Two VLAN tags, IPv6, UDP, GENEVE with all
/// options, Ethernet, two VLAN tags, IPv6 and TCP with all options are 452.
pub(crate) const MAX_HEADER: usize = 512;

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_TEB: u16 = 0x6558;
/// IPv4 in IP.
pub(crate) const IPV4: u8 = 4;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
/// TCP flags that may differ within an aggregate: the last packet may have them.
pub(crate) const FIN_PSH: u8 = 0x09;
pub(crate) const PORT_VXLAN: u16 = 4789;
pub(crate) const PORT_GENEVE: u16 = 6081;
/// [RFC 8200](https://www.rfc-editor.org/rfc/rfc8200) permits any number; real packets have at most
/// three.
const MAX_EXTENSIONS: usize = 6;

/// What carries the inner packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Outer {
    #[default]
    None,
    Udp,
    Gre {
        checksum: bool,
    },
    Ip,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) l3: u16,
    pub(crate) l4: u16,
    /// Bytes before the payload.
    pub(crate) header: u16,
    pub(crate) outer_l3: u16,
    pub(crate) outer_l4: u16,
    pub(crate) v6: bool,
    pub(crate) udp: bool,
    pub(crate) outer: Outer,
    pub(crate) outer_v6: bool,
}

impl Layout {
    /// The layout of no packet.
    pub(crate) const NONE: Self = Self {
        l3: 0,
        l4: 0,
        header: 0,
        outer_l3: 0,
        outer_l4: 0,
        v6: false,
        udp: false,
        outer: Outer::None,
        outer_v6: false,
    };

    /// Offset of the checksum in the transport header.
    #[inline]
    pub(crate) fn checksum_offset(&self) -> u8 {
        if self.udp { 6 } else { 16 }
    }

    /// The layout in one number, to be stored and compared.
    #[inline]
    pub(crate) fn pack(&self) -> u64 {
        let outer = match self.outer {
            Outer::None => 0,
            Outer::Udp => 1,
            Outer::Gre { checksum: false } => 2,
            Outer::Gre { checksum: true } => 3,
            Outer::Ip => 4,
        };
        let flags = u64::from(self.v6) | u64::from(self.udp) << 1 | u64::from(self.outer_v6) << 2 | outer << 3;
        [self.l3, self.l4, self.header, self.outer_l3, self.outer_l4]
            .iter()
            .fold(flags, |packed, offset| packed << 10 | u64::from(*offset))
    }

    #[inline]
    pub(crate) fn unpack(packed: u64) -> Self {
        let offset = |n: u32| (packed >> (10 * n)) as u16 & 0x3ff;
        let flags = packed >> 50;
        Self {
            l3: offset(4),
            l4: offset(3),
            header: offset(2),
            outer_l3: offset(1),
            outer_l4: offset(0),
            v6: flags & 1 != 0,
            udp: flags & 2 != 0,
            outer_v6: flags & 4 != 0,
            outer: match flags >> 3 {
                0 => Outer::None,
                1 => Outer::Udp,
                2 => Outer::Gre { checksum: false },
                3 => Outer::Gre { checksum: true },
                _ => Outer::Ip,
            },
        }
    }

    #[inline]
    pub(crate) fn protocol(&self) -> u8 {
        if self.udp { UDP } else { TCP }
    }
}

/// Why no layout was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// The bytes end inside a header.
    Short,
    /// A fragment other than the first, whose flow is unknown.
    Fragment,
    /// Not TCP or UDP over IP, or headers that contradict themselves.
    Foreign,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    pub(crate) layout: Layout,
    /// The headers permit coalescing: no IP options, no fragmentation.
    pub(crate) plain: bool,
    /// The packet can be segmented: every field that differs between segments is known here.
    pub(crate) segmentable: bool,
    pub(crate) salt: u64,
}

/// The innermost transport header, as far as the caller has found it. Other tunnels over UDP are
/// found by port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hint {
    /// Tunnels over UDP are not entered.
    pub(crate) opaque: bool,
    /// Offset of the innermost transport header.
    pub(crate) l4: Option<usize>,
    /// Offset of the inner IP header of a tunnel over UDP.
    pub(crate) inner_l3: Option<usize>,
}

/// The layout of the most common packets that may be coalesced, in a few instructions: TCP or UDP
/// over IP without options, no VLAN tags, no tunnel. The caller has checked that the link header
/// and the IP version agree.
#[inline]
pub(crate) fn plain(b: &[u8], link: LinkKind) -> Option<Layout> {
    let l3 = match link {
        LinkKind::Ethernet => towpath_wire::ethernet::HEADER_LEN,
        LinkKind::Ip => 0,
    };
    let h: &[u8; 20] = array(b, l3)?;
    let v6 = h[0] >> 4 == 6;
    let (l4, protocol) = if v6 { (l3 + 40, h[6]) } else { (l3 + 20, h[9]) };
    if !v6 && (h[0] != 0x45 || h[6] & 0xbf | h[7] != 0) {
        return None;
    }
    let len = match protocol {
        TCP => usize::from(u8_at(b, l4 + 12)? >> 4) * 4,
        UDP => 8,
        _ => return None,
    };
    if (protocol == TCP && len < 20) || b.len() < l4 + len {
        return None;
    }
    let (l3, l4, header) = (l3 as u16, l4 as u16, (l4 + len) as u16);
    Some(Layout { l3, l4, header, v6, udp: protocol == UDP, ..Layout::default() })
}

/// Finds the headers of `b`, the leading bytes of a packet.
pub(crate) fn walk(b: &[u8], link: LinkKind, hint: Hint) -> Result<Walk, Unknown> {
    let b = b.get(..MAX_HEADER).unwrap_or(b);
    let mut w = Walk { layout: Layout::default(), plain: true, segmentable: true, salt: 0 };
    let l3 = match link {
        LinkKind::Ethernet => ethernet(b, 0, &mut w)?,
        LinkKind::Ip => IpAt(0, None),
    };
    let (l4, protocol) = ip(b, l3, &mut w)?;
    let (inner, outer) = match protocol {
        IPV4 => (IpAt(l4, Some(4)), Outer::Ip),
        41 => (IpAt(l4, Some(6)), Outer::Ip),
        47 => gre(b, l4, &mut w)?,
        UDP => match tunnel_in_udp(b, l4, hint, &mut w)? {
            Some(inner) => (inner, Outer::Udp),
            None => return transport(b, l4, UDP, w),
        },
        _ => return transport(b, l4, protocol, w),
    };
    w.layout.outer = outer;
    w.layout.outer_v6 = w.layout.v6;
    w.layout.outer_l3 = w.layout.l3;
    w.layout.outer_l4 = l4 as u16;
    w.salt = mix(w.salt, addresses(b, l3.0, w.layout.v6));
    let (l4, inner_protocol) = ip(b, inner, &mut w)?;
    transport(b, l4, inner_protocol, w)
}

/// Folds what distinguishes flows into one number; not a hash yet.
#[inline]
pub(crate) fn mix(salt: u64, x: u64) -> u64 {
    (salt.rotate_left(23) ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn addresses(b: &[u8], l3: usize, v6: bool) -> u64 {
    let word = |at| array(b, at).map_or(0, |a| u64::from_ne_bytes(*a));
    if v6 { [16, 24, 32].iter().fold(word(l3 + 8), |s, at| mix(s, word(l3 + at))) } else { word(l3 + 12) }
}

/// The offset of an IP header, and its version according to the header before it.
#[derive(Clone, Copy)]
struct IpAt(usize, Option<u8>);

fn ethernet(b: &[u8], at: usize, w: &mut Walk) -> Result<IpAt, Unknown> {
    let mut at = at + 12;
    for _ in 0..3 {
        match be16(b, at).ok_or(Unknown::Short)? {
            ETHERTYPE_IPV4 => return Ok(IpAt(at + 2, Some(4))),
            ETHERTYPE_IPV6 => return Ok(IpAt(at + 2, Some(6))),
            0x8100 | 0x88a8 => {
                let tag = be32(b, at).ok_or(Unknown::Short)?;
                w.salt = mix(w.salt, u64::from(tag));
                at += 4;
            }
            _ => break,
        }
    }
    Err(Unknown::Foreign)
}

/// Reads the IP header at `at`. Returns the offset of its payload and the payload's protocol.
fn ip(b: &[u8], at: IpAt, w: &mut Walk) -> Result<(usize, u8), Unknown> {
    let IpAt(at, expected) = at;
    let first = u8_at(b, at).ok_or(Unknown::Short)?;
    let version = first >> 4;
    if expected.is_some_and(|expected| expected != version) {
        return Err(Unknown::Foreign);
    }
    w.layout.l3 = at as u16;
    w.layout.v6 = version == 6;
    if w.layout.v6 {
        return ipv6_payload(b, at, w);
    }
    let header: &[u8; 20] = array(b, at).ok_or(Unknown::Short)?;
    let len = usize::from(first & 15) * 4;
    if version != 4 || len < 20 {
        return Err(Unknown::Foreign);
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    if fragment & 0x1fff != 0 {
        return Err(Unknown::Fragment);
    }
    // More fragments, or the reserved bit.
    let whole = fragment & 0xa000 == 0;
    w.segmentable &= whole;
    w.plain &= whole && len == 20;
    Ok((at + len, header[9]))
}

fn ipv6_payload(b: &[u8], at: usize, w: &mut Walk) -> Result<(usize, u8), Unknown> {
    let mut next = u8_at(b, at + 6).ok_or(Unknown::Short)?;
    let mut at = at + 40;
    for _ in 0..MAX_EXTENSIONS {
        let [following, len, ..]: [u8; 8] = match next {
            // Hop-by-hop, routing, destination options.
            0 | 43 | 60 => *array(b, at).ok_or(Unknown::Short)?,
            44 => {
                let fragment: &[u8; 8] = array(b, at).ok_or(Unknown::Short)?;
                if u16::from_be_bytes([fragment[2], fragment[3]]) >> 3 != 0 {
                    return Err(Unknown::Fragment);
                }
                w.plain = false;
                w.segmentable = false;
                next = fragment[0];
                at += 8;
                continue;
            }
            _ => return Ok((at, next)),
        };
        next = following;
        at += 8 + usize::from(len) * 8;
    }
    Err(Unknown::Foreign)
}

fn transport(b: &[u8], at: usize, protocol: u8, mut w: Walk) -> Result<Walk, Unknown> {
    let len = match protocol {
        TCP => {
            let header: &[u8; 20] = array(b, at).ok_or(Unknown::Short)?;
            usize::from(header[12] >> 4) * 4
        }
        UDP => 8,
        _ => return Err(Unknown::Foreign),
    };
    if protocol == TCP && len < 20 {
        return Err(Unknown::Foreign);
    }
    if b.len() < at + len {
        return Err(Unknown::Short);
    }
    w.layout.udp = protocol == UDP;
    w.layout.l4 = at as u16;
    w.layout.header = (at + len) as u16;
    Ok(w)
}

/// Reads the GRE header at `at`. Returns the offset of the inner IP header.
fn gre(b: &[u8], at: usize, w: &mut Walk) -> Result<(IpAt, Outer), Unknown> {
    let word = be32(b, at).ok_or(Unknown::Short)?;
    let (flags, ethertype) = ((word >> 16) as u16, word as u16);
    let (checksum, key, sequence) = (flags & 0x8000, flags & 0x2000, flags & 0x1000);
    if flags & !0xb000 != 0 {
        return Err(Unknown::Foreign);
    }
    // Sequence numbers differ in every packet, so that no two merge.
    w.plain &= sequence == 0;
    w.segmentable &= sequence == 0;
    let mut inner = at + 4;
    if checksum != 0 {
        inner += 4;
    }
    if key != 0 {
        w.salt = mix(w.salt, u64::from(be32(b, inner).ok_or(Unknown::Short)?));
        inner += 4;
    }
    if sequence != 0 {
        inner += 4;
    }
    let outer = Outer::Gre { checksum: checksum != 0 };
    Ok((inner_packet(b, inner, ethertype, w)?, outer))
}

/// The offset of the inner IP header if the UDP header at `at` carries a tunnel.
fn tunnel_in_udp(b: &[u8], at: usize, hint: Hint, w: &mut Walk) -> Result<Option<IpAt>, Unknown> {
    if hint.opaque || hint.l4 == Some(at) {
        return Ok(None);
    }
    if let Some(inner) = hint.inner_l3 {
        return if inner >= at + 8 { Ok(Some(IpAt(inner, None))) } else { Err(Unknown::Foreign) };
    }
    let body = at + 8;
    match be16(b, at + 2).ok_or(Unknown::Short)? {
        PORT_VXLAN => {
            let header: &[u8; 8] = array(b, body).ok_or(Unknown::Short)?;
            // The VNI is valid; the highest bit is the group policy extension.
            if header[0] & 0x7f != 8 {
                return Ok(None);
            }
            w.salt = mix(w.salt, u64::from_ne_bytes(*header));
            inner_packet(b, body + 8, ETHERTYPE_TEB, w).map(Some)
        }
        PORT_GENEVE => {
            let header: &[u8; 8] = array(b, body).ok_or(Unknown::Short)?;
            // Version 0, not a control packet.
            if header[0] & 0xc0 != 0 || header[1] & 0x80 != 0 {
                return Ok(None);
            }
            w.salt = mix(w.salt, u64::from_ne_bytes(*header));
            let inner = body + 8 + usize::from(header[0] & 0x3f) * 4;
            inner_packet(b, inner, u16::from_be_bytes([header[2], header[3]]), w).map(Some)
        }
        _ => Ok(None),
    }
}

fn inner_packet(b: &[u8], at: usize, ethertype: u16, w: &mut Walk) -> Result<IpAt, Unknown> {
    match ethertype {
        ETHERTYPE_TEB => ethernet(b, at, w),
        ETHERTYPE_IPV4 => Ok(IpAt(at, Some(4))),
        ETHERTYPE_IPV6 => Ok(IpAt(at, Some(6))),
        _ => Err(Unknown::Foreign),
    }
}
