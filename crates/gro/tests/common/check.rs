//! Is this a legal packet? A legal super-packet with its virtio-net header?

use towpath_gro::{Checksum, GsoKind, LinkKind, Offload, TunnelKind};

use super::{CWR, sum16};

/// A packet taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Everything that sets flows apart, printed.
    pub flow: String,
    pub udp: bool,
    pub v6: bool,
    pub seq: u32,
    pub flags: u8,
    pub l3: usize,
    pub l4: usize,
    pub header: usize,
    pub payload: Vec<u8>,
    pub outer: Option<(TunnelKind, bool, usize, bool)>,
}

/// What a checksum field must hold.
#[derive(Clone, Copy, PartialEq)]
enum Want {
    Complete,
    Pseudo,
}

/// Takes a packet apart and checks every length and checksum. `Err` says what is wrong.
pub fn packet(b: &[u8], link: LinkKind) -> Result<Parsed, String> {
    layers(b, link, Want::Complete)
}

/// As [`packet`], for one that a partial checksum is said of.
pub fn partial(b: &[u8], link: LinkKind) -> Result<Parsed, String> {
    layers(b, link, Want::Pseudo)
}

/// A super-packet as a device would demand it.
pub fn super_packet(b: &[u8], link: LinkKind, offload: &Offload) -> Result<Parsed, String> {
    let p = layers(b, link, Want::Pseudo)?;
    let gso = offload.gso.ok_or("no GSO")?;
    let offset = if p.udp { 6 } else { 16 };
    ensure(offload.checksum == Checksum::Partial { start: p.l4 as u16, offset }, "checksum place")?;
    let kind = match (p.udp, p.v6) {
        (true, _) => GsoKind::Udp,
        (false, false) => GsoKind::Tcp4,
        (false, true) => GsoKind::Tcp6,
    };
    ensure(gso.kind == kind, "kind")?;
    ensure(gso.hdr_len as usize == p.header, "hdr_len")?;
    ensure(gso.size > 0 && p.payload.len() > gso.size as usize, "size")?;
    ensure(gso.segs as usize == p.payload.len().div_ceil(gso.size as usize), "segs")?;
    ensure(!p.udp || gso.segs <= 64, "more than 64 datagrams")?;
    ensure(!gso.ecn || p.flags & CWR != 0, "ECN without CWR")?;
    ensure(p.flags & 0x26 == 0, "SYN, RST or URG in a super-packet")?;
    let tunnel = offload.tunnel.map(|t| (t.kind, t.outer_v6, usize::from(t.outer_l4), t.checksum));
    ensure(tunnel == p.outer, "tunnel")?;
    ensure(offload.tunnel.is_none_or(|t| usize::from(t.inner_l3) == p.l3), "inner_l3")?;
    Ok(p)
}

fn ensure(ok: bool, what: &str) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what.to_owned()) }
}

fn be16(b: &[u8], at: usize) -> usize {
    usize::from(b[at]) << 8 | usize::from(b[at + 1])
}

fn layers(b: &[u8], link: LinkKind, want: Want) -> Result<Parsed, String> {
    let mut p = Parsed::default();
    let mut at = 0;
    if link == LinkKind::Ethernet {
        at = ethernet(b, 0, &mut p)?;
    }
    let (l4, protocol, pseudo) = ip(b, at, &mut p)?;
    let outer_v6 = p.v6;
    let inner = match protocol {
        4 | 41 => {
            p.outer = Some((TunnelKind::Ip, outer_v6, l4, false));
            l4
        }
        47 => {
            let flags = b[l4];
            let mut next = l4 + 4;
            if flags & 0x80 != 0 {
                next += 4;
            }
            if flags & 0x20 != 0 {
                p.flow += &format!("key {:?} ", &b[next..next + 4]);
                next += 4;
            }
            ensure(flags & 0x5f == 0, "GRE flags")?;
            p.outer = Some((TunnelKind::Gre, outer_v6, l4, flags & 0x80 != 0));
            if be16(b, l4 + 2) == 0x6558 { ethernet(b, next, &mut p)? } else { next }
        }
        17 if [4789, 6081].contains(&be16(b, l4 + 2)) => {
            ensure(be16(b, l4 + 4) == b.len() - l4, "outer UDP length")?;
            p.flow += &format!("vni {:?} ", &b[l4 + 12..l4 + 15]);
            p.outer = Some((TunnelKind::Udp, outer_v6, l4, be16(b, l4 + 6) != 0));
            if be16(b, l4 + 2) == 4789 {
                ethernet(b, l4 + 16, &mut p)?
            } else {
                let next = l4 + 16 + usize::from(b[l4 + 8] & 63) * 4;
                if be16(b, l4 + 10) == 0x6558 { ethernet(b, next, &mut p)? } else { next }
            }
        }
        _ => {
            transport(b, l4, protocol, &pseudo, want, &mut p)?;
            return Ok(p);
        }
    };
    let (inner_l4, protocol, inner_pseudo) = ip(b, inner, &mut p)?;
    transport(b, inner_l4, protocol, &inner_pseudo, want, &mut p)?;
    // The packet as it is on the wire: the inner checksum completed.
    let mut wire = b.to_vec();
    if want == Want::Pseudo {
        let field = inner_l4 + if p.udp { 6 } else { 16 };
        let check = !sum16(&b[inner_l4..]);
        wire[field..field + 2].copy_from_slice(&check.to_be_bytes());
    }
    match p.outer {
        Some((TunnelKind::Udp, .., true)) if want == Want::Pseudo => {
            let is_super = be16(b, l4 + 6) == usize::from(sum16(&pseudo));
            let is_whole = sum16(&[&pseudo, &wire[l4..]].concat()) == 0xffff;
            ensure(is_super || is_whole, "outer UDP checksum, partial")?;
        }
        Some((TunnelKind::Udp, .., true)) => {
            ensure(sum16(&[&pseudo, &b[l4..]].concat()) == 0xffff, "outer UDP checksum")?;
        }
        Some((TunnelKind::Gre, .., true)) => {
            ensure(sum16(&wire[l4..]) == 0xffff, "GRE checksum")?;
        }
        _ => {}
    }
    Ok(p)
}

fn ethernet(b: &[u8], at: usize, p: &mut Parsed) -> Result<usize, String> {
    let mut at = at + 12;
    ensure(b.len() >= at + 2, "short")?;
    while be16(b, at) == 0x8100 || be16(b, at) == 0x88a8 {
        p.flow += &format!("vlan {:?} ", &b[at..at + 4]);
        at += 4;
    }
    ensure(be16(b, at) == 0x800 || be16(b, at) == 0x86dd, "ethertype")?;
    Ok(at + 2)
}

/// Returns where the payload begins, its protocol, and the pseudo-header.
fn ip(b: &[u8], at: usize, p: &mut Parsed) -> Result<(usize, u8, Vec<u8>), String> {
    ensure(b.len() >= at + 20, "short IP")?;
    p.l3 = at;
    p.v6 = b[at] >> 4 == 6;
    if p.v6 {
        ensure(b.len() >= at + 40, "short IPv6")?;
        ensure(be16(b, at + 4) == b.len() - at - 40, "IPv6 length")?;
        p.flow += &format!("{:?} ", &b[at + 8..at + 40]);
        let (mut next, mut l4) = (b[at + 6], at + 40);
        while next == 60 || next == 0 || next == 43 {
            next = b[l4];
            l4 += 8 + 8 * usize::from(b[l4 + 1]);
        }
        let pseudo = [&b[at + 8..at + 40], &((b.len() - l4) as u32).to_be_bytes(), &[0, 0, 0, next]].concat();
        return Ok((l4, next, pseudo));
    }
    ensure(b[at] >> 4 == 4, "version")?;
    let len = usize::from(b[at] & 15) * 4;
    ensure(be16(b, at + 2) == b.len() - at, "IPv4 length")?;
    ensure(sum16(&b[at..at + len]) == 0xffff, "IPv4 header checksum")?;
    ensure(be16(b, at + 6) & 0x3fff == 0, "fragment")?;
    p.flow += &format!("{:?} ", &b[at + 12..at + 20]);
    let l4 = at + len;
    let pseudo = [&b[at + 12..at + 20], &((b.len() - l4) as u32).to_be_bytes(), &[0, 0, 0, b[at + 9]]].concat();
    Ok((l4, b[at + 9], pseudo))
}

fn transport(b: &[u8], l4: usize, protocol: u8, pseudo: &[u8], want: Want, p: &mut Parsed) -> Result<(), String> {
    ensure(b.len() >= l4 + 8, "short L4")?;
    p.udp = protocol == 17;
    p.l4 = l4;
    p.flow += &format!("{protocol} {:?}", &b[l4..l4 + 4]);
    let field = if p.udp {
        p.header = l4 + 8;
        ensure(be16(b, l4 + 4) == b.len() - l4, "UDP length")?;
        be16(b, l4 + 6)
    } else {
        ensure(protocol == 6, "not TCP")?;
        ensure(b.len() >= l4 + 20, "short TCP")?;
        p.header = l4 + usize::from(b[l4 + 12] >> 4) * 4;
        p.seq = u32::from_be_bytes(b[l4 + 4..l4 + 8].try_into().unwrap());
        p.flags = b[l4 + 13];
        be16(b, l4 + 16)
    };
    ensure(b.len() >= p.header, "short options")?;
    p.payload = b[p.header..].to_vec();
    if want == Want::Pseudo {
        return ensure(field == usize::from(sum16(pseudo)), "partial checksum");
    }
    let absent = p.udp && field == 0;
    ensure(absent || sum16(&[pseudo, &b[l4..]].concat()) == 0xffff, "checksum")
}
